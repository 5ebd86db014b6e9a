"""Ranges of sizes and costs: the arithmetic of estimates.

Numbers are unsigned 64-bit and stick at their maximum instead of overflowing, and
factors are applied in floating point with rounding up, exactly as upstream does:
an estimate is part of the API, since expressions above the limit are refused.
"""

from __future__ import annotations

import math
from typing import NamedTuple

MAX = 2**64 - 1

STRING_FACTOR = 0.1  # per character of a string that is walked through
REGEX_FACTOR = 0.25  # per character of a pattern
LIST_BASE = 10
MAP_BASE = 30
STRUCT_BASE = 40


def scaled(value: int, factor: float) -> int:
    """Multiply and round up, sticking at MAX."""
    number = float(value)
    if number > 0 and factor > 0 and number > 2.0**64 / factor:
        return MAX
    product = math.ceil(number * factor)
    return MAX if product >= 2**64 else product


class Range(NamedTuple):
    """From min to max, both included."""

    min: int
    max: int

    def plus(self, other: Range) -> Range:
        """Add bound by bound."""
        return Range(min(self.min + other.min, MAX), min(self.max + other.max, MAX))

    def times(self, other: Range) -> Range:
        """Multiply bound by bound."""
        return Range(min(self.min * other.min, MAX), min(self.max * other.max, MAX))

    def scaled(self, factor: float) -> Range:
        """Multiply both bounds, rounding up."""
        return Range(scaled(self.min, factor), scaled(self.max, factor))

    def union(self, other: Range) -> Range:
        """Return the smallest range that covers both."""
        return Range(min(self.min, other.min), max(self.max, other.max))


ZERO = Range(0, 0)
ONE = Range(1, 1)
UNKNOWN = Range(0, MAX)


def fixed(value: int) -> Range:
    """Return the range of one value."""
    return Range(value, value)
