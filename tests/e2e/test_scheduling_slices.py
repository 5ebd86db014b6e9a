"""Hardware that changes under the scheduler's hands, while pods come and go.

Pools get new generations, are incomplete for a while, devices vanish, come back, and get
tainted, nodes are deleted and made again. Live: no device is ever in use twice, none is chosen
that the scheduler knows not to be had, and none is given away long after that. In the end, when
all hardware is whole again, every pod is bound: nothing was lost or forgotten on the way.
"""

import asyncio
import os
import random
import time
from collections import Counter

import checker
import pytest
from clusters import Cluster, changes
from test_chaos import beat
from use_judge import UseJudge

from dray.client import Client
from dray.client import resources as kinds

SEED = int(os.environ.get("DRAY_SLICES_SEED", "11"))
DEVICES = ("g0", "g1", "g2", "g3")
GRACE = 3.0  # seconds from a choice until we see it in the claim; what a scheduler knows is not behind
TAINT = {"key": "example.com/hot", "effect": "NoSchedule"}


class Pool:
    """The devices of one node, as their driver publishes them."""

    def __init__(self, cluster, node, chance):
        self.cluster, self.node, self.chance = cluster, node, chance
        self.first = ""  # the slice that is always there
        self.generation = 1
        self.present, self.tainted = set(DEVICES), set()
        self.gone = {}  # device -> since when the scheduler knows that it is not to be had
        self.changes = Counter()

    async def begin(self):
        self.first = await self.cluster.devices(self.node, *self._bodies())

    def _bodies(self):
        names = [*(name for name in DEVICES if name in self.present)]
        self.chance.shuffle(names)
        bodies = [
            {
                "name": name,
                "attributes": {"kind": {"string": "gpu"}, "serial": {"int": self.generation}},
                **({"taints": [TAINT]} if name in self.tainted else {}),
            }
            for name in names
        ]
        nic = {"name": "nic", "attributes": {"kind": {"string": "nic"}}, "allowMultipleAllocations": True}
        return [*bodies, {**nic, "capacity": {"rate": {"value": "10"}}}]

    def may_choose(self, device):
        """Whether a scheduler may decide for the device at this moment, on what it knows."""
        return device not in self.gone

    def may_get(self, device):
        """Whether a claim may have got the device just now, by a decision of a while ago."""
        return device not in self.gone or time.monotonic() - self.gone[device] < GRACE

    def _note(self, available):
        """Take note of what is to be had; call before a write for what comes, after it for what goes."""
        now = time.monotonic()
        self.gone = {
            device: self.gone.get(device, now) for device in (*DEVICES, "nic") if device not in available
        }

    def _available(self):
        return {*(self.present - self.tainted), "nic"}

    async def _known(self, is_known):
        """Wait until the scheduler has heard of a change."""

        async def condition():
            return all(is_known(loop.informers) for loop in self.cluster.loops)

        await self.cluster.until(condition, "the scheduler follows")

    async def _write(self, bodies, count):
        pool = {"name": self.node, "generation": self.generation, "resourceSliceCount": count}
        body = {"spec": {"pool": pool, "devices": bodies}}
        await self.cluster.client.patch(kinds.SLICES, self.first, body)
        generation = self.generation
        await self._known(
            lambda informers: informers.slices.items[self.first].spec.pool.generation >= generation
        )

    async def publish(self):
        """Publish the pool whole, in one slice, as a new generation."""
        self.generation += 1
        self._note({*DEVICES, "nic"} - self.gone.keys() | self._available())
        await self._write(self._bodies(), 1)
        self._note(self._available())

    async def vanish(self):
        self.changes["vanish"] += 1
        self.present = set(self.chance.sample(DEVICES, self.chance.randint(1, 3)))
        await self.publish()

    async def taint(self):
        self.changes["taint"] += 1
        self.tainted = set(self.chance.sample(DEVICES, self.chance.randint(1, 3)))
        await self.publish()

    async def heal(self):
        self.changes["heal"] += 1
        self.present, self.tainted = set(DEVICES), set()
        await self.publish()

    async def split(self):
        """Publish half of the pool, the other half a while later, and then all in one slice again."""
        self.changes["split"] += 1
        self.generation += 1
        bodies = self._bodies()
        await self._write(bodies[:2], 2)
        self._note(set())
        await asyncio.sleep(self.chance.uniform(0.3, 2.0))
        self._note(self._available())
        second = await self.cluster.devices(
            self.node,
            *bodies[2:],
            generation=self.generation,
            count=2,
            name=f"{self.first}-{self.generation}",
        )
        await asyncio.sleep(self.chance.uniform(0.1, 0.5))
        await self.publish()
        await self.cluster.client.delete(kinds.SLICES, second)

    async def lose_node(self):
        """Delete the node and make it again; its devices are of no use in between."""
        self.changes["lose node"] += 1
        found = await self.cluster.client.get(kinds.NODES, self.node)
        await self.cluster.client.delete(kinds.NODES, self.node)
        await self._known(lambda informers: self.node not in informers.nodes.items)
        self._note(set())
        await asyncio.sleep(self.chance.uniform(0.2, 1.5))
        self._note(self._available())
        meta = {"name": self.node, "labels": found["metadata"]["labels"]}
        await self.cluster.client.create(kinds.NODES, {"metadata": meta, "status": found["status"]})
        await self.cluster.client.patch(kinds.NODES, self.node, {"spec": {"taints": None}})

    async def run(self, is_over):
        """Change again and again."""
        while not is_over():
            await asyncio.sleep(self.chance.uniform(0.1, 0.8))
            await self.chance.choice(
                [self.vanish, self.taint, self.heal, self.split, self.lose_node, self.heal]
            )()


