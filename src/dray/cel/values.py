"""Run-time values, and what it means that two of them are equal or ordered.

CEL value → Python value: null None, bool bool, int int, uint Uint, double float,
string str, bytes bytes, list list, map dict, timestamp Timestamp, duration Duration,
optional Optional, type CelType, and Quantity, Semver, Url, Ip, Cidr, Format.

Python thinks that True == 1, so bool must be told from int at every comparison
and in map keys. The language allows bools, numbers and strings as keys; cel-go takes
whatever Go can hash, by value or by identity. `map_key` gives every key its place in
a Python dict: strings, ints and null their own, others a `_Key`.

Values are compared the way cel-go does: numbers across types by value, other
values of different types are unequal, but the Kubernetes types (Quantity, Semver,
...) refuse to be compared with anything else when they stand on the left.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dray.api.quantity import Quantity
from dray.api.semver import Semver
from dray.cel.errors import AbortedError, CostLimitError, Fault, no_such_overload
from dray.cel.kinds import CelType

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1
UINT64_MAX = 2**64 - 1

NANOS = 1_000_000_000


class Uint(int):
    """An unsigned integer: a number of its own type, equal to the int of the same value."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A length of time in nanoseconds."""

    nanos: int


@dataclass(frozen=True, slots=True, order=True)
class Timestamp:
    """A point in time: nanoseconds since 1970 in UTC."""

    nanos: int
    offset: int = field(default=0, compare=False)  # seconds east of UTC, to show the time with


@dataclass(frozen=True, slots=True)
class Optional:
    """A value that may be absent."""

    value: object = None
    present: bool = True


NOTHING = Optional(None, present=False)


@dataclass(frozen=True, slots=True)
class Url:
    """A parsed URL or absolute path."""

    scheme: str
    host: str
    hostname: str
    port: str
    escaped_path: str
    query: tuple[tuple[str, tuple[str, ...]], ...]
    text: str


@dataclass(frozen=True, slots=True)
class Ip:
    """An IP address."""

    address: ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Cidr:
    """An address with a prefix length; the address may have bits beyond the prefix."""

    address: ipaddress.IPv4Address | ipaddress.IPv6Address
    prefix: int

    @property
    def network(self) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
        """The network that the prefix describes."""
        return ipaddress.ip_network((self.address, self.prefix), strict=False)


@dataclass(frozen=True, slots=True)
class Format:
    """A named text format; see `formats`."""

    name: str


class _Key:
    """The place of a value among the keys of a map, where the value itself cannot be it."""

    __slots__ = ("identity", "value")

    def __init__(self, value: object, *identity: object) -> None:
        self.value = value
        self.identity = identity

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)


_TRUE_KEY, _FALSE_KEY = _Key(True, "bool", True), _Key(False, "bool", False)
_HOUR = 3600


def map_key(key: object) -> object:
    """Return the key under which a Python dict holds a CEL key; raise AbortedError if it can be none."""
    if key is True:
        return _TRUE_KEY
    if key is False:
        return _FALSE_KEY
    if type(key) is str or type(key) is int or key is None:
        return key
    match key:
        case Uint() | float():
            # Not a number is never found again.
            return _Key(key, "number", type(key), object() if math.isnan(key) else key)
        case bytes() | Semver() | Format():
            raise AbortedError(f"runtime error: hash of unhashable type {_UNHASHABLE[type(key)]}")
        case Timestamp() if key.offset % _HOUR == 0:
            return _Key(key, "timestamp", key.nanos, key.offset)
        case Duration() | Ip() | Cidr():
            return _Key(key, type(key), key)
        case CelType():
            return _Key(key, "type", key.name)
    return _Key(key, "identity", id(key))


def _equal_numbers(key: object) -> Iterator[object]:
    """Yield where other numbers of the same value stand."""
    if isinstance(key, float):
        if key.is_integer():
            yield int(key)
            if key >= 0:
                yield map_key(Uint(int(key)))
    elif type(key) is Uint:
        yield int(key)
    elif type(key) is int and key >= 0:
        yield map_key(Uint(key))


def map_find(entries: Mapping[object, object], key: object) -> object:
    """Return the value at a key, or MISSING."""
    if isinstance(entries, Domains):
        # Any domain can be looked up: an unknown one is an empty map.
        return entries[key] if isinstance(key, str) else {}
    if type(entries) is dict and not entries:  # others may compute what they are asked for
        return MISSING
    found = entries.get(map_key(key), MISSING)
    if found is MISSING and isinstance(key, int | float):
        for place in _equal_numbers(key):
            if place in entries:
                return entries[place]
    return found


