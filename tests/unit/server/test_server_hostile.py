"""Bodies that no sane client sends: always an answer, never a crash, nothing half-written."""

import json
import random
from typing import Any

import pytest
from server_cluster import APPLY, CLAIMS, MERGE, claim, pod, running_cluster
from test_server_custom_kinds import DEFINITIONS, WIDGETS, definition

ODD: list[Any] = [
    *(None, True, 0, -1, 2**63, 10**30, 1e308, 1.5, "", "x" * 300, "\u0000", "é", [], {}, [[]], [None]),
    *({"": None}, {"a": {"b": [1]}}, [{}], "2024-01-01T00:00:00Z", ["a", "a"]),
]


def spoiled(value: Any, chance: random.Random) -> Any:
    """Replace something somewhere inside by something odd."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        name = chance.choice(sorted(value))
        if chance.random() < 0.15:
            return {key: item for key, item in value.items() if key != name}
        return {**value, name: spoiled(value[name], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        place = chance.randrange(len(value))
        return [spoiled(item, chance) if index == place else item for index, item in enumerate(value)]
    return chance.choice(ODD)


@pytest.mark.parametrize("seed", range(4))
async def test_spoiled_objects_get_an_answer_and_the_stored_one_stays_readable(seed: int) -> None:
    chance = random.Random(seed)
    pods = "/api/v1/namespaces/default/pods"
    async with running_cluster() as client:
        for target, good in ((CLAIMS, claim("base", labels={"a": "b"})), (pods, pod("base"))):
            await client.call("POST", target, good)
            for _ in range(25):
                body = json.dumps(spoiled(spoiled(good, chance), chance)).encode()
                for method, path, content in (
                    ("POST", target, ""),
                    ("PUT", f"{target}/base", ""),
                    ("PATCH", f"{target}/base", MERGE),
                    ("PATCH", f"{target}/base/status", MERGE),
                    ("PATCH", f"{target}/base?fieldManager=m&force=true", APPLY),
                ):
                    answer = await client.call(method, path, body, content=content)
                    # Apply reports what does not fit the schema as 500 with its reason, as the reference does.
                    assert answer.code < 500 or answer.json["message"].startswith("failed to create typed"), (
                        body
                    )
                found = await client.call("GET", f"{target}/base")
                assert (found.code, found.json["metadata"]["name"]) == (200, "base")


async def test_huge_and_deep_numbers_lists_and_names_are_refused() -> None:
    async with running_cluster() as client:
        for body in (
            b'{"metadata":{"name":"a","generation":' + b"9" * 5000 + b"}}",
            b'{"metadata":{"name":"' + b"a" * 100_000 + b'"}}',
            b'{"spec":' + b'{"a":' * 5000 + b"1" + b"}" * 5001,
            b'{"metadata":{"labels":{' + b",".join(b'"k%d":"v"' % n for n in range(20_000)) + b"}}}",
        ):
            assert 400 <= (await client.call("POST", CLAIMS, body)).code < 500


async def test_requests_that_broke_the_server_once_are_answered() -> None:
    """Each was found by `make attack`, as a 500 with a traceback."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "spec": {"user": "x", "resourceAttributes": {"verb": "get"}},
    }
    accesses = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    float_in_metadata = {**review, "metadata": {"managedFields": [{"fieldsV1": 1e308}]}}
    null_extra = {**review, "spec": {**review["spec"], "extra": {"k": None}}}
    async with running_cluster() as client:
        for body in (float_in_metadata, null_extra):
            assert (await client.call("POST", accesses, body)).code == 201, body
        await client.call("POST", DEFINITIONS, definition())
        widget = {"apiVersion": "example.test/v1", "kind": "Widget", "metadata": -1, "spec": {"size": 1}}
        answer = await client.call("PATCH", f"{WIDGETS}/w?fieldManager=m", widget, content=APPLY)
        assert answer.json["message"].startswith("failed to create typed patch object")
