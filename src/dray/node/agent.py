"""The node agent: its parts, and the order in which they start.

    checkpoint → runtime → node registered → old slices wiped → plugins → pods → reconcile

Plugins are watched before pods are seen, so that the first pod finds its driver;
slices are wiped before either, since nobody knows whether what they say is
still true. Claims of pods that went away meanwhile are released at the end of the
first round, and every minute from then on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest

from dray.api.podspec import RunPod
from dray.client import Client, Informer
from dray.client.resources import PODS
from dray.host.private_files import close_tree, make_private_folder
from dray.node.access import Access
from dray.node.cdi import DEFAULT_DIRS, CdiRegistry
from dray.node.checkpoint import FILE_NAME, CheckpointFile, CorruptCheckpointError
from dray.node.claims import ClaimRecords
from dray.node.environment import PodEnvironment
from dray.node.health import DeviceHealthBoard
from dray.node.machine import Backoff, Stage
from dray.node.membership import Membership, NodeFacts, machine_capacity
from dray.node.plugins import WIPE_AFTER_SECONDS, Plugin, PluginRegistry
from dray.node.podresources import PodResourcesService, serve_pod_resources
from dray.node.pods import PodRunner
from dray.node.preparing import ClaimKeeper, Steps, no_steps
from dray.node.runtime import NoneRuntime, ProcessRuntime, Runtime
from dray.node.server import NodeServer

log = logging.getLogger("dray.node")

RECONCILE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """What an agent needs to know. `root` has the place of /var/lib/kubelet."""

    name: str
    root: Path
    runtime: str = "process"
    address: str = "127.0.0.1"
    port: int = 0  # of the log server; 0 picks one
    cdi_dirs: Sequence[Path] = DEFAULT_DIRS
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()
    max_pods: int = 110
    capacity: Mapping[str, str] | None = None  # None: what the machine has
    client_ca: Path | None = None  # None: callers of the node's port need a bearer token
    images: Path | None = None  # for runc
    backoff: Backoff = field(default_factory=Backoff)
    reconcile_seconds: float = RECONCILE_SECONDS
    wipe_after_seconds: float = WIPE_AFTER_SECONDS
    provider_id: str = ""  # the node's spec.providerID
    serves: bool = True  # False: no log server and no PodResources socket (simulated nodes)


class Agent:
    """A node; `run` it until cancelled."""

    def __init__(self, client: Client, settings: AgentSettings, *, steps: Steps = no_steps) -> None:
        self.settings = settings
        self._client = client
        root = settings.root
        self.metrics = AgentMetrics(settings.name)
        self.records = ClaimRecords()
        self.checkpoint = CheckpointFile(root / FILE_NAME, lambda: list(self.records.infos.values()))
        self.health = DeviceHealthBoard(lambda changed: self.pods.report_devices(changed))
        self.plugins = PluginRegistry(
            root / "plugins_registry",
            on_away=self._driver_away,
            on_registered=self._driver_registered,
            observe=self.metrics.observe_call,
            wipe_after_seconds=settings.wipe_after_seconds,
        )
        self.keeper = ClaimKeeper(
            client, self.plugins, self.records, self.checkpoint, steps=steps, observe=self.metrics.observe
        )
        self.pods = PodRunner(
            client,
            settings.name,
            settings.address,
            root,
            keeper=self.keeper,
            cdi=CdiRegistry(settings.cdi_dirs),
            health=self.health,
            environment=PodEnvironment(client, root, settings.address),
            backoff=settings.backoff,
        )
        self.server = NodeServer(
            self.pods,
            Access(client, settings.name),
            settings.address,
            root / "pki",
            client_ca=settings.client_ca,
            metrics=self.metrics.text,
        )
        self.informer: Informer[RunPod] = Informer(
            client, PODS, RunPod, field_selector=f"spec.nodeName={settings.name}"
        )
        self.membership: Membership | None = None
        self.is_ready = asyncio.Event()
        self._is_checkpoint_lost = False
        self._registered = asyncio.Event()  # a driver has, since the last reconciliation

    def _make_runtime(self) -> Runtime:
        if self.settings.runtime == "none":
            return NoneRuntime(self.pods.on_exit)
        if self.settings.runtime == "runc":
            from dray.node.runtime.runc import RuncRuntime

            return RuncRuntime(self.settings.root, self.pods.on_exit, images=self.settings.images)
        return ProcessRuntime(self.settings.root, self.pods.on_exit)

    async def run(self) -> None:
        """Be a node until cancelled."""
        settings = self.settings
        make_private_folder(settings.root)
        opened = close_tree(settings.root, settings.root / "pods", settings.root / "images")
        if opened:
            log.info("took the rights of other users from %d files in %s", len(opened), settings.root)
        self._restore()
        await self.pods.adopt(self._make_runtime())
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self.server.stop)
            stack.push_async_callback(self.pods.close)
            if settings.serves:
                await self.server.start(settings.port)
                service = PodResourcesService(self.records, self._active_pods)
                await stack.enter_async_context(
                    serve_pod_resources(settings.root / "pod-resources" / "kubelet.sock", service)
                )
            await self._run_loops()

    async def _run_loops(self) -> None:
        settings = self.settings
        capacity = settings.capacity or machine_capacity(settings.max_pods)
        facts = NodeFacts(
            settings.name,
            settings.address,
            self.server.port,
            settings.labels,
            capacity,
            settings.runtime,
            settings.taints,
            provider_id=settings.provider_id,
        )
        self.membership = Membership(self._client, facts)
        await self.membership.register()
        await self.membership.wipe_slices()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.membership.run())
            tasks.create_task(self.plugins.run())
            tasks.create_task(self.health.run_expiry())
            tasks.create_task(self._follow_pods())
            tasks.create_task(self.informer.run())

    def _restore(self) -> None:
        try:
            self.records.restore(self.checkpoint.load())
        except CorruptCheckpointError as error:
            log.error("%s. The record will be rebuilt from the API server.", error)
            self._is_checkpoint_lost = True

    async def _follow_pods(self) -> None:
        if self._is_checkpoint_lost:
            await self.keeper.rebuild(self.settings.name)
        self.informer.add_handler(self.pods.see)
        await self.informer.wait_synced()
        await self.pods.stop_orphans()
        self.is_ready.set()
        log.info(
            "node %s is up: runtime %s, root %s",
            self.settings.name,
            self.settings.runtime,
            self.settings.root,
        )
        while True:
            await self.keeper.reconcile(self.pods.active_uids())
            self.metrics.claims_in_use.set(len(self.records.infos))
            # A driver that registers may be the one that the claims of a pod that is gone wait for.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.reconcile_seconds):
                    await self._registered.wait()
            self._registered.clear()

    def _active_pods(self) -> list[RunPod]:
        return [machine.pod for machine in self.pods.machines() if machine.stage is not Stage.FINISHED]

    def _driver_registered(self, plugin: Plugin) -> None:
        plugin.tasks.append(asyncio.create_task(self.health.follow(plugin)))
        self.pods.retry_prepare()
        self._registered.set()

    async def _driver_away(self, driver: str) -> None:
        assert self.membership is not None
        await self.membership.wipe_slices(driver)


class AgentMetrics:
    """What the agent counts; names are kubelet's where kubelet has them."""

    def __init__(self, node: str) -> None:
        self.registry = CollectorRegistry()
        self._seconds = Histogram(
            "dra_operations_duration_seconds",
            "How long preparing or unpreparing the claims of a pod took.",
            ("operation_name", "is_error"),
            registry=self.registry,
            buckets=(0.002, 0.005, 0.01, 0.05, 0.2, 1, 5, 45),
        )
        self._call_seconds = Histogram(
            "dra_grpc_operations_duration_seconds",
            "How long calls to drivers took.",
            ("driver_name", "method_name", "grpc_status_code"),
            registry=self.registry,
            buckets=(0.002, 0.005, 0.01, 0.05, 0.2, 1, 5, 45),
        )
        self.claims_in_use = Gauge(
            "dra_resource_claims_in_use", "Claims that pods of this node hold.", registry=self.registry
        )

    def observe(self, operation: str, seconds: float, is_ok: bool) -> None:
        """Count one prepare or unprepare."""
        self._seconds.labels(operation, "false" if is_ok else "true").observe(seconds)

    def observe_call(self, driver: str, method: str, code: str, seconds: float) -> None:
        """Count one call to a driver."""
        self._call_seconds.labels(driver, method, code).observe(seconds)

    def text(self) -> bytes:
        """Return everything in Prometheus' format."""
        return bytes(generate_latest(self.registry))


@contextlib.asynccontextmanager
async def running_agent(
    client: Client, settings: AgentSettings, *, steps: Callable[[str], None] = no_steps
) -> AsyncIterator[Agent]:
    """Run an agent for the length of a `with` block; it is ready inside."""
    agent = Agent(client, settings, steps=steps)
    task = asyncio.create_task(agent.run())
    ready = asyncio.create_task(agent.is_ready.wait())
    try:
        await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
        yield agent
    finally:
        ready.cancel()
        task.cancel()
        await asyncio.gather(task, ready, return_exceptions=True)
