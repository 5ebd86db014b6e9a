"""What a single call costs: estimated from sizes, and counted from actual arguments.

Two tables per function, side by side, because they must agree: `estimate_call`
before any device is seen, `actual_call_cost` afterwards. Kubernetes prices its own
libraries by function name; cel-go prices the standard functions and the list and
set extensions by overload. Whoever prices a call first wins: extension overloads,
then Kubernetes, then the standard; what nobody prices costs 1.

Some prices look odd (`join` of a literal list is unaffordable, because the size of
strings inside a list is not looked at). They are upstream's and part of the API.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

from dray.api.quantity import Quantity
from dray.api.semver import Semver
from dray.cel import kinds
from dray.cel.errors import AbortedError
from dray.cel.ranges import LIST_BASE, MAX, ONE, REGEX_FACTOR, STRING_FACTOR, UNKNOWN, Range, fixed
from dray.cel.syntax import Literal, Node
from dray.cel.values import (
    Cidr,
    Duration,
    Format,
    Ip,
    Optional,
    Timestamp,
    Url,
    go_type_name,
    map_items,
    size_of,
)

MAX_FORMAT_PATTERN = 128
MAX_FORMAT_SIZE = 64
_ADDRESS = Range(4, 16)  # bytes


class Argument(NamedTuple):
    """What is known about an argument: its expression, where it comes from, its size."""

    node: Node
    path: tuple[str, ...]
    size: Range | None


class CallCost(NamedTuple):
    """The cost of a call, and the size of its result where that is known."""

    cost: Range
    result_size: Range | None = None


class Declared(Protocol):
    """Knows the declared size of what lies at a path."""

    def declared_size(self, path: tuple[str, ...]) -> Range | None:
        """Return the size, or None."""
        ...


def estimate_call(
    function: str, overload: str, target: Argument | None, args: list[Argument], declared: Declared
) -> CallCost:
    """Return the estimate of one overload of a call, without the cost of its arguments."""
    return (
        _estimate_extension(overload, target, args, declared)
        or _estimate_kubernetes(function, overload, target, args, declared)
        or _estimate_standard(overload, target, args)
        or CallCost(ONE)
    )


def _size(argument: Argument, declared: Declared) -> Range:
    if argument.size is not None:
        return argument.size
    return declared.declared_size(argument.path) or UNKNOWN


def _known(argument: Argument) -> Range:
    return argument.size or UNKNOWN


def _literal_count(argument: Argument, otherwise: int) -> int:
    node = argument.node
    if isinstance(node, Literal) and type(node.value) is int:
        return max(node.value, 0)
    return otherwise


# --- list and set extensions, by overload ---------------------------------------------


def _allocating(factor: float, size: Range) -> CallCost:
    return CallCost(size.scaled(factor).plus(fixed(1 + LIST_BASE)), size)


def _estimate_extension(
    overload: str, target: Argument | None, args: list[Argument], declared: Declared
) -> CallCost | None:
    if overload.startswith("list_sets_"):
        factor = 2.0 if overload == "list_sets_equivalent_list" else 1.0
        product = _size(args[0], declared).times(_size(args[1], declared))
        return CallCost(product.scaled(factor).plus(ONE))
    if overload == "lists_range":
        return _allocating(1, fixed(_literal_count(args[0], MAX)))
    if target is None:
        return None
    if overload == "list_slice":
        start = _literal_count(args[0], 0)
        end = _literal_count(args[1], _size(target, declared).max)
        return _allocating(1, fixed((end - start) % (MAX + 1)))
    if overload == "list_reverse":
        return _allocating(1, _size(target, declared))
    if overload in ("list_flatten", "list_flatten_int"):
        depth = _literal_count(args[0], MAX) if args else 1
        return _allocating(float(depth), _size(target, declared))
    if overload == "list_distinct":
        size = _size(target, declared)
        return _allocating(2.0, size.times(size))
    if overload.endswith(("_sort", "_sortByAssociatedKeys")):
        size = _size(args[0] if overload.endswith("Keys") else target, declared)
        factor = 2.0 + STRING_FACTOR if overload.startswith(("list_string", "list_bytes")) else 2.0
        return _allocating(factor, size.times(size))
    return None


# --- Kubernetes libraries, by function ----------------------------------------------------

_UNIT_COST = frozenset(
    [
        "masked",
        "prefixLength",
        "family",
        "isUnspecified",
        "isLoopback",
        "isLinkLocalMulticast",
        "isLinkLocalUnicast",
        "isGlobalUnicast",
        "format.named",
        "sign",
        "asInteger",
        "isInteger",
        "asApproximateFloat",
        "isGreaterThan",
        "isLessThan",
        "compareTo",
        "add",
        "sub",
        "major",
        "minor",
        "patch",
        "getScheme",
        "getHostname",
        "getHost",
        "getPort",
        "getEscapedPath",
        "getQuery",
        "serviceAccount",
        "path",
        "group",
        "resource",
        "subresource",
        "namespace",
        "name",
        "allowed",
        "reason",
        "error",
        "errored",
    ]
)
_LIST_WALKS = frozenset({"isSorted", "sum", "max", "min", "indexOf", "lastIndexOf", "includes"})
_TEXT_PARSERS = frozenset({"cidr", "isIP", "isCIDR", "quantity", "isQuantity", "semver", "isSemver", "ip"})
_TEXT_CHANGES = frozenset({"lowerAscii", "upperAscii", "substring", "trim"})


def _estimate_kubernetes(
    function: str, overload: str, target: Argument | None, args: list[Argument], declared: Declared
) -> CallCost | None:
    if function in _UNIT_COST or overload == "cidr_ip":
        return CallCost(ONE)
    if function == "_==_" and len(args) == 2:
        return _estimate_equality(args[0], args[1])
    if function in _TEXT_PARSERS and args:
        return CallCost(_size(args[0], declared).scaled(STRING_FACTOR))
    if function == "ip.isCanonical" and args:
        return CallCost(_size(args[0], declared).scaled(2 * STRING_FACTOR))
    if function == "url" and len(args) == 1:
        size = _size(args[0], declared)
        return CallCost(size.scaled(STRING_FACTOR), size)
    if function == "check":
        return CallCost(fixed(350_000))
    return None if target is None else _estimate_member(function, overload, target, args, declared)


def _estimate_member(
    function: str, overload: str, target: Argument, args: list[Argument], declared: Declared
) -> CallCost | None:
    if function in _LIST_WALKS:
        return _estimate_list_walk(function, target, declared)
    if function in _TEXT_CHANGES:
        size = _size(target, declared)
        return CallCost(size.scaled(STRING_FACTOR), size)
    if function == "replace" and len(args) >= 2:
        return _estimate_replace(_size(target, declared), _size(args[0], declared), _size(args[1], declared))
    if function == "split":
        size = _size(target, declared)
        most = size.max
        if len(args) > 1 and isinstance(args[1].node, Literal) and type(args[1].node.value) is int:
            most = args[1].node.value % (MAX + 1)
        return CallCost(size.scaled(2 * STRING_FACTOR), Range(0, most))
    if function == "join":
        return _estimate_join(target, args, declared)
    if function in ("find", "findAll") and args:
        size = _size(target, declared)
        pattern = _size(args[0], declared).scaled(REGEX_FACTOR)
        return CallCost(size.plus(ONE).scaled(STRING_FACTOR).times(pattern), Range(0, size.max))
    if function in ("containsIP", "containsCIDR") and args:
        cost = _ADDRESS.plus(_ADDRESS).scaled(STRING_FACTOR)
        if function == "containsCIDR":
            cost = cost.plus(_ADDRESS.scaled(STRING_FACTOR)).plus(ONE)
        if overload.endswith("_string"):
            cost = cost.plus(_size(args[0], declared).scaled(STRING_FACTOR))
        return CallCost(cost)
    if function == "validate" and args:
        size = _size(args[0], declared).scaled(STRING_FACTOR)
        return CallCost(size.scaled(MAX_FORMAT_PATTERN * REGEX_FACTOR))
    return None


def _estimate_list_walk(function: str, target: Argument, declared: Declared) -> CallCost:
    size = _size(target, declared)
    if target.node.type.params:
        element = target.node.type.params[0]
        cost = ONE
        if element.kind in ("string", "bytes"):
            path = (*target.path, "@items") if target.path else ()
            item = declared.declared_size(path) or UNKNOWN
            cost = cost.plus(item.scaled(STRING_FACTOR))
        return CallCost(size.times(cost))
    if function == "includes":
        return CallCost(size.times(ONE))
    return CallCost(size.scaled(STRING_FACTOR))


def _estimate_replace(size: Range, old: Range, new: Range) -> CallCost:
    """Bound the length of the result: replace the shortest by the longest, and vice versa."""
    if old.min == 0:
        most, kept_most = min(size.max + 1, MAX), size.max
    elif new.max <= old.min:
        most, kept_most = 0, size.max
    else:
        most, kept_most = math.ceil(float(size.max) / float(old.min)), 0
    if old.max == 0:
        least, kept_least = min(size.min + 1, MAX), size.min
    elif old.max <= new.min:
        least, kept_least = 0, size.min
    else:
        least, kept_least = math.ceil(float(size.min) / float(old.max)), 0
    count = Range(min(least, MAX), min(most, MAX))
    result = count.times(new).plus(Range(kept_least, kept_most))
    return CallCost(size.scaled(2 * STRING_FACTOR), result)


def _estimate_join(target: Argument, args: list[Argument], declared: Declared) -> CallCost:
    count = _size(target, declared)
    size = Range(0, 0)
    if target.node.type.params:
        path = (*target.path, "@items") if target.path else ()
        size = count.times(declared.declared_size(path) or UNKNOWN)
    if args:
        gaps = Range(max(count.min - 1, 0), max(count.max - 1, 0))
        size = size.plus(_size(args[0], declared).times(gaps))
    return CallCost(size.scaled(STRING_FACTOR), size)


def _estimate_equality(left: Argument, right: Argument) -> CallCost | None:
    kind = left.node.type
    if kind != right.node.type:
        return None
    if kind in (kinds.IP, kinds.CIDR, kinds.QUANTITY, kinds.SEMVER):
        return CallCost(ONE)
    if kind == kinds.FORMAT:
        return CallCost(Range(1, MAX_FORMAT_SIZE).scaled(STRING_FACTOR))
    if kind == kinds.URL:
        size = right.size or ONE
        return CallCost(Range(1, size.max).scaled(STRING_FACTOR))
    return None


# --- the standard functions, by overload --------------------------------------------------

_COMPARED = frozenset(
    {
        f"{word}_{kind}"
        for word in ("less", "less_equals", "greater", "greater_equals")
        for kind in ("string", "bytes")
    }
    | {"equals", "not_equals"}
)


def _estimate_standard(overload: str, target: Argument | None, args: list[Argument]) -> CallCost | None:
    match overload:
        case "string_format" if target is not None:
            return CallCost(_known(target).scaled(STRING_FACTOR))
        case "string_to_bytes":
            size = _known(args[0])
            return CallCost(size.scaled(STRING_FACTOR), Range(size.min, size.max * 4 % (MAX + 1)))
        case "bytes_to_string":
            size = _known(args[0])
            return CallCost(size.scaled(STRING_FACTOR), Range(size.min // 4, size.max))
        case "strings_quote":
            size = _known(args[0])
            result = Range((size.min + 2) % (MAX + 1), (size.max * 2 + 2) % (MAX + 1))
            return CallCost(size.scaled(STRING_FACTOR), result)
        case "starts_with_string" | "ends_with_string":
            return CallCost(_known(args[0]).scaled(STRING_FACTOR))
        case "in_list":
            return CallCost(_known(args[1]).scaled(1))
        case "matches" | "matches_string":
            text, pattern = (args[0], args[1]) if target is None else (target, args[0])
            walked = _known(text).plus(ONE).scaled(STRING_FACTOR)
            return CallCost(walked.times(_known(pattern).scaled(REGEX_FACTOR)))
        case "contains_string" if target is not None:
            return CallCost(_known(target).scaled(STRING_FACTOR).times(_known(args[0]).scaled(STRING_FACTOR)))
        case "add_list":
            return CallCost(ONE, _known(args[0]).plus(_known(args[1])))
        case "add_string" | "add_bytes":
            size = _known(args[0]).plus(_known(args[1]))
            return CallCost(size.scaled(STRING_FACTOR), size)
    if overload in _COMPARED:
        most = min(_known(args[0]).max, _known(args[1]).max)
        return CallCost(Range(1 if most > 0 else 0, most).scaled(STRING_FACTOR))
    return None


# --- actual costs ---------------------------------------------------------------------------


def is_plain(function: str, overload: str) -> bool:
    """Return whether a call costs 1 whatever its arguments are."""
    if function in _UNIT_COST:
        return True
    return overload in _PLAIN_OVERLOADS and function in _PLAIN_FUNCTIONS


# The operators of loops: worth not looking up their price every round.
_PLAIN_FUNCTIONS = frozenset(
    {"@not_strictly_false", "!_", "-_", "_+_", "_-_", "_*_", "_/_", "_%_", "_<_", "_<=_", "_>_", "_>=_"}
)
_PLAIN_OVERLOADS = frozenset(
    {
        "not_strictly_false",
        "logical_not",
        "add_list",
        "add_int64",
        "subtract_int64",
        "multiply_int64",
        "divide_int64",
        "modulo_int64",
    }
    | {f"{word}_int64" for word in ("less", "less_equals", "greater", "greater_equals")}
)


def actual_call_cost(function: str, overload: str, args: list[object], result: object) -> int:
    """Return what a call did cost, given its values (a failed argument counts as size 1)."""
    cost = _actual_extension(overload, args, result)
    if cost is None:
        cost = _actual_kubernetes(function, overload, args, result)
    if cost is None:
        cost = _actual_standard(overload, args)
    return cost


def _walked(size: int, factor: float = STRING_FACTOR) -> int:
    return math.ceil(float(size) * factor)


def _actual_extension(overload: str, args: list[object], result: object) -> int | None:
    if overload.startswith("list_sets_"):
        factor = 2 if overload == "list_sets_equivalent_list" else 1
        return 1 + size_of(args[0]) * size_of(args[1]) * factor
    if overload in ("list_slice", "lists_range", "list_reverse"):
        return size_of(result) + 1 + LIST_BASE
    if overload in ("list_flatten", "list_flatten_int"):
        depth = args[1] if len(args) == 2 else 1
        if type(depth) is not int:
            raise AbortedError(f"interface conversion: ref.Val is {go_type_name(depth)}, not types.Int")
        product = float(size_of(args[0])) * float(depth if depth >= 0 else 1)
        # What Go makes of a number beyond 64 bits.
        return (int(product) if product < 2.0**64 else 2**63) + 1 + LIST_BASE
    if compares_elements(overload):
        return _self_compared(args[-1])
    return None


def compares_elements(overload: str) -> bool:
    """Return whether a call costs the square of the elements of its last argument, which must be a list."""
    return overload == "list_distinct" or overload.endswith(("_sort", "_sortByAssociatedKeys"))


def _self_compared(items: object) -> int:
    if not isinstance(items, list):
        raise not_a_list(items)
    size = len(items)
    factor = 2.0
    if items and isinstance(items[0], str | bytes):
        factor += STRING_FACTOR
    return int(float(size * size) * factor) + 1 + LIST_BASE


_ADDABLE = (float, str, bytes, Duration, Timestamp)


def not_a_list(value: object) -> AbortedError:
    """Return the error of a call that cannot be charged for, since its argument has no elements."""
    is_addable = isinstance(value, _ADDABLE) or (isinstance(value, int) and not isinstance(value, bool))
    method = "Contains" if is_addable else "Add"
    return AbortedError(
        f"interface conversion: {go_type_name(value)} is not traits.Lister: missing method {method}"
    )


_WALKED_TEXTS = frozenset({"url", "lowerAscii", "upperAscii", "substring", "trim", *_TEXT_PARSERS})
_UNIT_EQUALITY = (Quantity, Semver, Url, Ip, Cidr, Format)


def _actual_kubernetes(function: str, overload: str, args: list[object], result: object) -> int | None:
    if function in _UNIT_COST or overload == "cidr_ip":
        return 1
    if not args:
        return None
    first = args[0]
    if function == "_==_":
        return 1 if isinstance(first, _UNIT_EQUALITY) else None
    if function in _LIST_WALKS:
        return _traversal(first)
    if function in _WALKED_TEXTS:
        return _walked(_flat_size(first))
    if function in ("replace", "split", "ip.isCanonical"):
        return _walked(_flat_size(first), 2 * STRING_FACTOR)
    if function == "join":
        return _walked(_flat_size(result), 2 * STRING_FACTOR)
    if len(args) < 2:
        return None
    if function in ("find", "findAll"):
        return math.ceil((1.0 + _flat_size(first)) * STRING_FACTOR) * _walked(
            _flat_size(args[1]), REGEX_FACTOR
        )
    if function in ("containsIP", "containsCIDR"):
        size = _flat_size(first)
        cost = _walked(2 * size)
        if function == "containsCIDR":
            cost += _walked(size) + 1
        return cost + (_walked(_flat_size(args[1])) if overload.endswith("_string") else 0)
    if function == "validate" and isinstance(first, Format):
        from dray.cel.formats import pattern_size

        text = math.ceil((1.0 + _flat_size(args[1])) * STRING_FACTOR)
        return text * _walked(pattern_size(first.name), REGEX_FACTOR)
    return None


def _flat_size(value: object) -> int:
    return size_of(value)


def _traversal(value: object) -> int:
    """Return the cost of looking at every part of a value once."""
    if isinstance(value, str):
        return int(float(len(value.encode("utf-8", "surrogatepass"))) * STRING_FACTOR)
    if isinstance(value, bytes):
        return int(float(len(value)) * STRING_FACTOR)
    if isinstance(value, list):
        return sum(map(_traversal, value))
    if isinstance(value, dict):
        return sum(_traversal(key) + _traversal(item) for key, item in map_items(value))
    return 1


def _actual_standard(overload: str, args: list[object]) -> int:
    match overload:
        case "starts_with_string" | "ends_with_string":
            return _walked(_deep_size(args[1]))
        case "string_to_bytes" | "bytes_to_string" | "strings_quote" | "string_format":
            return _walked(_deep_size(args[0]))
        case "in_list":
            return _deep_size(args[1])
        case "add_string" | "add_bytes":
            return _walked(_deep_size(args[0]) + _deep_size(args[1]))
        case "matches" | "matches_string":
            text = math.ceil((1.0 + _deep_size(args[0])) * STRING_FACTOR)
            return text * _walked(_deep_size(args[1]), REGEX_FACTOR)
        case "contains_string":
            return _walked(_deep_size(args[0])) * _walked(_deep_size(args[1]))
    if overload in _COMPARED:
        return _walked(min(_deep_size(args[0]), _deep_size(args[1])))
    return 1


def _deep_size(value: object) -> int:
    """Return a size, looking through optionals."""
    while isinstance(value, Optional) and value.present:
        value = value.value
    return size_of(value)
