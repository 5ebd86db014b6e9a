"""The environment an expression is compiled in: which variables there are, and which functions.

Expressions about devices know one variable, `device`. What it looks like depends on two feature gates and on whether the expression is new or was stored
before: stored expressions must keep working whatever the gates say, so for them
everything is on. A list-valued attribute may be anything, therefore the type of a
leaf turns from `any` into `dyn` with that gate: macros accept `dyn` only.

Declared sizes bound what an expression can cost, before any device is seen.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cache

from dray.cel import kinds
from dray.cel.declarations import Functions, declared_functions
from dray.cel.kinds import CelType, map_of

MAX_DOMAIN = 63
MAX_ID = 32
MAX_DRIVER_NAME = 63
MAX_ATTRIBUTES = 32
MAX_STRING_VALUE = 64

CONSUMABLE_CAPACITY = "DRAConsumableCapacity"
LIST_TYPE_ATTRIBUTES = "DRAListTypeAttributes"

TYPE_NAMES: dict[str, CelType] = {
    "bool": kinds.BOOL,
    "bytes": kinds.BYTES,
    "double": kinds.DOUBLE,
    "google.protobuf.Duration": kinds.DURATION,
    "google.protobuf.Timestamp": kinds.TIMESTAMP,
    "int": kinds.INT,
    "list": CelType("list", "list", (kinds.parameter("A"),)),
    "map": CelType("map", "map", (kinds.parameter("A"), kinds.parameter("B"))),
    "null_type": kinds.NULL,
    "string": kinds.STRING,
    "type": kinds.TYPE,
    "uint": kinds.UINT,
    "optional_type": CelType("opaque", "optional_type", (kinds.parameter("V"),)),
    "net.IP": kinds.IP,
    "net.CIDR": kinds.CIDR,
}


@dataclass(frozen=True)
class Shape:
    """A declared value: its largest size, and what is below it."""

    max_size: int
    fields: dict[str, Shape] = field(default_factory=dict)
    key: Shape | None = None
    element: Shape | None = None
    is_attribute: bool = False  # the value of an attribute


@dataclass(frozen=True)
class Environment:
    """Everything that compilation needs to know beside the text."""

    variables: dict[str, CelType]
    structs: dict[str, dict[str, CelType]]  # name of a struct type → its fields
    functions: Functions
    shapes: dict[str, Shape] = field(default_factory=dict)  # variable → its size, where one is declared
    leaf: CelType = kinds.DYN  # the type of an attribute value
    lists_allowed: bool = False  # as derived attributes
    # (function, is member, types without parts ...) → overloads, result, type parameters used
    resolved: dict[tuple[object, ...], tuple[tuple[str, ...], CelType, int]] = field(default_factory=dict)


@cache
def _environment(*, consumable: bool, lists: bool, includes: bool, lists_allowed: bool) -> Environment:
    leaf = kinds.DYN if lists else kinds.ANY
    string = kinds.STRING
    fields = {
        "driver": string,
        "attributes": map_of(string, map_of(string, leaf)),
        "capacity": map_of(string, map_of(string, kinds.QUANTITY)),
    }
    shapes = {
        "driver": Shape(MAX_DRIVER_NAME),
        "attributes": _domains(Shape(MAX_STRING_VALUE, is_attribute=True)),
        "capacity": _domains(Shape(0)),
    }
    if consumable:
        fields["allowMultipleAllocations"] = kinds.BOOL
        shapes["allowMultipleAllocations"] = Shape(1)
    return Environment(
        variables={"device": kinds.DEVICE},
        structs={kinds.DEVICE.name: fields},
        functions=declared_functions(with_includes=includes),
        leaf=leaf,
        shapes={"device": Shape(0, fields=shapes)},
        lists_allowed=lists_allowed,
    )


def _domains(leaf: Shape) -> Shape:
    inner = Shape(MAX_ATTRIBUTES, key=Shape(MAX_ID), element=leaf)
    return Shape(MAX_ATTRIBUTES, key=Shape(MAX_DOMAIN), element=inner)


def environment_for(features: AbstractSet[str], *, stored: bool) -> Environment:
    """Return the environment for a set of gates, for new or for stored expressions."""
    lists = LIST_TYPE_ATTRIBUTES in features
    return _environment(
        consumable=stored or CONSUMABLE_CAPACITY in features,
        lists=stored or lists,
        includes=stored or lists,
        lists_allowed=stored or lists,
    )
