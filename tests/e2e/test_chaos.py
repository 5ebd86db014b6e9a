"""kill -9 of server, controllers and schedulers at random moments, under load.

Pods with claims are made and deleted all the time, slices are published anew, and every
few hundred milliseconds one of the processes is killed and started again. Many pods have volumes,
for which a test double plays the volume controller (`chaos_volumes`). At the end
nothing acknowledged is lost, nothing was in use twice at any moment, every pod is bound or
says why not, and when the pods are gone so are their claims.

`DRAY_CHAOS_ROUNDS` and `DRAY_CHAOS_SEED` choose the length and the dice of the long run.
"""

import asyncio
import contextlib
import json
import os
import random
import time
from collections import Counter
from types import SimpleNamespace

import checker
import peers
import pytest
from chaos_volumes import Volumes
from clusters import Cluster
from use_judge import UseJudge
from zygote import Zygote

from dray.client import Client, ClientError, NotFound
from dray.client import resources as kinds

ROUNDS = int(os.environ.get("DRAY_CHAOS_ROUNDS", "500"))
SEED = int(os.environ.get("DRAY_CHAOS_SEED", "20"))
NODES = 3
MOST_PODS = 30
PATIENCE = 120.0  # seconds for the cluster to settle after the last kill


class Victims:
    """The processes of the system: started, killed, started again."""

    def __init__(self, zygote, folder, schedulers):
        self.zygote, self.folder = zygote, folder
        self.kubeconfig = folder / "kubeconfig"
        self.kills = Counter()
        self.deaths = []  # processes that ended without being killed
        self._pids = {}
        port = peers.free_port()
        (folder / "tokens.csv").write_text('admintoken,admin,1,"system:masters"\n')
        self.kubeconfig.write_text(peers.KUBECONFIG % port)
        reach = ("--kubeconfig", self.kubeconfig)
        self.commands = {
            "server": (
                *("server", "--data", folder / "data", "--secure-port", port),
                *("--token-auth-file", folder / "tokens.csv"),
            ),
            "controllers": ("controllers", *reach),
            **{
                # A fixed identity: one that is started again goes on at once, as under a supervisor.
                f"scheduler-{number}": (
                    "scheduler",
                    *reach,
                    "--name",
                    name,
                    "--leader-identity",
                    f"s{number}",
                )
                for number, name in enumerate(schedulers)
            },
        }

    async def start(self, name):
        self._pids[name] = await self.zygote.start(self.folder / f"{name}.log", *self.commands[name])

    async def kill(self, name):
        self.kills[name.partition("-")[0]] += 1
        end = await self.zygote.kill(self._pids.pop(name))
        if end != "killed":
            self.deaths.append(f"{name} {end}: {self.log(name)}")

    def log(self, name):
        return (self.folder / f"{name}.log").read_text(errors="replace")[-2000:]

    async def until_served(self, client):
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return await client.list(kinds.NAMESPACES)
            except ClientError as error:
                if time.monotonic() > deadline:
                    raise AssertionError(f"the server does not answer: {self.log('server')}") from error
                await asyncio.sleep(0.05)


async def furnish(cluster):
    """Publish exclusive, partitionable and shareable devices; return the pools' bodies by slice name."""
    published = []
    for number in range(NODES):
        node = await cluster.node(f"n{number}")
        gpus = [_device(f"g{index}", "gpu") for index in range(4)]
        nic = {
            **_device("nic", "nic"),
            "allowMultipleAllocations": True,
            "capacity": {"rate": {"value": "10"}},
        }
        published.append(await cluster.devices(node, *gpus, nic))
        pool = f"parts-{node}"
        counters = [{"name": "board", "counters": {"memory": {"value": "40Gi"}}}]
        await cluster.devices(node, pool=pool, count=2, sharedCounters=counters)
        parts = [
            {
                **_device(name, "part"),
                "consumesCounters": [{"counterSet": "board", "counters": {"memory": {"value": size}}}],
            }
            for name, size in (("whole", "40Gi"), ("left", "20Gi"), ("right", "20Gi"))
        ]
        await cluster.devices(node, *parts, pool=pool, count=2)
    for name in ("gpu", "part", "nic"):
        selector = f"device.attributes['{cluster.driver}'].kind == '{name}'"
        device_class = await cluster.device_class(name, selector)
        await cluster.template(name, {"name": "r", "deviceClassName": device_class})
    gpu, nic = f"gpu-{cluster.number}", f"nic-{cluster.number}"
    await cluster.template("two", {"name": "r", "deviceClassName": gpu, "count": 2})
    await cluster.template(
        "slow", {"name": "r", "deviceClassName": nic, "capacity": {"requests": {"rate": "4"}}}
    )
    unicorn = [{"cel": {"expression": f"device.attributes['{cluster.driver}'].kind == 'unicorn'"}}]
    await cluster.template("unicorn", {"name": "r", "deviceClassName": gpu, "selectors": unicorn})
    await cluster.claim("shared", {"name": "r", "deviceClassName": gpu})
    return published


