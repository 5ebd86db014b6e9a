"""Numbers and names in messages."""

from __future__ import annotations

from collections.abc import Iterable


def plural(count: int, noun: str) -> str:
    """Return a number with its noun.

    >>> plural(1, "node"), plural(2, "node"), plural(0, "class")
    ('1 node', '2 nodes', '0 classes')
    """
    ending = "es" if noun.endswith(("s", "ch")) else "s"
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{ending}"


def join_names(names: Iterable[str], most: int = 3) -> str:
    """Return a few names, and how many more there are.

    >>> join_names(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    known = list(names)
    rest = len(known) - most
    return ", ".join(known[:most]) + (f" and {rest} more" if rest > 0 else "")
