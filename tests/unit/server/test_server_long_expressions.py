"""The event loop beats on while objects with long expressions are judged.

What is measured is the processor time that the loop's own thread spends between two beats: a busy
machine makes beats late, but does not add to that.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from server_cluster import CLAIMS, running_cluster

CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
LIMIT = 0.1  # seconds


@asynccontextmanager
async def heartbeat() -> AsyncIterator[list[float]]:
    """Measure the longest time that the loop's thread worked between two beats; [0] is the result."""
    longest = [0.0]

    async def beat() -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0.002)
            now = time.thread_time()
            longest[0] = max(longest[0], now - last)
            last = now

    task = asyncio.create_task(beat())
    await asyncio.sleep(0.02)
    try:
        yield longest
    finally:
        await asyncio.sleep(0.01)
        task.cancel()


def device_class(selectors: list[str]) -> dict[str, Any]:
    spec = {"selectors": [{"cel": {"expression": text}} for text in selectors]}
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "c"}, "spec": spec,
    }  # fmt: skip


def claim(selectors_by_request: list[list[str]]) -> dict[str, Any]:
    requests = [
        {
            "name": f"r{number}",
            "exactly": {
                "deviceClassName": "c",
                "selectors": [{"cel": {"expression": text}} for text in selectors],
            },
        }
        for number, selectors in enumerate(selectors_by_request)
    ]
    spec = {"devices": {"requests": requests}}
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": spec,
    }  # fmt: skip


def whole(text: str) -> str:
    """Cut an expression at its last operator."""
    return text[:9900].rpartition(" || ")[0]


def wide(number: int) -> str:
    return whole(" || ".join([f"{number} == 3", *['1 + 2 * 3 < 9 && "a" == "b"'] * 500]))


@pytest.mark.parametrize("kind", ["class", "claim", "invalid", "copies"])
async def test_an_object_full_of_long_expressions_does_not_hold_the_loop(kind: str) -> None:
    texts = [wide(number) for number in range(32)]
    target, body, code = CLASSES, device_class(texts), 201
    if kind == "claim":
        target, body = CLAIMS, claim([[wide(100 + 8 * i + j) for j in range(8)] for i in range(4)])
    elif kind == "invalid":
        body, code = device_class([f"{text} || nonsense" for text in texts]), 422
    elif kind == "copies":  # short, but each link doubles the tree
        chain = "optional.of(1)" + ".optMap(x, x)" * 9 + ".hasValue()"
        body = device_class([f"{chain} || {number} == 1" for number in range(8)])
    async with running_cluster() as client:
        await client.call("POST", CLASSES, {**device_class(["true"]), "metadata": {"name": "first"}})
        async with heartbeat() as longest:
            answer = await client.call("POST", target, body)
        assert answer.code == code, answer.body[:500]
        assert longest[0] < LIMIT
        if kind == "class":
            async with heartbeat() as longest:
                changed = {**body, "metadata": answer.json["metadata"]}
                changed["spec"] = {"selectors": [{"cel": {"expression": wide(500 + n)}} for n in range(32)]}
                answer = await client.call("PUT", f"{CLASSES}/c", changed)
            assert answer.code == 200, answer.body[:500]
            assert longest[0] < LIMIT


# Above the limit by estimate, and failing when it runs: what only the interpreter can evaluate, slowly.
TEN = "[0,1,2,3,4,5,6,7,8,9]"
TOO_DEAR = f"{TEN}.all(a, {TEN}.all(b, {TEN}.all(c, {TEN}.all(d, {TEN}.all(e, {TEN}.all(f, 1 / (a - a) == 1 || b >= 0))))))"


def with_expression(place: str, expression: str) -> tuple[str, dict[str, Any]]:
    """Return path and body of an object with an expression at a place."""
    selectors = [{"cel": {"expression": expression}}]
    wanted: dict[str, Any] = {"deviceClassName": "c", "selectors": selectors}
    constraints = []
    if place == "derived attribute":
        wanted = {
            "deviceClassName": "c",
            "derivedAttributes": [{"name": "x.example.com/a", "expression": expression}],
        }
        constraints = [{"requests": ["r"], "matchAttribute": "x.example.com/a"}]
    request: dict[str, Any] = {"name": "r", "exactly": wanted}
    if place == "subrequest":
        request = {"name": "r", "firstAvailable": [{"name": "s", **wanted}]}
    spec = {"devices": {"requests": [request], "constraints": constraints}}
    head = {"apiVersion": "resource.k8s.io/v1", "metadata": {"name": "x"}}
    if place == "class":
        return CLASSES, {**head, "kind": "DeviceClass", "spec": {"selectors": selectors}}
    if place == "template":
        path = CLAIMS.replace("resourceclaims", "resourceclaimtemplates")
        return path, {**head, "kind": "ResourceClaimTemplate", "spec": {"spec": spec}}
    return CLAIMS, {**head, "kind": "ResourceClaim", "spec": spec}


@pytest.mark.parametrize("place", ["class", "claim", "subrequest", "template", "derived attribute"])
async def test_an_expression_above_the_cost_limit_enters_nowhere(place: str) -> None:
    async with running_cluster() as client:
        answer = await client.call("POST", *with_expression(place, TOO_DEAR))
        assert answer.code == 422, answer.body
        assert "too complex, exceeds cost limit" in str(answer.body)
        path, body = with_expression(place, "true")
        assert (await client.call("POST", path, body)).code == 201
        _, worse = with_expression(place, TOO_DEAR)
        answer = await client.call("PUT", f"{path}/x", worse)
        assert answer.code == 422, "nor by an update"
