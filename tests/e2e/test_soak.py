"""`dray up` under a light load for an hour: the memory, descriptors and store of every part stay where they were.

Every two seconds a pod with a claim of its own is made, run as a process and deleted again when it has ended; now and then a
client lists everything, opens a watch and hangs up. What each part holds is read twelve times; the first quarter is
the time in which caches fill, so growth is counted from its end.

`DRAY_SOAK_MINUTES` chooses the length of the long run.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from test_cli_up import Running
from test_pauses_of_parts import parts_of

from dray.client import Client, NotFound
from dray.client import resources as kinds

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from attack.verdict import MOST_GROWTH

MINUTES = float(os.environ.get("DRAY_SOAK_MINUTES", "60"))
READINGS = 12
FIRST = READINGS // 4  # the reading that growth is counted from
PERIOD = 2.0  # seconds between two pods
NAMESPACE = "default"
MOST_DESCRIPTORS = 20  # that a part may have more at the end than after the first quarter
MOST_STORE = 64.0  # MB on disk: old revisions are dropped (10,000 are kept)
PATIENCE = 120.0  # seconds for one pod; only a machine that hardly runs needs them


def template():
    spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}
    return {"metadata": {"name": "soak"}, "spec": {"spec": spec}}


def pod(name):
    container = {
        "name": "c",
        "image": "busybox",
        "command": ["sh", "-c", "echo $PWD"],
        "resources": {"claims": [{"name": "gpu"}]},
    }
    return {
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "containers": [container],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "soak"}],
        },
    }


async def one_pod(client, name):
    """Make a pod, wait until it has run, delete it, wait until it is gone."""
    await client.create(kinds.PODS, pod(name), NAMESPACE)
    async with asyncio.timeout(PATIENCE):
        while True:
            phase = (await client.get(kinds.PODS, name, NAMESPACE)).get("status", {}).get("phase")
            assert phase != "Failed", name
            if phase == "Succeeded":
                break
            await asyncio.sleep(0.2)
        await client.delete(kinds.PODS, name, NAMESPACE)
        with contextlib.suppress(NotFound):
            while await client.get(kinds.PODS, name, NAMESPACE):
                await asyncio.sleep(0.2)


async def look_around(kubeconfig):
    """Do as a person with kubectl does: a new connection, a few lists, a watch that is left."""
    async with Client.connect(kubeconfig) as client:
        for kind in (kinds.PODS, kinds.CLAIMS, kinds.SLICES, kinds.EVENTS, kinds.NODES):
            await client.list(kind)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                async for _ in client.watch(kinds.PODS, resourceVersion="0"):
                    pass


async def load(kubeconfig, end, done):
    """Run one pod every two seconds, several at a time when they take longer, until the end."""
    running, number = set(), 0
    async with Client.connect(kubeconfig) as client:
        await client.create(kinds.CLAIM_TEMPLATES, template(), NAMESPACE)
        while time.monotonic() < end:
            next_one = time.monotonic() + PERIOD
            if len(running) < 8:
                number += 1
                running.add(asyncio.create_task(one_pod(client, f"soak-{number}")))
            if number % 15 == 1:
                running.add(asyncio.create_task(look_around(kubeconfig)))
            await asyncio.sleep(max(0.0, next_one - time.monotonic()))
            for task in [each for each in running if each.done()]:
                running.discard(task)
                task.result()
                done.append(task)
        for task in running:
            await task
            done.append(task)
        left = await client.list(kinds.CLAIMS, NAMESPACE)
        async with asyncio.timeout(PATIENCE):
            while left.items:
                await asyncio.sleep(0.5)
                left = await client.list(kinds.CLAIMS, NAMESPACE)


def reading_of(parts, data):
    """Return MB and descriptors of every part, and the MB of the store."""
    seen = {"store": (sum(each.stat().st_size for each in data.rglob("store.db*")) / 1e6, 0)}
    for name, pid in parts.items():
        status = Path(f"/proc/{pid}/statm").read_text().split()
        resident = int(status[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
        seen[name] = (resident, len(os.listdir(f"/proc/{pid}/fd")))
    return seen


def problems_of(readings):
    """Return what has grown too much between the first quarter and the end."""
    first, last = readings[FIRST], readings[-1]
    found = []
    for name, (megabytes, descriptors) in last.items():
        if megabytes - first[name][0] > MOST_GROWTH:
            found.append(f"{name} grew from {first[name][0]:.0f} to {megabytes:.0f} MB")
        if descriptors - first[name][1] > MOST_DESCRIPTORS:
            found.append(f"{name} had {first[name][1]} descriptors open and now has {descriptors}")
    if last["store"][0] > MOST_STORE:
        found.append(f"the store has {last['store'][0]:.0f} MB")
    return found


async def soak(system, minutes):
    kubeconfig = system.data / "admin.kubeconfig"
    parts, readings, done = parts_of(system.process.pid), [], []
    assert {"server", "scheduler", "controllers"} <= set(parts), parts
    began = time.monotonic()
    end = began + minutes * 60
    loading = asyncio.create_task(load(kubeconfig, end, done))
    for number in range(1, READINGS + 1):
        await asyncio.sleep(max(0.0, began + minutes * 60 * number / READINGS - time.monotonic()))
        readings.append(reading_of(parts, system.data))
        shown = ", ".join(f"{name} {mb:.1f} MB {fds}" for name, (mb, fds) in readings[-1].items())
        print(f"{(time.monotonic() - began) / 60:5.1f} min, {len(done)} done: {shown}", flush=True)
        if loading.done():
            break
    await loading
    return readings, done


@pytest.fixture
def up(tmp_path):
    system = Running(tmp_path)
    yield system
    system.process.send_signal(signal.SIGINT)
    _, err = system.process.communicate(timeout=120)
    assert "Traceback" not in err


async def test_a_few_seconds_of_load_leave_nothing_behind(up):
    readings, done = await soak(up, 0.2)
    assert (len(readings), problems_of(readings)) == (READINGS, [])
    assert len(done) >= 3


@pytest.mark.heavy
async def test_an_hour_of_load_leaves_memory_flat(up):
    readings, done = await soak(up, MINUTES)
    assert (len(readings), problems_of(readings)) == (READINGS, [])
    assert len(done) > MINUTES * 60 / PERIOD / 2


def test_growth_is_noticed():
    flat = {"server": (100.0, 30), "store": (5.0, 0)}
    assert problems_of([flat] * READINGS) == []
    grown = [{**flat, "server": (100.0 + MOST_GROWTH + 1, 30)}, {**flat, "server": (100.0, 60)}]
    for last in [*grown, {**flat, "store": (MOST_STORE + 1, 0)}]:
        assert len(problems_of([*[flat] * (READINGS - 1), last])) == 1
