"""Sharing the event loop: long work in slices.

One request may have thousands of objects to decode, select or encode. Whoever
loops over them calls `check` once per object: after some milliseconds of work it
lets the event loop serve everybody else before the work goes on.

What is worked on must not change meanwhile. Lists and watches work on a page of
the store, which is a list of immutable records.
"""

from __future__ import annotations

import asyncio
import time

SECONDS = 0.002  # of work between two turns of the loop; many requests may work at a time


class TimeSlice:
    """Counts the time that one piece of work holds the event loop."""

    __slots__ = ("_end",)

    def __init__(self) -> None:
        self._end = time.perf_counter() + SECONDS

    def is_over(self) -> bool:
        """Return whether the loop should run before the work goes on."""
        return time.perf_counter() >= self._end

    async def check(self) -> None:
        """Give the loop a turn if the slice is over."""
        if time.perf_counter() >= self._end:
            await asyncio.sleep(0)
            self._end = time.perf_counter() + SECONDS
