"""A bound on the memory of one evaluation.

Most of what an evaluation makes is paid for: a range costs its length, a concatenation
a tenth of its characters. Some functions make more than they cost: `replace` is charged
for the text it reads, whatever it puts there, and adding two lists costs 1. Upstream
relies on the machine for those; here their results share a budget, so that no selector
within the cost limit takes the memory of the process that evaluates it.
"""

from __future__ import annotations

import sys

from dray.cel.errors import CostLimitError

MEMORY_LIMIT = 256 << 20  # bytes
OUTGROWING = frozenset({"_+_", "replace", "join", "format", "flatten", "strings.quote"})
_SMALL = 4096  # bytes; as many of these as the cost limit allows are no danger


def memory_left_after(value: object, left: int) -> int:
    """Return what is left of the budget after a value was made; raise CostLimitError if nothing is."""
    size = sys.getsizeof(value)
    if size > _SMALL:
        left -= size
        if left < 0:
            raise CostLimitError("operation cancelled: values take too much memory")
    return left
