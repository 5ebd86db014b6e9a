"""Types of numbers on the command line: each with its bounds, so that no number can make a command run for ever.

argparse calls them; what they refuse becomes a usage error with exit code 2.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

MOST_SECONDS = 7 * 24 * 3600.0  # a week

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Return the type of whole numbers from `least` to `most`."""

    def number(text: str) -> int:
        if not _WHOLE.fullmatch(text.strip()) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number from {least} to {most}")
        return int(text)

    return number


def seconds(least: float = 0.0, most: float = MOST_SECONDS) -> Callable[[str], float]:
    """Return the type of times in seconds."""

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:  # not true of nan
            raise argparse.ArgumentTypeError(
                f"{text[:40]!r} is not a number of seconds from {least:g} to {most:g}"
            )
        return value

    return number


port = whole_number(0, 65535)
