"""The running state of one constraint while a search tries devices.

A constraint admits a device by what it knows so far; `joined` returns the state with that device and changes nothing, so
the search keeps the state before it on its own stack.
"""

from __future__ import annotations

from dray.allocator.pool_matches import Value, is_unknown


class ConstraintState:
    """The running state of one constraint."""

    __slots__ = ("claim", "distinct", "members", "value")

    def __init__(self, claim: int, *, distinct: bool) -> None:
        self.claim = claim
        self.distinct = distinct
        self.value: Value = frozenset()  # intersection so far; for distinct: union so far
        self.members = 0

    def joined(self, value: Value) -> Value | None:
        """Return the state with one more device; None when it must not join."""
        if not self.members:
            return value
        if self.distinct:
            if is_unknown(value) or not self.value.isdisjoint(value):
                return None
            return self.value | value
        return self.value & value or None
