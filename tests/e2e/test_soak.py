"""`dray up` under a light load for an hour: the memory, descriptors and store of every part stay where they were.

Every two seconds a pod with a claim of its own is made, run as a process and deleted again when it has ended; now and then a
client lists everything, opens a watch and hangs up. What each part holds is read twelve times; the first quarter is
the time in which caches fill, so growth is counted from its end.

`DRAY_SOAK_MINUTES` chooses the length of the long run.

Resident memory says little in a short time, because it contains caches that fill and pieces that the C library keeps. So the
short test counts what each process holds (`heap_probe`) after each of two equal rounds of pods: what grows by one object
for each pod in both rounds is a leak, unless it is one of the tables below, whose bound is larger than the rounds.
"""

import asyncio
import contextlib
import itertools
import json
import os
import shutil
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
ROUND = 40  # pods
WIDTH = 10  # at a time
PER_POD = 0.9  # objects of one type; a leak is at least one
# The server is left out: what it remembers of paths, objects and revisions fills for thousands of pods. `attack` compares its
# memory over a million requests.
LEFT_OUT = {"server"}
BOUNDED = {"scheduler": {"dray.client.events._Known"}}  # events whose count may grow: 4,096
# Python's blocks that a part may keep for a pod: about three times what was measured (10.7, 2.2 and 1.2). These are the events
# above, and uids of objects that are gone (8,192 of each kind).
MOST_BLOCKS = {"scheduler": 35.0}
OTHER_BLOCKS = 15.0


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


def leaks_of(readings, pods):
    """Return what has grown by one for each pod, in every one of the rounds between readings of one part or more."""
    found = []
    for part in readings[0]:
        rounds = [(one[part], two[part]) for one, two in itertools.pairwise(readings)]
        for name in readings[-1][part]["types"]:
            growth = [two["types"].get(name, 0) - one["types"].get(name, 0) for one, two in rounds]
            if min(growth) >= PER_POD * pods and name not in BOUNDED.get(part, ()):
                found.append(f"{part}: {name} grew by {growth} in rounds of {pods} pods")
        blocks = [two["blocks"] - one["blocks"] for one, two in rounds]
        if min(blocks) > pods * MOST_BLOCKS.get(part, OTHER_BLOCKS):
            found.append(f"{part}: allocated blocks grew by {blocks} in rounds of {pods} pods")
    return found


async def counts_of(parts, folder):
    """Ask every part what it holds."""
    for pid in parts.values():
        (folder / f"{pid}.json").unlink(missing_ok=True)
        os.kill(pid, signal.SIGUSR2)
    found = {}
    async with asyncio.timeout(PATIENCE):
        for name, pid in parts.items():
            path = folder / f"{pid}.json"
            while not path.exists():
                await asyncio.sleep(0.05)
            found[name] = json.loads(path.read_text())
    return found


async def one_round(client, number):
    """Run so many pods, a few at a time; afterwards nothing of them is left in the API."""
    free = asyncio.Semaphore(WIDTH)

    async def one(name):
        async with free:
            await one_pod(client, name)

    await asyncio.gather(*(one(f"round-{number}-{each}") for each in range(ROUND)))
    async with asyncio.timeout(PATIENCE):
        while (await client.list(kinds.CLAIMS, NAMESPACE)).items:
            await asyncio.sleep(0.1)
    await asyncio.sleep(1.0)  # what followed the last deletion is done


async def rounds(system, folder):
    parts, readings = {**parts_of(system.process.pid), "up": system.process.pid}, []
    assert {"scheduler", "controllers", "nodes"} <= set(parts), parts
    parts = {name: pid for name, pid in parts.items() if name not in LEFT_OUT}
    async with Client.connect(system.data / "admin.kubeconfig") as client:
        await client.create(kinds.CLAIM_TEMPLATES, template(), NAMESPACE)
        for number in range(3):  # caches fill in the first one
            await one_round(client, number)
            readings.append(await counts_of(parts, folder))
    return readings


@pytest.fixture
def probe(tmp_path, monkeypatch):
    """A folder that makes processes tell what they hold, and in which they tell it."""
    shutil.copytree(Path(__file__).parent / "heap_probe", tmp_path / "probe")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "probe"), prepend=os.pathsep)
    return tmp_path / "probe"


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


async def test_no_part_keeps_anything_of_a_pod_that_is_gone(probe, up):
    leaks = leaks_of(await rounds(up, probe), ROUND)
    assert not leaks, "\n".join(leaks)


@pytest.mark.heavy
async def test_an_hour_of_load_leaves_memory_flat(up):
    readings, done = await soak(up, MINUTES)
    assert (len(readings), problems_of(readings)) == (READINGS, [])
    assert len(done) > MINUTES * 60 / PERIOD / 2


def test_what_grows_with_every_pod_is_a_leak():
    def readings(part, name, growth, blocks):
        return [
            {part: {"blocks": round(1_000 + blocks * place), "types": {name: 10 + growth * place, "int": 5}}}
            for place in range(3)
        ]

    assert leaks_of(readings("nodes", "x.Pod", 40, 0), 40) == [
        "nodes: x.Pod grew by [40, 40] in rounds of 40 pods"
    ]
    assert leaks_of(readings("nodes", "x.Pod", 35, 0), 40) == []
    assert leaks_of(readings("scheduler", "dray.client.events._Known", 40, 400), 40) == []
    assert leaks_of(readings("nodes", "x.Pod", 0, 40 * 16), 40) == [
        "nodes: allocated blocks grew by [640, 640] in rounds of 40 pods"
    ]
    once = readings("nodes", "x.Lazy", 40, 900)
    once[2] = once[1]  # something that was made in one round and stays
    assert leaks_of(once, 40) == []


def test_growth_is_noticed():
    flat = {"server": (100.0, 30), "store": (5.0, 0)}
    assert problems_of([flat] * READINGS) == []
    grown = [{**flat, "server": (100.0 + MOST_GROWTH + 1, 30)}, {**flat, "server": (100.0, 60)}]
    for last in [*grown, {**flat, "store": (MOST_STORE + 1, 0)}]:
        assert len(problems_of([*[flat] * (READINGS - 1), last])) == 1