def _judge_choices(loop, pools, problems):
    """Every decision is for devices that are to be had, as far as the scheduler knows."""
    decide = loop.decide

    def watched(pod, *rest, **more):
        decision = decide(pod, *rest, **more)
        for placed in decision if isinstance(decision, list) else ():
            problems.extend(
                f"{placed.pod.metadata.name} was to get {result.pool}/{result.device}, which was not to be had"
                for allocation in placed.placement.allocations
                for result in allocation.devices.results
                if not pools[result.pool].may_choose(result.device)
            )
        return decision

    loop.decide = watched


async def _judge_gifts(cluster, pools, problems):
    """Every allocation is of a device that was to be had not long ago."""
    async with Client.connect(cluster.peer.kubeconfig) as client:
        version = (await client.list(kinds.CLAIMS, cluster.namespace)).metadata.resource_version
        held = set()  # claims that are allocated
        async for event in changes(client, kinds.CLAIMS, cluster.namespace, version):
            claim = event.object
            name, results = claim["metadata"]["name"], checker.results_of(claim)
            if not results or event.type == "DELETED":
                held.discard(name)
                continue
            if name in held:
                continue
            held.add(name)
            problems += [
                f"{name} was given {result['pool']}/{result['device']}, which was not to be had"
                for result in results
                if not pools[result["pool"]].may_get(result["device"])
            ]


class Pods:
    """Pods that come and go; never more than the hardware has room for when it is whole."""

    def __init__(self, cluster, chance, room):
        self.cluster, self.chance, self.room = cluster, chance, room
        self.alive = {kind: set() for kind in room}
        self.made = 0

    async def run(self, is_over):
        while not is_over():
            kind = self.chance.choice(list(self.room))
            if len(self.alive[kind]) < self.room[kind] and self.chance.random() < 0.7:
                await self.make(kind)
            elif self.alive[kind]:
                name = self.chance.choice(sorted(self.alive[kind]))
                self.alive[kind].discard(name)
                await self.cluster.delete_pod(name)
            await asyncio.sleep(self.chance.uniform(0.0, 0.06))

    async def make(self, kind):
        self.made += 1
        name = f"{kind}-{self.made}"
        self.alive[kind].add(name)
        await self.cluster.pod(name, templates=[kind])

    async def fill(self):
        for kind, most in self.room.items():
            while len(self.alive[kind]) < most:
                await self.make(kind)


async def turmoil(peer, seconds, seed):
    """Let hardware and pods change for a while, then let all be well; return the figures."""
    chance = random.Random(seed)
    async with Cluster(peer) as cluster:
        pools = {}
        for number in range(3):
            node = await cluster.node(f"n{number}")
            pools[node] = Pool(cluster, node, chance)
            await pools[node].begin()
        for kind in ("gpu", "nic"):
            made = await cluster.device_class(kind, f"device.attributes['{cluster.driver}'].kind == '{kind}'")
            wanted = {"name": "r", "deviceClassName": made}
            await cluster.template(
                kind, wanted | ({"capacity": {"requests": {"rate": "4"}}} if kind == "nic" else {})
            )
        slices = [
            each
            for each in (await cluster.client.list(kinds.SLICES)).items
            if each["spec"]["driver"] == cluster.driver
        ]
        judge = UseJudge(Client.connect(peer.kubeconfig), cluster.namespace, checker.Inventory(slices))
        choices = []
        pods = Pods(cluster, chance, {"gpu": len(pools) * len(DEVICES), "nic": len(pools) * 2})
        loop = await cluster.start_scheduler()
        _judge_choices(loop, pools, choices)
        watching = [judge.run(), _judge_gifts(cluster, pools, choices), beat(cluster)]
        watching = [asyncio.create_task(each) for each in watching]
        end = time.monotonic() + seconds

        def is_over():
            # However slow the machine is: enough has happened to tell something.
            return time.monotonic() > end and sum(pool.changes.total() for pool in pools.values()) > 10

        # They end by themselves: a change that is cut off leaves the test unsure of what exists.
        changing = [asyncio.create_task(each.run(is_over)) for each in (pods, *pools.values())]
        try:
            await asyncio.gather(*changing)
            for pool in pools.values():
                await pool.heal()
            await pods.fill()
            for name in sorted(set.union(*pods.alive.values())):
                await cluster.bound(name)
            assert choices == [], f"seed {seed}"
            assert await cluster.problems() == [], f"seed {seed}"
            for task in watching:
                if task.done():
                    task.result()
        finally:
            for task in (*changing, *watching):
                task.cancel()
            await asyncio.gather(*changing, *watching, return_exceptions=True)
            await judge._client.close()
        judge.finish()
        assert judge.problems == [], f"seed {seed}: {judge.problems}"
        changes = sum((pool.changes for pool in pools.values()), Counter())
        return {"changes": changes, "pods": pods.made, "bound": len(judge.bound)}


async def test_hardware_that_changes_all_the_time_confuses_nobody(peer):
    figures = await turmoil(peer, seconds=5.0, seed=SEED)
    assert sum(figures["changes"].values()) > 10
    assert figures["bound"] > 18


@pytest.mark.heavy
async def test_hardware_that_changes_for_long_confuses_nobody(peer, capsys):
    figures = await turmoil(peer, seconds=60.0, seed=SEED + 1)
    with capsys.disabled():
        print(f"\nturmoil: {figures['changes']}, {figures['bound']} pods bound")
    assert set(figures["changes"]) == {"vanish", "taint", "heal", "split", "lose node"}
