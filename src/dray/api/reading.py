"""Make sense of a parsed body: check it against a schema and put it in canonical form.

Kubernetes decodes a body into Go structs and encodes those again for storage and for
answers. Much of what clients see follows from that, and this module reproduces it on
plain dicts: fields nobody knows vanish (and are reported), null means absent, empty
values are left out, a few fields are written although they are zero, quantities and
times come out canonical, raw JSON stays as it was.

Theory of operation: one walk over value and schema side by side. What is merely
suspicious (unknown and duplicate fields) is collected with its path; what has the
wrong type ends the walk with a `DecodeError` in Go's words. Sound bodies, which are most,
never come to this walk: `swift_reading` reads them without keeping track of places.

Invariant (tests/unit/api/test_api_codec.py): reading what was read changes nothing.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, Final

from dray.api.json_types import JsonObject, JsonValue
from dray.api.parsing import Duplicates, ExactFloat
from dray.api.quantity import canonical_quantity
from dray.api.raw_json import RawJson
from dray.api.schema.types import LIST, MAP, STRUCT, Field, Type
from dray.api.swift_reading import ZERO, Unusual, reader_of
from dray.api.times import canonical_microtime, canonical_time

__all__ = ["MAX_COMPLAINTS", "DecodeError", "drop_empty", "read", "read_with_care", "zero_of"]

_INT_RANGE: Final = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}
_TYPE_META: Final = ("kind", "apiVersion")
MAX_COMPLAINTS: Final = 100  # unknown and duplicate fields that are named; kube-apiserver names as many


class DecodeError(ValueError):
    """A value has a type that its field cannot hold; the message is worded as Go words it."""


def read(schema: Type, value: JsonValue, *, keep_empty: bool = False) -> tuple[JsonObject, list[str]]:
    """Return the canonical object and the complaints about unknown and duplicate fields.

    The input is left alone; the result shares no dict or list with it. Raises
    DecodeError if something has the wrong type.

    With `keep_empty`, lists and maps that were sent empty stay, as they do in upstream's
    memory: a few rules tell `[]` from nothing. Storing forgets the difference: call
    `drop_empty` when validation is done.
    """
    if not keep_empty:
        try:
            return reader_of(schema).read({} if value is None else value), []
        except (Unusual, RecursionError):
            pass  # there is something to say about it
    return read_with_care(schema, value, keep_empty=keep_empty)


def read_with_care(schema: Type, value: JsonValue, *, keep_empty: bool) -> tuple[JsonObject, list[str]]:
    """Do what `read` does, for bodies that are perhaps not sound."""
    reader = _Reader(keep_empty=keep_empty)
    try:
        obj = reader.struct(schema, {} if value is None else value)
    except RecursionError:
        raise DecodeError("exceeded max depth") from None
    return obj, reader.complaints


def drop_empty(schema: Type, obj: JsonObject) -> None:
    """Remove empty lists and maps from an object that was read, in place."""
    for name in list(obj):
        field = schema.fields.get(name)
        item = obj[name]
        if field is None or item is None or field.type.kind not in _CONTAINERS:
            continue
        if field.type.kind != STRUCT and not item and not field.pointer:
            if field.always:
                obj[name] = None
            else:
                del obj[name]
            continue
        inner, items = field.type, [item]
        while inner.element is not None:
            items = [
                part
                for whole in items
                for part in (whole if inner.kind == LIST else whole.values())
                if part is not None
            ]
            inner = inner.element
        if inner.kind == STRUCT:
            for part in items:
                drop_empty(inner, part)


def zero_of(schema: Type) -> JsonValue:
    """Return what Go writes for a value that nobody set."""
    if schema.kind == STRUCT:
        return _Reader().struct(schema, {})
    return ZERO.get(schema.kind)


class _Known:
    """What every reading of a struct needs to know of its schema, found out once."""

    __slots__ = ("_zero", "always", "schema")

    def __init__(self, schema: Type) -> None:
        self.schema = schema  # held, so that no other schema gets its id
        self.always = tuple(field for field in schema.fields.values() if field.always)
        self._zero: JsonObject | None = None

    def zero(self) -> JsonObject:
        """Return what an empty struct reads as, to compare with; not to be given away."""
        if self._zero is None:
            self._zero = _Reader().struct(self.schema, {})
        return self._zero


_KNOWN: dict[int, _Known] = {}
_MOST_KNOWN = 10_000  # more than all built-in kinds have; custom ones come and go


def _known(schema: Type) -> _Known:
    known = _KNOWN.get(id(schema))
    if known is None:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        known = _KNOWN[id(schema)] = _Known(schema)
    return known


class _Reader:
    """One walk."""

    def __init__(self, *, keep_empty: bool = False) -> None:
        self.complaints: list[str] = []
        self._keep_empty = keep_empty
        self._path: list[str] = []  # such as ["spec", ".devices", "[0]"]
        self._owner = ""  # the innermost struct, for messages

    def struct(self, schema: Type, value: JsonValue) -> JsonObject:
        if not isinstance(value, dict):
            raise self._mismatch(schema, value)
        if type(value) is Duplicates:
            for name in value.names:
                self._complain("duplicate", name)
        outer, self._owner = self._owner, schema.name
        fields = schema.fields
        result: JsonObject = {}
        for name, item in value.items():
            field = fields.get(name)
            if field is None:
                self._type_meta_or_unknown(schema, name, item, result)
            elif item is not None:
                self._set(result, field, item)
        for field in _known(schema).always:
            if field.name not in result:
                result[field.name] = None if field.pointer else zero_of(field.type)
        self._owner = outer
        return result

    def _type_meta_or_unknown(self, schema: Type, name: str, item: JsonValue, result: JsonObject) -> None:
        if not schema.has_type_meta or name not in _TYPE_META:
            self._complain("unknown", name)
        elif item is not None:
            if not isinstance(item, str):
                raise DecodeError(
                    f"json: cannot unmarshal {_json_kind(item)} into Go struct field TypeMeta.{name} of type string"
                )
            result[name] = item

    def _set(self, result: JsonObject, field: Field, item: JsonValue) -> None:
        schema = field.type
        self._path.append("." + field.name)
        if schema.kind in _CONTAINERS:
            read_item = self._container(schema, item)
            if not self._keep_empty and not field.pointer and not read_item and schema.kind != STRUCT:
                # An empty list or map is stored like none at all.
                self._path.pop()
                if field.always:
                    result[field.name] = None
                return
            if (
                schema.kind == STRUCT
                and not field.pointer
                and not field.always
                and read_item == _known(schema).zero()
            ):
                self._path.pop()
                return
        else:
            read_item = self.scalar(schema, item)
            # The zero time reads as None; it is like no time at all.
            if not field.always and (read_item is None if field.pointer else not read_item):
                self._path.pop()
                return
        self._path.pop()
        result[field.name] = read_item

    def _container(self, schema: Type, value: JsonValue) -> JsonValue:
        if schema.kind == STRUCT:
            return self.struct(schema, value)
        if schema.kind == LIST:
            return self._list(schema, value)
        return self._map(schema, value)

    def _list(self, schema: Type, value: JsonValue) -> list[JsonValue]:
        if not isinstance(value, list):
            raise self._mismatch(schema, value)
        element = schema.element
        assert element is not None
        if element.kind not in _CONTAINERS:
            return [zero_of(element) if item is None else self.scalar(element, item) for item in value]
        result = []
        for index, item in enumerate(value):
            self._path.append(f"[{index}]")
            result.append(zero_of(element) if item is None else self._container(element, item))
            self._path.pop()
        return result

    def _map(self, schema: Type, value: JsonValue) -> JsonObject:
        if not isinstance(value, dict):
            raise self._mismatch(schema, value)
        element = schema.element
        assert element is not None
        if type(value) is Duplicates:
            for name in value.names:
                self._complain("duplicate", name)
        result = {}
        for key, item in value.items():
            if item is None:
                result[key] = zero_of(element)
            elif element.kind not in _CONTAINERS:
                result[key] = self.scalar(element, item)
            else:
                self._path.append("." + key)
                result[key] = self._container(element, item)
                self._path.pop()
        return result

    def scalar(self, schema: Type, value: JsonValue) -> JsonValue:
        kind = schema.kind
        # The common cases first: they are most of every object.
        if kind == "string":
            if isinstance(value, str):
                return value
        elif kind in _INT_RANGE:
            if type(value) is int:
                low, high = _INT_RANGE[kind]
                if low <= value <= high:
                    return value
        elif kind == "bool":
            if isinstance(value, bool):
                return value
        else:
            return self._special(schema, value)
        raise self._mismatch(schema, value)

    def _special(self, schema: Type, value: JsonValue) -> JsonValue:
        kind = schema.kind
        if kind == "any":
            return value
        if kind == "raw":
            return value if isinstance(value, RawJson) else RawJson.of(value)
        if kind == "float64" and isinstance(value, int | float) and not isinstance(value, bool):
            return value
        if kind == "intorstring" and (isinstance(value, str) or (type(value) is int and abs(value) < 2**31)):
            return value
        parser = _TEXT_PARSERS.get(kind)
        if parser is None or isinstance(value, bool | dict | list):
            raise self._mismatch(schema, value)
        if kind != "quantity" and not isinstance(value, str):
            raise self._mismatch(schema, value)
        try:
            return parser(value)
        except ValueError as error:  # each form has its own
            raise DecodeError(str(error)) from None

    def _complain(self, what: str, name: str) -> None:
        """Remember an unknown or duplicate field, if there are not enough of them already."""
        if len(self.complaints) < MAX_COMPLAINTS:
            path = "".join((*self._path, ".", name)).removeprefix(".")
            self.complaints.append(f'{what} field "{path}"')

    def _mismatch(self, schema: Type, value: JsonValue) -> DecodeError:
        place = "".join(part for part in self._path if part[0] == ".").removeprefix(".")
        into = f"Go struct field {self._owner}.{place}" if place else "Go value"
        return DecodeError(
            f"json: cannot unmarshal {_json_kind(value, schema)} into {into} of type {_go_type(schema)}"
        )


def _quantity(value: JsonValue) -> str:
    return canonical_quantity(value.text if isinstance(value, ExactFloat) else value)


_BASE64: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")


def _bytes(value: str) -> str:
    text = value.replace("\r", "").replace("\n", "")
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        place = _corrupt_base64(value.encode("utf-8", "replace"))
        raise DecodeError(f"illegal base64 data at input byte {place}") from None
    return text


def _corrupt_base64(data: bytes) -> int:
    """Return where Go's decoder gives up on text that is not base64."""
    kept = [(place, byte) for place, byte in enumerate(data) if byte not in b"\r\n"]
    for number, (place, byte) in enumerate(kept):
        if byte in _BASE64:
            continue
        if byte != ord("=") or number % 4 < 2:
            return place
        rest = kept[number + 1 :]
        if number % 4 == 2:
            if not rest:
                return len(data)
            if rest[0][1] != ord("="):
                return rest[0][0] - 1
            rest = rest[1:]
        return rest[0][0] if rest else len(data)  # what stands behind the padding
    return len(data) - len(kept) % 4


def _duration(value: str) -> str:
    return value


_TEXT_PARSERS: Final[dict[str, Callable[[Any], str | None]]] = {
    "quantity": _quantity,
    "time": canonical_time,
    "microtime": canonical_microtime,
    "bytes": _bytes,
    "duration": _duration,
}
_CONTAINERS: Final = frozenset({STRUCT, LIST, MAP})


def _json_kind(value: JsonValue, schema: Type | None = None) -> str:
    match value:
        case bool():
            return "bool"
        case str():
            return "string"
        case list():
            return "array"
        case dict():
            return "object"
    if schema is not None and schema.kind in _INT_RANGE:
        # Only here the number itself is at fault, and Go names it.
        return f"number {value.text if isinstance(value, ExactFloat) else value}"
    return "number"


def _go_type(schema: Type) -> str:
    if schema.kind == STRUCT:
        return f"{schema.version}.{schema.name}"
    if schema.kind == LIST:
        assert schema.element is not None
        return f"[]{_go_type(schema.element)}"
    if schema.kind == MAP:
        assert schema.element is not None
        return f"map[string]{_go_type(schema.element)}"
    return {"bytes": "[]uint8", "time": "v1.Time", "microtime": "v1.MicroTime"}.get(schema.kind, schema.kind)
