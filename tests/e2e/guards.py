"""Run `dray guard` as a process beside a real kube-apiserver, and write allocations by hand."""

import asyncio
import contextlib
import json
import sys

import aiohttp
import checker
import peers
import pytest

from dray.client import NotFound
from dray.client import resources as kinds
from dray.control.guarding.registering import CONFIGURATION, CONFIGURATIONS


class GuardProcess:
    """One `dray guard`; its lease and settling are short, because tests are."""

    def __init__(self, peer, *flags, kubeconfig=None, listen="127.0.0.1:0"):
        self.peer = peer
        self.command = [sys.executable, "-m", "dray", "guard", "--kubeconfig", kubeconfig or peer.kubeconfig]
        self.command += ["--lease", "3", "--settle", "0.5", "--fence-after", "0.5", "--listen", listen]
        self.command += ["--output", "json", "-v", *flags]
        self.process = None
        self.reports = []
        self._reading = None
        self.log = peer.processes.folder / "guard.log"

    async def start(self, *, is_awaited=True, timeout=30.0):
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *map(str, self.command), stdout=asyncio.subprocess.PIPE, stderr=log
            )
        self.reports = []
        self._reading = asyncio.create_task(self._read(self.process.stdout))
        if is_awaited:
            await self.ready(timeout)
        return self

    async def _read(self, stream):
        while line := await stream.readline():
            self.reports.append(json.loads(line))

    async def ready(self, timeout=30.0):
        async with asyncio.timeout(timeout):
            while not (self.reports and self.reports[-1]["is_ready"]):
                assert self.process.returncode is None, self.log.read_text()[-3000:]
                await asyncio.sleep(0.02)

    async def kill(self):
        """SIGKILL, as a machine would."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        await self._reading

    async def stop(self):
        if self.process is not None and self.process.returncode is None:
            self.process.terminate()
            await asyncio.wait_for(self.process.wait(), 20)
            await self._reading
        return self.process.returncode


@contextlib.asynccontextmanager
async def guarding(cluster, *flags):
    """A guard that judges, until the block ends; then nothing is guarded."""
    guard = GuardProcess(cluster.peer, *flags)
    try:
        await guard.start()
        yield guard
    finally:
        with contextlib.suppress(ProcessLookupError):
            await guard.stop()  # gives the lease back, so that the next test need not wait for it
        await unguarded(cluster)


async def unguarded(cluster):
    """Remove the webhook configuration and wait until the API server has forgotten it."""
    with contextlib.suppress(NotFound):
        await cluster.client.delete(CONFIGURATIONS, CONFIGURATION)
        await asyncio.sleep(1.0)


def allocation(cluster, *devices, pool, **more):
    """Spell an allocation of devices by hand."""
    results = [
        {"request": "r", "driver": cluster.driver, "pool": pool, "device": each, **more} for each in devices
    ]
    return {"devices": {"results": results}}


async def give(cluster, claim, given, *, resource=kinds.CLAIMS, client=None, **query):
    """PUT an allocation into a claim as it was read."""
    meta = claim["metadata"]
    kept = {key: meta[key] for key in ("name", "namespace", "uid", "resourceVersion")}
    body = {
        "apiVersion": resource.api_version,
        "kind": "ResourceClaim",
        "metadata": kept,
        "spec": claim["spec"],
        "status": {"allocation": given} if given else {},
    }
    return await (client or cluster.client).update(
        resource, meta["name"], body, cluster.namespace, subresource="status", **query
    )


class Watcher:
    """Judges every claim event of a test as it happens, by the independent checker."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.problems = []
        self.events = 0
        self._task = None

    async def __aenter__(self):
        slices = [
            each
            for each in (await self.cluster.client.list(kinds.SLICES)).items
            if each["spec"]["driver"] == self.cluster.driver
        ]
        self.ledger = checker.Ledger(checker.Inventory(slices))
        listed = await self.cluster.client.list(kinds.CLAIMS, self.cluster.namespace)
        for each in listed.items:
            self.problems += self.ledger.see(each)
        self._task = asyncio.create_task(self._follow(listed.metadata.resource_version))
        return self

    async def _follow(self, version):
        stream = self.cluster.client.watch(kinds.CLAIMS, self.cluster.namespace, resourceVersion=version)
        async for event in stream:
            self.events += 1
            self.problems += self.ledger.see(event.object, is_gone=event.type == "DELETED")

    async def __aexit__(self, *_):
        await asyncio.sleep(0.3)  # let the last events arrive
        assert not self._task.done(), "the watch ended before the test did"
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@contextlib.contextmanager
def kube_scheduler(cluster, name):
    """Run kube-scheduler for pods of this scheduler name."""
    processes, binaries = cluster.peer.processes, peers.kubernetes_binaries()
    if not (binaries / "kube-scheduler").exists():
        pytest.skip("kube-scheduler is not built")
    config = processes.folder / f"{name}.yaml"
    config.write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
        f"clientConnection: {{kubeconfig: {cluster.peer.kubeconfig}, qps: 500, burst: 500}}\n"
        "leaderElection: {leaderElect: false}\npodMaxBackoffSeconds: 1\n"
        f"profiles: [{{schedulerName: {name}}}]\n"
    )
    with _child(
        processes, name, binaries / "kube-scheduler", f"--config={config}", "--bind-address=127.0.0.1",
        f"--secure-port={peers.free_port()}", f"--cert-dir={processes.folder}/{name}-certs",
        f"--authentication-kubeconfig={cluster.peer.kubeconfig}",
        f"--authorization-kubeconfig={cluster.peer.kubeconfig}",
    ):  # fmt: skip
        yield


@contextlib.contextmanager
def guarded_scheduler(cluster, *flags):
    """Run `dray scheduler --guarded` as a process."""
    command = [sys.executable, "-m", "dray", "scheduler", "--kubeconfig", cluster.peer.kubeconfig]
    command += ["--name", cluster.scheduler_name, "--guarded", "-v", *flags]
    with _child(cluster.peer.processes, f"scheduler-{cluster.number}", *command):
        yield


@contextlib.contextmanager
def _child(processes, name, *command):
    process = processes.start(name, *command)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(20)
        processes._running.remove((name, process))


async def metrics_of(guard):
    """Read the guard's counters."""
    url = f"https://{guard.reports[-1]['address']}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url, ssl=False) as answer:
        lines = (await answer.text()).splitlines()
    return {line.split()[0]: float(line.split()[1]) for line in lines if not line.startswith("#")}


__all__ = [
    "GuardProcess", "Watcher", "allocation", "give", "guarded_scheduler", "guarding", "kube_scheduler", "metrics_of",
    "unguarded",
]  # fmt: skip
