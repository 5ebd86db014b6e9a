"""Nothing is lost and nothing given twice: lost answers, conflicts, kill -9, a foreign scheduler."""

import asyncio
import random
import sys

import checker
import peers
import pytest
from clusters import Cluster, changes

from dray.client import Client, TransportError
from dray.client import resources as kinds
from dray.client.transport import Response
from dray.control.scheduling import SchedulerOptions, SchedulingLoop


class Faulty:
    """A transport that loses requests, loses answers, and invents conflicts and server errors."""

    def __init__(self, inner, seed, rate):
        self.inner, self.random, self.rate = inner, random.Random(seed), rate
        self.faults = 0

    async def send(self, request):
        # The dice are for writes alone: so many of them see at least so many faults, however quick all is.
        if request.stream or request.method == "GET" or self.random.random() > self.rate:
            return await self.inner.send(request)
        self.faults += 1
        kind = self.random.choice(["lost request", "lost answer", "conflict", "failure"])
        if kind == "lost request":
            raise TransportError(f"{request}: lost")
        if kind == "lost answer":
            await self.inner.send(request)
            raise TransportError(f"{request}: the answer was lost")
        if kind == "conflict":
            return Response(409, {}, b'{"kind":"Status","code":409,"reason":"Conflict","message":"invented"}')
        return Response(
            500, {}, b'{"kind":"Status","code":500,"reason":"InternalError","message":"invented"}'
        )

    async def close(self):
        await self.inner.close()


async def _watch_live(cluster, problems):
    """Judge every claim event as it happens."""
    slices = [
        each
        for each in (await cluster.client.list(kinds.SLICES)).items
        if each["spec"]["driver"] == cluster.driver
    ]
    ledger = checker.Ledger(checker.Inventory(slices))
    listed = await cluster.client.list(kinds.CLAIMS, cluster.namespace)
    for each in listed.items:
        problems += ledger.see(each)
    version = listed.metadata.resource_version
    async for event in changes(cluster.client, kinds.CLAIMS, cluster.namespace, version):
        problems += ledger.see(event.object, is_gone=event.type == "DELETED")


async def _load(cluster, nodes, devices, pods):
    for number in range(nodes):
        await cluster.devices(await cluster.node(f"n{number}"), *(f"g{index}" for index in range(devices)))
    gpu = await cluster.device_class()
    await cluster.template("one", {"name": "req", "deviceClassName": gpu})
    problems = []
    watching = asyncio.create_task(_watch_live(cluster, problems))

    async def feed():
        for index in range(pods):
            await cluster.pod(f"p{index}", templates=["one"])

    return problems, watching, feed


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.heavy) for seed in range(2, 10))])
async def test_lost_answers_conflicts_and_failures_cost_retries_and_nothing_else(peer, seed):
    async with Cluster(peer) as cluster:
        problems, watching, feed = await _load(cluster, 3, 6, 18)
        client = Client.connect(peer.kubeconfig)
        client.transport = faulty = Faulty(client.transport, seed, rate=0.2)
        loop = SchedulingLoop(client, SchedulerOptions(name=cluster.scheduler_name))
        task = asyncio.create_task(loop.run())
        cluster._tasks.append(task)
        await feed()
        for index in range(18):
            await cluster.bound(f"p{index}")
        watching.cancel()
        assert faulty.faults > 3
        assert problems == []
        await client.close()


async def _kills(peer, rounds, pods, seed):
    chance = random.Random(seed)
    async with Cluster(peer) as cluster:
        problems, watching, feed = await _load(cluster, 4, (pods + 3) // 4, pods)
        feeding = asyncio.create_task(feed())
        command = [sys.executable, "-m", "dray", "scheduler", "--kubeconfig", peer.kubeconfig]
        command += ["--name", cluster.scheduler_name, "--leader-identity", "killed-again-and-again"]
        for _ in range(rounds):
            process = peer.processes.start("scheduler", *command)
            await asyncio.sleep(chance.uniform(0.8, 2.0))
            process.kill()
            process.wait()
            peer.processes._running.pop()
        await feeding
        await cluster.start_scheduler()
        for index in range(pods):
            await cluster.bound(f"p{index}")
        watching.cancel()
        assert problems == []


async def test_a_scheduler_killed_again_and_again_loses_nothing(peer):
    await _kills(peer, rounds=2, pods=16, seed=7)


@pytest.mark.heavy
async def test_five_hundred_kills(peer):
    await _kills(peer, rounds=500, pods=1200, seed=8)


@pytest.mark.kubernetes
async def test_beside_kube_scheduler_with_device_classes_of_its_own_no_device_is_given_twice(kubernetes_peer):
    peer, binaries = kubernetes_peer, peers.kubernetes_binaries()
    if not (binaries / "kube-scheduler").exists():
        pytest.skip("kube-scheduler is not built")
    async with Cluster(peer) as cluster:
        for number in range(4):
            devices = [
                {"name": f"g{index}", "attributes": {"owner": {"string": "kd"[index % 2]}}}
                for index in range(10)
            ]
            await cluster.devices(await cluster.node(f"n{number}"), *devices)
        for owner in "kd":
            selector = f"device.attributes['{cluster.driver}'].owner == '{owner}'"
            device_class = await cluster.device_class(owner, selector)
            await cluster.template(owner, {"name": "req", "deviceClassName": device_class})
        problems = []
        watching = asyncio.create_task(_watch_live(cluster, problems))
        config = peer.processes.folder / "scheduler.yaml"
        config.write_text(
            "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
            f"clientConnection: {{kubeconfig: {peer.kubeconfig}, qps: 500, burst: 500}}\n"
            "leaderElection: {leaderElect: false}\n"
            f"profiles: [{{schedulerName: kube-{cluster.number}}}]\n"
        )
        process = peer.processes.start(
            "kube-scheduler", binaries / "kube-scheduler", f"--config={config}", "--bind-address=127.0.0.1",
            f"--secure-port={peers.free_port()}", f"--cert-dir={peer.processes.folder}/scheduler-certs",
            f"--authentication-kubeconfig={peer.kubeconfig}", f"--authorization-kubeconfig={peer.kubeconfig}",
        )  # fmt: skip
        try:
            await cluster.start_scheduler()

            async def burst(prefix, **spec):
                for index in range(19):
                    await cluster.pod(f"{prefix}{index}", templates=[prefix], **spec)

            await asyncio.gather(burst("d"), burst("k", schedulerName=f"kube-{cluster.number}"))
            for index in range(19):
                await cluster.bound(f"d{index}")
                await cluster.bound(f"k{index}")
            watching.cancel()
            assert problems == []
        finally:
            process.terminate()
            process.wait()
            peer.processes._running.pop()
