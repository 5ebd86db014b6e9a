"""A large body does not hold the event loop: while it is worked on, others are answered."""

import asyncio
import gc
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from server_cluster import APPLY, CLAIMS, JSON_PATCH, MERGE, STRATEGIC, claim, running_cluster

from dray.host.garbage import collect_in_small_steps
from dray.server.requests.worker_threads import LARGE, compute

CONFIGS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
BODY = 2_900_000  # bytes, a little less than the largest body that the server takes


class Heartbeat:
    """Ticks every 5 ms; knows how long the loop's own thread once worked between two ticks."""

    def __init__(self) -> None:
        self.longest_work = 0.0  # CPU seconds of this thread: what other programs do does not count
        self.longest_gap = 0.0  # seconds
        self.ticks = 0

    async def run(self) -> None:
        work, moment = time.thread_time(), time.perf_counter()
        while True:
            await asyncio.sleep(0.005)
            new_work, new_moment = time.thread_time(), time.perf_counter()
            self.longest_work = max(self.longest_work, new_work - work)
            self.longest_gap = max(self.longest_gap, new_moment - moment)
            work, moment = new_work, new_moment
            self.ticks += 1


@pytest.fixture(autouse=True)
def _collected_as_in_the_server() -> Iterator[None]:
    before = gc.get_threshold()
    gc.freeze()
    collect_in_small_steps()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def config(**metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", **metadata}}


def filled(item: str, joined: str, *, head: str, tail: str) -> bytes:
    """Return a body of about the largest size: a head, numbered items and a tail."""
    room = BODY - len(head) - len(tail)
    items, size = [], 0
    while size < room:
        items.append(item.replace("%", str(len(items))))
        size += len(items[-1]) + len(joined)
    return (head + joined.join(items[:-1]) + tail).encode()


CONFIG = '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"}'
POD = '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"x"'
BODIES = {
    "members": ("POST", CONFIGS, filled('"k%":"v"', ",", head=CONFIG + ',"data":{', tail="}}"), ""),
    "repeated members": ("POST", CONFIGS, filled('"k":"%"', ",", head=CONFIG + ',"data":{', tail="}}"), ""),
    "unknown members": ("POST", CONFIGS, filled('"k%":1', ",", head=CONFIG + ",", tail="}"), ""),
    "yaml": ("POST", CONFIGS, filled(" k%: v", "\n", head="kind: ConfigMap\napiVersion: v1\nmetadata: {name: c}\ndata:\n",
                                     tail="\n"), "application/yaml"),
    "yaml list": ("POST", CONFIGS, filled("%", ",", head="x: [", tail="]"), "application/yaml"),
    "variables": ("POST", PODS, filled('{"name":"E%","value":"x"}', ",", head=POD + ',"env":[', tail="]}]}}"), ""),
    "review": ("POST", REVIEWS, filled('"k%":1', ",", head="{", tail="}"), ""),
    "review in yaml": ("POST", REVIEWS, filled("k%: 1", "\n", head="", tail="\n"), "application/yaml"),
    "delete options": ("DELETE", f"{CONFIGS}/c", filled('"k%":1', ",", head="{", tail="}"), ""),
    "merge patch": ("PATCH", f"{CONFIGS}/c", filled('"k%":"v"', ",", head='{"data":{', tail="}}"), MERGE),
    "strategic patch": ("PATCH", f"{CONFIGS}/c", filled('"k%":"v"', ",", head='{"data":{', tail="}}"), STRATEGIC),
    "json patch": ("PATCH", f"{CONFIGS}/c", filled('{"op":"test","path":"/metadata/name","value":"c"}', ",", head="[",
                                                    tail="]"), JSON_PATCH),
    "copies": ("PATCH", f"{CONFIGS}/c", json.dumps([{"op": "copy", "from": "/data", "path": f"/data/c{n}"}
                                                     for n in range(40)]).encode(), JSON_PATCH),
    "apply": ("PATCH", f"{CONFIGS}/c?fieldManager=m&force=true",
              filled('"k%":"v"', ",", head=CONFIG + ',"data":{', tail="}}"), APPLY),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
async def test_no_body_holds_the_loop(name: str) -> None:
    method, target, body, content = BODIES[name]
    assert len(body) <= 3 * 1024 * 1024
    async with running_cluster() as client:
        first = await client.call("POST", CONFIGS, config() | {"data": {"a": "b"}})
        assert first.code == 201
        if method == "POST":
            await client.call("DELETE", f"{CONFIGS}/c")
        await client.call("POST", CLAIMS, claim("other"))
        heartbeat = Heartbeat()
        beating = asyncio.create_task(heartbeat.run())
        await asyncio.sleep(0.02)
        answer = await client.call(method, target, body, content=content)
        await asyncio.sleep(0.02)  # the tick that was held back, if one was
        beating.cancel()
        assert answer.code < 500, answer.body[:300]
        # Far more than is measured (see docs/server.md) and far less than all of the work takes.
        assert heartbeat.longest_work < 0.25, f"{heartbeat.longest_gap * 1000:.0f} ms between two ticks"


async def test_others_are_answered_while_a_large_body_is_read() -> None:
    method, target, body, content = BODIES["yaml"]
    async with running_cluster() as client:
        await client.call("POST", CLAIMS, claim("c"))
        large = asyncio.create_task(client.call(method, target, body, content=content))
        n_answered = 0
        while not large.done():
            await asyncio.sleep(0.001)
            assert (await client.call("GET", f"{CLAIMS}/c")).code == 200
            n_answered += 1
        assert (await large).code in (201, 413)  # with its managedFields it may be too large to store
        assert n_answered > 10


async def test_small_requests_need_no_thread() -> None:
    import threading

    here = threading.get_ident()
    assert await compute(LARGE - 1, threading.get_ident) == here
    assert await compute(LARGE, threading.get_ident) != here


@pytest.mark.parametrize("path", ["/openapi/v2", "/openapi/v3", "/openapi/v3/api/v1"])
async def test_making_openapi_documents_does_not_hold_the_loop(path: str) -> None:
    async with running_cluster() as client:
        await client.call("GET", "/version")
        heartbeat = Heartbeat()
        beating = asyncio.create_task(heartbeat.run())
        await asyncio.sleep(0.02)
        answers = await asyncio.gather(*(client.call("GET", path) for _ in range(3)))
        await asyncio.sleep(0.02)
        beating.cancel()
        assert [answer.code for answer in answers] == [200] * 3
        assert heartbeat.longest_work < 0.05
