"""Kubernetes protobuf answers, written by the schema's field numbers.

The counterpart of `protobuf_bodies`: an object in JSON becomes its own message inside the
envelope `Unknown`; a list is a message of list metadata and items; a watch is a row of
frames, each four bytes of length and a WatchEvent whose object has an envelope of its own.

Go clients name JSON beside protobuf in what they accept and are answered in JSON, which is
stored and costs nothing. Who accepts nothing but protobuf gets it from here.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from dray.api.json_types import JsonMapping
from dray.api.protobuf import MAGIC, OBJECT, encode_double, encode_field, encode_number
from dray.api.raw_json import RawJson
from dray.api.schema import LIST, MAP, STRUCT, Type
from dray.api.times import parse_time
from dray.server.requests.json_encoding import encode
from dray.server.requests.protobuf_bodies import FieldTree, numbered

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NANOS = 1_000_000_000


def encode_object(schema: Type, obj: JsonMapping) -> bytes:
    """Return an object (with kind and apiVersion) in its envelope."""
    return _envelope(obj.get("apiVersion") or "", obj.get("kind") or "", encode_message(schema, obj))


def encode_list(schema: Type, frame: JsonMapping, items: Iterable[JsonMapping]) -> bytes:
    """Return a list in its envelope; `frame` has its kind, apiVersion and metadata."""
    metadata = frame.get("metadata") or {}
    listed = encode_field(2, (metadata.get("resourceVersion") or "").encode())
    listed += encode_field(3, (metadata.get("continue") or "").encode())
    if metadata.get("remainingItemCount") is not None:
        listed += encode_number(4, metadata["remainingItemCount"])
    parts = [encode_field(1, listed)]
    parts += [encode_field(2, encode_message(schema, item)) for item in items]
    return _envelope(frame.get("apiVersion") or "", frame.get("kind") or "", b"".join(parts))


def encode_event(kind: str, encoded: bytes) -> bytes:
    """Return one event of a watch as a frame; `encoded` is its object in its envelope."""
    event = encode_field(1, kind.encode()) + encode_field(2, encode_field(1, encoded))
    return struct.pack(">I", len(event)) + event


def _envelope(api_version: str, kind: str, message: bytes) -> bytes:
    types = encode_field(1, api_version.encode()) + encode_field(2, kind.encode())
    return b"".join(
        (
            MAGIC,
            encode_field(1, types),
            encode_field(OBJECT, message),
            encode_field(3, b""),
            encode_field(4, b""),
        )
    )


def encode_message(schema: Type, obj: JsonMapping) -> bytes:
    """Return the message of a struct, without an envelope."""
    return b"".join(_fields(numbered(schema), obj))


def _fields(tree: FieldTree, obj: JsonMapping) -> Iterable[bytes]:
    for number, found in sorted(tree.items()):
        if isinstance(found, dict):
            inner = b"".join(_fields(found, obj))
            if inner:
                yield encode_field(number, inner)
            continue
        value = obj.get(found.name)
        if value is None:
            # A struct that is always there is an empty message; all else is left out.
            if found.type.kind == STRUCT and not found.pointer and found.always:
                yield encode_field(number, b"")
            continue
        yield from _values(number, found.type, value)


def _values(number: int, kind: Type, value: Any) -> Iterable[bytes]:
    if value is None and kind.kind in (LIST, MAP, STRUCT):  # a null in a map or a list is an empty value
        value = () if kind.kind == LIST else {}
    if kind.kind == LIST:
        assert kind.element is not None
        for item in value:
            yield from _values(number, kind.element, item)
    elif kind.kind == MAP:
        assert kind.element is not None
        for key, item in sorted(value.items()):
            entry = encode_field(1, key.encode())
            if kind.element.kind == LIST:  # lists as values are wrapped in a message of their own
                entry += encode_field(2, b"".join(_values(1, kind.element, item)))
            else:
                entry += b"".join(_values(2, kind.element, item))
            yield encode_field(number, entry)
    elif kind.kind == STRUCT:
        yield encode_field(number, encode_message(kind, value))
    else:
        yield _scalar(number, kind.kind, value)


# What Go's decoder makes of a null in a map or a list; an empty time is the message without fields.
_ZERO_BY_KIND: dict[str, Any] = {
    "string": "", "bool": False, "int32": 0, "int64": 0, "float64": 0.0, "bytes": "", "quantity": "0", "intorstring": 0,
}  # fmt: skip


def _scalar(number: int, kind: str, value: Any) -> bytes:
    if value is None:
        if kind in ("time", "microtime", "duration"):
            return encode_field(number, b"")
        value = _ZERO_BY_KIND.get(kind)
    match kind:
        case "string":
            return encode_field(number, str(value).encode())
        case "bool":
            return encode_number(number, int(bool(value)))
        case "int32" | "int64":
            return encode_number(number, int(value))
        case "float64":
            return encode_double(number, float(value))
        case "bytes":
            return encode_field(number, base64.b64decode(value))
        case "quantity":
            return encode_field(number, encode_field(1, str(value).encode()))
        case "time" | "microtime":
            return encode_field(number, _time(value))
        case "duration":
            return encode_field(number, encode_number(1, _nanos(value)))
        case "intorstring":
            if isinstance(value, str):
                return encode_field(number, encode_number(1, 1) + encode_field(3, value.encode()))
            return encode_field(number, encode_number(1, 0) + encode_number(2, int(value)))
    raw = value.raw if isinstance(value, RawJson) else encode(value)
    return encode_field(number, encode_field(1, raw))


def _time(text: str) -> bytes:
    since = parse_time(text) - _EPOCH
    seconds = since.days * 86_400 + since.seconds
    return encode_number(1, seconds) + encode_number(2, since.microseconds * 1000)


def _nanos(text: Any) -> int:
    """Return a duration as JSON has it (`1h2m3.5s`) in nanoseconds."""
    units = {"h": 3600 * _NANOS, "m": 60 * _NANOS, "s": _NANOS}
    total, digits = 0.0, ""
    for letter in str(text):
        if letter in units:
            total, digits = total + float(digits or 0) * units[letter], ""
        else:
            digits += letter
    return int(total)