def map_has(entries: Mapping[object, object], key: object) -> bool:
    """Return whether `key in entries`; unlike a lookup this tells unknown domains apart."""
    if isinstance(entries, Domains):
        return isinstance(key, str) and key in entries
    return map_find(entries, key) is not MISSING


def map_keys(entries: Mapping[object, object]) -> Iterator[object]:
    """Yield the keys as CEL values."""
    for key in entries:
        yield key.value if isinstance(key, _Key) else key


def map_items(entries: Mapping[object, object]) -> Iterator[tuple[object, object]]:
    """Yield keys as CEL values, with their values."""
    for key, value in entries.items():
        yield (key.value if isinstance(key, _Key) else key), value


class _Missing:
    """The absence of a map entry."""


MISSING = _Missing()


class Domains(dict[object, object]):
    """A map of domains: looking up an unknown one gives an empty map."""

    __slots__ = ()

    def __missing__(self, key: object) -> dict[object, object]:
        return {}


class Growing(list[object]):
    """The list that a loop is making: extended in place, and seen by nobody else until it is done."""

    __slots__ = ()


class GrowingMap(dict[object, object]):
    """The map that a loop is making."""

    __slots__ = ()


_TYPE_NAMES: dict[type, str] = {
    type(None): "null_type",
    bool: "bool",
    int: "int",
    Uint: "uint",
    float: "double",
    str: "string",
    bytes: "bytes",
    list: "list",
    dict: "map",
    Domains: "map",
    Duration: "google.protobuf.Duration",
    Timestamp: "google.protobuf.Timestamp",
    Optional: "optional_type",
    CelType: "type",
    Quantity: "kubernetes.Quantity",
    Semver: "kubernetes.Semver",
    Url: "kubernetes.URL",
    Ip: "net.IP",
    Cidr: "net.CIDR",
    Format: "kubernetes.NamedFormat",
}


def type_name(value: object) -> str:
    """Return the name of a value's type."""
    return _TYPE_NAMES.get(type(value), type(value).__name__)


# How Go names the run-time types that occur in messages.
_GO_NAMES = {
    "null_type": "types.Null",
    "bool": "types.Bool",
    "int": "types.Int",
    "uint": "types.Uint",
    "double": "types.Double",
    "string": "types.String",
    "bytes": "types.Bytes",
    "google.protobuf.Duration": "types.Duration",
    "google.protobuf.Timestamp": "types.Timestamp",
    "optional_type": "*types.Optional",
    "type": "*types.Type",
    "kubernetes.Quantity": "cel.Quantity",
    "kubernetes.Semver": "cel.Semver",
    "kubernetes.URL": "cel.URL",
    "net.IP": "cel.IP",
    "net.CIDR": "cel.CIDR",
    "kubernetes.NamedFormat": "*cel.Format",
    "list": "*types.baseList",
    "Failure": "*types.Err",  # see `interpreter`
    "map": "*types.baseMap",
}
_UNHASHABLE: dict[type, str] = {bytes: "types.Bytes", Semver: "cel.Semver", Format: "cel.Format"}


def go_type_name(value: object) -> str:
    """Return how upstream's messages name the type of a value."""
    name = type_name(value)
    pointer = "*" if type(value) is QuantitySum else ""
    return pointer + _GO_NAMES.get(name, name)


_NATIVE_NAMES = {
    "null_type": "structpb.NullValue",
    "bool": "bool",
    "int": "int64",
    "uint": "uint64",
    "double": "float64",
    "string": "string",
    "bytes": "[]uint8",
    "google.protobuf.Duration": "time.Duration",
    "google.protobuf.Timestamp": "time.Time",
    "list": "[]ref.Val",
    "map": "map[ref.Val]ref.Val",
    "kubernetes.Quantity": "*resource.Quantity",
    "kubernetes.Semver": "semver.Version",
    "kubernetes.URL": "*url.URL",
    "net.IP": "netip.Addr",
    "net.CIDR": "netip.Prefix",
}


def go_native_name(value: object) -> str:
    """Return how upstream's messages name the plain Go value behind a value."""
    name = type_name(value)
    return _NATIVE_NAMES.get(name, name)


def is_number(value: object) -> bool:
    """Return whether a value is an int, uint or double."""
    return isinstance(value, int | float) and not isinstance(value, bool)


class QuantitySum(Quantity):
    """What `add()` and `sub()` return: upstream's type for it is another, and equality shows."""

    __slots__ = ()

    @classmethod
    def from_quantity(cls, quantity: Quantity) -> QuantitySum:
        """Return a quantity as the result of a calculation."""
        return cls(quantity.nanos, quantity.notation, scale=quantity._scale)


_TYPE_NAMES[QuantitySum] = _TYPE_NAMES[Quantity]
_STRICT_LEFT = (Quantity, Semver, Url, Ip, Cidr, Format)


