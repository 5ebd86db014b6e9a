"""Answers to "how much is there, how much is used": pool status requests and resource quotas.

A ResourcePoolStatusRequest is answered once: the pools it names are counted from
the published slices and the allocated claims, and the object is frozen; it is
deleted an hour later (a day, if it was never answered).

A quota's `status.used` is recounted from what exists; admission enforces it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from dray.api.core import Pod
from dray.api.meta import Condition, ObjectMeta, View
from dray.api.quantity import Quantity, parse_quantity
from dray.api.resource import Device, DeviceClass, ResourceClaim, ResourceSlice
from dray.client import key_of
from dray.client.resources import CLAIMS, DEVICE_CLASSES, PODS, POOL_STATUS_REQUESTS, RESOURCE_QUOTAS, SLICES
from dray.control.reconciling import (
    Caches,
    Clock,
    Controller,
    ignoring_absence,
    parse_rfc3339,
    rfc3339,
    utc_now,
)

ANSWERED_KEPT = timedelta(hours=1)
PENDING_KEPT = timedelta(hours=24)
MAX_TRIES = 5
ALL_MODE_CHARGE = 32  # what an All request may take at most

DeviceKey = tuple[str, str, str]


class PoolStatusSpec(View, frozen=True):
    """Which pools to count."""

    driver: str = ""
    pool_name: str | None = None
    limit: int | None = None


class PoolStatusStatus(View, frozen=True):
    """The answer."""

    pool_count: int | None = None
    conditions: list[Condition] = []


class PoolStatusRequest(View, frozen=True):
    """resource.k8s.io/v1alpha3 ResourcePoolStatusRequest."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PoolStatusSpec = PoolStatusSpec()
    status: PoolStatusStatus | None = None


@dataclass(slots=True)
class Usage:
    """What the allocated claims take: whole devices, and shares with their capacities."""

    devices: set[DeviceKey] = field(default_factory=set)
    consumed: dict[DeviceKey, dict[str, Quantity]] = field(default_factory=dict)


def usage_of(claims: Iterable[ResourceClaim]) -> Usage:
    """Add up the allocations; admin access uses nothing."""
    usage = Usage()
    for claim in claims:
        if claim.status.allocation is None:
            continue
        for result in claim.status.allocation.devices.results:
            if result.admin_access:
                continue
            key = (result.driver, result.pool, result.device)
            usage.devices.add(key)
            if result.share_id is not None:
                book = usage.consumed.setdefault(key, {})
                for name, amount in (result.consumed_capacity or {}).items():
                    book[name] = book.get(name, parse_quantity("0")) + parse_quantity(amount)
    return usage


def is_unavailable(device: Device) -> bool:
    """Say whether a taint keeps new claims away from the device."""
    return any(taint.effect in ("NoSchedule", "NoExecute") for taint in device.taints)


def pool_status(driver: str, pool: str, slices: list[ResourceSlice], usage: Usage) -> dict[str, Any]:
    """Count one pool; the newest generation only."""
    generation = max(found.spec.pool.generation for found in slices)
    current = [found for found in slices if found.spec.pool.generation == generation]
    expected = current[0].spec.pool.resource_slice_count
    status: dict[str, Any] = {
        "driver": driver,
        "poolName": pool,
        "generation": generation,
        "resourceSliceCount": len(current),
    }
    nodes = {found.spec.node_name for found in current if found.spec.node_name}
    if len(nodes) == 1:
        status["nodeName"] = nodes.pop()
    if len(current) != expected:
        status["validationError"] = f"pool is incomplete: {len(current)} of {expected} slices are published"
        return status
    devices = [device for found in current for device in found.spec.devices]
    if len({device.name for device in devices}) != len(devices):
        status["validationError"] = "pool is invalid: a device name appears twice"
        return status
    allocated = sum((driver, pool, device.name) in usage.devices for device in devices)
    unavailable = sum(map(is_unavailable, devices))
    status |= {
        "totalDevices": len(devices),
        "allocatedDevices": allocated,
        "unavailableDevices": unavailable,
        "availableDevices": max(0, len(devices) - allocated - unavailable),
    }
    shareable = [device for device in devices if device.allow_multiple_allocations]
    if shareable:
        status["shareableSummary"] = _shareable_summary(driver, pool, shareable, usage)
    return status


