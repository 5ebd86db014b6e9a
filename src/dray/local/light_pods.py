"""Pods and claims of light nodes: the node agent's and the driver SDK's own code, with nothing in between.

A light node (see `light_nodes`) has no process, socket or file of its own. What a pod goes through is the
same nevertheless: `PodRunner` with its state machine, `ClaimKeeper` with its rules, `Preparer` with its
record, and the simulated driver. Only what connects them differs:

    full node     ClaimKeeper → gRPC over a Unix socket → Preparer → record and CDI files on disk
    light node    ClaimKeeper → LightPlugin             → Preparer → record in memory, CDI names only

Everything here is made when the first pod comes to a node and dropped when the last one has gone, and the
modelled devices of a node are kept only while they are used: of 5,000 nodes most have nothing to do.
A claim is read once per pod (`LightKeeper`); the driver and the status writer get that copy.

A light node that starts anew knows no claims. It has nothing to undo: modelled hardware ends with the process,
and a pod that is still there has its claims prepared again, which every driver must allow.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import msgspec

from dray.api.caching import BoundedMap
from dray.api.cdi import ContainerEdits
from dray.api.json_types import JsonObject
from dray.api.podspec import RunPod
from dray.api.resource import AllocatedDeviceStatus, ResourceClaim
from dray.client import Client, NotFound
from dray.client.resources import CLAIMS
from dray.devices import DeviceId
from dray.driver import ClaimRequest, Pool, PreparedClaim, PreparedDevice, UsesApi
from dray.driver.api_access import ApiAccess
from dray.driver.files import UnwrittenFiles
from dray.driver.metrics import Metrics
from dray.driver.preparing import ClaimRef, ClaimSource, Preparer, explain_failure
from dray.driver.state import MemoryState
from dray.drivers.simulated import SimulatedDriver
from dray.drivers.simulated_node import simulated_drivers
from dray.local.node_plans import NodePlan, Places
from dray.node.claims import ClaimFacts, ClaimKey, ClaimRecords, ClaimRefused, HeldDevice
from dray.node.environment import PodEnvironment
from dray.node.health import ReportedHealth
from dray.node.plugins import not_registered
from dray.node.pods import PodRunner
from dray.node.preparing import ClaimKeeper
from dray.node.runtime import NoneRuntime

log = logging.getLogger("dray.local")

ADDRESS = "127.0.0.1"  # where full nodes of this machine are, too
_NODES_IN_USE = 64  # whose modelled devices are kept


class DriverAccess:
    """One driver's access to the API and its metrics, shared by all light nodes."""

    def __init__(self, name: str, client: Client) -> None:
        self.name = name
        self.client = client
        self.api = ApiAccess(client)
        self.metrics = Metrics(name)


class Hardware:
    """The modelled drivers of many nodes, made when they are needed."""

    def __init__(
        self, plans: Mapping[str, NodePlan], places: Places, access: Mapping[str, DriverAccess]
    ) -> None:
        self.plans = plans
        self.places = places
        self.access = access
        self._recent: BoundedMap[str, Mapping[str, SimulatedDriver]] = BoundedMap(_NODES_IN_USE)

    def make_drivers(self, node: str) -> Mapping[str, SimulatedDriver]:
        """Return the drivers of a node by name, made anew and not kept."""
        plan, root = self.plans[node], self.places.node_root(node)
        assert plan.profile is not None  # this machine itself is never a light node
        made = simulated_drivers(plan.profile, node, root / "faults", root / "files", plan.reachable)
        for driver in made:
            if isinstance(driver, UsesApi):
                driver.connect(self.access[driver.name].client)
        return {driver.name: driver for driver in made}

    def drivers(self, node: str) -> Mapping[str, SimulatedDriver]:
        """Return the drivers of a node by name; those of nodes that were asked for last are kept."""
        found = self._recent.use(node)
        if found is None:
            found = self._recent[node] = self.make_drivers(node)
        return found

    def health(self, key: DeviceId, node: str) -> ReportedHealth | None:
        """Return what the device's driver says of it now; None when the node has no such device."""
        driver = self.drivers(node).get(key.driver)
        for device in driver.device_health() if driver is not None else ():
            if (device.pool or node, device.device) == (key.pool, key.device):
                return ReportedHealth(device.health, device.message, float("inf"))
        return None


