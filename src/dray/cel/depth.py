"""A deeper stack for deep expressions.

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
_USUAL = sys.getrecursionlimit()
_users: list[None] = []  # one for each action that needs the deeper stack now, in whatever thread


def with_room(action: Callable[[], Result]) -> Result:
    """Run an action; if it is too deep for the current limit, run it again with a deeper stack."""
    try:
        return action()
    except RecursionError:
        if sys.getrecursionlimit() >= _FRAMES and not _users:
            raise
    while True:
        # The limit is the same for all threads: the last user restores it.
        _users.append(None)
        sys.setrecursionlimit(_FRAMES)
        try:
            return action()
        except RecursionError:
            if sys.getrecursionlimit() >= _FRAMES:
                raise
            # Another thread thought that it was the last.
        finally:
            _users.pop()
            if not _users:
                sys.setrecursionlimit(_USUAL)