def _shareable_summary(driver: str, pool: str, devices: list[Device], usage: Usage) -> dict[str, Any]:
    zero = parse_quantity("0")
    totals: dict[str, Quantity] = {}
    consumed: dict[str, Quantity] = {}
    untouched = partial = 0
    for device in devices:
        used = usage.consumed.get((driver, pool, device.name))
        capacities = {name: parse_quantity(entry.value) for name, entry in (device.capacity or {}).items()}
        for name, amount in capacities.items():
            totals[name] = totals.get(name, zero) + amount
            consumed[name] = consumed.get(name, zero) + (used or {}).get(name, zero)
        if used is None and (driver, pool, device.name) not in usage.devices:
            untouched += 1
        elif used is not None and all(used.get(name, zero) < amount for name, amount in capacities.items()):
            partial += 1
    return {
        "fullyAvailableDevices": untouched,
        "partiallyAvailableDevices": partial,
        "capacity": [
            {
                "name": name,
                "total": str(totals[name]),
                "consumed": str(consumed[name]),
                "available": str(totals[name] - consumed[name]),
            }
            for name in sorted(totals)[:32]
        ],
    }


class PoolStatusController(Controller):
    """Answers pool status requests."""

    name = "pool-status"
    workers = 1

    def __init__(self, caches: Caches, clock: Clock = utc_now) -> None:
        super().__init__(caches, clock)
        self.requests = caches.of(POOL_STATUS_REQUESTS, PoolStatusRequest, optional=True)
        self.slices = caches.of(SLICES, ResourceSlice)
        self.claims = caches.of(CLAIMS, ResourceClaim)
        self._tries: dict[str, int] = {}

    def watch(self) -> None:
        """Look at requests as they come."""
        self.requests.add_handler(lambda _old, new: self.enqueue(new.metadata.name) if new else None)

    async def reconcile(self, key: str) -> float | None:
        """Answer one request, or delete it when its time is over."""
        request = self.requests.get(key)
        if request is None:
            self._tries.pop(key, None)
            return None
        answered = request.status is not None and bool(request.status.conditions)
        created = parse_rfc3339(request.metadata.creation_timestamp or rfc3339(self.clock()))
        left = created + (ANSWERED_KEPT if answered else PENDING_KEPT) - self.clock()
        if left <= timedelta(0):
            await ignoring_absence(self.client.delete(POOL_STATUS_REQUESTS, key, uid=request.metadata.uid))
            return None
        if answered:
            return left.total_seconds()
        pools: dict[str, list[ResourceSlice]] = {}
        for found in self.slices.items.values():
            if found.spec.driver == request.spec.driver and request.spec.pool_name in (
                None,
                found.spec.pool.name,
            ):
                pools.setdefault(found.spec.pool.name, []).append(found)
        usage = usage_of(self.claims.items.values())
        statuses = [
            pool_status(request.spec.driver, name, slices, usage) for name, slices in sorted(pools.items())
        ]
        if any("validationError" in status for status in statuses):
            tries = self._tries[key] = self._tries.get(key, 0) + 1
            if tries <= MAX_TRIES:
                return 0.5 * 2.0**tries  # a pool that is being published is complete in a moment
        limit = request.spec.limit or 100
        condition = {
            "type": "Complete",
            "status": "True",
            "reason": "CalculationComplete",
            "message": f"Calculated status for {len(statuses)} pools",
            "lastTransitionTime": rfc3339(self.clock()),
        }
        answer = {"poolCount": len(statuses), "pools": statuses[:limit], "conditions": [condition]}
        await ignoring_absence(
            self.client.patch(POOL_STATUS_REQUESTS, key, {"status": answer}, subresource="status")
        )
        return ANSWERED_KEPT.total_seconds()


# --- quota ------------------------------------------------------------------------


class QuotaSpec(View, frozen=True):
    """What may be used at most."""

    hard: dict[str, str] | None = None


class QuotaStatus(View, frozen=True):
    """What is used."""

    hard: dict[str, str] | None = None
    used: dict[str, str] | None = None


class Quota(View, frozen=True):
    """v1 ResourceQuota."""

    metadata: ObjectMeta = ObjectMeta()
    spec: QuotaSpec = QuotaSpec()
    status: QuotaStatus = QuotaStatus()


