"""Operators: arithmetic with overflow checks, order, membership."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dray.cel.errors import CostLimitError, Fault, no_such_overload
from dray.cel.values import (
    INT64_MAX,
    INT64_MIN,
    NANOS,
    Domains,
    Duration,
    Growing,
    Timestamp,
    Uint,
    compare,
    equal,
    is_number,
    map_has,
    number_in_range,
    type_name,
)

MIN_TIME = -62135596800  # 0001-01-01T00:00:00Z
MAX_TIME = 253402300799  # 9999-12-31T23:59:59Z


# Upstream has no such bounds and may run out of memory. A concatenation costs a tenth of its characters,
# so no evaluation within the cost limit makes a longer string that way.
MAX_RESULT = 2_000_000  # elements
MAX_TEXT = 10_000_000  # characters


def too_big(limit: int = MAX_RESULT, unit: str = "elements") -> CostLimitError:
    """Return the error of an operation whose result would be unreasonably big."""
    return CostLimitError(f"operation cancelled: result has more than {limit} {unit}")


def _whole(left: object, right: object, operate: Callable[[int, int], int]) -> int | None:
    """Apply an operation to two ints or two uints; None for anything else."""
    if type(left) is int and type(right) is int:
        return number_in_range(operate(left, right), "integer overflow")
    if type(left) is Uint and type(right) is Uint:
        return number_in_range(operate(left, right), "unsigned integer overflow", unsigned=True)
    return None


def timestamp_of(nanos: int, offset: int = 0) -> Timestamp:
    """Return a timestamp, or raise Fault outside of the years 1 to 9999."""
    if not MIN_TIME * NANOS <= nanos < (MAX_TIME + 1) * NANOS:
        raise Fault("timestamp overflow")
    return Timestamp(nanos, offset)


def duration_of(nanos: int) -> Duration:
    """Return a duration, or raise Fault beyond 64-bit nanoseconds."""
    return Duration(number_in_range(nanos, "integer overflow"))


def add(left: object, right: object) -> object:
    """Return left + right."""
    if type(left) is int and type(right) is int:
        return number_in_range(left + right, "integer overflow")
    number = _whole(left, right, lambda a, b: a + b)
    if number is not None:
        return number
    match left, right:
        case Growing(), list():
            if len(left) + len(right) > MAX_RESULT:
                raise too_big()
            left.extend(right)
            return left
        case list(), list():
            return _joined(left, right)
        case str(), str():
            return _joined(left, right)
        case bytes(), bytes():
            return _joined(left, right)
        case float(), float():
            return left + right
        case Duration(a), Duration(b):
            return duration_of(a + b)
        case (Timestamp(a, offset), Duration(b)) | (Duration(b), Timestamp(a, offset)):
            return timestamp_of(a + b, offset)
    raise _refused("_+_", left)


def _joined(left: Any, right: Any) -> object:
    if type(left) is list:
        if len(left) + len(right) > MAX_RESULT:
            raise too_big()
    elif len(left) + len(right) > MAX_TEXT:
        raise too_big(MAX_TEXT, "characters")
    return left + right


def subtract(left: object, right: object) -> object:
    """Return left - right."""
    if type(left) is int and type(right) is int:
        return number_in_range(left - right, "integer overflow")
    number = _whole(left, right, lambda a, b: a - b)
    if number is not None:
        return number
    match left, right:
        case float(), float():
            return left - right
        case Duration(a), Duration(b):
            return duration_of(a - b)
        case Timestamp(a), Timestamp(b):
            return Duration(number_in_range(a - b, "integer overflow"))
        case Timestamp(a, offset), Duration(b):
            return timestamp_of(a - b, offset)
    raise _refused("_-_", left)


def multiply(left: object, right: object) -> object:
    """Return left * right."""
    if type(left) is int and type(right) is int:
        return number_in_range(left * right, "integer overflow")
    number = _whole(left, right, lambda a, b: a * b)
    if number is not None:
        return number
    if isinstance(left, float) and isinstance(right, float):
        return left * right
    raise _refused("_*_", left)


def divide(left: object, right: object) -> object:
    """Return left / right, towards zero for integers."""
    if isinstance(left, float) and isinstance(right, float):
        return _divide_floats(left, right)
    if is_number(left) and type(left) is type(right) and right == 0:
        raise Fault("division by zero")
    number = _whole(left, right, _truncated)
    if number is None:
        raise _refused("_/_", left)
    return number


def _truncated(left: int, right: int) -> int:
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _divide_floats(left: float, right: float) -> float:
    if right != 0:
        return left / right
    if left == 0 or math.isnan(left):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1.0, right)


def modulo(left: object, right: object) -> object:
    """Return the remainder with the sign of the left side."""
    if is_number(left) and type(left) is type(right) and not isinstance(left, float) and right == 0:
        raise Fault("modulus by zero")
    number = _whole(left, right, _remainder)
    if number is None:
        raise _refused("_%_", left)
    return number


def _remainder(left: int, right: int) -> int:
    # As upstream: where the quotient is no int, the remainder is none either.
    quotient = number_in_range(_truncated(left, right), "integer overflow", unsigned=isinstance(left, Uint))
    return left - right * quotient


def negate(value: object) -> object:
    """Return -value."""
    if type(value) is int:
        return number_in_range(-value, "integer overflow")
    if isinstance(value, float):
        return -value
    if isinstance(value, Duration):
        return duration_of(-value.nanos)
    raise no_such_overload("" if isinstance(value, bool | str | Timestamp) else "-_")


def negate_bool(value: object) -> object:
    """Return !value."""
    if value is True:
        return False
    if value is False:
        return True
    raise no_such_overload()


_COMPARERS = (bool, int, float, str, bytes, Duration, Timestamp)


def _ordering(name: str, holds: Callable[[int], bool]) -> Callable[[object, object], object]:
    def ordered(left: object, right: object) -> object:
        if not isinstance(left, _COMPARERS):
            raise no_such_overload(name)
        return holds(compare(left, right))

    return ordered


less = _ordering("_<_", lambda order: order < 0)
less_equals = _ordering("_<=_", lambda order: order <= 0)
greater = _ordering("_>_", lambda order: order > 0)
greater_equals = _ordering("_>=_", lambda order: order >= 0)


def position_of(item: object, items: list[object]) -> int | None:
    """Return where Python finds a text or an integer (-1: nowhere); None: compare one by one."""
    if type(item) is not str and type(item) is not int:
        return None
    try:
        position = items.index(item)
    except ValueError:
        return -1
    # Python takes True for 1.
    return None if type(items[position]) is bool else position


def contains(item: object, container: object) -> object:
    """Return item in container."""
    if isinstance(container, dict | Domains):
        return map_has(container, item)
    if not isinstance(container, list):
        raise no_such_overload()
    position = position_of(item, container)
    if position is not None:
        return position >= 0
    for element in container:
        try:
            if equal(item, element):
                return True
        except Fault:
            # What cannot be compared is not it.
            continue
    return False


# What each operator works on; for other left sides the message names the operator.
_SUPPORT: dict[str, tuple[type, ...]] = {
    "_+_": (int, float, str, bytes, list, Duration, Timestamp),
    "_-_": (int, float, Duration, Timestamp),
    "_*_": (int, float),
    "_/_": (int, float),
    "_%_": (int,),
}


def _refused(name: str, left: object) -> Fault:
    # Strings and times take any operator and then refuse the operand.
    supported = isinstance(left, (*_SUPPORT[name], str, Duration, Timestamp)) and not isinstance(left, bool)
    return no_such_overload("" if supported else name)


OPERATORS: dict[str, Callable[..., object]] = {
    "_+_": add,
    "_-_": subtract,
    "_*_": multiply,
    "_/_": divide,
    "_%_": modulo,
    "-_": negate,
    "!_": negate_bool,
    "_<_": less,
    "_<=_": less_equals,
    "_>_": greater,
    "_>=_": greater_equals,
    "@in": contains,
}

__all__ = ["INT64_MAX", "INT64_MIN", "OPERATORS", "duration_of", "timestamp_of", "type_name"]
