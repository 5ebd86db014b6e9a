"""One bound of depth: what is accepted can be patched, compared, stored, shown and read; all else is refused."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from server_cluster import APPLY, CLAIMS, JSON_PATCH, MERGE, STRATEGIC, Client, claim, running_cluster

from dray.api.parsing import MAX_DEPTH, depth_of, load_yaml
from dray.client.api_client import decoder_of

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
THINGS = "/apis/example.test/v1/namespaces/default/things"
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "things.example.test"},
    "spec": {
        "group": "example.test",
        "scope": "Namespaced",
        "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {
            "type": "object", "x-kubernetes-preserve-unknown-fields": True}}}],
    },
}  # fmt: skip
DEEPEST_ACCEPTED = MAX_DEPTH - 6  # managedFields repeat the members of an object some levels further down


def nested(depth: int, leaf: Any = "x") -> Any:
    value = leaf
    for _ in range(depth):
        value = {"a": value}
    return value


def nested_lists(depth: int) -> Any:
    value: Any = "x"
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


def thing(depth: int, name: str = "t", leaf: Any = "x") -> dict[str, Any]:
    """Return an object that has so many levels."""
    return {
        "apiVersion": "example.test/v1",
        "kind": "Thing",
        "metadata": {"name": name},
        "spec": nested(depth - 1, leaf),
        "lists": nested_lists(depth - 1),
    }


def with_little_stack(test: Callable[[Client], Awaitable[None]]) -> None:
    """Run a test of a server with 150 calls on the stack already, more than the real server has."""

    async def run() -> None:
        async with running_cluster() as client:
            await client.call("POST", DEFINITIONS, DEFINITION)
            await test(client)

    def call(frames: int) -> None:
        if frames:
            call(frames - 1)
        else:
            asyncio.run(run())

    call(150)


def changes(depth: int) -> list[tuple[str, str, Any, str]]:
    """Return all ways to write an object of a depth over one that is there."""
    path = "/spec"
    return [
        ("PUT", f"{THINGS}/t", None, ""),
        ("PATCH", f"{THINGS}/t", {"spec": nested(depth - 1, "merged")}, MERGE),
        (
            "PATCH",
            f"{THINGS}/t",
            [{"op": "add", "path": path, "value": nested(depth - 1, "added")}],
            JSON_PATCH,
        ),
        (
            "PATCH",
            f"{THINGS}/t",
            [
                {"op": "copy", "from": path, "path": "/copied"},
                {"op": "move", "from": "/copied", "path": "/moved"},
            ],
            JSON_PATCH,
        ),
        (
            "PATCH",
            f"{THINGS}/t",
            [{"op": "test", "path": path, "value": nested(depth - 1, "added")}],
            JSON_PATCH,
        ),
        ("PATCH", f"{THINGS}/t?fieldManager=a&force=true", thing(depth, leaf="applied"), APPLY),
        ("PATCH", f"{THINGS}/t?fieldManager=b&force=true", thing(depth, leaf="applied again"), APPLY),
        ("PATCH", f"{THINGS}/t?fieldManager=a&force=true", thing(2), APPLY),
    ]


def test_an_object_of_the_greatest_depth_can_be_written_in_every_way_and_read_again() -> None:
    async def check(client: Client) -> None:
        depth = DEEPEST_ACCEPTED
        assert (await client.call("POST", THINGS, thing(depth))).code == 201
        text = json.dumps(thing(depth, "y")).encode()  # JSON is YAML
        assert (await client.call("POST", THINGS, text, content="application/yaml")).code == 201
        for method, target, body, content in changes(depth):
            if body is None:
                body = (await client.call("GET", target)).json
                assert depth_of(body) > depth  # its managedFields are deeper, and come back with it
                body["spec"] = nested(depth - 1, "put")
            answer = await client.call(method, target, body, content=content)
            assert answer.code == 200, (method, content, answer.body[:300])
            await check_readable(client)

    async def check_readable(client: Client) -> None:
        found = await client.call("GET", f"{THINGS}/t")
        assert depth_of(found.json) <= MAX_DEPTH
        assert decoder_of(dict).decode(found.body) == found.json
        shown = await client.call("GET", f"{THINGS}/t", accept="application/yaml")
        assert load_yaml(shown.body) == found.json
        assert (await client.call("GET", THINGS, accept="application/yaml")).code == 200
        assert (await client.call("GET", f"{THINGS}?labelSelector=!a")).code == 200
        table = "application/json;as=Table;v=v1;g=meta.k8s.io"
        assert (await client.call("GET", THINGS, accept=table)).code == 200
        [event] = await client.watch(f"{THINGS}?watch=1&fieldSelector=metadata.name=t", 1, 5)
        assert event["object"] == found.json

    with_little_stack(check)


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 500, 700])
def test_a_deeper_object_is_refused_by_every_way_to_write(depth: int) -> None:
    async def check(client: Client) -> None:
        for content in ("", "application/yaml"):
            answer = await client.call("POST", THINGS, thing(depth), content=content)
            assert answer.code == 400, answer.body[:300]
            assert "max depth" in answer.json["message"] or "levels deep" in answer.json["message"]
        assert (await client.call("POST", THINGS, thing(100))).code == 201
        before = (await client.call("GET", f"{THINGS}/t")).json
        for method, target, body, content in changes(depth):
            body = {**thing(depth), "metadata": before["metadata"]} if body is None else body
            if body == thing(2) or (content == JSON_PATCH and "value" not in body[0]):
                continue
            answer = await client.call(method, target, body, content=content)
            assert answer.code in (400, 422), (method, content, answer.code, answer.body[:300])
        assert (await client.call("GET", f"{THINGS}/t")).json == before

    with_little_stack(check)


@pytest.mark.parametrize("depth", [MAX_DEPTH - 2, MAX_DEPTH])
def test_an_object_whose_managed_fields_would_be_deeper_is_refused_or_kept_within_the_bound(
    depth: int,
) -> None:
    async def check(client: Client) -> None:
        answer = await client.call("POST", THINGS, thing(depth))
        assert (answer.code, answer.json["reason"]) == (400, "BadRequest")
        assert "managedFields nest more than 200 levels deep" in answer.json["message"]
        await client.call("POST", THINGS, thing(100))
        for method, target, body, content in changes(depth):
            body = (
                (await client.call("GET", target)).json | {"spec": nested(depth - 1)}
                if body is None
                else body
            )
            answer = await client.call(method, target, body, content=content)
            assert answer.code in (200, 400, 422), (method, content, answer.body[:300])
            assert depth_of((await client.call("GET", f"{THINGS}/t")).json) <= MAX_DEPTH
            assert (await client.call("GET", f"{THINGS}/t", accept="application/yaml")).code == 200

    with_little_stack(check)


def test_patches_cannot_add_up_to_a_deeper_object() -> None:
    async def check(client: Client) -> None:
        await client.call("POST", THINGS, thing(100))
        deeper = [{"op": "copy", "from": "/spec", "path": "/spec/b"}] * 10
        for body, content in (
            (deeper, JSON_PATCH),
            ([{"op": "add", "path": "/spec" + "/a" * 60, "value": nested(195)}], JSON_PATCH),
        ):
            answer = await client.call("PATCH", f"{THINGS}/t", body, content=content)
            assert answer.code in (200, 400, 422)
            assert depth_of((await client.call("GET", f"{THINGS}/t")).json) <= MAX_DEPTH

    with_little_stack(check)


def test_parameters_of_a_driver_are_bounded_with_the_claim_that_holds_them() -> None:
    def with_parameters(depth: int, name: str) -> dict[str, Any]:
        body = claim(name)
        opaque = {"driver": "d.example.com", "parameters": nested(depth)}
        body["spec"]["devices"]["config"] = [{"opaque": opaque}]
        return body

    async def check(client: Client) -> None:
        for depth in (100, 150, 180):
            name = f"c{depth}"
            # Without blanks: a strategic patch writes parameters anew, and a claim's spec may not change.
            body = json.dumps(with_parameters(depth, name), separators=(",", ":")).encode()
            assert (await client.call("POST", CLAIMS, body)).code == 201
            labels = {"metadata": {"labels": {"a": "b"}}}
            for content in (MERGE, STRATEGIC):
                assert (await client.call("PATCH", f"{CLAIMS}/{name}", labels, content=content)).code == 200
            step = [
                {"op": "test", "path": "/spec/devices/config/0/opaque/parameters", "value": nested(depth)}
            ]
            assert (await client.call("PATCH", f"{CLAIMS}/{name}", step, content=JSON_PATCH)).code == 200
            applied = await client.call(
                "PATCH",
                f"{CLAIMS}/{name}?fieldManager=m&force=true",
                with_parameters(depth, name),
                content=APPLY,
            )
            assert applied.code == 200
            shown = await client.call("GET", f"{CLAIMS}/{name}", accept="application/yaml")
            assert load_yaml(shown.body)["spec"]["devices"]["config"][0]["opaque"]["parameters"] == nested(
                depth
            )
            old = await client.call("GET", f"{CLAIMS.replace('/v1/', '/v1beta1/')}/{name}")
            assert old.code == 200
        for depth in (198, 300, 600):
            for content in ("", "application/yaml"):
                answer = await client.call("POST", CLAIMS, with_parameters(depth, "deep"), content=content)
                assert answer.code == 400, (depth, answer.body[:200])

    with_little_stack(check)


@pytest.mark.parametrize("body", [b"[" * 40_000, b'{"a":' * 40_000, b"- " * 40_000])
@pytest.mark.parametrize(
    "content", ["application/json", "application/yaml", MERGE, STRATEGIC, JSON_PATCH, APPLY]
)
async def test_a_body_of_brackets_is_a_bad_request_for_everybody(body: bytes, content: str) -> None:
    reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    async with running_cluster() as client:
        await client.call("POST", CLAIMS, claim("c"))
        if "patch" in content:
            answer = await client.call("PATCH", f"{CLAIMS}/c?fieldManager=m", body, content=content)
        else:
            assert (await client.call("DELETE", f"{CLAIMS}/c", body, content=content)).code == 400
            answer = await client.call("POST", reviews, body, content=content, token="guest")
        assert answer.code == 400, answer.body[:300]
