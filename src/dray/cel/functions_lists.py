"""Functions on lists, sets, maps and optionals."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cmp_to_key
from itertools import accumulate, islice
from typing import cast

from dray.cel.conversions import show_key
from dray.cel.errors import Fault, no_such_overload
from dray.cel.operators import add, contains, position_of
from dray.cel.values import (
    MISSING,
    NOTHING,
    Duration,
    GrowingMap,
    Optional,
    Timestamp,
    Uint,
    compare,
    equal,
    is_zero,
    map_find,
    map_items,
    map_key,
    number_in_range,
)

MAX_RANGE = 1_000_000


def make_range(count: int) -> list[object]:
    """Return [0, ..., count - 1]."""
    if count < 0:
        raise Fault(f"lists.range: size must be non-negative, got {count}")
    if count > MAX_RANGE:
        raise Fault(f"lists.range: size {count} exceeds maximum allowed ({MAX_RANGE})")
    return list(range(count))


def slice_list(items: list[object], start: int, end: int) -> list[object]:
    """Return items[start:end]; bounds must lie inside."""
    if start < 0 or end < 0:
        raise Fault(f"cannot slice({start}, {end}), negative indexes not supported")
    if start > end:
        raise Fault(f"cannot slice({start}, {end}), start index must be less than or equal to end index")
    if len(items) < end:
        raise Fault(f"cannot slice({start}, {end}), list is length {len(items)}")
    return items[start:end]


def flatten(items: list[object], depth: int = 1) -> list[object]:
    """Dissolve lists inside a list, down to a depth."""
    if depth < 0:
        raise Fault("level must be non-negative")
    flat: list[object] = []
    for item in items:
        if isinstance(item, list) and depth > 0:
            flat.extend(flatten(item, depth - 1))
        else:
            flat.append(item)
    return flat


# Lists of one of these types are compared by Python itself, which is many times faster.
_PYTHON_ORDER = frozenset({bool, int, str, bytes})
_COMPARABLE = (bool, int, float, str, bytes, Duration, Timestamp)


def sort_by_keys(items: list[object], keys: list[object]) -> list[object]:
    """Sort items by the keys at the same positions."""
    if len(items) != len(keys):
        raise Fault(
            "@sortByAssociatedKeys() expected a list of the same size as the associated keys list, "
            f"but got {len(items)} and {len(keys)} elements respectively"
        )
    if not items:
        return items
    if not isinstance(keys[0], _COMPARABLE):
        raise Fault("list elements must be comparable")
    if len(keys) > 1 and any(type(key) is not type(keys[0]) for key in keys):
        raise Fault("list elements must have the same type")
    if type(keys[0]) in _PYTHON_ORDER:
        return [items[index] for index in sorted(range(len(keys)), key=keys.__getitem__)]  # type: ignore[arg-type]
    by_key = cmp_to_key(_order)
    order: list[int] = sorted(range(len(keys)), key=lambda index: by_key(keys[index]))
    return [items[index] for index in order]


def _order(left: object, right: object) -> int:
    try:
        return compare(left, right)
    except Fault:
        return 0


def _only_type(items: list[object]) -> type | None:
    """Return the type that all items have, or None."""
    kinds = set(map(type, items))
    return kinds.pop() if len(kinds) == 1 else None


def distinct(items: list[object]) -> list[object]:
    """Return the items without repetitions."""
    if _only_type(items) in _PYTHON_ORDER:
        return list(dict.fromkeys(items))
    unique: list[object] = []
    for item in items:
        if not any(_same(item, other) for other in unique):
            unique.append(item)
    return unique


def _same(left: object, right: object) -> bool:
    try:
        return equal(left, right)
    except Fault:
        return False


def is_sorted(items: list[object]) -> bool:
    """Return whether no element is greater than the next."""
    if _only_type(items) in _PYTHON_ORDER:
        ordered = cast("list[int]", items)  # or of another type that Python orders
        return all(map(operator.le, ordered, islice(ordered, 1, None)))
    for index, item in enumerate(items):
        if not isinstance(item, _COMPARABLE):
            raise no_such_overload()
        # What cannot be compared is not out of order.
        if index and _order(items[index - 1], item) > 0:
            return False
    return True


def extreme(name: str, sign: int) -> Callable[[list[object]], object]:
    """Return the function that finds the smallest or largest element."""

    by_python: Callable[..., object] = max if sign > 0 else min

    def find(items: list[object]) -> object:
        if not items:
            raise Fault(f"{name} called on empty list")
        best = items[0]
        if _only_type(items) in _PYTHON_ORDER:
            return by_python(items)
        for item in items:
            if not isinstance(item, _COMPARABLE):
                raise no_such_overload()
            if _order(item, best) * sign > 0:
                best = item
        return best

    return find


_ZEROS: dict[type, object] = {int: 0, Uint: Uint(0), float: 0.0, Duration: Duration(0)}


def total(zero: object) -> Callable[[list[object]], object]:
    """Return the function that sums elements of one type."""

    def summed(items: list[object]) -> object:
        if _only_type(items) is int:
            sums = list(accumulate(cast("list[int]", items)))
            number_in_range(min(sums), "integer overflow")
            number_in_range(max(sums), "integer overflow")
            return sums[-1]
        if items and type(items[0]) not in _ZEROS:
            raise no_such_overload("sum(list)")
        # An untyped list is summed as what its first element is.
        result = _ZEROS[type(items[0])] if items else zero
        for item in items:
            result = add(result, item)
        return result

    return summed


def index_of(items: list[object], wanted: object) -> int:
    """Return the first position of an element, or -1."""
    position = position_of(wanted, items)
    if position is not None:
        return position
    for index, item in enumerate(items):
        if _same(item, wanted):
            return index
    return -1


def last_index_of(items: list[object], wanted: object) -> int:
    """Return the last position of an element, or -1."""
    for index in range(len(items) - 1, -1, -1):
        if _same(items[index], wanted):
            return index
    return -1


def includes(value: object, wanted: object) -> object:
    """Return whether a list has an element, or a scalar equals it."""
    if isinstance(value, list):
        return index_of(value, wanted) >= 0
    return _same(value, wanted)


def set_contains(items: object, wanted: list[object]) -> bool:
    """Return whether every wanted element is in the list."""
    return all(contains(item, items) for item in wanted)


def set_equivalent(left: list[object], right: list[object]) -> bool:
    """Return whether two lists have the same elements."""
    return set_contains(left, right) and set_contains(right, left)


def set_intersects(left: list[object], right: object) -> bool:
    """Return whether two lists share an element."""
    for item in left:
        try:
            if contains(item, right):
                return True
        except Fault:
            continue
    return False


def insert(entries: dict[object, object], key: object, value: object) -> dict[object, object]:
    """Return the map with one more entry."""
    if map_find(entries, key) is not MISSING:
        raise Fault(f"insert failed: key {show_key(key)} already exists")
    if isinstance(entries, GrowingMap):
        entries[map_key(key)] = value
        return entries
    return {**entries, map_key(key): value}


def insert_all(entries: dict[object, object], more: dict[object, object]) -> dict[object, object]:
    """Return the union of two maps without common keys."""
    for key, value in map_items(more):
        entries = insert(entries, key, value)
    return entries


def value_of(optional: Optional) -> object:
    """Return what an optional holds."""
    if not optional.present:
        raise Fault("optional.none() dereference")
    return optional.value


def unwrap(items: list[object]) -> list[object]:
    """Return the values of the optionals that have one."""
    values: list[object] = []
    for item in items:
        if not isinstance(item, Optional):
            raise no_such_overload("unwrapOpt(list)")
        if item.present:
            values.append(item.value)
    return values


def _families() -> dict[str, Callable[..., object]]:
    found: dict[str, Callable[..., object]] = {}
    long_names = {"duration": "google.protobuf.Duration", "timestamp": "google.protobuf.Timestamp"}
    smallest, largest = extreme("min", -1), extreme("max", 1)
    for kind in ("int", "uint", "double", "bool", "duration", "timestamp", "string", "bytes"):
        long = long_names.get(kind, kind)
        found[f"list_{long}_sort"] = lambda items: sort_by_keys(items, items)
        found[f"list_{long}_sortByAssociatedKeys"] = sort_by_keys
        found[f"list_{kind}_is_sorted_bool"] = is_sorted
        found[f"list_{kind}_min_{kind}"] = smallest
        found[f"list_{kind}_max_{kind}"] = largest
    return found


LISTS: dict[str, Callable[..., object]] = {
    **_families(),
    "size_list": len,
    "list_size": len,
    "size_map": len,
    "map_size": len,
    "lists_range": make_range,
    "list_slice": slice_list,
    "list_flatten": flatten,
    "list_flatten_int": flatten,
    "list_reverse": lambda items: items[::-1],
    "list_distinct": distinct,
    "list_first": lambda items: Optional(items[0]) if items else NOTHING,
    "list_last": lambda items: Optional(items[-1]) if items else NOTHING,
    "list_int_sum_int": total(0),
    "list_uint_sum_uint": total(Uint(0)),
    "list_double_sum_double": total(0.0),
    "list_duration_sum_duration": total(Duration(0)),
    "list_a_index_of_int": index_of,
    "list_a_last_index_of_int": last_index_of,
    "list_includes_dyn_dyn": includes,
    "list_sets_contains_list": set_contains,
    "list_sets_equivalent_list": set_equivalent,
    "list_sets_intersects_list": set_intersects,
    "@mapInsert_map_key_value": insert,
    "@mapInsert_map_map": insert_all,
    "optional_none": lambda: NOTHING,
    "optional_of": Optional,
    "optional_ofNonZeroValue": lambda value: NOTHING if is_zero(value) else Optional(value),
    "optional_value": value_of,
    "optional_hasValue": lambda optional: optional.present,
    "optional_unwrap": unwrap,
    "optional_unwrapOpt": unwrap,
}
