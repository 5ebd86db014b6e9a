"""Write objects as Kubernetes protobuf, by the schema's field numbers; values that do not fit are left out."""

from __future__ import annotations

import base64
import binascii
import json
import struct
from typing import Any

from dray.api.protobuf import MAGIC, encode_field
from dray.api.schema import LIST, MAP, STRUCT, Type

_MASK = (1 << 64) - 1


def encode_object(schema: Type, value: dict[str, Any]) -> bytes:
    """Return the body of a request: magic bytes, type, message."""
    meta = encode_field(1, _bytes(value.get("apiVersion", ""))) + encode_field(
        2, _bytes(value.get("kind", ""))
    )
    return MAGIC + encode_field(1, meta) + encode_field(2, _message(schema, value))


def varint(value: int) -> bytes:
    """Return a number as the wire has it."""
    value &= _MASK
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _message(schema: Type, value: Any) -> bytes:
    if not isinstance(value, dict):
        return b""
    pieces = []
    for name, field in schema.fields.items():
        if name not in value or not field.number or value[name] is None:
            continue
        written = _field(field.number[-1], field.type, value[name])
        for number in reversed(field.number[:-1]):
            written = encode_field(number, written)
        pieces.append(written)
    return b"".join(pieces)


def _field(number: int, kind: Type, value: Any) -> bytes:
    if kind.kind == LIST and kind.element is not None:
        items = value if isinstance(value, list) else []
        return b"".join(_field(number, kind.element, item) for item in items)
    if kind.kind == MAP and kind.element is not None:
        items = value.items() if isinstance(value, dict) else ()
        return b"".join(encode_field(number, _entry(kind.element, key, item)) for key, item in items)
    if kind.kind == STRUCT:
        return encode_field(number, _message(kind, value))
    if kind.kind in ("bool", "int32", "int64"):
        return varint(number << 3) + varint(value) if isinstance(value, int) else b""
    if kind.kind == "float64":
        return varint(number << 3 | 1) + struct.pack("<d", value) if isinstance(value, float) else b""
    return encode_field(number, _scalar(kind.kind, value))


def _entry(element: Type, key: Any, item: Any) -> bytes:
    """Return an entry of a map; a list as its value is wrapped in a message of its own."""
    value = _field(1, element, item) if element.kind == LIST else b""
    return encode_field(1, _bytes(key)) + (encode_field(2, value) if value else _field(2, element, item))


def _scalar(kind: str, value: Any) -> bytes:
    match kind:
        case "string":
            return _bytes(value)
        case "bytes":
            try:
                return base64.b64decode(_bytes(value))
            except (binascii.Error, ValueError):
                return _bytes(value)
        case "quantity":
            return encode_field(1, _bytes(value))
        case "time" | "microtime":
            return varint(1 << 3) + varint(1_767_323_045 + len(str(value)))
        case "duration":
            return varint(1 << 3) + varint(10**9)
        case "intorstring":
            if isinstance(value, int):
                return varint(2 << 3) + varint(value)
            return varint(1 << 3) + varint(1) + encode_field(3, _bytes(value))
    return encode_field(1, json.dumps(value).encode())


def _bytes(value: Any) -> bytes:
    return str(value).encode("utf-8", "replace")
