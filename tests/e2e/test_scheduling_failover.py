"""Schedulers under load that are killed or restarted one after the other, and API servers that end: no pod is lost, none waits longer than the lease.

A pod with a claim is made five times a second, by somebody who sees nothing of what happens to the schedulers. For each it is measured how long it took from the
answer to its creation until it was seen bound. When its leader dies without a word, a standby waits for the lease to run out (10 s), and looks every 1.5 s.
"""

import asyncio
import signal
import sys
import time

import pytest
from clusters import PATIENCE, Cluster, changes
from test_guard_two_servers import two_servers
from test_scheduling_process import line, start

from dray.client import resources as kinds

__all__ = ["two_servers"]  # the fixture

LEASE = 13.0  # seconds: the lease, and the retry periods around it (dray.cli.scheduler)
SLACK = 4.0  # for a loaded machine: one decision, one commit, the start of a process
PAUSE = 0.2  # seconds between pods


class Load:
    """Makes pods, and measures when they are bound."""

    def __init__(self, cluster, client):
        self.cluster, self.client = cluster, client
        self.made, self.bound = {}, {}  # name -> time

    async def __aenter__(self):
        listed = await self.client.list(kinds.PODS, self.cluster.namespace)
        self._tasks = [
            asyncio.create_task(self._watch(listed.metadata.resource_version)),
            asyncio.create_task(self._make()),
        ]
        return self

    async def __aexit__(self, *_):
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _make(self):
        number = 0
        while True:
            number += 1
            name = f"p{number}"
            await self.cluster.pod(name, templates=["one"])
            self.made[name] = time.monotonic()
            await asyncio.sleep(PAUSE)

    async def _watch(self, version):
        async for event in changes(self.client, kinds.PODS, self.cluster.namespace, version):
            name = event.object["metadata"]["name"]
            if event.type != "DELETED" and event.object["spec"].get("nodeName") and name not in self.bound:
                self.bound[name] = time.monotonic()
                await self.cluster.delete_pod(name)  # its device is free again

    async def goes_on(self, seconds):
        """Let some time pass under load."""
        await asyncio.sleep(seconds)
        for task in self._tasks:
            if task.done():
                task.result()

    async def settled(self, at_most):
        """Stop making pods, wait until all are bound, and return the longest time that one has waited."""
        self._tasks[1].cancel()
        await asyncio.gather(self._tasks[1], return_exceptions=True)

        async def all_bound():
            return not self.made.keys() - self.bound.keys()

        await self.cluster.until(all_bound, f"not bound: {sorted(self.made.keys() - self.bound.keys())}")
        longest = max(self.bound[name] - when for name, when in self.made.items())
        assert longest <= at_most, f"a pod has waited {longest:.1f} s"
        return longest


async def prepared(cluster):
    for name in ("a", "b"):
        node = await cluster.node(name, allocatable={"pods": "500"})
        await cluster.devices(node, *(f"g{number}" for number in range(32)))
    device_class = await cluster.device_class()
    await cluster.template("one", {"name": "r", "deviceClassName": device_class})


class Schedulers:
    """Processes of one name, of which one leads."""

    def __init__(self, cluster, peers):
        self.cluster, self.peers = cluster, peers
        self.processes = {}

    def start(self, number):
        peer = self.peers[number]
        identity = f"s{number}"
        self.processes[number] = start(
            peer, self.cluster.scheduler_name, "--leader-elect", "--leader-identity", identity
        )

    async def first(self):
        """Start all; the first one leads."""
        for number in range(len(self.peers)):
            self.start(number)
            await line(self.processes[number], "standing by" if number else "ready: scheduling pods")

    async def end(self, number, how):
        process = self.processes.pop(number)
        process.send_signal(how)
        await asyncio.to_thread(process.wait, PATIENCE)
        process.stdout.close()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        for number in list(self.processes):
            await self.end(number, signal.SIGKILL)


@pytest.mark.heavy
async def test_a_leader_that_is_killed_under_load_delays_nobody_longer_than_its_lease(peer, capsys):
    async with Cluster(peer) as cluster:
        await prepared(cluster)
        async with Schedulers(cluster, [peer, peer]) as schedulers:
            await schedulers.first()
            async with Load(cluster, cluster.client) as load:
                await load.goes_on(2)
                await schedulers.end(0, signal.SIGKILL)
                await load.goes_on(LEASE + 2)
                longest = await load.settled(LEASE + SLACK)
        assert longest > 5, "the lease was not waited for: was the leader killed?"
        with capsys.disabled():
            print(f"\nleader killed, {peer.kind}: {len(load.made)} pods, longest {longest:.1f} s")


async def test_a_rolling_restart_under_load_delays_nobody(peer, capsys):
    async with Cluster(peer) as cluster:
        await prepared(cluster)
        async with Schedulers(cluster, [peer, peer]) as schedulers:
            await schedulers.first()
            async with Load(cluster, cluster.client) as load:
                await load.goes_on(1)
                for number in (0, 1, 0):
                    await schedulers.end(number, signal.SIGTERM)
                    schedulers.start(number)
                    await line(schedulers.processes[number], "standing by|ready: scheduling pods")
                    await load.goes_on(2)
                longest = await load.settled(SLACK + 2)
        with capsys.disabled():
            print(f"\nrolling restart, {peer.kind}: {len(load.made)} pods, longest {longest:.1f} s")


@pytest.mark.kubernetes
async def test_an_api_server_that_ends_under_load_delays_nobody_longer_than_the_lease(two_servers, capsys):
    """The leader loses its server; the standby has another one, and so have those who make pods."""
    peer, kubeconfig = two_servers

    class Second:
        def __init__(self):
            self.kind, self.kubeconfig = peer.kind, kubeconfig

    async with Cluster(Second()) as cluster:
        await prepared(cluster)
        command = (sys.executable, "-m", "dray", "controllers", "--kubeconfig", kubeconfig)
        peer.processes.start("controllers", *command)
        async with Schedulers(cluster, [peer, Second()]) as schedulers:
            await schedulers.first()
            async with Load(cluster, cluster.client) as load:
                await load.goes_on(2)
                [server] = [process for name, process in peer.processes._running if name == "apiserver"]
                server.kill()
                await load.goes_on(LEASE + 2)
                longest = await load.settled(LEASE + SLACK)
        assert longest > 5, "the leader went on without its server"
        with capsys.disabled():
            print(f"\nAPI server killed: {len(load.made)} pods, longest {longest:.1f} s")
