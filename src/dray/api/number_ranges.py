"""Lists of whole numbers in which runs are written as ranges: `0-2,7`.

The indexes of Jobs have this form, and the kernel's lists of CPUs.
"""

from __future__ import annotations

from collections.abc import Iterable


def parse_ranges(text: str) -> list[int]:
    """Read a list of numbers and ranges.

    >>> parse_ranges("0-2,7")
    [0, 1, 2, 7]
    """
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def format_ranges(numbers: Iterable[int]) -> str:
    """Write numbers, in order and each once.

    >>> format_ranges([7, 0, 2, 1])
    '0-2,7'
    """
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