def _device(name, kind):
    return {"name": name, "attributes": {"kind": {"string": kind}}}


WISHES = [["gpu"]] * 6 + [["two"], ["part"], ["part"], ["slow"], ["slow"], ["gpu", "slow"], ["unicorn"]]


class Load:
    """Makes and deletes pods without end, and remembers what the server has acknowledged."""

    def __init__(self, cluster, schedulers, chance, volumes):
        self.cluster, self.schedulers, self.chance = cluster, schedulers, chance
        self.volumes = volumes
        self.alive = set()  # acknowledged, and no deletion was sent
        self.gone = set()  # deletion acknowledged
        self.made = 0
        self._number = 0

    async def run(self):
        while True:
            try:
                if len(self.alive) < MOST_PODS and self.chance.random() < 0.65:
                    await self._make()
                elif self.alive:
                    await self._remove()
            except ClientError:
                await asyncio.sleep(0.05)  # no answer: whether it happened, nobody knows
            await asyncio.sleep(self.chance.uniform(0.0, 0.04))

    async def _make(self):
        self._number += 1
        name = f"p{self._number}"
        wanted = {"claims": ["shared"]}
        if self.chance.random() > 0.1:
            wanted = {"templates": self.chance.choice(WISHES)}
        wanted |= await self.volumes.of_pod(name)
        await self.cluster.pod(name, **wanted, schedulerName=self.chance.choice(self.schedulers))
        self.made += 1
        self.alive.add(name)

    async def _remove(self):
        name = self.chance.choice(sorted(self.alive))
        self.alive.discard(name)
        with contextlib.suppress(NotFound):
            await self.cluster.delete_pod(name)
        await self.volumes.pod_left(name)
        self.gone.add(name)


async def republish(cluster, names, chance):
    """Publish pools anew, with the next generation, while pods are being scheduled."""
    generation = 1
    while True:
        await asyncio.sleep(chance.uniform(0.2, 0.6))
        generation += 1
        name = chance.choice(names)
        with contextlib.suppress(ClientError):
            found = await cluster.client.get(kinds.SLICES, name)
            found["spec"]["pool"]["generation"] = generation
            found["spec"]["devices"][0]["attributes"]["serial"] = {"int": generation}
            await cluster.client.update(kinds.SLICES, name, found)


async def beat(cluster):
    """Keep the nodes alive."""
    while True:
        for node in [name for resource, name in cluster._made if resource is kinds.NODES]:
            spec = {"renewTime": time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())}
            with contextlib.suppress(ClientError):
                try:
                    await cluster.client.patch(kinds.LEASES, node, {"spec": spec}, "kube-node-lease")
                except NotFound:
                    body = {"metadata": {"name": node}, "spec": spec}
                    await cluster.client.create(kinds.LEASES, body, "kube-node-lease")
        await asyncio.sleep(2.0)


async def storm(folder, rounds, seed, schedulers=("one",)):
    """Run the whole story; return the figures. Every complaint names the seed."""
    chance = random.Random(seed)
    began = time.monotonic()
    async with Zygote() as zygote:
        victims = Victims(zygote, folder, schedulers)
        await victims.start("server")
        cluster = Cluster(SimpleNamespace(kubeconfig=victims.kubeconfig))
        await victims.until_served(cluster.client)
        async with cluster:
            for name in list(victims.commands)[1:]:
                await victims.start(name)
            published = await furnish(cluster)
            slices = (await cluster.client.list(kinds.SLICES)).items
            judge = UseJudge(Client.connect(victims.kubeconfig), cluster.namespace, checker.Inventory(slices))
            volumes = Volumes(cluster, Client.connect(victims.kubeconfig), chance)
            nodes = [each["metadata"]["name"] for each in (await cluster.client.list(kinds.NODES)).items]
            await volumes.furnish(nodes)
            load = Load(cluster, schedulers, chance, volumes)
            judging = asyncio.create_task(judge.run())
            beating = asyncio.create_task(beat(cluster))
            binding = asyncio.create_task(volumes.run())
            working = [
                asyncio.create_task(load.run()),
                asyncio.create_task(republish(cluster, published, chance)),
            ]
            try:
                for _ in range(rounds):
                    await asyncio.sleep(chance.uniform(0.1, 0.5))
                    # While the server is away nothing else can go wrong, so it falls less often.
                    weights = [1 if name == "server" else 2 for name in victims.commands]
                    [victim] = chance.choices(list(victims.commands), weights)
                    await victims.kill(victim)
                    await victims.start(victim)
                    for task in (judging, beating, binding, *working):
                        if task.done():
                            task.result()
                    assert not judge.problems + volumes.problems, (
                        f"seed {seed}: {judge.problems + volumes.problems}"
                    )
                for task in working:
                    task.cancel()
                await asyncio.gather(*working, return_exceptions=True)
                await victims.until_served(cluster.client)
                await settled(cluster, load, seed, victims)
                assert not judge.problems, f"seed {seed}: {judge.problems}"
                await sound(cluster, seed)
                await emptied(cluster, seed, victims)
            finally:
                for task in (judging, beating, binding, *working):
                    task.cancel()
                await asyncio.gather(judging, beating, binding, *working, return_exceptions=True)
                await judge._client.close()
                await volumes.client.close()
            judge.finish()
            assert volumes.problems == [], f"seed {seed}: {volumes.problems}"
            assert judge.problems == [], f"seed {seed}: {judge.problems}"
            assert victims.deaths == [], f"seed {seed}: {victims.deaths}"
        return {
            "seed": seed,
            "rounds": rounds,
            "kills": dict(victims.kills),
            "pods made": load.made,
            "pods bound": len(judge.bound),
            "races between schedulers": judge.races,
            "watches resumed": judge.resumed,
            "volumes bound": volumes.bound,
            "volumes not made": volumes.refused,
            "violations": len(judge.problems) + len(volumes.problems),
            "seconds": round(time.monotonic() - began, 1),
        }


