"""Who was given what, and who was first: the referee between schedulers.

No resourceVersion protects a device that two schedulers give to two different claims. But
the server puts all writes of claims in one order, and a cache that has seen a write has
seen all earlier ones. So each scheduler, when it has seen its own write, asks: together with
what was written *before*, is this still allowed? If not, it yields. What was written later is
for the others to judge.

"Allowed" means: an exclusive device has one claim, shares do not exceed a capacity, and the
devices in use do not exceed a shared counter. Claims are ranked by the revision at which they
got their allocation; later changes of the claim do not move it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator

from dray.api.quantity import parse_quantity
from dray.api.resource import (
    AllocationResult,
    Device,
    DeviceRequestAllocationResult,
    ResourceClaim,
    ResourceSlice,
)

Pool = tuple[str, str]  # driver, pool name
DeviceKey = tuple[str, str, str]  # driver, pool, device


class Rivals:
    """Follows claims and slices; see the module docstring."""

    def __init__(self) -> None:
        self._revision_by_claim: dict[str, int] = {}  # claim uid -> revision of its allocation
        self._holders: dict[DeviceKey, dict[str, list[DeviceRequestAllocationResult]]] = {}  # by claim uid
        self._devices_of_pool: dict[Pool, set[str]] = defaultdict(set)  # devices that somebody holds
        self._slices: dict[Pool, dict[str, ResourceSlice]] = defaultdict(dict)

    # --- following --------------------------------------------------------------

    def set_slice(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        """Take note of a slice that came, changed or went."""
        if old is not None:
            self._slices[old.spec.driver, old.spec.pool.name].pop(old.metadata.name, None)
        if new is not None:
            self._slices[new.spec.driver, new.spec.pool.name][new.metadata.name] = new

    def set_claim(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        """Take note of a claim that came, changed or went."""
        before = old.status.allocation if old is not None else None
        after = new.status.allocation if new is not None else None
        if before == after:
            return
        if old is not None and before is not None:
            self._forget(old.metadata.uid, before)
        if new is not None and after is not None:
            uid = new.metadata.uid
            self._revision_by_claim[uid] = int(new.metadata.resource_version or 0)
            for result in after.devices.results:
                if not result.admin_access:
                    key = (result.driver, result.pool, result.device)
                    self._holders.setdefault(key, {}).setdefault(uid, []).append(result)
                    self._devices_of_pool[key[:2]].add(key[2])

    def _forget(self, uid: str, allocation: AllocationResult) -> None:
        self._revision_by_claim.pop(uid, None)
        for result in allocation.devices.results:
            key = (result.driver, result.pool, result.device)
            holders = self._holders.get(key)
            if holders is not None:
                holders.pop(uid, None)
                if not holders:
                    del self._holders[key]
                    self._devices_of_pool[key[:2]].discard(key[2])

    # --- judging ----------------------------------------------------------------

    def others(self, allocation: AllocationResult, uid: str) -> Iterator[str]:
        """Yield the claims that hold exclusive devices of an allocation besides the one with this uid."""
        for result in allocation.devices.results:
            if not result.admin_access and result.share_id is None:
                for other in self._holders.get((result.driver, result.pool, result.device), {}):
                    if other != uid:
                        yield other

    def conflict(self, claim: ResourceClaim, yields_to: Collection[str] = ()) -> str | None:
        """Say what the claim may not keep, None when all is well.

        `yields_to` are claims that count as earlier, whenever they came.
        """
        uid, allocation = claim.metadata.uid, claim.status.allocation
        own = self._revision_by_claim.get(uid)
        if allocation is None or own is None:
            return None

        def is_earlier(other: str) -> bool:
            return other != uid and (self._revision_by_claim.get(other, own) < own or other in yields_to)

        for result in allocation.devices.results:
            if result.admin_access:
                continue
            key = (result.driver, result.pool, result.device)
            earlier = [other for other in self._holders.get(key, {}) if is_earlier(other)]
            if result.share_id is None and earlier:
                return "/".join(key)
            device = self._device(key) if result.consumed_capacity or self._has_counters(key[:2]) else None
            if device is None:
                continue
            if result.share_id is not None and self._exceeds_capacity(key, device, [uid, *earlier]):
                return f"a share of {'/'.join(key)}"
            if device.consumes_counters and self._exceeds_counters(key, device, uid, is_earlier):
                return f"a counter of {'/'.join(key)}"
        return None

    def _newest(self, pool: Pool) -> list[ResourceSlice]:
        slices = self._slices.get(pool, {}).values()
        generation = max((each.spec.pool.generation for each in slices), default=0)
        return [each for each in slices if each.spec.pool.generation == generation]

    def _has_counters(self, pool: Pool) -> bool:
        return any(each.spec.shared_counters for each in self._slices.get(pool, {}).values())

    def device_of(self, result: DeviceRequestAllocationResult) -> Device | None:
        """Return the device of a result as it is published now."""
        return self._device((result.driver, result.pool, result.device))

    def _device(self, key: DeviceKey) -> Device | None:
        devices = (device for each in self._newest(key[:2]) for device in each.spec.devices)
        return next((device for device in devices if device.name == key[2]), None)

    def _exceeds_capacity(self, key: DeviceKey, device: Device, uids: list[str]) -> bool:
        used: dict[str, int] = defaultdict(int)
        for uid in uids:
            for result in self._holders.get(key, {}).get(uid, ()):
                for name, value in (result.consumed_capacity or {}).items():
                    used[name] += parse_quantity(value).nanos
        capacity = device.capacity or {}
        return any(
            name in capacity and total > parse_quantity(capacity[name].value).nanos
            for name, total in used.items()
        )

    def _exceeds_counters(
        self, key: DeviceKey, device: Device, uid: str, is_earlier: Callable[[str], bool]
    ) -> bool:
        """Add up what the claim's devices and all that were given before draw from the counters."""
        pool = key[:2]
        devices = {each.name: each for part in self._newest(pool) for each in part.spec.devices}
        limits = {
            (counters.name, name): parse_quantity(counter.value).nanos
            for part in self._newest(pool)
            for counters in part.spec.shared_counters
            for name, counter in counters.counters.items()
        }
        drawn: dict[tuple[str, str], int] = defaultdict(int)
        for name in self._devices_of_pool[pool]:
            holders = self._holders.get((*pool, name), {})
            if name not in devices or not any(other == uid or is_earlier(other) for other in holders):
                continue
            for consumption in devices[name].consumes_counters:
                for counter, amount in consumption.counters.items():
                    drawn[consumption.counter_set, counter] += parse_quantity(amount.value).nanos
        wanted = {(each.counter_set, name) for each in device.consumes_counters for name in each.counters}
        return any(drawn[where] > limits.get(where, 0) for where in wanted)
