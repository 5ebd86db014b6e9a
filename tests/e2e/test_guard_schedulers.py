"""kube-scheduler and dray fight for few devices, with a guard between them: nothing is given twice."""

import asyncio
import random

import peers
import pytest
from clusters import Cluster
from guards import Watcher, guarded_scheduler, guarding, kube_scheduler, metrics_of, unguarded

pytestmark = pytest.mark.kubernetes


@pytest.fixture(scope="module")
def contested_peer():
    with peers.kubernetes() as peer:
        yield peer


def part(name):
    return {
        "name": name,
        "attributes": {"kind": {"string": "part"}},
        "consumesCounters": [{"counterSet": "set", "counters": {"slots": {"value": "2"}}}],
    }


async def publish(cluster):
    """Two nodes, each with two whole devices, three parts of which two fit, and one to share."""
    for name in "ab":
        node = await cluster.node(name, allocatable={"pods": "200", "cpu": "500"})
        shared = {
            "name": "shared",
            "attributes": {"kind": {"string": "shared"}},
            "allowMultipleAllocations": True,
            "capacity": {"memory": {"value": "10Gi"}},
        }
        whole = [{"name": f"g{index}", "attributes": {"kind": {"string": "whole"}}} for index in range(2)]
        parts = [part(f"p{index}") for index in range(3)]
        await cluster.devices(node, *whole, shared, *parts, count=2)
        counters = [{"name": "set", "counters": {"slots": {"value": "5"}}}]
        await cluster.devices(node, count=2, sharedCounters=counters)
    gpu = await cluster.device_class()
    for kind, capacity in (("whole", None), ("part", None), ("shared", "4Gi")):
        expression = f"device.attributes['{cluster.driver}'].kind == '{kind}'"
        request = {"name": "r", "deviceClassName": gpu, "selectors": [{"cel": {"expression": expression}}]}
        if capacity:
            request["capacity"] = {"requests": {"memory": capacity}}
        await cluster.template(kind, request)
    return ["whole", "part", "shared"]


class Users:
    """Pods that want a device, hold it for a moment, and make room for the next one."""

    def __init__(self, cluster, templates, seed):
        self.cluster, self.templates, self.chance = cluster, templates, random.Random(seed)
        self.bound = 0

    async def run(self, prefix, count, at_once, **spec):
        gate = asyncio.Semaphore(at_once)

        async def one(index):
            async with gate:
                name = f"{prefix}{index}"
                template = self.templates[index % len(self.templates)]
                await self.cluster.pod(name, templates=[template], **spec)
                await self.cluster.bound(name, timeout=180)
                self.bound += 1
                await asyncio.sleep(self.chance.uniform(0, 0.2))
                await self.cluster.delete_pod(name)

        await asyncio.gather(*map(one, range(count)))


async def fight(cluster, templates, count, at_once, seed):
    """Let both schedulers serve their pods; returns when every pod had its turn."""
    users = Users(cluster, templates, seed)
    other = {"schedulerName": f"kube-{cluster.number}"}
    await asyncio.gather(
        users.run(f"d{seed}-", count, at_once), users.run(f"k{seed}-", count, at_once, **other)
    )
    return users


async def test_kube_scheduler_and_dray_share_devices_without_a_double_allocation(contested_peer):
    async with Cluster(contested_peer) as cluster, guarding(cluster) as guard:
        templates = await publish(cluster)
        refused = 'dray_guard_reviews_total{verdict="refused"}'
        before = await metrics_of(guard)
        with kube_scheduler(cluster, f"kube-{cluster.number}"), guarded_scheduler(cluster):
            async with Watcher(cluster) as watcher:
                users = await fight(cluster, templates, count=60, at_once=15, seed=1)
            numbers = await metrics_of(guard)
        assert watcher.problems == []
        assert users.bound == 120
        assert numbers["dray_guard_unguarded_total"] == 0
        assert numbers['dray_guard_reviews_total{verdict="admitted"}'] >= 120
        # They did meet: otherwise the test would show nothing.
        assert numbers[refused] > before[refused]
        print(numbers)


async def test_without_a_guard_the_same_fight_gives_devices_twice(contested_peer):
    """The negative control: the watcher sees what the guard prevents.

    That they meet is a matter of chance: likely in one fight, all but certain in some.
    """
    async with Cluster(contested_peer) as cluster:
        await unguarded(cluster)
        templates = await publish(cluster)
        with kube_scheduler(cluster, f"kube-{cluster.number}"), guarded_scheduler(cluster):
            async with Watcher(cluster) as watcher:
                for turn in range(5):
                    await fight(cluster, templates, count=30, at_once=15, seed=20 + turn)
                    if watcher.problems:
                        break
        assert watcher.problems != []


async def _kill_guards(cluster, guard, rounds, chance):
    """Kill the guard at any moment and start another one; it must wait for the lease of the dead."""
    fences = 0
    for _ in range(rounds):
        await asyncio.sleep(chance.uniform(0.2, 2.0))
        await guard.kill()
        await guard.start()
        fences += (await metrics_of(guard))["dray_guard_fences_total"]
    return fences


async def _kill_rounds(peer, rounds, pods):
    # A hasty guard: schedulers try again when it has no time for them, and nobody waits long after a kill.
    async with Cluster(peer) as cluster, guarding(cluster, lease=3) as guard:
        templates = await publish(cluster)
        with kube_scheduler(cluster, f"kube-{cluster.number}"), guarded_scheduler(cluster):
            async with Watcher(cluster) as watcher:
                killing = asyncio.create_task(_kill_guards(cluster, guard, rounds, random.Random(rounds)))
                users = await fight(cluster, templates, count=pods, at_once=15, seed=3)
                fences = await killing
            numbers = await metrics_of(guard)
        assert watcher.problems == []
        assert users.bound == 2 * pods
        assert numbers["dray_guard_unguarded_total"] == 0
        return fences


async def test_a_guard_killed_again_and_again_lets_nothing_through(contested_peer):
    assert await _kill_rounds(contested_peer, rounds=3, pods=60) > 0


@pytest.mark.heavy
async def test_twelve_kills_of_the_guard(contested_peer):
    assert await _kill_rounds(contested_peer, rounds=12, pods=250) > 0
