"""Run `dray guard` as a process beside a real kube-apiserver, and write allocations by hand."""

import asyncio
import contextlib
import json
import sys

import checker

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
        await guard.kill()
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


async def give(cluster, claim, given, *, resource=kinds.CLAIMS, **query):
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
    return await cluster.client.update(
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


__all__ = ["GuardProcess", "Watcher", "allocation", "give", "guarding", "unguarded"]
