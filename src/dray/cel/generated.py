"""What generated code calls: the parts of an evaluation that are not worth generating.

Failures are raised as Fault here, with the message that the interpreter gives; the
generated code catches them where `&&`, `||` and loops absorb them.
"""

from __future__ import annotations

from collections.abc import Iterable

from dray.cel.access import look_up, missing
from dray.cel.conversions import show_key
from dray.cel.errors import CostLimitError, Fault, no_such_overload
from dray.cel.interpreter import Failure, member_key
from dray.cel.values import (
    MISSING,
    NOTHING,
    Optional,
    go_type_name,
    map_find,
    map_items,
    map_key,
    map_keys,
    type_name,
)


def find(value: object, key: object) -> object:
    """Return what a value has at a key; raise Fault if there is nothing."""
    found = look_up(value, key)
    if found is MISSING:
        found = missing(value, key)
    if isinstance(found, Failure):
        raise Fault(found.message)
    return found


def find_maybe(value: object, key: object) -> object:
    """Return what a value has at a key, or MISSING; raise Fault if it cannot be asked."""
    found = look_up(value, key)
    if isinstance(found, Failure):
        raise Fault(found.message)
    return found


def has(value: object, key: object) -> bool:
    """Return whether a value has something at a key."""
    return find_maybe(value, key) is not MISSING


def no_such_key(key: object) -> Fault:
    """Return the failure of a lookup in a map."""
    return Fault(missing({}, key).message)


def opened(value: object) -> object:
    """Return what an optional holds, or MISSING."""
    assert isinstance(value, Optional)
    return value.value if value.present else MISSING


def closed(value: object) -> Optional:
    """Return the optional of a value that may be MISSING."""
    return NOTHING if value is MISSING else Optional(value)


def is_present(value: object) -> bool:
    """Return whether an optional has a value; raise Fault for anything else."""
    if not isinstance(value, Optional):
        raise no_such_overload()
    return value.present


def each(value: object) -> Iterable[object]:
    """Return what a loop with one variable runs over."""
    if isinstance(value, list):
        return value
    if isinstance(value, dict):
        return map_keys(value)
    raise Fault(f"got '{go_type_name(value)}', expected iterable type")


def each_pair(value: object) -> Iterable[tuple[object, object]]:
    """Return what a loop with two variables runs over."""
    if isinstance(value, list):
        return enumerate(value)
    if isinstance(value, dict):
        return map_items(value)
    raise Fault(f"unsupported comprehension range type: {go_type_name(value)}")


def make_map(*parts: object) -> dict[object, object]:
    """Return the map of alternating keys and values."""
    return {map_key(parts[index]): parts[index + 1] for index in range(0, len(parts), 2)}


def is_member(value: object, members: frozenset[tuple[str, object]]) -> bool:
    """Return whether a value is one of several scalars."""
    return member_key(value) in members


def over_limit() -> CostLimitError:
    """Return the error of an evaluation that costs more than it may."""
    return CostLimitError("operation cancelled: actual cost limit exceeded")


def fresh(fault: Fault) -> Fault:
    """Return a failure to raise again, without the places it went through before."""
    fault.__traceback__ = fault.__context__ = None
    return fault


def overflow() -> Fault:
    """Return the failure of a sum that has more than 64 bits."""
    return Fault("integer overflow")


def insert_entry(entries: dict[object, object], key: object, value: object) -> None:
    """Add to the map that a loop makes; raise Fault if it has the key already."""
    if map_find(entries, key) is not MISSING:
        raise Fault(f"insert failed: key {show_key(key)} already exists")
    entries[map_key(key)] = value


def insert_entries(entries: dict[object, object], more: object) -> None:
    """Add all entries of a map."""
    if not isinstance(more, dict):
        raise no_such_overload(f"cel.@mapInsert(map, {type_name(more)})")
    for key, value in map_items(more):
        insert_entry(entries, key, value)