async def settled(cluster, load, seed, victims):
    """Wait until every pod is bound or explained; nothing acknowledged may be missing."""
    deadline = time.monotonic() + PATIENCE
    while True:
        pods = (await cluster.client.list(kinds.PODS, cluster.namespace)).items
        open_cases = [pod["metadata"]["name"] for pod in pods if not _is_explained(pod)]
        if not open_cases:
            break
        if time.monotonic() > deadline:
            logs = "\n".join(victims.log(name) for name in victims.commands)
            raise AssertionError(f"seed {seed}: neither bound nor explained: {open_cases}\n{logs}")
        await asyncio.sleep(0.2)
    names = {pod["metadata"]["name"] for pod in pods}
    assert load.alive <= names, f"seed {seed}: lost pods {load.alive - names}"
    assert not load.gone & names, f"seed {seed}: deleted pods are back: {load.gone & names}"


async def sound(cluster, seed):
    """The checker finds nothing, at least once what is being committed is through."""
    deadline = time.monotonic() + PATIENCE
    while problems := await cluster.problems():
        assert time.monotonic() < deadline, f"seed {seed}: {problems}"
        await asyncio.sleep(0.5)


def _is_explained(pod):
    if pod["spec"].get("nodeName"):
        return True
    return any(
        each["type"] == "PodScheduled" and each["status"] == "False" and each.get("message")
        for each in pod["status"].get("conditions") or ()
    )


async def emptied(cluster, seed, victims):
    """Delete all pods; every claim of theirs goes, and the shared one is free again."""
    for pod in (await cluster.client.list(kinds.PODS, cluster.namespace)).items:
        with contextlib.suppress(NotFound):
            await cluster.delete_pod(pod["metadata"]["name"])
    deadline = time.monotonic() + PATIENCE
    while True:
        claims = (await cluster.client.list(kinds.CLAIMS, cluster.namespace)).items
        left = [claim["metadata"]["name"] for claim in claims if claim["metadata"]["name"] != "shared"]
        shared = next(claim for claim in claims if claim["metadata"]["name"] == "shared")
        status = shared.get("status") or {}
        if not left and not status.get("allocation") and not status.get("reservedFor"):
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"seed {seed}: not released: {left} {status}\n{victims.log('controllers')}")
        await asyncio.sleep(0.2)


async def test_a_few_kills_under_load_lose_nothing(tmp_path):
    figures = await storm(tmp_path, rounds=8, seed=3)
    assert figures["pods bound"] > 0
    assert figures["volumes bound"] > 0


@pytest.mark.heavy
@pytest.mark.parametrize("schedulers", [("one", "two"), ("one", "one")], ids=["two-names", "one-name"])
async def test_two_schedulers_that_are_killed_again_and_again_never_give_a_device_twice(
    tmp_path, capsys, schedulers
):
    figures = await storm(tmp_path, ROUNDS // 5, SEED, schedulers)
    with capsys.disabled():
        print(f"\nchaos, schedulers {schedulers}: {json.dumps(figures)}")
    assert figures["pods bound"] > 0


@pytest.mark.heavy
async def test_five_hundred_kills_under_load_lose_nothing(tmp_path, capsys):
    figures = await storm(tmp_path, ROUNDS, SEED)
    with capsys.disabled():
        print(f"\nchaos: {json.dumps(figures)}")
    assert figures["pods bound"] > ROUNDS / 25