class LightDriver:
    """A driver of one node, as its preparer calls it; the modelled one is looked up for every call."""

    def __init__(self, name: str, node: str, hardware: Hardware) -> None:
        self.name = name
        self._node = node
        self._hardware = hardware

    def _modelled(self) -> SimulatedDriver:
        return self._hardware.drivers(self._node)[self.name]

    def discover(self) -> list[Pool]:
        """Return the pools as they are now."""
        return self._modelled().discover()

    async def prepare(self, claim: ClaimRequest) -> list[PreparedDevice]:
        """Do what the simulated driver does."""
        return await self._modelled().prepare(claim)

    async def unprepare(self, claim: PreparedClaim) -> None:
        """Do what the simulated driver does."""
        await self._modelled().unprepare(claim)


class KnownClaims:
    """Claims of one node that were just read: each pod's claim is read once, for the agent and all drivers."""

    def __init__(self) -> None:
        self.raw_by_key: dict[ClaimKey, tuple[JsonObject, ResourceClaim]] = {}


class LightClaims(ClaimSource):
    """Where a light node's driver reads claims and writes their status."""

    def __init__(self, api: ApiAccess, known: KnownClaims) -> None:
        self._api = api
        self._known = known

    async def read(self, namespace: str, name: str) -> ResourceClaim:
        """Return the claim that the node has just judged."""
        found = self._known.raw_by_key.get(ClaimKey(namespace, name))
        return found[1] if found is not None else await self._api.read(namespace, name)

    async def write_status(self, ref: ClaimRef, driver: str, devices: list[AllocatedDeviceStatus]) -> None:
        """Write the driver's entries; the copy at hand serves the first writer, and is old for the next."""
        raw, _ = self._known.raw_by_key.pop(ClaimKey(ref.namespace, ref.name), (None, None))
        await self._api.write_status(ref, driver, devices, known=raw)


class LightPlugin:
    """A driver as the keeper calls it: the preparer of the SDK, without a socket."""

    def __init__(self, preparer: Preparer) -> None:
        self._preparer = preparer

    async def prepare(self, claims: Sequence[ClaimFacts]) -> dict[str, list[HeldDevice] | str]:
        """Prepare claims one after the other, as the service of a driver does."""
        answers: dict[str, list[HeldDevice] | str] = {}
        for facts in claims:
            try:
                devices = await self._preparer.prepare(_ref(facts))
            except Exception as error:  # as over gRPC, whatever fails is told to the node
                answers[facts.uid] = explain_failure("prepare", str(facts.key), error)
            else:
                answers[facts.uid] = [
                    HeldDevice(
                        device.pool,
                        device.device,
                        device.share_id,
                        (device.request,),
                        tuple(device.cdi_device_ids),
                    )
                    for device in devices
                ]
        return answers

    async def unprepare(self, claims: Sequence[ClaimFacts]) -> dict[str, str]:
        """Unprepare claims one after the other."""
        answers = {}
        for facts in claims:
            try:
                await self._preparer.unprepare(_ref(facts))
                answers[facts.uid] = ""
            except Exception as error:
                answers[facts.uid] = explain_failure("unprepare", str(facts.key), error)
        return answers


def _ref(facts: ClaimFacts) -> ClaimRef:
    return ClaimRef(facts.key.namespace, facts.key.name, facts.uid)


class LightPlugins:
    """The drivers of one light node."""

    def __init__(self, node: str, hardware: Hardware, known: KnownClaims) -> None:
        self._node = node
        self._hardware = hardware
        self._known = known
        self._plugins: dict[str, LightPlugin] = {}

    def find(self, driver: str) -> LightPlugin:
        """Return the driver to call; raise PluginError when the node has none of that name."""
        found = self._plugins.get(driver)
        if found is None:
            drivers = self._hardware.drivers(self._node)
            if driver not in drivers:
                raise not_registered(driver, drivers)
            access = self._hardware.access[driver]
            found = self._plugins[driver] = LightPlugin(
                Preparer(
                    LightDriver(driver, self._node, self._hardware),
                    MemoryState(),
                    UnwrittenFiles(driver),
                    LightClaims(access.api, self._known),
                    metrics=access.metrics,
                )
            )
        return found


