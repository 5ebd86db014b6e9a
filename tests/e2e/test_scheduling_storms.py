"""A mixed load through a connection that loses, delays, refuses and cuts off, at random.

Pods with claims from templates, shared claims, extended resources, and gangs; the scheduler's
requests get lost, their answers get lost (what was written stays written), come too late, or
are a 409 or a 5xx that nobody meant; watches break in the middle of an event. In the end every
pod is bound, nothing was in use twice at any moment, no claim is left over, and when the pods
go everything goes.
"""

import asyncio
import os
from collections import Counter

import checker
import pytest
from clusters import Cluster
from test_chaos import beat
from test_controllers_faults import Troubled
from use_judge import UseJudge

from dray.client import Client, TransportError
from dray.client import resources as kinds

SEED = int(os.environ.get("DRAY_STORM_SEED", "31"))
KINDS = {"lost request", "lost answer", "late answer", "conflict", "failure", "busy"}


class Stormy(Troubled):
    """As `Troubled`, but answers may also come too late, and every fault is counted by kind.

    It begins with a squall, so that every kind is met however few requests there are.
    """

    def __init__(self, inner, seed, rate):
        super().__init__(inner, seed, max(rate, 0.3))
        self.usual = rate
        self.kinds = Counter()
        self.next = []

    async def fail(self, kind, request):
        self.kinds[kind] += 1
        if set(self.kinds) == KINDS:
            self.rate = self.usual
        if kind == "late answer":
            await (await self.inner.send(request)).close()
            await asyncio.sleep(0.3)
            raise TransportError(f"{request}: no answer in time")
        return await super().fail(kind, request)

    def draw(self):
        """Every kind has its turn before the first one comes again."""
        if not self.next:
            self.next = sorted(KINDS)
            self.chance.shuffle(self.next)
        return self.next.pop()


async def _furnish(cluster, nodes, devices):
    for number in range(nodes):
        node = await cluster.node(f"n{number}", allocatable={"pods": "110"})
        await cluster.devices(node, *(f"g{index}" for index in range(devices)))
    cluster.extended = f"example.com/gpu-{cluster.number}"
    gpu = await cluster.device_class(extendedResourceName=cluster.extended)
    await cluster.template("one", {"name": "r", "deviceClassName": gpu})
    for index in range(2):
        await cluster.claim(f"shared-{index}", {"name": "r", "deviceClassName": gpu})


async def _feed(cluster, pods):
    """Make so many pods, a tenth of them with shared claims, a fifth each extended and in gangs."""
    names, gang = [], {}
    for index in range(pods):
        name, kind = f"p{index}", index % 10
        names.append(name)
        if kind == 0:
            await cluster.pod(name, claims=[f"shared-{index // 10 % 2}"])
        elif kind in (1, 2):
            wanted = {cluster.extended: "1"}
            await cluster.pod(name, resources={"requests": wanted, "limits": wanted})
        elif kind in (3, 4):
            if not gang:
                gang = {"podGroupName": f"gang-{index}"}
                body = {
                    "metadata": {"name": f"gang-{index}"},
                    "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
                }
                await cluster.client.create(kinds.POD_GROUPS, body, cluster.namespace)
                await cluster.pod(name, templates=["one"], schedulingGroup=gang)
            else:
                await cluster.pod(name, templates=["one"], schedulingGroup=gang)
                gang = {}
        else:
            await cluster.pod(name, templates=["one"])
    return names


async def _extended_claims(cluster):
    annotation = "resource.kubernetes.io/extended-resource-claim"
    claims = (await cluster.client.list(kinds.CLAIMS, cluster.namespace)).items
    return [each for each in claims if annotation in (each["metadata"].get("annotations") or {})]


