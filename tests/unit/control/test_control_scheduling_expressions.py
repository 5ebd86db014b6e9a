"""Slow expressions and endless searches of one claim neither hold the scheduler's event loop nor the other pods.

What is measured is the processor time that the loop's own thread spends between two beats: a busy
machine makes beats late, but does not add to that.
"""

import asyncio
import random
import time
from contextlib import asynccontextmanager

import pytest
from conditions import until
from small_api import SmallApi

from dray.control.scheduling import SchedulerOptions, SchedulingLoop

DRIVER = "gpu.example.com"
N_DEVICES = 40
LIMIT = 0.1  # seconds
TEN = "[0,1,2,3,4,5,6,7,8,9]"
INDEX = f'device.attributes["{DRIVER}"].index'
# Near the cost limit, and different for every device.
SLOW = f"{TEN}.all(a, {TEN}.all(b, {TEN}.all(c, {TEN}.all(d, [0,1,2,3,4,5].all(e, a+b+c+d+e >= 0))))) && {INDEX} >= "
FAILING = f"{TEN}.all(a, {TEN}.all(b, {TEN}.all(c, {TEN}.all(d, 1 / (a - a) == 1 || b >= 0)))) && {INDEX} >= "
LONG = " && ".join(["1 + 2 * 3 < 9"] * 550) + f" && {INDEX} >= "


@asynccontextmanager
async def heartbeat():
    longest = [0.0]

    async def beat():
        last = time.thread_time()
        while True:
            await asyncio.sleep(0.002)
            now = time.thread_time()
            longest[0] = max(longest[0], now - last)
            last = now

    task = asyncio.create_task(beat())
    await asyncio.sleep(0.02)
    yield longest
    await asyncio.sleep(0.01)
    task.cancel()


def claim(name, expressions, count=1, distinct=()):
    exactly = {
        "deviceClassName": "gpu",
        "allocationMode": "ExactCount",
        "count": count,
        "selectors": [{"cel": {"expression": text}} for text in expressions],
    }
    constraints = [{"distinctAttribute": f"{DRIVER}/{each}"} for each in distinct]
    return {
        "metadata": {"name": name, "namespace": "n"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}], "constraints": constraints}},
    }


