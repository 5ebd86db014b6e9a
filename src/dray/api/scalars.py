"""Read the scalar types of a schema: what Go accepts for each, in canonical form.

Each function takes a value that is not null and returns what is stored, or raises: `UnfitError` if
the JSON type is wrong, `DecodeError` if the text has the wrong format. Times and quantities repeat
from object to object, so the last few are cached.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Any, Final

from dray.api.caching import cached_by_text
from dray.api.json_types import JsonObject, JsonValue
from dray.api.parsing import ExactFloat
from dray.api.quantity import QUANTITY_FORMAT, canonical_quantity
from dray.api.raw_json import RawJson
from dray.api.schema.types import LIST, SCALAR_TYPES, STRUCT, Type
from dray.api.times import canonical_microtime, canonical_time

__all__ = ["SCALAR_READERS", "ZERO", "DecodeError", "UnfitError"]

_GO_TYPES: Final = {"bytes": "[]uint8", "time": "v1.Time", "microtime": "v1.MicroTime"}
_JSON_TYPES: Final = {bool: "bool", str: "string", list: "array"}


class DecodeError(ValueError):
    """A value has a type that its field cannot hold; the message is worded as Go words it."""


class UnfitError(DecodeError):
    """A value of the wrong JSON type; every struct and map around it adds its part of the path."""

    def __init__(
        self, wanted: Type, value: JsonValue, owner: str = "", path: list[str] | None = None
    ) -> None:
        super().__init__()
        self.wanted = wanted
        self.value = value
        self.owner = owner  # the innermost struct
        self.path = path or []  # innermost first

    def __str__(self) -> str:
        place = ".".join(reversed(self.path))
        into = f"Go struct field {self.owner}.{place}" if place else "Go value"
        wanted = go_type(self.wanted)
        return f"json: cannot unmarshal {self._found()} into {into} of type {wanted}"

    def _found(self) -> str:
        if isinstance(self.value, dict):
            return "object"
        named = _JSON_TYPES.get(type(self.value), "number")
        if named == "number" and self.wanted.kind in ("int32", "int64"):
            # Only here the number itself is at fault, and Go names it.
            return f"number {self.value.text if isinstance(self.value, ExactFloat) else self.value}"
        return named


def go_type(schema: Type) -> str:
    """Return the name that Go's messages give to a type."""
    if schema.element is not None:
        return ("[]" if schema.kind == LIST else "map[string]") + go_type(schema.element)
    if schema.kind == STRUCT:
        return f"{schema.version}.{schema.name}"
    return _GO_TYPES.get(schema.kind, schema.kind)


# What Go writes for a scalar that nobody set; others are null.
ZERO: Final[JsonObject] = {
    "string": "",
    "bool": False,
    "int32": 0,
    "int64": 0,
    "float64": 0,
    "quantity": "0",
    "intorstring": 0,
    "duration": "0s",
}


def _bool(value: JsonValue) -> bool:
    if value is True or value is False:
        return value
    raise UnfitError(SCALAR_TYPES["bool"], value)


def _int32(value: JsonValue) -> int:
    if type(value) is int and -(2**31) <= value < 2**31:
        return value
    raise UnfitError(SCALAR_TYPES["int32"], value)


def _int64(value: JsonValue) -> int:
    if type(value) is int and -(2**63) <= value < 2**63:
        return value
    raise UnfitError(SCALAR_TYPES["int64"], value)


def _float(value: JsonValue) -> JsonValue:
    if isinstance(value, float) or type(value) is int:
        return value
    raise UnfitError(SCALAR_TYPES["float64"], value)


def _int_or_string(value: JsonValue) -> JsonValue:
    if type(value) is str or (type(value) is int and abs(value) < 2**31):
        return value
    raise UnfitError(SCALAR_TYPES["intorstring"], value)


def _any(value: JsonValue) -> JsonValue:
    return value


def _raw(value: JsonValue) -> RawJson:
    return value if isinstance(value, RawJson) else RawJson.of(value)


def _quantity(value: JsonValue) -> str | None:
    if type(value) is str:
        return _cached_quantity(value)
    if isinstance(value, bool | dict | list):
        raise DecodeError(QUANTITY_FORMAT)  # upstream parses whatever JSON stands there as text
    try:
        return canonical_quantity(value.text if isinstance(value, ExactFloat) else value)
    except ValueError as error:
        raise DecodeError(str(error)) from None


def _text_reader(kind: str, parse: Callable[[str], str | None]) -> Callable[[JsonValue], str | None]:
    """Return the reader of a scalar that is written as text in a format of its own."""
    schema = SCALAR_TYPES[kind]
    cached = cached_by_text(2_048, longest=128)(parse)

    def read_text(value: JsonValue) -> str | None:
        if type(value) is not str:
            raise UnfitError(schema, value)
        try:
            return cached(value)
        except ValueError as error:  # each format has its own
            raise DecodeError(str(error)) from None

    return read_text


def _bytes(value: str) -> str:
    text = value.replace("\r", "").replace("\n", "")
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        place = _corrupt_base64(value.encode("utf-8", "replace"))
        raise DecodeError(f"illegal base64 data at input byte {place}") from None
    return text


_NOT_BASE64: Final = re.compile(rb"[^A-Za-z0-9+/\r\n]")
_VISIBLE: Final = re.compile(rb"[^\r\n]")


def _corrupt_base64(data: bytes) -> int:
    """Return where Go's decoder gives up on text that is not base64."""
    found = _NOT_BASE64.search(data)
    place = found.start() if found is not None else len(data)
    number = place - data.count(b"\r", 0, place) - data.count(b"\n", 0, place)  # of the characters before it
    if found is None:
        return place - number % 4
    if data[place] != ord("=") or number % 4 < 2:
        return place
    rest = (each.start() for each in _VISIBLE.finditer(data, place + 1))
    following = next(rest, len(data))
    if number % 4 == 2:
        if following == len(data):
            return following
        if data[following] != ord("="):
            return following - 1
        following = next(rest, len(data))
    return following  # what follows the padding


_cached_quantity: Final = _text_reader("quantity", canonical_quantity)

# None for plain strings, which are most of every object: the reader only looks at their type.
SCALAR_READERS: Final[dict[str, Callable[[Any], Any] | None]] = {
    "string": None,
    "duration": None,
    "bool": _bool,
    "int32": _int32,
    "int64": _int64,
    "float64": _float,
    "intorstring": _int_or_string,
    "any": _any,
    "raw": _raw,
    "bytes": _text_reader("bytes", _bytes),
    "quantity": _quantity,
    "time": _text_reader("time", canonical_time),
    "microtime": _text_reader("microtime", canonical_microtime),
}
