"""Equality as the API understands it: absent, null and empty are the same thing.

Go cannot tell a missing list from an empty one once it is decoded, and a field
with its zero value is not written. Comparisons that guard immutable fields must
therefore not depend on how a client writes "nothing".
"""

from __future__ import annotations

from typing import Any


def is_nothing(value: Any) -> bool:
    """Return whether a value is absent, null or empty."""
    return value is None or (isinstance(value, (str, list, dict)) and not value)


def is_same(one: Any, other: Any) -> bool:
    """Return whether two JSON values mean the same.

    >>> is_same({"a": 1, "b": None, "c": []}, {"a": 1})
    True
    >>> is_same({"a": True}, {"a": 1})
    False
    """
    if one is other:
        return True
    if type(one) is str and type(other) is str:  # most leaves are
        return one == other
    if is_nothing(one) and is_nothing(other):
        return True
    if isinstance(one, dict) and isinstance(other, dict):
        return all(is_same(one.get(key), other.get(key)) for key in one.keys() | other.keys())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(is_same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, bool) != isinstance(other, bool):
        return False
    return bool(one == other)
