"""Kubernetes protobuf bodies, read by the schema's field numbers.

Go clients send built-in kinds in protobuf and do not try again in JSON when a
server refuses the body, so this server reads it; it answers in JSON where a client
accepts that, and in protobuf where it insists (see `protobuf_answers`).

The envelope is four magic bytes and a message `Unknown` with kind, apiVersion and
the object's own message. That message is decoded to the same plain JSON value that
a JSON body would have been parsed to; everything after that is shared.

What comes from the wire is bounded by the body limit; nesting is bounded here.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from dray.api.media_types import PROTOBUF_TYPE as MEDIA_TYPE
from dray.api.parsing import ParseError, load_json
from dray.api.protobuf import MAGIC, OBJECT, ProtobufError, read_field, read_varint
from dray.api.raw_json import RawJson
from dray.api.schema import LIST, MAP, STRUCT, Field, Type
from dray.api.times import format_microtime, format_time

__all__ = ["MAGIC", "MEDIA_TYPE", "FieldTree", "ProtobufError", "decode_object", "numbered", "open_envelope"]

_DEEPEST = 64
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def open_envelope(body: bytes) -> tuple[str, str, bytes]:
    """Return (apiVersion, kind, message) of a body."""
    if not body.startswith(MAGIC):
        raise ProtobufError("the body does not begin with the magic bytes of Kubernetes protobuf")
    api_version = kind = ""
    message = b""
    for number, value in _fields(body[len(MAGIC) :]):
        if number == 1 and isinstance(value, bytes):
            for inner, text in _fields(value):
                if isinstance(text, bytes):
                    api_version, kind = (_text(text), kind) if inner == 1 else (api_version, _text(text))
        elif number == OBJECT and isinstance(value, bytes):
            message = value
        elif number == 3 and value:
            raise ProtobufError("compressed objects are not supported")
    return api_version, kind, message


def decode_object(schema: Type, body: bytes) -> dict[str, Any]:
    """Return the JSON value of a protobuf body, with kind and apiVersion; raise ProtobufError."""
    api_version, kind, message = open_envelope(body)
    try:
        obj = _message(schema, message, 0)
    except (struct.error, UnicodeDecodeError, OverflowError) as problem:
        raise ProtobufError(str(problem)) from None
    return {"kind": kind, "apiVersion": api_version, **obj}


# --- messages by schema --------------------------------------------------------


FieldTree = dict[int, "Field | FieldTree"]  # number -> field, or the fields of a message that JSON inlines


@cache
def numbered(schema: Type) -> FieldTree:
    """Return the fields of a struct by number; inlined messages have a tree of their own."""
    found: FieldTree = {}
    for field in schema.fields.values():
        if not field.number:
            continue
        tree = found
        for number in field.number[:-1]:
            inner = tree.setdefault(number, {})
            assert isinstance(inner, dict)
            tree = inner
        tree[field.number[-1]] = field
    return found


def _message(schema: Type, data: bytes, depth: int) -> dict[str, Any]:
    if depth > _DEEPEST:
        raise ProtobufError("messages are nested too deeply")
    result: dict[str, Any] = {}
    _fill(result, numbered(schema), data, depth)
    return result


def _fill(result: dict[str, Any], tree: FieldTree, data: bytes, depth: int) -> None:
    for number, value in _fields(data):
        target = tree.get(number)
        if isinstance(target, dict):
            _fill(result, target, _as_bytes(value), depth)
        elif target is not None:
            _set(result, target, value, depth)


def _set(result: dict[str, Any], field: Field, value: int | bytes, depth: int) -> None:
    kind = field.type
    if kind.kind == LIST:
        assert kind.element is not None
        items = result.setdefault(field.name, [])
        if isinstance(value, bytes) and kind.element.kind in ("int32", "int64", "bool"):
            items.extend(_scalar(kind.element, number) for number in _packed(value))
        else:
            items.append(_value(kind.element, value, depth))
    elif kind.kind == MAP:
        assert kind.element is not None
        key, item = "", b""
        for number, part in _fields(_as_bytes(value)):
            if number == 1:
                key = _text(_as_bytes(part))
            else:
                item = part  # type: ignore[assignment]
        result.setdefault(field.name, {})[key] = _value(kind.element, item, depth)
    elif field.name in _SCHEMA_UNIONS and kind.kind == "any":
        result[field.name] = _schema_union(field, _as_bytes(value), depth)
    else:
        result[field.name] = _value(kind, value, depth)


def _value(kind: Type, value: int | bytes, depth: int) -> Any:
    if kind.kind == STRUCT:
        return _message(kind, _as_bytes(value), depth + 1)
    if kind.kind == LIST:  # lists as map values are wrapped in a message of their own
        assert kind.element is not None
        return [
            _value(kind.element, item, depth) for number, item in _fields(_as_bytes(value)) if number == 1
        ]
    return _scalar(kind, value)


def _scalar(kind: Type, value: int | bytes) -> Any:
    match kind.kind:
        case "string":
            return _text(_as_bytes(value))
        case "bool":
            return bool(value)
        case "int32" | "int64":
            return _signed(value)
        case "float64":
            return struct.unpack("<d", int(value).to_bytes(8, "little"))[0] if isinstance(value, int) else 0.0
        case "bytes":
            return base64.b64encode(_as_bytes(value)).decode()
        case "quantity":
            return _text(_first_bytes(value)) or "0"
        case "time" | "microtime":
            return _time(_as_bytes(value), kind.kind == "microtime")
        case "duration":
            nanos = next((number for place, number in _fields(_as_bytes(value)) if place == 1), 0)
            return f"{_signed(nanos) / 1e9:g}s"
        case "intorstring":
            parts = dict(_fields(_as_bytes(value)))
            return _text(_as_bytes(parts.get(3, b""))) if parts.get(1) else _signed(parts.get(2, 0))
        case "raw":
            raw = _first_bytes(value)
            return RawJson(raw) if raw else None
    raw = _first_bytes(value)  # any: JSON inside a message
    try:
        return load_json(raw) if raw else None
    except ParseError as problem:
        raise ProtobufError(str(problem)) from None


# Unions of apiextensions that JSON writes without a wrapper: a schema, a list of schemas, or a boolean.
_SCHEMA_UNIONS = ("items", "additionalProperties", "additionalItems")


def _schema_union(field: Field, data: bytes, depth: int) -> Any:
    from dray.api.schema import struct_of

    schema = struct_of("apiextensions", "v1", "JSONSchemaProps")
    parts = list(_fields(data))
    if field.name == "items":
        return next(
            (_message(schema, _as_bytes(value), depth + 1) for number, value in parts if number == 1), None
        )
    inner = next((value for number, value in parts if number == 2), None)
    if inner is not None:
        return _message(schema, _as_bytes(inner), depth + 1)
    return bool(next((value for number, value in parts if number == 1), 0))


def _time(data: bytes, micro: bool) -> str | None:
    parts = dict(_fields(data))
    seconds, nanos = _signed(parts.get(1, 0)), _signed(parts.get(2, 0))
    if not parts:
        return None
    moment = _EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1000)
    if moment.year == 1 and not nanos:
        return None  # Go's zero time
    return format_microtime(moment) if micro else format_time(moment)


# --- the wire --------------------------------------------------------------------


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (field number, value) of a message: ints as they are, all else as bytes."""
    position, size = 0, len(data)
    while position < size:
        number, value, position = read_field(data, position)
        yield number, value


def _packed(data: bytes) -> Iterator[int]:
    position = 0
    while position < len(data):
        value, position = read_varint(data, position)
        yield value


def _signed(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ProtobufError("expected a number")
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value


def _as_bytes(value: int | bytes) -> bytes:
    if isinstance(value, bytes):
        return value
    raise ProtobufError("expected bytes")


def _first_bytes(value: int | bytes) -> bytes:
    return next((_as_bytes(part) for number, part in _fields(_as_bytes(value)) if number == 1), b"")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
