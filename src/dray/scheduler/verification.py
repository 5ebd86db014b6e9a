"""Verify an allocation that was written: may it stand beside everything that was allocated before?

A resourceVersion protects one claim; it does not keep two writers from giving one device to two *different* claims.
But the server puts all writes of claims into one order, and an informer that has seen a write has seen every earlier one. So
when the scheduler has seen its own write, it checks it against what was written *before*, with the rules of joint
possession (`dray.devices`); on a conflict the later write is taken back. That finds conflicts with every allocation that was written first. It cannot find
one that is written later by a scheduler that does not check (kube-scheduler): against that there is `dray guard`.

Claims are ranked by the resourceVersion at which they got their allocation; later changes of a claim do not move it.
A claim alone is checked as well: when a driver publishes less than before, what no longer fits is taken back. For a
device that is not published at all the only question is who else holds it.
"""

from __future__ import annotations

from dataclasses import dataclass

from dray.api.resource import (
    Device,
    DeviceRequestAllocationResult,
    ResourceClaim,
    ResourceSlice,
)
from dray.devices import Holds, Occupancy, Rule, Undo, device_id_of, holds_of

_MESSAGES = {
    Rule.HELD: "device {device} is already allocated to {holder}",
    Rule.CAPACITY: "device {device} does not have enough {name} left",
    Rule.COUNTER: "device {device} needs more of counter {counter_set}/{name} than is left",
    Rule.GROUPS: "device {device} is not compatible with the partitions in use",
}


@dataclass(frozen=True, slots=True)
class _Allocated:
    """A claim that holds devices."""

    key: str  # namespace/name
    revision: int  # at which it got its allocation
    holds: Holds
    release: Undo


class AllocationVerifier:
    """Follows claims and slices; see the module docstring."""

    def __init__(self) -> None:
        self._occupancy: Occupancy[Device] = Occupancy()
        self._allocated: dict[str, _Allocated] = {}  # by claim uid

    # --- following --------------------------------------------------------------

    def set_slice(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        """Take note of a slice that came, changed or went."""
        self._occupancy.set_slice(old, new)

    def set_claim(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        """Take note of a claim that came, changed or went."""
        before = old.status.allocation if old is not None else None
        after = new.status.allocation if new is not None else None
        if before == after:
            return
        if old is not None and before is not None:
            self._forget(old.metadata.uid)
        if new is not None and after is not None:
            uid = new.metadata.uid
            self._forget(uid)
            holds = holds_of(after.devices.results)
            release = self._occupancy.take(uid, holds)
            key = f"{new.metadata.namespace}/{new.metadata.name}"
            self._allocated[uid] = _Allocated(key, int(new.metadata.resource_version or 0), holds, release)

    def _forget(self, uid: str) -> None:
        found = self._allocated.pop(uid, None)
        if found is not None:
            found.release()

    # --- verifying --------------------------------------------------------------

    def conflict(self, claim: ResourceClaim) -> str | None:
        """Return why the claim, as it was last seen, may not keep its allocation; None when it may."""
        uid, allocated = claim.metadata.uid, self._allocated
        own = allocated.get(uid)
        if claim.status.allocation is None or own is None:
            return None
        conflict = self._occupancy.conflict(
            uid, own.holds, lambda other: allocated[other].revision < own.revision
        )
        if conflict is None:
            return None
        holder = allocated.get(conflict.holder)
        return _MESSAGES[conflict.rule].format(
            device=conflict.device,
            name=conflict.name,
            counter_set=conflict.counter_set,
            holder=f"claim {holder.key}" if holder is not None else "another claim",
        )

    def device_of(self, result: DeviceRequestAllocationResult) -> Device | None:
        """Return the device of a result as it is published now."""
        return self._occupancy.pools.device(device_id_of(result))