def claim_charges(claim: ResourceClaim, classes: dict[str, DeviceClass]) -> dict[str, int]:
    """Return what a claim costs, by quota name: itself, its devices per class, and their extended resources."""
    per_class: dict[str, int] = {}
    for request in claim.spec.devices.requests:
        if request.exactly is not None:
            options = [
                (request.exactly.device_class_name, request.exactly.allocation_mode, request.exactly.count)
            ]
        else:
            options = [
                (sub.device_class_name, sub.allocation_mode, sub.count) for sub in request.first_available
            ]
        worst: dict[str, int] = {}
        for class_name, mode, count in options:
            worst[class_name] = max(
                worst.get(class_name, 0), ALL_MODE_CHARGE if mode == "All" else max(1, count)
            )
        for class_name, count in worst.items():
            per_class[class_name] = per_class.get(class_name, 0) + count
    charges = {"count/resourceclaims.resource.k8s.io": 1}
    for class_name, count in per_class.items():
        charges[f"{class_name}.deviceclass.resource.k8s.io/devices"] = count
        charges[f"requests.deviceclass.resource.kubernetes.io/{class_name}"] = count
        found = classes.get(class_name)
        if found is not None and found.spec.extended_resource_name:
            name = f"requests.{found.spec.extended_resource_name}"
            charges[name] = charges.get(name, 0) + count
    return charges


def pod_charges(pod: Pod) -> dict[str, Quantity]:
    """Return what a pod costs: itself, its cpu and memory, its extended resources."""
    one = parse_quantity("1")
    charges: dict[str, Quantity] = {"pods": one, "count/pods": one}
    for container in pod.spec.containers:
        for prefix, amounts in (
            ("requests", container.resources.requests),
            ("limits", container.resources.limits),
        ):
            for name, amount in (amounts or {}).items():
                key = f"{prefix}.{name}"
                charges[key] = charges.get(key, parse_quantity("0")) + parse_quantity(amount)
    for name in ("cpu", "memory"):
        if f"requests.{name}" in charges:
            charges[name] = charges[f"requests.{name}"]
    return charges


class QuotaController(Controller):
    """Keeps `status.used` of quotas true."""

    name = "quotas"

    def __init__(self, caches: Caches, clock: Clock = utc_now) -> None:
        super().__init__(caches, clock)
        self.quotas = caches.of(RESOURCE_QUOTAS, Quota)
        self.pods = caches.of(PODS, Pod)
        self.claims = caches.of(CLAIMS, ResourceClaim)
        self.classes = caches.of(DEVICE_CLASSES, DeviceClass)
        self._quotas_by_namespace: dict[str, set[str]] = {}

    def watch(self) -> None:
        """Look at quotas when they, or pods and claims of their namespace, change."""

        def quota_changed(old: Quota | None, new: Quota | None) -> None:
            changed = new or old
            assert changed is not None
            keys = self._quotas_by_namespace.setdefault(changed.metadata.namespace, set())
            if new is None:
                keys.discard(key_of(changed.metadata))
            else:
                keys.add(key_of(new.metadata))
                self.enqueue(key_of(new.metadata))

        def content_changed(old: Any, new: Any) -> None:
            for key in self._quotas_by_namespace.get((new or old).metadata.namespace, ()):
                self.enqueue(key, 0.1)  # one recount for a burst of changes

        self.quotas.add_handler(quota_changed)
        self.pods.add_handler(content_changed)
        self.claims.add_handler(content_changed)

    async def reconcile(self, key: str) -> float | None:
        """Recount one quota."""
        quota = self.quotas.get(key)
        if quota is None:
            return None
        hard = quota.spec.hard or {}
        used = {name: parse_quantity("0") for name in hard}
        classes = self.classes.items
        for claim in self.claims.items.values():
            if claim.metadata.namespace == quota.metadata.namespace:
                for name, count in claim_charges(claim, classes).items():
                    if name in used:
                        used[name] = used[name] + parse_quantity(count)
        for pod in self.pods.items.values():
            if pod.metadata.namespace == quota.metadata.namespace and pod.status.phase not in (
                "Succeeded",
                "Failed",
            ):
                for name, amount in pod_charges(pod).items():
                    if name in used:
                        used[name] = used[name] + amount
        texts = {name: str(amount) for name, amount in used.items()}
        if quota.status.used == texts and quota.status.hard == hard:
            return None
        meta = quota.metadata
        patch = {"status": {"hard": hard, "used": texts}}
        await ignoring_absence(
            self.client.patch(RESOURCE_QUOTAS, meta.name, patch, meta.namespace, subresource="status")
        )
        return None
