"""Types and values of a structural schema, as the rules of custom kinds see them.

`declare` turns an OpenAPI v3 schema into a type, and into the sizes from which the cost of
a rule is estimated before any object exists: a list without `maxItems` is as long as fits
into a request. `to_value` turns JSON into values of that type: times become timestamps,
whole numbers in a field of type `number` become doubles.

Members whose names are not identifiers are escaped (`a-b` is `a__dash__b`); members that
cannot be escaped, or whose schema says nothing about their type, are not seen by rules.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dray.api.well_known import CEL_RESERVED
from dray.cel import kinds
from dray.cel.environment import Shape
from dray.cel.errors import Fault
from dray.cel.functions_time import parse_duration, parse_timestamp
from dray.cel.interpreter import Failure
from dray.cel.kinds import CelType, list_of, map_of

Schema = Mapping[str, Any]
MAX_REQUEST_BYTES = 3 * 1024 * 1024
_MAX_TEXT = MAX_REQUEST_BYTES - 2  # less the quotes
_PLAIN = re.compile(r"[A-Za-z0-9_]+\Z")
_ESCAPED = re.compile(r"__|[-./]")
_ALLOWED = re.compile(r"[-A-Za-z0-9_./]+\Z")
_WORDS = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}
_META: Schema = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "generateName": {"type": "string"}},
}
_TEXT: Schema = {"type": "string"}
_TEXT_FORMATS: dict[str, tuple[CelType, int, int]] = {  # type, largest and smallest size as JSON
    "duration": (kinds.DURATION, 32, 3),
    "date": (kinds.TIMESTAMP, 12, 12),
    "date-time": (kinds.TIMESTAMP, 32, 21),
}


@dataclass(frozen=True, slots=True)
class Declared:
    """What a schema says about a value."""

    type: CelType
    shape: Shape
    min_size: int  # bytes of the smallest value, as JSON
    structs: dict[str, dict[str, CelType]]  # of this type and all below it


class SameShape(dict[str, Shape]):
    """Sizes for the estimate: whatever an expression begins with has the shape of `self`.

    That is how kube-apiserver estimates; it matters for names of types, which have no size of their own.
    """

    __slots__ = ("_shape",)

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self._shape = shape

    def get(self, key: str, default: object = None) -> Shape:
        """Return the shape, whoever asks."""
        return self._shape


def escape(name: str) -> str | None:
    """Return a member's name as rules write it; None where there is no way to write it.

    >>> escape("a-b"), escape("namespace"), escape("a b")
    ('a__dash__b', '__namespace__', None)
    """
    if not name or name[0].isdigit():
        return None
    if name in CEL_RESERVED:
        return f"__{name}__"
    if _PLAIN.match(name) and "__" not in name:
        return name
    if not _ALLOWED.match(name):
        return None
    return _ESCAPED.sub(lambda found: _WORDS[found.group()], name)


def with_object_meta(schema: Schema) -> Schema:
    """Return the schema of a whole object: its kind and its name can always be asked for."""
    properties = dict(schema.get("properties") or {})
    metadata = properties.get("metadata") or {}
    inner = {**(metadata.get("properties") or {}), **_META["properties"]}
    return {
        **schema,
        "properties": {
            **properties,
            "apiVersion": _TEXT,
            "kind": _TEXT,
            "metadata": {**_META, "properties": inner},
        },
    }


def declare(schema: Schema | None, name: str = "selfType", *, is_root: bool = False) -> Declared | None:
    """Return the type of a schema, or None where it does not say enough."""
    if schema is None:
        return None
    if schema.get("x-kubernetes-int-or-string"):
        length = schema.get("maxLength")
        most = _MAX_TEXT if length is None else max(length, 0) * 4
        return Declared(kinds.DYN, Shape(most), 1, {})
    if is_root or schema.get("x-kubernetes-embedded-resource"):
        schema = with_object_meta(schema)
    match schema.get("type"):
        case "array":
            return _list(schema, name)
        case "object":
            return _object(schema, name)
        case "string":
            return _text(schema)
        case "boolean":
            return Declared(kinds.BOOL, Shape(0), 4, {})
        case "number":
            return Declared(kinds.DOUBLE, Shape(0), 1, {})
        case "integer":
            return Declared(kinds.INT, Shape(0), 1, {})
    return None


def _list(schema: Schema, name: str) -> Declared | None:
    items = declare(schema.get("items"), f"{name}.@idx")
    if items is None:
        return None
    most = schema.get("maxItems")
    size = (MAX_REQUEST_BYTES - 2) // (items.min_size + 1) if most is None else max(most, 0)
    return Declared(list_of(items.type), Shape(size, element=items.shape), 2, items.structs)


def _object(schema: Schema, name: str) -> Declared | None:
    additional = schema.get("additionalProperties")
    if isinstance(additional, Mapping):
        values = declare(additional, f"{name}.@elem")
        if values is None:
            return None
        most = schema.get("maxProperties")
        size = (MAX_REQUEST_BYTES - 2) // (values.min_size + 6) if most is None else max(most, 0)
        shape = Shape(size, key=Shape(0), element=values.shape)
        return Declared(map_of(kinds.STRING, values.type), shape, 2, values.structs)
    fields: dict[str, CelType] = {}
    shapes: dict[str, Shape] = {}
    structs: dict[str, dict[str, CelType]] = {name: fields}
    min_size, required = 2, frozenset(schema.get("required") or ())
    for member, inner in (schema.get("properties") or {}).items():
        found = declare(inner, f"{name}.{member}")
        if found is None:
            continue
        escaped = escape(member)
        if escaped is not None:
            fields[escaped], shapes[escaped] = found.type, found.shape
        structs.update(found.structs)
        if member in required and inner.get("default") is None:
            min_size += len(member) + found.min_size + 4
    return Declared(CelType("struct", name), Shape(0, fields=shapes), min_size, structs)


def _text(schema: Schema) -> Declared:
    length, form = schema.get("maxLength"), schema.get("format") or ""
    if form in _TEXT_FORMATS:
        kind, most, least = _TEXT_FORMATS[form]
        return Declared(kind, Shape(most), least, {})
    if form == "byte":
        return Declared(kinds.BYTES, Shape(_MAX_TEXT if length is None else max(length, 0)), 2, {})
    if length is not None:
        size = max(length, 0) * 4  # bytes of a character
    elif schema.get("enum"):
        size = max((len(word) for word in schema["enum"] if isinstance(word, str)), default=0)
    else:
        size = _MAX_TEXT
    return Declared(kinds.STRING, Shape(size), 2, {})


def to_value(schema: Schema | None, value: Any, *, is_root: bool = False) -> Any:
    """Return a JSON value as rules see it; what does not fit its schema becomes a Failure."""
    if schema is None or value is None or schema.get("x-kubernetes-int-or-string"):
        return value
    if is_root or schema.get("x-kubernetes-embedded-resource"):
        schema = with_object_meta(schema)
    match schema.get("type"):
        case "object" if isinstance(value, dict):
            return _object_value(schema, value)
        case "array" if isinstance(value, list):
            items = schema.get("items")
            return [to_value(items, item) for item in value]
        case "number" if isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        case "integer" if isinstance(value, float) and value.is_integer():
            return int(value)
        case "string" if isinstance(value, str):
            return _text_value(schema.get("format") or "", value)
    return value


def _object_value(schema: Schema, value: dict[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties")
    if properties is None:
        additional = schema.get("additionalProperties")
        inner = additional if isinstance(additional, Mapping) else None
        return {name: to_value(inner, item) for name, item in value.items()}
    seen: dict[str, Any] = {}
    for name, item in value.items():
        escaped = escape(name)
        if name in properties and escaped is not None:
            seen[escaped] = to_value(properties[name], item)
    return seen


def _text_value(form: str, text: str) -> object:
    try:
        match form:
            case "duration":
                return parse_duration(text)
            case "date":
                return parse_timestamp(f"{text}T00:00:00Z")
            case "date-time":
                return parse_timestamp(text)
            case "byte":
                return base64.b64decode(text, validate=True)
    except (Fault, ValueError, binascii.Error):
        return Failure(f"Invalid {form} formatted string {text}")
    return text
