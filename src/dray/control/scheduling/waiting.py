"""How long an allocation has been waiting for its drivers, by a clock that nobody can put forward.

Binding conditions have a deadline: `allocationTimestamp` plus a timeout. The timestamp is the
wall clock of whoever wrote it, and "now" is ours; when one of the two is wrong, or jumps, the
difference says nothing, and giving an allocation up too early tears down what a driver is just
attaching. So time is counted from when *we* first saw the allocation, by the steady clock.

The timestamp matters once: for an allocation that was there before we were (a scheduler that
starts anew, or takes over), its age is taken from it, but never for more than half of the timeout.
However wrong a clock is, a driver has at least the other half; and a scheduler that is
restarted now and then still comes to an end.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from dray.api.resource import ResourceClaim
from dray.api.times import parse_time
from dray.scheduler import has_binding_conditions


class BindingWaits:
    """Follows claims whose devices have binding conditions."""

    def __init__(self, now: Callable[[], datetime], steady: Callable[[], float], timeout: float) -> None:
        self.timeout = timeout
        self._now = now
        self._steady = steady
        self._since: dict[str, float] = {}  # claim uid -> steady seconds

    def see(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        """Take note of a claim that came, changed or went."""
        claim = new or old
        assert claim is not None
        uid = claim.metadata.uid
        if new is None or not has_binding_conditions(new):
            self._since.pop(uid, None)
            return
        before, allocation = old.status.allocation if old is not None else None, new.status.allocation
        if before == allocation and uid in self._since:
            return
        # A claim that changed before our eyes was allocated just now, whatever the timestamp says.
        age = 0.0 if old is not None else self._age(allocation.allocation_timestamp if allocation else None)
        self._since[uid] = self._steady() - age

    def _age(self, text: str | None) -> float:
        age = (self._now() - parse_time(text)).total_seconds() if text else 0.0
        return min(max(0.0, age), self.timeout / 2)

    def seconds(self, claim: ResourceClaim) -> float:
        """Return how long the claim's allocation has been waiting, as far as we know."""
        since = self._since.get(claim.metadata.uid)
        return self._steady() - since if since is not None else 0.0
