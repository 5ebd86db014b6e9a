"""Room for deep expressions.

The language allows nesting of 250 levels, which takes more Python frames than the
interpreter grants by default. Frames of Python functions live on the heap, so more
of them are harmless; the limit is raised only while a deep expression needs it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")
_FRAMES = 30_000  # 250 levels at up to a dozen frames each, with plenty to spare


def with_room(action: Callable[[], Result]) -> Result:
    """Run an action; if it is too deep for the current limit, run it again with more room."""
    try:
        return action()
    except RecursionError:
        before = sys.getrecursionlimit()
        if before >= _FRAMES:
            raise
    sys.setrecursionlimit(_FRAMES)
    try:
        return action()
    finally:
        sys.setrecursionlimit(before)
