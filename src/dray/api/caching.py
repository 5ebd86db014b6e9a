"""Caches with a bound, for the whole project.

What clients, tenants and drivers send decides what is cached, so every cache is bounded. A bound on
the number of entries is enough where entries are of one size; texts and compiled expressions differ
by a factor of a thousand, so those are bounded by the sum of their sizes, or long ones are left out.

  BoundedCache     a cache of at most `limit` entries, or entries of `limit` units in sum
  BoundedMap       a dict of at most `limit` entries, of which the oldest goes first
  cached_by_text   a decorator for functions of a text; long texts are computed every time

Theory of operation of BoundedCache: there is a young and an old generation. New entries are young,
and old ones become young again when they are used. When the young are half of what may be held, they
become the old generation, and the old one is dropped. Every step is one operation on a dict, so
threads may share a cache; at worst one of them does not find what another just added.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Concatenate, Generic, ParamSpec, TypeVar

__all__ = ["BoundedCache", "BoundedMap", "cached_by_text"]

Key = TypeVar("Key")
Value = TypeVar("Value")
Rest = ParamSpec("Rest")
Result = TypeVar("Result")
OfText = Callable[Concatenate[str, Rest], Result]


class BoundedCache(Generic[Key, Value]):
    """Keeps what was used lately; None is not a value.

    >>> cache = BoundedCache[str, int](limit=4)
    >>> for number, letter in enumerate("abc"):
    ...     cache.add(letter, number)
    >>> cache.get("a"), cache.get("c")
    (0, 2)
    >>> for number, letter in enumerate("def"):
    ...     cache.add(letter, number)
    >>> cache.get("a") is None, len(cache) <= 4
    (True, True)
    """

    __slots__ = ("_limit", "_n_young", "_old", "_young")

    def __init__(self, limit: int) -> None:
        self._limit = max(1, limit // 2)  # of one generation
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

    def add(self, key: Key, value: Value, size: int = 1) -> None:
        """Keep a value, unless it alone takes more than half of the limit."""
        if size > self._limit:
            return
        if self._n_young + size > self._limit:
            self._old, self._young, self._n_young = self._young, {}, 0
        if key not in self._young:
            self._n_young += size
        self._young[key] = value, size

    def clear(self) -> None:
        """Drop everything."""
        self._old, self._young, self._n_young = {}, {}, 0

    def __len__(self) -> int:
        return len(self._young) + len(self._old)


class BoundedMap(OrderedDict[Key, Value]):
    """A dict that drops its oldest entry when it has more than `limit`; `use` makes an entry the newest.

    For what is listed or changed while it is kept, and for sets of keys (values None). One thread at a time.

    >>> known = BoundedMap[str, int](limit=2)
    >>> known["a"], known["b"] = 1, 2
    >>> known.use("a")
    1
    >>> known["c"] = 3
    >>> list(known)
    ['a', 'c']
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def use(self, key: Key) -> Value | None:
        """Return the value, or None, and make it the newest."""
        found = self.get(key)
        if found is not None:
            self.move_to_end(key)
        return found

    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        if len(self) > self._limit:
            self.popitem(last=False)


def cached_by_text(maxsize: int, longest: int) -> Callable[[OfText[Rest, Result]], OfText[Rest, Result]]:
    """Cache `maxsize` results of a function of a text, for texts of up to `longest` characters.

    >>> calls = []
    >>> @cached_by_text(maxsize=8, longest=3)
    ... def upper(text: str) -> str:
    ...     calls.append(text)
    ...     return text.upper()
    >>> [upper(text) for text in ("abc", "abc", "abcd", "abcd")]
    ['ABC', 'ABC', 'ABCD', 'ABCD']
    >>> calls
    ['abc', 'abcd', 'abcd']
    """

    def decorate(function: OfText[Rest, Result]) -> OfText[Rest, Result]:
        cached = lru_cache(maxsize)(function)

        @wraps(function)
        def call(text: str, /, *args: Rest.args, **kwargs: Rest.kwargs) -> Result:
            if len(text) <= longest:
                return cached(text, *args, **kwargs)  # type: ignore[arg-type]
            return function(text, *args, **kwargs)

        return call

    return decorate
