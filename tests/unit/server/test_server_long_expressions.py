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
