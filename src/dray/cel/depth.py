"""Room for deep expressions.

The language allows nesting of 250 levels, which takes more Python frames than the
interpreter grants by default. Frames of Python functions live on the heap, so more
of them are harmless; the limit is raised only while a deep expression needs it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")
_FRAMES = 30_000  # 250 levels at up to a dozen frames each, with plenty to spare


class _Room:
    """The raised limit, which all threads share: the first user raises it, the last one restores it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = 0

    def __enter__(self) -> None:
        with self._lock:
            if self._users == 0:
                self._before = sys.getrecursionlimit()
                sys.setrecursionlimit(max(_FRAMES, self._before))
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                sys.setrecursionlimit(self._before)


_ROOM = _Room()


def with_room(action: Callable[[], Result]) -> Result:
    """Run an action; if it is too deep for the current limit, run it again with more room."""
    try:
        return action()
    except RecursionError:
        pass
    with _ROOM:
        return action()
