"""One active scheduler per name: what a leader leaves behind, and what happens beside schedulers of other names.

A successor goes on with what it finds. Two schedulers of different names verify what they write, so that of two allocations that
cannot both stand the later one is taken back; and people are told that a guard would be better.
"""

import asyncio

import pytest
from clusters import Cluster
from extended_resources import FEATURES, LONG, check_specials, extended_pod, furnish, judged, specials

from dray.client import resources as kinds


class Stopping:
    """A transport that never sends the first request of a kind, as if the process had been killed before."""

    def __init__(self, inner, method, part):
        self.inner, self.method, self.part = inner, method, part
        self.arrived = asyncio.Event()

    async def send(self, request):
        if request.method == self.method and self.part in request.target:
            self.arrived.set()
            await asyncio.Event().wait()
        return await self.inner.send(request)

    async def close(self):
        await self.inner.close()


@pytest.mark.parametrize(
    ("is_extended", "method", "part"),
    [
        pytest.param(True, "POST", "/resourceclaims", id="before making"),
        pytest.param(True, "PUT", "/status", id="before allocating"),
        pytest.param(True, "PATCH", "/pods/p/status", id="before noting"),
        pytest.param(True, "POST", "/pods/p/binding", id="before binding"),
        pytest.param(False, "PUT", "/status", id="before allocating a claim"),
        pytest.param(False, "POST", "/pods/p/binding", id="before binding with a claim"),
    ],
)
async def test_what_a_leader_began_its_successor_finishes(peer, is_extended, method, part):
    async with Cluster(peer) as cluster:
        await furnish(cluster, devices=1)
        await cluster.claim("c", {"name": "r", "deviceClassName": cluster.gpu})
        first = await cluster.start_scheduler(
            wrap=lambda inner: Stopping(inner, method, part), features=FEATURES
        )
        async with judged(cluster):
            await (extended_pod(cluster, "p") if is_extended else cluster.pod("p", claims=["c"]))
            await asyncio.wait_for(first.client.transport.arrived.wait(), LONG)
            begun = await specials(cluster)
            cluster.stop_scheduler()
            await cluster.start_scheduler(features=FEATURES)
            await cluster.bound("p", LONG)
        if is_extended:
            await check_specials(cluster, ["p"])
            finished = await specials(cluster)
            if begun:
                assert finished["p"][0]["metadata"]["uid"] == begun["p"][0]["metadata"]["uid"]
        else:
            assert len(await cluster.held("c")) == 1


async def two_names(cluster):
    """Start two schedulers of different names on the same devices; return their names."""
    names = [cluster.scheduler_name, f"{cluster.scheduler_name}-other"]
    loops = await asyncio.gather(*(cluster.start_scheduler(name=each, features=FEATURES) for each in names))
    return names, loops


async def serve_in_turn(peer, pods, at_once):
    """Few devices, many pods that come and go: each has its turn, and in the end everything is free."""
    async with Cluster(peer) as cluster:
        await furnish(cluster, devices=2)
        await cluster.template("two", {"name": "r", "deviceClassName": cluster.gpu, "count": 2})
        gate = asyncio.Semaphore(at_once)
        names, loops = await two_names(cluster)

        async def one(index):
            async with gate:
                name, scheduler = f"p{index}", names[index % 2]
                template = "one" if index % 4 < 2 else "two"
                await cluster.pod(name, templates=[template], schedulerName=scheduler)
                await cluster.bound(name, 2 * LONG)
                await cluster.delete_pod(name)

        async with judged(cluster, pods) as judge:
            await asyncio.gather(*map(one, range(pods)))

            async def all_free():
                return not (await cluster.client.list(kinds.CLAIMS, cluster.namespace)).items

            await cluster.until(all_free, "no claim is left", LONG)
        assert len(judge.bound) == pods
        return [loop.statistics for loop in loops]


async def test_schedulers_of_two_names_never_give_a_device_twice(peer):
    statistics = await serve_in_turn(peer, pods=40, at_once=12)
    assert sum(each.bound for each in statistics) == 40


@pytest.mark.heavy
async def test_schedulers_of_two_names_serve_a_large_crowd(peer, capsys):
    statistics = await serve_in_turn(peer, pods=300, at_once=20)
    with capsys.disabled():
        print(f"\ntwo names: {statistics}")


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_without_a_guard_people_are_told_of_other_schedulers(peer, is_guarded):
    async with Cluster(peer) as cluster:
        await cluster.devices(await cluster.node("a"), "g0", "g1")
        gpu = await cluster.device_class()
        await cluster.template("one", {"name": "r", "deviceClassName": gpu})
        await cluster.start_scheduler(is_guarded=is_guarded)
        await cluster.pod("theirs", templates=["one"], schedulerName="somebody-else")
        await cluster.pod("ours", templates=["one"])
        await cluster.bound("ours")

        async def told():
            events = (await cluster.client.list(kinds.EVENTS, "default")).items
            return [each for each in events if each["involvedObject"]["name"] == gpu]

        if is_guarded:
            assert not await told()
            return
        [event] = await cluster.until(told, "an event on the device class")
        assert (event["type"], event["reason"]) == ("Warning", "SharedDeviceClass")
        assert f"schedulers {cluster.scheduler_name} and somebody-else both allocate" in event["message"]
