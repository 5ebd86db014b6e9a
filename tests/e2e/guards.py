"""Run `dray guard` as a process beside a real kube-apiserver, and write allocations by hand."""

import asyncio
import contextlib
import json
import sys

import aiohttp
import checker
import peers
import pytest
from clusters import changes

from dray.client import AlreadyExists, Conflict, NotFound, ServerFailed
from dray.client import resources as kinds
from dray.control.guarding.webhook_configuration import CONFIGURATION, CONFIGURATIONS

PATIENCE = 60.0  # seconds for what happens at once; a loaded machine is slow, not wrong
CALM = 30  # seconds of lease where nobody takes over: API servers wait ten seconds for an answer
HASTY = 6  # where somebody does, and the test waits for it: they wait two seconds


class GuardProcess:
    """One `dray guard`; its settling is short, because tests are."""

    def __init__(self, peer, *flags, lease=HASTY, kubeconfig=None, listen="127.0.0.1:0"):
        self.peer = peer
        self.command = [sys.executable, "-m", "dray", "guard", "--kubeconfig", kubeconfig or peer.kubeconfig]
        self.command += ["--lease", lease, "--settle", "0.5", "--fence-after", "0.5", "--listen", listen]
        self.command += ["--output", "json", "-v", *flags]
        self.process = None
        self.reports = []
        self._reading = None
        self.log = peer.processes.folder / "guard.log"

    async def start(self, *, is_awaited=True, timeout=PATIENCE):
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

    async def ready(self, timeout=PATIENCE):
        """Wait until it judges; API servers may hear of its address a moment later: see `in_force`."""
        await self._report(lambda last: last["is_ready"], timeout)

    async def reported(self):
        """Wait until it has said anything: that it stands by, as a rule."""
        await self._report(lambda _: True, PATIENCE)

    async def begun_anew(self):
        """Wait until it has judged, has seen its configuration go, and judges again."""
        async with asyncio.timeout(PATIENCE):
            while not self._has_begun_anew():
                await asyncio.sleep(0.02)

    def _has_begun_anew(self):
        phases = [each["phase"] for each in self.reports]
        return "settling" in phases[phases.index("judging") :] and phases[-1] == "judging"

    async def _report(self, is_awaited, timeout):
        async with asyncio.timeout(timeout):
            while not (self.reports and is_awaited(self.reports[-1])):
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
            await asyncio.wait_for(self.process.wait(), PATIENCE)
            await self._reading
        return self.process.returncode


@contextlib.asynccontextmanager
async def guarding(cluster, *flags, lease=CALM):
    """A guard that is asked and judges, until the block ends; then nothing is guarded."""
    guard = GuardProcess(cluster.peer, *flags, lease=lease)
    try:
        await free_lease(cluster)
        await guard.start()
        await in_force(cluster)
        yield guard
    finally:
        with contextlib.suppress(ProcessLookupError):
            await guard.stop()
        await unguarded(cluster)


async def free_lease(cluster, namespace="kube-system"):
    """Leave the lease as a guard does that was stopped: nobody need wait until it has run out."""
    body = {"metadata": {"name": CONFIGURATION}, "spec": {"holderIdentity": "", "leaseDurationSeconds": 1}}
    try:
        await cluster.client.create(kinds.LEASES, body, namespace)
    except AlreadyExists:
        await cluster.client.patch(kinds.LEASES, CONFIGURATION, {"spec": body["spec"]}, namespace)


async def unguarded(cluster):
    """Remove the webhook configuration and wait until the API server has forgotten it."""
    with contextlib.suppress(NotFound):
        await cluster.client.delete(CONFIGURATIONS, CONFIGURATION)
        await out_of_force(cluster)


# --- what API servers follow, and what guards have seen ---------------------------------------


async def in_force(cluster, client=None):
    """Wait until the API server asks a guard, and gets an answer."""
    await _until_answer(cluster, lambda answer: "is not published" in answer, "the guard is asked", client)


async def is_asked(cluster):
    """Wait until the API server asks a guard, whether or not that one is ready to answer."""
    await _until_answer(cluster, lambda answer: answer != "", "some guard is asked")


async def out_of_force(cluster):
    """Wait until the API server asks no guard."""
    await _until_answer(cluster, lambda answer: answer == "", "no guard is asked")


async def is_free(cluster, device, pool):
    """Wait until the guard has seen that a device is published and that nobody holds it."""
    what = f"the guard would give {device}"
    await _until_answer(cluster, lambda answer: answer == "", what, device=device, pool=pool)


async def _until_answer(cluster, is_right, what, client=None, *, device="nothing", pool="nowhere"):
    """Ask with dry runs; the answer is a refusal in words, or nothing when the write would land."""
    await cluster.claim("probe", {"name": "r", "deviceClassName": "any"})
    given = allocation(cluster, device, pool=pool)

    async def asked():
        probe = await cluster.get_claim("probe")
        try:
            # A guard that is stopped lets the API server wait: rather ask again.
            async with asyncio.timeout(2.0):
                await give(cluster, probe, given, client=client, dryRun="All")
        except TimeoutError:
            return False
        except (Conflict, ServerFailed) as error:
            return is_right(str(error))
        return is_right("")

    try:
        await cluster.until(asked, what, PATIENCE)
    finally:
        await cluster.client.delete(kinds.CLAIMS, "probe", cluster.namespace)


# --- writing and watching ---------------------------------------------------------------------


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


def is_early(refusal, names):
    """Whether the guard refused because it had not heard yet that a former holder (none of these) let go."""
    text = str(refusal)
    return (
        isinstance(refusal, Conflict)
        and "is held by claim" in text
        and not any(name in text for name in names)
    )


class Watcher:
    """Judges every claim event of a test as it happens, by the independent checker."""

    _LAST = "the-last-one"

    def __init__(self, cluster):
        self.cluster = cluster
        self.problems = []
        self._has_ended = asyncio.Event()
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
        async for event in changes(self.cluster.client, kinds.CLAIMS, self.cluster.namespace, version):
            if event.object["metadata"]["name"] == self._LAST:
                self._has_ended.set()
            self.problems += self.ledger.see(event.object, is_gone=event.type == "DELETED")

    async def __aexit__(self, *_):
        # What comes after all others says that all others have arrived.
        await self.cluster.claim(self._LAST, {"name": "r", "deviceClassName": "any"})
        seen = asyncio.create_task(self._has_ended.wait())
        await asyncio.wait({seen, self._task}, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE)
        seen.cancel()
        assert not self._task.done(), "the watch ended before the test did"
        assert self._has_ended.is_set(), "the watch is silent"
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
        process.wait(PATIENCE)
        processes._running.remove((name, process))


async def metrics_of(guard):
    """Read the guard's counters."""
    url = f"https://{guard.reports[-1]['address']}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url, ssl=False) as answer:
        lines = (await answer.text()).splitlines()
    return {line.split()[0]: float(line.split()[1]) for line in lines if not line.startswith("#")}


__all__ = [
    "CALM", "HASTY", "PATIENCE", "GuardProcess", "Watcher", "allocation", "free_lease", "give", "guarded_scheduler",
    "guarding", "in_force", "is_asked", "is_early", "is_free", "kube_scheduler", "metrics_of", "out_of_force", "unguarded",
]  # fmt: skip