async def storm(peer, pods, seed, rate, schedulers=1):
    """Schedule a mixed load through bad weather; return how often what went wrong."""
    async with Cluster(peer) as cluster:
        nodes = 4
        await _furnish(cluster, nodes, devices=-(-pods // nodes) + 1)
        slices = [
            each
            for each in (await cluster.client.list(kinds.SLICES)).items
            if each["spec"]["driver"] == cluster.driver
        ]
        judge = UseJudge(Client.connect(peer.kubeconfig), cluster.namespace, checker.Inventory(slices))
        watching = [asyncio.create_task(judge.run()), asyncio.create_task(beat(cluster))]
        weather = []

        def wrap(inner):
            weather.append(Stormy(inner, seed + len(weather), rate))
            return weather[-1]

        try:
            for _ in range(schedulers):
                await cluster.start_scheduler(wrap=wrap)
            names = await _feed(cluster, pods)
            for name in names:
                await cluster.bound(name, timeout=120)

            async def one_claim_each():
                return len(await _extended_claims(cluster)) == sum(
                    int(name[1:]) % 10 in (1, 2) for name in names
                )

            await cluster.until(one_claim_each, f"one claim for each extended resource (seed {seed})")
            assert await cluster.problems() == [], f"seed {seed}"
            await asyncio.gather(*(cluster.delete_pod(name) for name in names))

            async def all_free():
                claims = (await cluster.client.list(kinds.CLAIMS, cluster.namespace)).items
                return [each["metadata"]["name"] for each in claims if not checker.results_of(each)] == [
                    "shared-0",
                    "shared-1",
                ] and len(claims) == 2

            await cluster.until(all_free, f"everything is free again (seed {seed})")

            async def all_seen():
                return len(judge.heard) == pods

            await cluster.until(all_seen, f"the judge has heard of every pod bound (seed {seed})")
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            await judge._client.close()
        judge.finish()
        assert judge.problems == [], f"seed {seed}: {judge.problems}"
        assert len(judge.bound) == pods
        return sum((each.kinds for each in weather), Counter())


async def test_a_mixed_load_survives_every_kind_of_fault(peer):
    faults = await storm(peer, pods=30, seed=SEED, rate=0.1)
    assert set(faults) == KINDS


@pytest.mark.heavy
async def test_hundreds_of_pods_survive_every_kind_of_fault(peer, capsys):
    faults = await storm(peer, pods=300, seed=SEED + 1, rate=0.2)
    with capsys.disabled():
        print(f"\nstorm: {dict(faults)}")
    assert set(faults) == KINDS


@pytest.mark.heavy
@pytest.mark.parametrize("schedulers", [2, 3])
async def test_schedulers_of_one_name_survive_every_kind_of_fault_together(peer, schedulers, capsys):
    faults = await storm(peer, pods=100, seed=SEED + schedulers, rate=0.1, schedulers=schedulers)
    with capsys.disabled():
        print(f"\nstorm over {schedulers} schedulers: {dict(faults)}")
    assert set(faults) == KINDS


class Losing:
    """A transport that loses the first requests of a kind, or their answers."""

    def __init__(self, inner, method, part, times=1, *, is_done=False):
        self.inner, self.method, self.part, self.times, self.is_done = inner, method, part, times, is_done

    async def send(self, request):
        if request.method == self.method and self.part in request.target and self.times > 0:
            self.times -= 1
            if self.is_done:
                await self.inner.send(request)
            raise TransportError(f"{request}: lost")
        return await self.inner.send(request)

    async def close(self):
        await self.inner.close()


async def test_an_eviction_that_gets_lost_is_done_again(peer):
    async with Cluster(peer) as cluster:
        body = {"metadata": {"name": f"high-{cluster.number}"}, "value": 1000}
        await cluster.client.create(kinds.PRIORITY_CLASSES, body)
        cluster._made.append((kinds.PRIORITY_CLASSES, f"high-{cluster.number}"))
        await cluster.devices(await cluster.node("a"), "g0")
        gpu = await cluster.device_class()
        await cluster.template("one", {"name": "r", "deviceClassName": gpu})
        await cluster.start_scheduler(wrap=lambda inner: Losing(inner, "PATCH", "/pods/low/status"))
        await cluster.pod("low", templates=["one"])
        await cluster.bound("low")
        await cluster.pod("high", templates=["one"], priorityClassName=f"high-{cluster.number}")
        assert await cluster.bound("high") == "a"


async def test_a_leftover_claim_that_could_not_be_deleted_is_deleted_later(peer):
    async with Cluster(peer) as cluster:
        await cluster.devices(await cluster.node("a"), "g0")
        name = f"example.com/gpu-{cluster.number}"
        await cluster.device_class(extendedResourceName=name)

        def wrap(inner):
            # The claim is made, but nobody knows; then it cannot be deleted at once.
            inner = Losing(inner, "POST", "/resourceclaims", is_done=True)
            return Losing(inner, "PATCH", "/resourceclaims/p-extended")

        await cluster.start_scheduler(wrap=wrap)
        await cluster.pod("p", resources={"requests": {name: "1"}, "limits": {name: "1"}})
        assert await cluster.bound("p") == "a"

        async def one_left():
            return len(await _extended_claims(cluster)) == 1

        await cluster.until(one_left, "the leftover is gone")