def pod(name, priority=0, group=None):
    return {
        "metadata": {"name": name, "namespace": "n"},
        "spec": {
            "schedulerName": "dray",
            "priority": priority,
            "schedulingGroup": {"podGroupName": group} if group else None,
            "containers": [{"name": "c", "image": "x"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
        },
        "status": {"phase": "Pending"},
    }


async def create(client, path, body):
    await client.call("POST", path, body)


def numbered():
    return [{"name": f"gpu-{n}", "attributes": {"index": {"int": n}}} for n in range(N_DEVICES)]


def puzzle(size=16):
    """Devices of which no choice of `size` differs in all three attributes; to see that takes some seven seconds."""
    chance = random.Random(2)
    return [
        {"name": f"g{index:02}", "attributes": {name: {"int": chance.randrange(size)} for name in "abc"}}
        for index in range(4 * size)
    ]


@asynccontextmanager
async def scheduler(devices=None, **options):
    api = SmallApi()
    client = api.client()
    resource = "/apis/resource.k8s.io/v1"
    node = {
        "metadata": {"name": "one"},
        "status": {
            "allocatable": {"cpu": "8", "memory": "32Gi", "pods": "500"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    await create(client, "/api/v1/nodes", node)
    await create(client, f"{resource}/deviceclasses", {"metadata": {"name": "gpu"}, "spec": {}})
    pool = {"name": "one", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": "one", "pool": pool, "devices": devices or numbered()}
    await create(client, f"{resource}/resourceslices", {"metadata": {"name": "s"}, "spec": spec})
    loop = SchedulingLoop(client, SchedulerOptions(**options))
    task = asyncio.create_task(loop.run())
    await asyncio.wait_for(loop.is_ready.wait(), 30)
    yield api, client, loop
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def bound(api):
    """Return the names of bound pods, in order."""
    paths = [request.split(" ")[1] for request in api.requests if request.endswith("/binding")]
    return [path.split("/")[-2] for path in paths]


async def schedule(api, client, name, expressions, priority=0, **wanted):
    path = "/apis/resource.k8s.io/v1/namespaces/n/resourceclaims"
    await create(client, path, claim(name, expressions, **wanted))
    await create(client, "/api/v1/namespaces/n/pods", pod(name, priority))


def message(api, name):
    """Return why a pod is unschedulable, empty while it was not told."""
    conditions = api.objects[f"/api/v1/namespaces/n/pods/{name}"].get("status", {}).get("conditions") or []
    return next((each["message"] for each in conditions if each["reason"] == "Unschedulable"), "")


@pytest.mark.parametrize("slow", [SLOW, FAILING, LONG], ids=["limit", "failing", "long"])
async def test_slow_selectors_do_not_hold_the_loop_and_others_go_first(slow):
    async with scheduler() as (api, client, loop):
        await schedule(api, client, "first", ["true"])
        await until(lambda: bound(api) == ["first"])
        async with heartbeat() as longest:
            # Only the last device fits, so all are looked at.
            await schedule(api, client, "slow", [f"{slow}{N_DEVICES - 1}"])
            await asyncio.sleep(0.02)
            await schedule(api, client, "quick", [f"{INDEX} >= 3"])
            await until(lambda: len(bound(api)) == 3)
        assert bound(api) == ["first", "quick", "slow"]
        assert longest[0] < LIMIT
        assert loop.statistics.placed == 3


async def test_a_pod_refused_by_a_slow_selector_is_told_so():
    async with scheduler() as (api, client, _loop):
        async with heartbeat() as longest:
            await schedule(api, client, "slow", [f"{SLOW}{N_DEVICES}"])
            await until(lambda: message(api, "slow"))
        assert longest[0] < LIMIT


async def test_a_pod_that_leaves_while_its_selectors_are_evaluated_is_forgotten():
    async with scheduler() as (api, client, loop):
        await schedule(api, client, "slow", [f"{SLOW}{N_DEVICES - 1}"])
        await asyncio.sleep(0.05)
        await client.call("DELETE", "/api/v1/namespaces/n/pods/slow")
        await schedule(api, client, "next", ["true"])
        await until(lambda: bound(api) == ["next"])
        await asyncio.sleep(0.5)
        assert bound(api) == ["next"]
        assert loop.statistics.placed == 1


async def test_a_search_without_end_holds_neither_the_loop_nor_others():
    async with scheduler(puzzle(), filter_timeout=0.5) as (api, client, _loop):
        async with heartbeat() as longest:
            await schedule(api, client, "hard", ["true"], count=16, distinct="abc")
            await asyncio.sleep(0.02)
            await schedule(api, client, "easy", ["true"])
            await until(lambda: bound(api) == ["easy"])
            assert not message(api, "hard"), "it is still being searched for while the other is bound"
            await until(lambda: message(api, "hard"))
        assert longest[0] < LIMIT
        assert "gave up" in message(api, "hard")


@pytest.mark.parametrize("slow", [SLOW, LONG], ids=["limit", "long"])
async def test_preemption_for_slow_selectors_does_not_hold_the_loop(slow):
    async with scheduler() as (api, client, loop):
        await schedule(api, client, "low", ["true"], count=32)
        await schedule(api, client, "lower", ["true"], count=N_DEVICES - 32)
        await until(lambda: len(bound(api)) == 2)
        async with heartbeat() as longest:
            await schedule(api, client, "high", [f"{slow}0"], priority=100)
            await until(lambda: loop.statistics.preemptions)
        assert longest[0] < LIMIT
        assert loop.statistics.preemptions == 1


async def test_preemption_whose_searches_have_no_end_does_not_hold_the_loop():
    async with scheduler(puzzle(), filter_timeout=0.5) as (api, client, loop):
        await schedule(api, client, "low", ["true"], count=1)
        await schedule(api, client, "lower", ["true"], count=1)
        await until(lambda: len(bound(api)) == 2)
        async with heartbeat() as longest:
            await schedule(api, client, "high", ["true"], priority=100, count=16, distinct="abc")
            await until(lambda: message(api, "high"))
        assert longest[0] < LIMIT
        assert loop.statistics.preemptions == 0