class _Budget:
    """Bounds the comparisons of one equality: nested values may share their parts exponentially often."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = 200_000

    def spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise CostLimitError("operation cancelled: comparison takes too many steps")


def _same_number(left: object, right: object) -> bool:
    if type(left) is float or type(right) is float:
        assert isinstance(left, int | float)
        assert isinstance(right, int | float)
        return float(left) == float(right)
    return left == right


def equal(left: object, right: object, budget: _Budget | None = None) -> bool:
    """Compare two values; raise Fault where the left one refuses the right one's type."""
    kind = type(left)
    if kind is type(right) and kind in _PLAIN:
        return left == right
    if left is None or right is None:
        return left is right
    if is_number(left):
        return is_number(right) and _same_number(left, right)
    if isinstance(left, list):
        return (
            isinstance(right, list)
            and len(left) == len(right)
            and _equal_items(left, right, budget or _Budget())
        )
    if isinstance(left, dict):
        return isinstance(right, dict) and _equal_maps(left, right, budget or _Budget())
    if isinstance(left, Optional):
        return _equal_optionals(left, right, budget)
    if isinstance(left, CelType):
        return isinstance(right, CelType) and left.name == right.name
    if isinstance(left, _STRICT_LEFT):
        if kind is not type(right) and not (kind is QuantitySum and type(right) is Quantity):
            raise no_such_overload()
        if kind is QuantitySum and type(right) is QuantitySum:
            raise no_such_overload()
        return left == right
    return kind is type(right) and left == right


_PLAIN = frozenset({str, int, bool, bytes, Duration, Timestamp, Quantity, Semver})


def _equal_items(left: list[object], right: list[object], budget: _Budget) -> bool:
    return not any(_surely_differ(one, other, budget) for one, other in zip(left, right, strict=True))


def _surely_differ(left: object, right: object, budget: _Budget) -> bool:
    """Compare parts of lists and maps: there, parts that refuse to be compared do not count as different."""
    budget.spend()
    try:
        return not equal(left, right, budget)
    except Fault:
        return False


def _equal_maps(left: Mapping[object, object], right: Mapping[object, object], budget: _Budget) -> bool:
    if len(left) != len(right):
        return False
    for key, value in map_items(left):
        other = map_find(right, key)
        if other is MISSING or _surely_differ(value, other, budget):
            return False
    return True


def _equal_optionals(left: Optional, right: object, budget: _Budget | None) -> bool:
    if not isinstance(right, Optional) or left.present != right.present:
        return False
    return not left.present or equal(left.value, right.value, budget)


def compare(left: object, right: object) -> int:
    """Return -1, 0 or 1; raise Fault where there is no order."""
    if is_number(left) and is_number(right):
        assert isinstance(left, int | float)
        assert isinstance(right, int | float)
        if (isinstance(left, float) and math.isnan(left)) or (isinstance(right, float) and math.isnan(right)):
            raise Fault("NaN values cannot be ordered")
        if type(left) is not type(right) and (type(left) is float or type(right) is float):
            # Upstream compares as doubles, so a big integer loses its last digits.
            left, right = float(left), float(right)
        return (left > right) - (left < right)
    kind = type(left)
    if kind is not type(right) or kind not in _ORDERED:
        raise no_such_overload()
    ordered: Any = (left, right)
    return int(ordered[0] > ordered[1]) - int(ordered[0] < ordered[1])


_ORDERED = frozenset({bool, str, bytes, Duration, Timestamp})


def size_of(value: object) -> int:
    """Return the size that costs are computed from: characters, bytes, entries, else 1."""
    if isinstance(value, str | bytes | list | dict):
        return len(value)
    if isinstance(value, Cidr):
        return (value.prefix + 7) // 8
    if isinstance(value, Ip):
        return 4 if value.address.version == 4 else 16
    return 1


_YEAR_ONE = -62135596800 * NANOS  # Go's zero time


def is_zero(value: object) -> bool:
    """Return whether a value is the zero of its type (for optional.ofNonZeroValue)."""
    if value is None:
        return True
    if isinstance(value, bool | int | float | str | bytes | list | dict):
        return not value
    if isinstance(value, Duration):
        return value.nanos == 0
    return isinstance(value, Timestamp) and value.nanos == _YEAR_ONE


def number_in_range(value: int, message: str, *, unsigned: bool = False) -> int:
    """Return an integer of the right type, or raise Fault(message) on overflow."""
    if unsigned:
        if not 0 <= value <= UINT64_MAX:
            raise Fault(message)
        return Uint(value)
    if not INT64_MIN <= value <= INT64_MAX:
        raise Fault(message)
    return value
