"""Who was given what, and who was first: the referee between schedulers.

No resourceVersion protects a device that two schedulers give to two different claims. But
the server puts all writes of claims in one order, and a cache that has seen a write has
seen all earlier ones. So each scheduler, when it has seen its own write, asks: together with
what was written *before*, is this still allowed? If not, it yields. What was written later is
for the others to judge.

"Allowed" is what the rules of possession say (`dray.control.possession`). Claims are ranked by the revision
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
from dray.control.possession import Book, Holds, Rule, holds_of, spell

_IN_WORDS = {
    Rule.HELD: "{}",
    Rule.CAPACITY: "a share of {}",
    Rule.COUNTER: "a counter of {}",
    Rule.GROUPS: "a compatibility group of {}",
}


class Rivals:
    """Follows claims and slices; see the module docstring."""

    def __init__(self) -> None:
        self._book: Book[Device] = Book()
        # claim uid -> the revision at which it got its allocation, and what that takes
        self._given: dict[str, tuple[int, Holds]] = {}

    # --- following --------------------------------------------------------------

    def set_slice(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        """Take note of a slice that came, changed or went."""
        self._book.set_slice(old, new)

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
            self._given[uid] = (int(new.metadata.resource_version or 0), holds)
            self._book.take(uid, holds)

    def _forget(self, uid: str) -> None:
        _, holds = self._given.pop(uid, (0, {}))
        self._book.release(uid, holds)

    # --- judging ----------------------------------------------------------------

    def others(self, allocation: AllocationResult, uid: str) -> Iterator[str]:
        """Yield the claims that hold what the claim with this uid would have for itself by an allocation."""
        return self._book.excluded(uid, holds_of(allocation.devices.results))

    def conflict(self, claim: ResourceClaim, yields_to: Collection[str] = ()) -> str | None:
        """Say what the claim, as it was last seen, may not keep; None when all is well.

        `yields_to` are claims that count as earlier, whenever they came.
        """
        uid, given = claim.metadata.uid, self._given
        if claim.status.allocation is None or uid not in given:
            return None
        own, holds = given[uid]

        def is_earlier(other: str) -> bool:
            return given[other][0] < own or other in yields_to

        objection = self._book.objection(uid, holds, is_earlier)
        return _IN_WORDS[objection.rule].format(spell(objection.device)) if objection is not None else None

    def device_of(self, result: DeviceRequestAllocationResult) -> Device | None:
        """Return the device of a result as it is published now."""
        return self._book.pools.device((result.driver, result.pool, result.device))
