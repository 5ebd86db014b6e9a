"""`plan_repartition(snapshot, …) -> RepartitionPlan`: which layouts idle GPUs should have for the pods that wait.

A pure function. The scheduler's own decisions choose the layouts:

  1. The waiting pods are placed on the cluster as it is. Those that fit need no change, and what they get is not idle.
  2. Every GPU that is idle then is offered with all partitions that it could have, over the counters of one GPU. The
     scheduler places the other pods once more; what it gives them of a GPU is the layout that the GPU needs.
     This is done in two orders, and the one that places more pods counts; among equals the one with larger parts.
  3. What is left of a GPU is filled up: with its present partitions, with profiles that are asked for, with others.
  4. The pods are placed on the layouts as they would be published. A change that serves no pod is left out.

A GPU is idle when no claim holds it or a partition of it, with admin access either, and no taint keeps pods away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from dray.allocator import AllocationError
from dray.api.core import Pod
from dray.api.resource import CounterSet, Device, ResourceSlice
from dray.api.tolerations import BLOCKING_EFFECTS
from dray.client import key_of
from dray.devices import DeviceId
from dray.drivers import driver_names
from dray.drivers.hardware import PoolModel, pool_slices
from dray.drivers.hardware.mig_layouts import (
    Placement,
    PublishedGpu,
    devices_of_layout,
    filled_up,
    possible_devices,
    profiles_by_name,
    published_gpus,
)
from dray.scheduler.policies import policy_named
from dray.sim.cluster import OfflineCluster, Placed, device_names
from dray.sim.snapshot import Snapshot
from dray.workbench.autoscaling import waiting_pods
from dray.workbench.inventory import Inventory, PoolRow

MOST_PENDING: Final = 2_000  # pods that are placed for one plan
_MOST_REASONS: Final = 50  # pods whose refusal is explained
_POLICY: Final = policy_named("pack")  # few GPUs, those that are begun first


class RepartitionError(ValueError):
    """A question that cannot be answered; the message says why."""


@dataclass(frozen=True, slots=True, eq=False)
class GpuPlace:
    """One GPU of the cluster."""

    driver: str
    pool: str
    node: str
    gpu: PublishedGpu

    @property
    def text(self) -> str:
        """Return its name as targets are written."""
        return f"{self.driver}/{self.pool}/{self.gpu.name}"


@dataclass(frozen=True, slots=True)
class LayoutChange:
    """A GPU whose partitions should change."""

    place: GpuPlace
    layout: tuple[Placement, ...]  # empty: whole
    pods: tuple[str, ...] = ()  # that would get parts of it


@dataclass(frozen=True, slots=True)
class KeptGpu:
    """A GPU whose layout stays, and why."""

    place: GpuPlace
    reason: str


@dataclass(frozen=True, slots=True)
class Unserved:
    """A pod that waits further."""

    pod: str
    reason: str


@dataclass(frozen=True, slots=True)
class RepartitionPlan:
    """What to change, and for whom."""

    changes: tuple[LayoutChange, ...] = ()
    kept: tuple[KeptGpu, ...] = ()
    fitting: tuple[str, ...] = ()  # pods that fit without any change
    unserved: tuple[Unserved, ...] = ()


def plan_repartition(
    snapshot: Snapshot,
    *,
    only: Collection[DeviceId] | None = None,
    allowed: Collection[str] = (),
    most: int | None = None,
) -> RepartitionPlan:
    """Return the layouts to make for the pods that wait. Raises RepartitionError when too many wait.

    `only` are the devices whose GPUs may change (None: all); `allowed` the profiles that may be made, and WHOLE
    (empty: all); `most` bounds the changes.
    """
    waiting = waiting_pods(snapshot)
    if len(waiting) > MOST_PENDING:
        raise RepartitionError(f"{len(waiting)} pods wait; at most {MOST_PENDING} can be planned for at once")
    return _Planner(snapshot, waiting, only, frozenset(allowed), most).plan()


@dataclass(slots=True)
class _Planner:
    snapshot: Snapshot
    waiting: Sequence[Pod]
    only: Collection[DeviceId] | None
    allowed: frozenset[str]
    most: int | None
    pools: dict[tuple[str, str], PoolRow] = field(default_factory=dict)
    kept: list[KeptGpu] = field(default_factory=list)

    def plan(self) -> RepartitionPlan:
        cluster = OfflineCluster(self.snapshot)
        fitting = _place(cluster, self.waiting)
        served = {each.pod for each in fitting}
        given = {device for each in fitting for names in each.devices.values() for device in names}
        rest = [pod for pod in self.waiting if key_of(pod.metadata) not in served]
        before = _as_it_is(self.snapshot, cluster)
        idle = self._idle(given)
        changes: list[LayoutChange] = []
        if rest and idle:
            changes = self._verified(before, rest, self._wanted(before, rest, idle))
        changed = {change.place.text for change in changes}
        self.kept += [
            KeptGpu(each, "no pod that waits needs it") for each in idle if each.text not in changed
        ]
        unserved = self._unserved(before, rest, changes)
        kept = sorted(self.kept, key=lambda each: each.place.text)
        return RepartitionPlan(tuple(changes), tuple(kept), tuple(each.pod for each in fitting), unserved)

    # --- GPUs -----------------------------------------------------------------------

    def _idle(self, given: Collection[str]) -> list[GpuPlace]:
        """Return the GPUs whose layout may change; the others are noted with the reason."""
        inventory = Inventory(self.snapshot)
        ready = {
            node.metadata.name
            for node in self.snapshot.nodes
            if not any(each.type == "Ready" and each.status != "True" for each in node.status.conditions)
        }
        idle = []
        for pool in inventory.pools:
            if pool.driver != driver_names.NVIDIA:
                continue
            self.pools[pool.driver, pool.pool] = pool
            for gpu in published_gpus(row.device for row in pool.devices):
                place = GpuPlace(pool.driver, pool.pool, pool.node, gpu)
                keys = [DeviceId(pool.driver, pool.pool, device.name) for device in gpu.devices]
                if self.only is not None and not any(key in self.only for key in keys):
                    continue
                reason = _busy(inventory, keys, given) or gpu.fixed_because
                if not pool.is_complete:
                    reason = "slices of its pool are missing"
                elif pool.node not in ready:
                    reason = reason or f"node {pool.node or '(none)'} is not ready"
                if reason:
                    self.kept.append(KeptGpu(place, reason))
                else:
                    idle.append(place)
        return idle

    def _slices(
        self, layouts: Mapping[GpuPlace, tuple[list[Device], CounterSet | None]]
    ) -> list[ResourceSlice]:
        """Return the slices of the cluster with other devices for some GPUs."""
        by_pool: dict[tuple[str, str], list[GpuPlace]] = {}
        for place in layouts:
            by_pool.setdefault((place.driver, place.pool), []).append(place)
        slices = [
            found
            for found in self.snapshot.slices
            if (found.spec.driver, found.spec.pool.name) not in by_pool
        ]
        for key, places in by_pool.items():
            pool = self.pools[key]
            replaced = {device.name for place in places for device in place.gpu.devices}
            devices = [row.device for row in pool.devices if row.device.name not in replaced]
            counters = [
                each
                for found in self.snapshot.slices
                if (found.spec.driver, found.spec.pool.name, found.spec.pool.generation)
                == (*key, pool.generation)
                for each in found.spec.shared_counters
            ]
            for place in places:
                made, counter_set = layouts[place]
                devices += made
                counters += [counter_set] if counter_set is not None else []
            devices.sort(key=lambda device: device.name)  # as the driver does
            model = PoolModel(pool.driver, pool.pool, tuple(devices), tuple(counters), pool.node)
            slices += pool_slices([model], pool.generation)
        return slices

    # --- choosing ---------------------------------------------------------------------

    def _wanted(self, before: Snapshot, pods: Sequence[Pod], idle: Sequence[GpuPlace]) -> list[LayoutChange]:
        """Let the scheduler choose partitions of the idle GPUs; return the layouts that follow."""
        offered = {place: possible_devices(place.gpu, self.allowed) for place in idle}
        snapshot = replace(before, slices=self._slices(offered))
        partitions = {
            f"{place.driver}/{place.pool}/{device.name}": (place, device)
            for place, (devices, _) in offered.items()
            for device in devices
        }
        alone = OfflineCluster(snapshot, _POLICY)
        sizes: dict[str, int] = {}
        for pod in pods:
            names = _names_alone(alone, pod)
            sizes[key_of(pod.metadata)] = sum(
                _slices_of(partitions[name]) for name in names if name in partitions
            )
        answers = []
        # In the order of waiting; and large parts first, so that small ones fit into what is left.
        for weight in (0, 1):
            order = sorted(
                pods, key=lambda pod: (-(pod.spec.priority or 0), -weight * sizes[key_of(pod.metadata)])
            )
            answers.append(_place(OfflineCluster(snapshot, _POLICY), order))
        best = max(answers, key=lambda placed: (len(placed), sum(sizes[each.pod] for each in placed)))
        chosen: dict[GpuPlace, list[Device]] = {}
        for each in best:
            for name in _names(each):
                if name in partitions:
                    place, device = partitions[name]
                    chosen.setdefault(place, []).append(device)
        demand = Counter(
            profile for devices in chosen.values() for device in devices if (profile := _profile(device))
        )
        changes = [
            LayoutChange(place, self._layout(place.gpu, devices, demand)) for place, devices in chosen.items()
        ]
        return [change for change in changes if change.layout != change.place.gpu.layout]

    def _layout(
        self, gpu: PublishedGpu, devices: Iterable[Device], demand: Counter[str]
    ) -> tuple[Placement, ...]:
        assert gpu.model is not None
        taken = replace(gpu, devices=tuple(devices)).layout
        if not taken:
            return ()
        profiles = profiles_by_name(gpu.model)
        others = sorted(
            (name for name in profiles if not name.endswith("+me")),
            key=lambda name: -profiles[name].memory_slices,
        )
        names = [*(name for name, _ in demand.most_common()), *others]
        usable = [name for name in names if not self.allowed or name in self.allowed]
        return filled_up(gpu.model, taken, [*gpu.layout, *usable])

    def _verified(
        self, before: Snapshot, pods: Sequence[Pod], changes: list[LayoutChange]
    ) -> list[LayoutChange]:
        """Return the changes that serve pods, the most useful ones first, with those pods."""
        while changes:
            served = self._served(before, pods, changes)
            useful = [
                replace(change, pods=tuple(served[change.place.text]))
                for change in changes
                if served.get(change.place.text)
            ]
            useful.sort(key=lambda change: (-len(change.pods), change.place.text))
            if len(useful) == len(changes) and (self.most is None or len(useful) <= self.most):
                return useful
            changes = useful[: self.most]
        return []

    def _served(
        self, before: Snapshot, pods: Sequence[Pod], changes: Sequence[LayoutChange]
    ) -> dict[str, list[str]]:
        """Return for each GPU that changes which of the pods get parts of it."""
        place_of = {
            f"{change.place.driver}/{change.place.pool}/{device.name}": change.place.text
            for change in changes
            for device in devices_of_layout(change.place.gpu, change.layout)
        }
        served: dict[str, list[str]] = {}
        for each in _place(OfflineCluster(self._changed(before, changes), _POLICY), pods):
            for gpu in dict.fromkeys(place_of[name] for name in _names(each) if name in place_of):
                served.setdefault(gpu, []).append(each.pod)
        return served

    def _changed(self, before: Snapshot, changes: Sequence[LayoutChange]) -> Snapshot:
        layouts: dict[GpuPlace, tuple[list[Device], CounterSet | None]] = {
            change.place: (devices_of_layout(change.place.gpu, change.layout), None) for change in changes
        }
        return replace(before, slices=self._slices(layouts))

    def _unserved(
        self, before: Snapshot, pods: Sequence[Pod], changes: Sequence[LayoutChange]
    ) -> tuple[Unserved, ...]:
        cluster = OfflineCluster(self._changed(before, changes), _POLICY)
        served = {each.pod for each in _place(cluster, pods)}
        left = [pod for pod in pods if key_of(pod.metadata) not in served]
        return tuple(
            Unserved(key_of(pod.metadata), _reason(cluster, pod) if index < _MOST_REASONS else "")
            for index, pod in enumerate(left)
        )


# --- placing -----------------------------------------------------------------------------


def _place(cluster: OfflineCluster, pods: Iterable[Pod]) -> list[Placed]:
    """Place pods one after the other; those that cannot be judged are left out."""
    placed: dict[str, Placed] = {}
    for pod in pods:
        current = cluster.pods[key_of(pod.metadata)]
        if current.spec.node_name:
            continue  # with its gang
        try:
            outcome = cluster.place([current], explains=False)
        except AllocationError:
            continue
        placed |= {each.pod: each for each in outcome.placed}
    return list(placed.values())


def _names_alone(cluster: OfflineCluster, pod: Pod) -> list[str]:
    """Return the devices that a pod would get if it were the only one; nothing is kept."""
    try:
        answer = cluster.decide_pod(cluster.pods[key_of(pod.metadata)])
    except AllocationError:
        return []
    if not isinstance(answer, list):
        return []
    return [
        name
        for decided in answer
        if key_of(decided.pod.metadata) == key_of(pod.metadata)
        for allocation in decided.placement.allocations
        for name in device_names(allocation)
    ]


def _reason(cluster: OfflineCluster, pod: Pod) -> str:
    try:
        outcome = cluster.place([cluster.pods[key_of(pod.metadata)]])
    except AllocationError as error:
        return str(error)
    return outcome.refused[0].reason if outcome.refused else ""


def _as_it_is(snapshot: Snapshot, cluster: OfflineCluster) -> Snapshot:
    """Return the snapshot with the pods and claims as they are in the cluster."""
    return replace(
        snapshot,
        pods=list(cluster.pods.values()),
        claims=list(cluster.claims.values()),
        pod_groups=list(cluster.groups.values()),
    )


def _names(placed: Placed) -> list[str]:
    return [name for names in placed.devices.values() for name in names]


def _profile(device: Device) -> str:
    found = (device.attributes or {}).get("profile")
    return (found.string or "") if found is not None else ""


def _slices_of(partition: tuple[GpuPlace, Device]) -> int:
    """Return how many memory slices a partition takes."""
    place, device = partition
    model = place.gpu.model
    assert model is not None
    profile = profiles_by_name(model).get(_profile(device))
    return profile.memory_slices if profile is not None else model.memory_slices


def _busy(inventory: Inventory, keys: Iterable[DeviceId], given: Collection[str]) -> str:
    """Return why devices are not idle; empty when they are."""
    for key in keys:
        row = inventory.devices[key]
        if row.uses:
            return f"{key.device} is used by {row.uses[0]}"
        if str(key) in given:
            return f"{key.device} goes to a pod that waits, as it is"
        for taint in row.taints:
            if taint.effect in BLOCKING_EFFECTS:
                return f"{key.device} has the taint {taint.key}"
    return ""
