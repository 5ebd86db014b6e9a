"""A cache bounded by the size of what it holds.

Entries of one kind can differ by a factor of a thousand (a selector of thirty characters, one of
ten thousand), so a number of entries bounds nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class SizedCache(Generic[Key, Value]):
    """Forgets what was not used for longest when the sum of sizes is too big. May be shared by threads."""

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._size = 0
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._lock = threading.Lock()  # two threads may compile at the same time

    def get(self, key: Key) -> Value | None:
        """Return a value, or None."""
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                return None
            self._entries.move_to_end(key)
            return found[0]

    def add(self, key: Key, value: Value, size: int) -> None:
        """Remember a value, unless it is bigger than the whole cache."""
        with self._lock:
            old = self._entries.pop(key, None)
            if old is not None:
                self._size -= old[1]
            if size > self._max_size:
                return
            self._entries[key] = value, size
            self._size += size
            while self._size > self._max_size:
                _, (_, gone) = self._entries.popitem(last=False)
                self._size -= gone

    def __len__(self) -> int:
        return len(self._entries)
