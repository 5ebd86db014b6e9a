"""A cache bounded by the size of what it holds.

Entries of one kind can differ by a factor of a thousand (a selector of thirty characters, one of
ten thousand), so a number of entries bounds nothing.

Theory of operation: there is a young and an old generation. New entries are young, and old ones
become young again when they are used. When the young are half of what may be held, they become the
old generation, and the old one is forgotten. Every step is one operation on a dict, so threads may
share a cache; at worst one of them does not find what another just added.
"""

from __future__ import annotations

from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class SizedCache(Generic[Key, Value]):
    """Remembers what was used lately, up to a sum of sizes."""

    def __init__(self, max_size: int) -> None:
        self._max_young = max_size // 2
        self._n_young = 0  # sum of sizes
        self._young: dict[Key, tuple[Value, int]] = {}
        self._old: dict[Key, tuple[Value, int]] = {}

    def get(self, key: Key) -> Value | None:
        """Return a value, or None."""
        found = self._young.get(key)
        if found is None:
            found = self._old.pop(key, None)
            if found is None:
                return None
            self.add(key, *found)
        return found[0]

    def add(self, key: Key, value: Value, size: int) -> None:
        """Remember a value, unless it alone takes more than half of the room."""
        if size > self._max_young:
            return
        if self._n_young + size > self._max_young:
            self._old, self._young, self._n_young = self._young, {}, 0
        if key not in self._young:
            self._n_young += size
        self._young[key] = value, size

    def __len__(self) -> int:
        return len(self._young) + len(self._old)
