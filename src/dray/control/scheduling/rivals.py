"""Who was given what, and who was first: the referee between schedulers.

No resourceVersion protects a device that two schedulers give to two different claims. But
the server puts all writes of claims in one order, and a cache that has seen a write has
seen all earlier ones. So each scheduler, when it has seen its own write, asks: together with
what was written *before*, is this still allowed? If not, it yields. What was written later is
for the others to judge.

"Allowed" is what the rules of possession say (`dray.devices.conflicts`). Claims are ranked by the revision
at which they got their allocation; later changes of the claim do not move it.

A claim alone is judged as well: when a driver publishes less than before, what no longer fits is given up.
Only of a device that is not published at all the referee has nothing to say but who else holds it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from dray.api.resource import (
    AllocationResult,
    Device,
    DeviceRequestAllocationResult,
    ResourceClaim,
    ResourceSlice,
)
from dray.devices import Holds, Occupancy, Rule, Undo, device_id_of, holds_of

_IN_WORDS = {
    Rule.HELD: "{}",
    Rule.CAPACITY: "a share of {}",
    Rule.COUNTER: "a counter of {}",
    Rule.GROUPS: "a compatibility group of {}",
}


class Rivals:
    """Follows claims and slices; see the module docstring."""

    def __init__(self) -> None:
        self._occupancy: Occupancy[Device] = Occupancy()
        # claim uid -> the revision at which it got its allocation, what that takes, and how to remove it
        self._given: dict[str, tuple[int, Holds, Undo]] = {}

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
            if uid in self._given:
                self._forget(uid)
            holds = holds_of(after.devices.results)
            release = self._occupancy.take(uid, holds)
            self._given[uid] = (int(new.metadata.resource_version or 0), holds, release)

    def _forget(self, uid: str) -> None:
        found = self._given.pop(uid, None)
        if found is not None:
            found[2]()

    # --- judging ----------------------------------------------------------------

    def others(self, allocation: AllocationResult, uid: str) -> Iterator[str]:
        """Yield the claims that hold what the claim with this uid would have for itself by an allocation."""
        return self._occupancy.excluded(uid, holds_of(allocation.devices.results))

    def conflict(self, claim: ResourceClaim, yields_to: Collection[str] = ()) -> str | None:
        """Say what the claim, as it was last seen, may not keep; None when all is well.

        `yields_to` are claims that count as earlier, whenever they came.
        """
        uid, given = claim.metadata.uid, self._given
        if claim.status.allocation is None or uid not in given:
            return None
        own, holds, _ = given[uid]

        def is_earlier(other: str) -> bool:
            return given[other][0] < own or other in yields_to

        conflict = self._occupancy.conflict(uid, holds, is_earlier)
        return _IN_WORDS[conflict.rule].format(conflict.device) if conflict is not None else None

    def device_of(self, result: DeviceRequestAllocationResult) -> Device | None:
        """Return the device of a result as it is published now."""
        return self._occupancy.pools.device(device_id_of(result))
