"""The Swagger 2.0 document in protobuf: the messages of `openapi.v2` that gnostic defines.

kubectl asks `/openapi/v2` for nothing else. A message is a table from the names of JSON
members to field numbers and to how their values are written; a member that starts with
`x-` goes into the message's list of extensions. Maps are lists of (name, value) pairs,
and values of any type travel as YAML text, for which compact JSON serves.

What the tables do not name is left out: Swagger 2.0 has no place for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dray.api.media_types import JSON_TYPE
from dray.api.protobuf import encode_double, encode_field, encode_number

__all__ = ["encode_document", "negotiate_v2"]

PROTOBUF_V2 = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_ACCEPTED = {
    JSON_TYPE: JSON_TYPE,
    "application/*": JSON_TYPE,
    "*/*": JSON_TYPE,
    PROTOBUF_V2: PROTOBUF_V2,
    # The name that older clients send is not a valid media type.
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf": PROTOBUF_V2,
}

WriteField = Callable[[int, Any], bytes]  # (field number, JSON value) -> the field
Fields = Mapping[str, tuple[int, WriteField]]  # JSON member -> field

_encode = msgspec.json.Encoder().encode


def negotiate_v2(accept: str) -> str | None:
    """Return the media type to answer with: the first accepted one that can be made, or None.

    >>> negotiate_v2(f"text/html, {JSON_TYPE}") == JSON_TYPE
    True
    """
    if not accept.strip():
        return JSON_TYPE
    names = (clause.partition(";")[0].strip().lower() for clause in accept.split(","))
    return next((_ACCEPTED[name] for name in names if name in _ACCEPTED), None)


def encode_document(document: Mapping[str, Any]) -> bytes:
    """Return a Swagger 2.0 document as a message `openapi.v2.Document`."""
    return _message(_DOCUMENT, 16, document)


def _message(fields: Fields, extensions: int, value: Mapping[str, Any]) -> bytes:
    written: list[bytes] = []
    for name, item in value.items():
        known = fields.get(name)
        if known is not None:
            written.append(known[1](known[0], item))
        elif extensions and name.startswith("x-"):
            written.append(encode_field(extensions, encode_field(1, name.encode()) + _any(2, item)))
    return b"".join(written)


def _text(number: int, value: Any) -> bytes:
    return encode_field(number, str(value).encode())


def _flag(number: int, value: Any) -> bytes:
    return encode_number(number, 1) if value else b""


def _integer(number: int, value: Any) -> bytes:
    return encode_number(number, int(value))


def _double(number: int, value: Any) -> bytes:
    return encode_double(number, float(value))


def _any(number: int, value: Any) -> bytes:
    return encode_field(number, encode_field(2, _encode(value) + b"\n"))


def _each(write: WriteField) -> WriteField:
    """Return how a list is written: one field for each item."""
    return lambda number, values: b"".join(write(number, value) for value in values)


def _of(fields: Fields, extensions: int = 0) -> WriteField:
    """Return how a message is written."""
    return lambda number, value: encode_field(number, _message(fields, extensions, value))


def _wrapped(inner: int, write: WriteField) -> WriteField:
    """Return how a value is written that is the only member of a message of its own."""
    return lambda number, value: encode_field(number, write(inner, value))


def _named(inner: int, write: WriteField) -> WriteField:
    """Return how a map is written: a message whose field `inner` repeats (name, value) pairs."""

    def pairs(number: int, values: Mapping[str, Any]) -> bytes:
        written = (
            encode_field(inner, encode_field(1, name.encode()) + write(2, value))
            for name, value in values.items()
        )
        return encode_field(number, b"".join(written))

    return pairs


def _schema(number: int, value: Any) -> bytes:
    return encode_field(number, _message(_SCHEMA, 31, value))


def _additional(number: int, value: Any) -> bytes:
    inner = _flag(2, value) if isinstance(value, bool) else _schema(1, value)
    return encode_field(number, inner)


def _types(number: int, value: Any) -> bytes:
    return encode_field(number, _each(_text)(1, [value] if isinstance(value, str) else value))


def _parameter(number: int, value: Mapping[str, Any]) -> bytes:
    """Write a parameter, or a reference to one, as an item of a list of parameters."""
    inner = _REFERENCE(2, value) if "$ref" in value else _whole_parameter(1, value)
    return encode_field(number, inner)


def _whole_parameter(number: int, value: Mapping[str, Any]) -> bytes:
    if value["in"] == "body":
        return encode_field(number, _BODY(1, value))
    place, fields, extensions = _PLACES[value["in"]]
    inner = encode_field(place, _message(fields, extensions, value))
    return encode_field(number, encode_field(2, inner))


def _scalar_limits(first: int) -> Fields:
    """Return what is said about the values of a parameter, beginning with field `first` for the type."""
    writers: list[tuple[str, WriteField]] = [
        ("type", _text), ("format", _text), ("items", lambda number, value: _items(number, value)),
        ("collectionFormat", _text), ("default", _any), ("maximum", _double), ("exclusiveMaximum", _flag),
        ("minimum", _double), ("exclusiveMinimum", _flag), ("maxLength", _integer), ("minLength", _integer),
        ("pattern", _text), ("maxItems", _integer), ("minItems", _integer), ("uniqueItems", _flag),
        ("enum", _each(_any)), ("multipleOf", _double),
    ]  # fmt: skip
    return {name: (first + offset, write) for offset, (name, write) in enumerate(writers)}


_SCHEMA: Fields = {
    "$ref": (1, _text), "format": (2, _text), "title": (3, _text), "description": (4, _text), "default": (5, _any),
    "multipleOf": (6, _double), "maximum": (7, _double), "exclusiveMaximum": (8, _flag), "minimum": (9, _double),
    "exclusiveMinimum": (10, _flag), "maxLength": (11, _integer), "minLength": (12, _integer),
    "pattern": (13, _text), "maxItems": (14, _integer), "minItems": (15, _integer), "uniqueItems": (16, _flag),
    "maxProperties": (17, _integer), "minProperties": (18, _integer), "required": (19, _each(_text)),
    "enum": (20, _each(_any)), "additionalProperties": (21, _additional), "type": (22, _types),
    "items": (23, _wrapped(1, _schema)), "allOf": (24, _each(_schema)), "properties": (25, _named(1, _schema)),
    "discriminator": (26, _text), "readOnly": (27, _flag), "example": (30, _any),
}  # fmt: skip
_items = _of(_scalar_limits(1), 18)
_REFERENCE = _of({"$ref": (1, _text), "description": (2, _text)})
_PLACE: Fields = {"required": (1, _flag), "in": (2, _text), "description": (3, _text), "name": (4, _text)}
_EMPTY: Fields = {"allowEmptyValue": (5, _flag)}
_PLACES: Mapping[str, tuple[int, Fields, int]] = {  # where a parameter stands -> (field, members, extensions)
    "header": (1, {**_PLACE, **_scalar_limits(5)}, 22),
    "formData": (2, {**_PLACE, **_EMPTY, **_scalar_limits(6)}, 23),
    "query": (3, {**_PLACE, **_EMPTY, **_scalar_limits(6)}, 23),
    "path": (4, {**_PLACE, **_scalar_limits(5)}, 22),
}
_BODY = _of(
    {"description": (1, _text), "name": (2, _text), "in": (3, _text), "required": (4, _flag), "schema": (5, _schema)},
    6,
)  # fmt: skip
_RESPONSE = _wrapped(1, _of({"description": (1, _text), "schema": (2, _wrapped(1, _schema))}, 5))
_OPERATION = _of(
    {
        "tags": (1, _each(_text)), "summary": (2, _text), "description": (3, _text), "operationId": (5, _text),
        "produces": (6, _each(_text)), "consumes": (7, _each(_text)), "parameters": (8, _each(_parameter)),
        "responses": (9, _named(1, _RESPONSE)), "schemes": (10, _each(_text)), "deprecated": (11, _flag),
    },
    13,
)  # fmt: skip
_PATH_ITEM = _of(
    {
        "$ref": (1, _text), "get": (2, _OPERATION), "put": (3, _OPERATION), "post": (4, _OPERATION),
        "delete": (5, _OPERATION), "options": (6, _OPERATION), "head": (7, _OPERATION), "patch": (8, _OPERATION),
        "parameters": (9, _each(_parameter)),
    },
    10,
)  # fmt: skip
_API_KEY = _of({"type": (1, _text), "name": (2, _text), "in": (3, _text), "description": (4, _text)}, 5)
_REQUIREMENTS = _each(_named(1, _wrapped(1, _each(_text))))
_DOCUMENT: Fields = {
    "swagger": (1, _text), "info": (2, _of({"title": (1, _text), "version": (2, _text), "description": (3, _text)}, 7)),
    "paths": (8, _named(2, _PATH_ITEM)), "definitions": (9, _named(1, _schema)),
    "parameters": (10, _named(1, _whole_parameter)),
    "security": (12, _REQUIREMENTS), "securityDefinitions": (13, _named(1, _wrapped(2, _API_KEY))),
}  # fmt: skip