class NoCheckpoint:
    """What a light node knows of claims ends with it."""

    async def commit(self) -> None:
        """There is nothing to wait for."""


class NoEdits:
    """CDI for a runtime that starts nothing."""

    def resolve(self, names: Sequence[str]) -> ContainerEdits:
        """Change nothing in a container that does not exist."""
        return ContainerEdits()


class LightKeeper(ClaimKeeper):
    """The claims of one light node; what it reads is kept for the drivers."""

    def __init__(self, client: Client, node: str, hardware: Hardware) -> None:
        self._known = KnownClaims()
        plugins = LightPlugins(node, hardware, self._known)
        super().__init__(client, plugins, ClaimRecords(), NoCheckpoint())

    async def read(self, key: ClaimKey) -> ResourceClaim:
        """Return a claim that a pod uses; raise ClaimRefused when it does not exist."""
        try:
            raw = await self._client.get(CLAIMS, key.name, key.namespace)
        except NotFound as error:
            raise ClaimRefused(f"claim {key} does not exist") from error
        claim = msgspec.convert(raw, ResourceClaim)
        self._known.raw_by_key[key] = raw, claim
        return claim

    def drop_copies(self) -> None:
        """Drop copies of claims that nobody on this node holds any more."""
        known = self._known.raw_by_key
        for key in known.keys() - self.records.infos.keys():
            del known[key]


class NodeHealth:
    """The health of one light node's devices."""

    def __init__(self, node: str, hardware: Hardware) -> None:
        self._node = node
        self._hardware = hardware

    def of(self, key: DeviceId) -> ReportedHealth | None:
        """Return a device's health now; None when the node has no such device."""
        return self._hardware.health(key, self._node)


class LightPods:
    """The pods of all light nodes, each handled by the runner of its node."""

    def __init__(self, client: Client, hardware: Hardware) -> None:
        self._client = client
        self._hardware = hardware
        self._runners: dict[str, tuple[PodRunner, LightKeeper]] = {}

    def see(self, old: RunPod | None, new: RunPod | None) -> None:
        """Take a change of a pod, as an informer tells it; pods of other nodes are none of our business."""
        pod = new or old
        assert pod is not None
        node = pod.spec.node_name
        if node in self._hardware.plans:
            runner, _ = self._runners.get(node) or self._make(node)
            runner.see(old, new)

    def _make(self, node: str) -> tuple[PodRunner, LightKeeper]:
        root = self._hardware.places.node_root(node)
        keeper = LightKeeper(self._client, node, self._hardware)
        runner = PodRunner(
            self._client,
            node,
            ADDRESS,
            root,
            keeper=keeper,
            cdi=NoEdits(),
            health=NodeHealth(node, self._hardware),
            environment=PodEnvironment(self._client, root, ADDRESS),
        )
        runner.runtime = NoneRuntime(runner.on_exit)
        self._runners[node] = runner, keeper
        return runner, keeper

    def report_devices(self, node: str) -> None:
        """Write the status of the node's pods again: the health of its devices may have changed."""
        if node in self._runners:
            runner, keeper = self._runners[node]
            held = {
                DeviceId(driver, device.pool, device.device)
                for info in keeper.records.infos.values()
                for driver, devices in info.devices_by_driver.items()
                for device in devices
            }
            runner.report_devices(held)

    async def tidy(self) -> None:
        """Release claims of pods that are gone, and drop what nodes without pods do not need."""
        for node, (runner, keeper) in list(self._runners.items()):
            await keeper.reconcile(runner.active_uids())
            keeper.drop_copies()
            if runner.is_idle and not keeper.records.infos:
                del self._runners[node]
                await runner.close()

    async def close(self) -> None:
        """Stop all tasks."""
        for runner, _ in self._runners.values():
            await runner.close()
