"""Answers to "how much is there, how much is used": pool status requests.

A ResourcePoolStatusRequest is answered once: the pools it names are counted from
the published slices and the allocated claims, and the object is frozen; it is
deleted an hour later (a day, if it was never answered).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from dray.api.quantity import Quantity, parse_quantity
from dray.api.resource import Device, ResourceClaim, ResourcePoolStatusRequest, ResourceSlice
from dray.api.times import format_time as rfc3339
from dray.api.times import parse_time as parse_rfc3339
from dray.api.tolerations import BLOCKING_EFFECTS
from dray.client.resources import CLAIMS, POOL_STATUS_REQUESTS, SLICES
from dray.control.partition_status import partition_summary
from dray.control.reconcile_loop import (
    Caches,
    Clock,
    Controller,
    ignoring_absence,
)
from dray.devices import DeviceUse, Ledger, PoolId, holds_of, is_complete, newest_generation
from dray.host.clock import utc_now

ANSWERED_KEPT = timedelta(hours=1)
PENDING_KEPT = timedelta(hours=24)
MAX_TRIES = 5
MAX_ERROR = 256  # characters of a validationError
INCOMPLETE = "pool is incomplete"


def usage_of(claims: Iterable[ResourceClaim]) -> Ledger:
    """Enter the allocations of all claims into a ledger."""
    ledger = Ledger()
    for claim in claims:
        if claim.status.allocation is not None:
            ledger.take(claim.metadata.uid, holds_of(claim.status.allocation.devices.results))
    return ledger


def is_unavailable(device: Device) -> bool:
    """Return whether a taint keeps new claims away from the device."""
    return any(taint.effect in BLOCKING_EFFECTS for taint in device.taints)


def pool_status(
    driver: str,
    pool: str,
    slices: list[ResourceSlice],
    usage: Ledger,
    partition_attribute: str | None = None,  # of the request: tells types apart where the slices do not
) -> dict[str, Any]:
    """Count one pool; the newest generation only."""
    current = newest_generation(slices)
    generation, expected = current[0].spec.pool.generation, current[0].spec.pool.resource_slice_count
    status: dict[str, Any] = {
        "driver": driver,
        "poolName": pool,
        "generation": generation,
        "resourceSliceCount": len(current),
    }
    nodes = {found.spec.node_name for found in current if found.spec.node_name}
    if len(nodes) == 1:
        status["nodeName"] = nodes.pop()
    if not is_complete(current):
        status["validationError"] = f"{INCOMPLETE}: {len(current)} of {expected} slices are published"
        return status
    devices = [device for found in current for device in found.spec.devices]
    if len({device.name for device in devices}) != len(devices):
        status["validationError"] = "pool is invalid: a device name appears twice"
        return status
    uses = usage.pools.get(PoolId(driver, pool), {})
    allocated = sum(device.name in uses for device in devices)
    unavailable = sum(map(is_unavailable, devices))
    status |= {
        "totalDevices": len(devices),
        "allocatedDevices": allocated,
        "unavailableDevices": unavailable,
        "availableDevices": max(0, len(devices) - allocated - unavailable),
    }
    shareable = [device for device in devices if device.allow_multiple_allocations]
    if shareable:
        status["shareableSummary"] = _shareable_summary(shareable, uses)
    in_use = {device.name for device in devices if device.name in uses}
    summary = partition_summary(driver, current, in_use, partition_attribute)
    if isinstance(summary, str):
        status["validationError"] = summary[:MAX_ERROR]
    elif summary is not None:
        status["partitionSummary"] = summary
    return status


def _shareable_summary(devices: list[Device], uses: Mapping[str, DeviceUse]) -> dict[str, Any]:
    zero = parse_quantity("0")
    totals: dict[str, Quantity] = {}
    consumed: dict[str, Quantity] = {}
    untouched = partial = 0
    for device in devices:
        use = uses.get(device.name)
        capacities = {name: parse_quantity(entry.value) for name, entry in (device.capacity or {}).items()}
        used = {
            name: Quantity(use.consumed.get(name, 0) if use is not None else 0, whole.notation)
            for name, whole in capacities.items()
        }
        for name, amount in capacities.items():
            totals[name] = totals.get(name, zero) + amount
            consumed[name] = consumed.get(name, zero) + used[name]
        if use is None:
            untouched += 1
        elif use.is_shared and all(used[name] < amount for name, amount in capacities.items()):
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
        self.requests = caches.of(POOL_STATUS_REQUESTS, ResourcePoolStatusRequest, optional=True)
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
            pool_status(
                request.spec.driver, name, slices, usage, request.spec.default_partition_type_attribute
            )
            for name, slices in sorted(pools.items())
        ]
        if any(INCOMPLETE in status.get("validationError", "") for status in statuses):
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
