"""Conversions between types: int(), uint(), double(), string(), bytes(), bool(), timestamp(), duration(), type()."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal

from dray.cel import kinds
from dray.cel.errors import Fault
from dray.cel.functions_time import parse_duration, parse_timestamp, show_duration, show_timestamp
from dray.cel.kinds import CelType
from dray.cel.operators import MAX_TIME, MIN_TIME
from dray.cel.values import (
    INT64_MAX,
    INT64_MIN,
    NANOS,
    UINT64_MAX,
    Cidr,
    Duration,
    Ip,
    Timestamp,
    Uint,
    type_name,
)

_INTEGER = re.compile(r"[+-]?[0-9]+")
# As Go writes numbers: an underscore may stand between digits, and after 0x.
_DIGITS, _HEX_DIGITS = "[0-9](?:_?[0-9])*", "[0-9a-fA-F](?:_?[0-9a-fA-F])*"
_FLOAT = re.compile(rf"[+-]?(?:{_DIGITS}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:[eE][+-]?{_DIGITS})?")
_HEX_FLOAT = re.compile(
    rf"[+-]?0[xX](?:_?{_HEX_DIGITS}(?:\.(?:{_HEX_DIGITS})?)?|\.{_HEX_DIGITS})[pP][+-]?{_DIGITS}"
)
_SPECIAL_FLOATS = frozenset({"nan", "inf", "+inf", "-inf", "infinity", "+infinity", "-infinity"})


def _conversion_error(value: object, wanted: str) -> Fault:
    return Fault(f"type conversion error from '{type_name(value)}' to '{wanted}'")


def _string_to_int(text: str) -> int:
    if _INTEGER.fullmatch(text) and len(text) <= 40:
        number = int(text)
        if INT64_MIN <= number <= INT64_MAX:
            return number
    raise _conversion_error(text, "int")


def _string_to_uint(text: str) -> Uint:
    if re.fullmatch(r"[0-9]+", text) and len(text) <= 40:
        number = int(text)
        if number <= UINT64_MAX:
            return Uint(number)
    raise _conversion_error(text, "uint")


def _string_to_double(text: str) -> float:
    if text.lower() in _SPECIAL_FLOATS:
        return float(text)
    try:
        if _FLOAT.fullmatch(text):
            number = float(text)
        elif _HEX_FLOAT.fullmatch(text):
            number = float.fromhex(text.replace("_", ""))
        else:
            raise _conversion_error(text, "double")
    except OverflowError:
        number = math.inf
    if not math.isinf(number):
        return number
    raise _conversion_error(text, "double")


def _double_to_int(number: float) -> int:
    if math.isnan(number) or math.isinf(number) or not -(2.0**63) < number < 2.0**63:
        raise Fault("integer overflow")
    return int(number)


def _double_to_uint(number: float) -> Uint:
    if math.isnan(number) or math.isinf(number) or not 0 <= number < 2.0**64:
        raise Fault("unsigned integer overflow")
    return Uint(int(number))


def _int_to_uint(number: int) -> Uint:
    if number < 0:
        raise Fault("unsigned integer overflow")
    return Uint(number)


def _uint_to_int(number: int) -> int:
    if number > INT64_MAX:
        raise Fault("integer overflow")
    return int(number)


def show_double(number: float) -> str:
    """Write a double as Go's %g does with the fewest digits."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "+Inf" if number > 0 else "-Inf"
    sign, digits, exponent = Decimal(repr(number)).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).lstrip("0") or "0"
    point = len(text) + exponent  # position of the decimal point relative to the first digit
    stripped = text.rstrip("0") or "0"
    prefix = "-" if sign else ""
    if number == 0:
        return prefix + "0"
    if point - 1 < -4 or point - 1 >= 6:
        fraction = "." + stripped[1:] if len(stripped) > 1 else ""
        return f"{prefix}{stripped[0]}{fraction}e{'-' if point - 1 < 0 else '+'}{abs(point - 1):02d}"
    if point <= 0:
        return f"{prefix}0.{'0' * -point}{stripped}"
    if len(stripped) <= point:
        return prefix + stripped.ljust(point, "0")
    return f"{prefix}{stripped[:point]}.{stripped[point:]}"


def show_key(key: object) -> str:
    """Write a key as messages do."""
    match key:
        case None:
            return "0"
        case bool():
            return "true" if key else "false"
        case float():
            return show_double(key)
        case Ip():
            return str(key.address)
        case Cidr():
            return f"{key.address}/{key.prefix}"
    return str(key)


def _bytes_to_string(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Fault("invalid UTF-8 in bytes, cannot convert to string") from None


_TRUE_TEXTS = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE_TEXTS = frozenset({"0", "f", "F", "FALSE", "false", "False"})


def _string_to_bool(text: str) -> bool:
    if text in _TRUE_TEXTS:
        return True
    if text in _FALSE_TEXTS:
        return False
    raise _conversion_error(text, "bool")


def _string_to_timestamp(text: str) -> Timestamp:
    try:
        return parse_timestamp(text)
    except (ValueError, OverflowError):
        raise _conversion_error(text, "google.protobuf.Timestamp") from None


def _string_to_duration(text: str) -> Duration:
    try:
        return parse_duration(text)
    except ValueError:
        raise _conversion_error(text, "google.protobuf.Duration") from None


def _int_to_timestamp(seconds: int) -> Timestamp:
    if not MIN_TIME <= seconds <= MAX_TIME:
        raise Fault("timestamp overflow")
    return Timestamp(seconds * NANOS)


def _same(value: object) -> object:
    return value


_STRUCTS = frozenset({"kubernetes.Quantity", "kubernetes.Semver", "kubernetes.URL", "kubernetes.NamedFormat"})


def type_value(value: object) -> CelType:
    """Return the type of a value, as a value."""
    name = type_name(value)
    kind = {
        "google.protobuf.Duration": kinds.DURATION,
        "google.protobuf.Timestamp": kinds.TIMESTAMP,
        "null_type": kinds.NULL,
    }.get(name)
    return kind or CelType("struct" if name in _STRUCTS else name, name)


CONVERSIONS: dict[str, Callable[..., object]] = {
    "int64_to_int64": _same,
    "double_to_int64": _double_to_int,
    "duration_to_int64": lambda duration: duration.nanos,
    "string_to_int64": _string_to_int,
    "timestamp_to_int64": lambda timestamp: timestamp.nanos // NANOS,
    "uint64_to_int64": _uint_to_int,
    "uint64_to_uint64": _same,
    "double_to_uint64": _double_to_uint,
    "int64_to_uint64": _int_to_uint,
    "string_to_uint64": _string_to_uint,
    "double_to_double": _same,
    "int64_to_double": float,
    "string_to_double": _string_to_double,
    "uint64_to_double": float,
    "string_to_string": _same,
    "bool_to_string": lambda value: "true" if value else "false",
    "bytes_to_string": _bytes_to_string,
    "double_to_string": show_double,
    "duration_to_string": show_duration,
    "int64_to_string": str,
    "timestamp_to_string": show_timestamp,
    "uint64_to_string": lambda value: str(int(value)),
    "bytes_to_bytes": _same,
    "string_to_bytes": str.encode,
    "bool_to_bool": _same,
    "string_to_bool": _string_to_bool,
    "timestamp_to_timestamp": _same,
    "int64_to_timestamp": _int_to_timestamp,
    "string_to_timestamp": _string_to_timestamp,
    "duration_to_duration": _same,
    "string_to_duration": _string_to_duration,
    "to_dyn": _same,
    "type": type_value,
}
