"""Kubernetes' protobuf encoding of objects, driven by the schema.

Compiled clients (kubelet, kube-scheduler, many controllers) send their bodies as
`application/vnd.kubernetes.protobuf`, and accept JSON in return. The schema knows the
number of every field, so one small codec serves every kind.

On the wire: four magic bytes, then an envelope (runtime.Unknown) with the type and, as
field 2, the object itself. Inside, a struct is a message, a list a repeated field, a map
repeated entries of key 1 and value 2. Some scalars are small messages: a quantity is
`{1: text}`, a time `{1: seconds, 2: nanos}`. Structs that Go inlines in JSON are messages
of their own here; their fields have numbers such as 2.1.

Decoding yields a plain value for `reading.read`, which checks and completes it as it does
JSON; encoding takes a canonical object. Custom resource definitions are not supported:
parts of their schema are JSON in disguise. Damaged input is a `ParseError`.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final

from dray.api.parsing import ParseError, decode_text, parse_json
from dray.api.raw_json import RawJson, go_json
from dray.api.schema.types import LIST, MAP, STRUCT, Field, Type
from dray.api.times import format_microtime, format_time, parse_time

__all__ = ["MAGIC", "decode_protobuf", "encode_protobuf"]

MAGIC: Final = b"k8s\x00"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_DEPTH: Final = 100
_INTS: Final = frozenset({"int32", "int64"})

Json = Any
Numbered = dict[int, "Field | Numbered"]  # fields by number; inlined messages nest


def decode_protobuf(schema: Type, data: bytes) -> dict[str, Json]:
    """Return the plain object in a body, with kind and apiVersion; raise ParseError."""
    if not data.startswith(MAGIC):
        raise ParseError(
            "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"
        )
    if schema.group == "apiextensions":
        raise ParseError(f"{schema.name} is not read as protobuf: send JSON")
    try:
        envelope = dict(_parts(data[len(MAGIC) :]))
        type_meta = dict(_parts(envelope.get(1, b"")))
        obj = _struct(_numbered(schema), envelope.get(2, b""), 0)
        for number, name in ((1, "apiVersion"), (2, "kind")):
            if type_meta.get(number):
                obj[name] = _text(type_meta[number])
    except (IndexError, ValueError, TypeError, struct.error, OverflowError) as error:
        raise ParseError(f"proto: {error}") from None
    return obj


def encode_protobuf(schema: Type, obj: dict[str, Json]) -> bytes:
    """Write a canonical object with its envelope."""
    type_meta = b"".join(
        _field(number, obj[name].encode())
        for number, name in ((1, "apiVersion"), (2, "kind"))
        if obj.get(name)
    )
    return MAGIC + _field(1, type_meta) + _field(2, _write_struct(_numbered(schema), obj))


@cache
def _numbered(schema: Type) -> Numbered:
    tree: Numbered = {}
    for field in schema.fields.values():
        place = tree
        for number in field.number[:-1]:
            place = place.setdefault(number, {})  # type: ignore[assignment]
        if field.number:
            place[field.number[-1]] = field
    return tree


# --- reading ------------------------------------------------------------------


def _parts(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a message: number, and int or bytes."""
    position = 0
    while position < len(data):
        key, position = _read_varint(data, position)
        number, wire = key >> 3, key & 7
        value: int | bytes
        if wire == _VARINT:
            value, position = _read_varint(data, position)
        elif wire == _BYTES:
            length, position = _read_varint(data, position)
            value, position = data[position : position + length], position + length
        elif wire in (_FIXED64, _FIXED32):
            length = 8 if wire == _FIXED64 else 4
            value, position = data[position : position + length], position + length
        else:
            raise ValueError(f"illegal wireType {wire}")
        if number == 0 or position > len(data):
            raise ValueError("unexpected EOF" if number else "illegal tag 0")
        yield number, value


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("integer overflow")


def _signed(value: int) -> int:
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


def _struct(numbered: Numbered, data: bytes, depth: int) -> dict[str, Json]:
    if depth > _MOST_DEPTH:
        raise ValueError("exceeded max depth")
    result: dict[str, Json] = {}
    for number, part in _parts(data):
        field = numbered.get(number)
        if isinstance(field, dict):
            result.update(_struct(field, part, depth + 1))
        elif field is not None:
            _add(result, field, part, depth)
    return result


def _add(result: dict[str, Json], field: Field, part: Any, depth: int) -> None:
    schema = field.type
    element = schema.element
    if schema.kind == LIST:
        assert element is not None
        items = result.setdefault(field.name, [])
        if isinstance(part, bytes) and (element.kind in _INTS or element.kind == "bool"):
            items.extend(_packed(element, part))
        else:
            items.append(_value(element, part, depth))
    elif schema.kind == MAP:
        assert element is not None
        entry = dict(_parts(part))
        value = _value(element, entry.get(2, b"" if _is_bytes(element) else 0), depth)
        result.setdefault(field.name, {})[_text(entry.get(1, b""))] = value
    else:
        result[field.name] = _value(schema, part, depth)


def _is_bytes(schema: Type) -> bool:
    return schema.kind not in _INTS and schema.kind != "bool"


def _bytes(part: Any) -> bytes:
    if not isinstance(part, bytes):
        raise TypeError("wrong wireType: a number where text was expected")
    return part


def _text(part: Any) -> str:
    return decode_text(_bytes(part))


def _packed(element: Type, data: bytes) -> Iterator[Json]:
    position = 0
    while position < len(data):
        value, position = _read_varint(data, position)
        yield bool(value) if element.kind == "bool" else _signed(value)


def _value(schema: Type, part: Any, depth: int) -> Json:
    kind = schema.kind
    if kind in _INTS:
        return _signed(part)
    if kind == "bool":
        return bool(part)
    if not isinstance(part, bytes):
        raise TypeError(f"wrong wireType for a field of type {kind}")
    if kind == "string":
        return _text(part)
    if kind == STRUCT:
        return _struct(_numbered(schema), part, depth + 1)
    if kind == "bytes":
        return base64.b64encode(part).decode()
    if kind == "float64":
        return struct.unpack("<d", part)[0]
    if kind == LIST:
        # A named list as a map value is a message with its items as field 1.
        assert schema.element is not None
        return [_value(schema.element, item, depth + 1) for number, item in _parts(part) if number == 1]
    return _small_message(kind, dict(_parts(part)))


def _small_message(kind: str, message: dict[int, Any]) -> Json:
    if kind == "quantity":
        return _text(message.get(1, b"")) or "0"
    if kind in ("time", "microtime"):
        if not message:
            return None
        moment = _EPOCH + timedelta(
            seconds=_signed(message.get(1, 0)), microseconds=message.get(2, 0) // 1000
        )
        return format_time(moment) if kind == "time" else format_microtime(moment)
    if kind == "intorstring":
        return _text(message.get(3, b"")) if message.get(1) else _signed(message.get(2, 0))
    if kind == "raw":
        return RawJson(_bytes(message[1])) if message.get(1) else None
    if kind == "any":
        return parse_json(_bytes(message[1])) if message.get(1) else None
    raise ValueError(f"no protobuf form of {kind}")


# --- writing ------------------------------------------------------------------


def _varint(value: int) -> bytes:
    value &= 2**64 - 1
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, bytes):
        return _varint(number << 3 | _BYTES) + _varint(len(value)) + value
    return _varint(number << 3 | _VARINT) + _varint(value)


def _write_struct(numbered: Numbered, obj: dict[str, Json]) -> bytes:
    written = []
    for number, field in sorted(numbered.items(), key=lambda item: item[0]):
        if isinstance(field, dict):
            inlined = _write_struct(field, obj)
            if inlined:
                written.append(_field(number, inlined))
        elif obj.get(field.name) is not None:
            written.extend(_field(number, value) for value in _occurrences(field.type, obj[field.name]))
    return b"".join(written)


def _occurrences(schema: Type, value: Json) -> Iterator[int | bytes]:
    element = schema.element
    if schema.kind == LIST:
        assert element is not None
        yield from (_write(element, item) for item in value)
    elif schema.kind == MAP:
        assert element is not None
        for key in sorted(value):
            yield _field(1, key.encode()) + _field(2, _write(element, value[key]))
    else:
        yield _write(schema, value)


def _write(schema: Type, value: Json) -> int | bytes:
    kind = schema.kind
    if kind in _INTS or kind == "bool":
        return int(value)
    if value is None:
        return b""  # a null item, such as the zero time in a map
    if kind == "string":
        return str(value).encode()
    if kind == STRUCT:
        return _write_struct(_numbered(schema), value)
    if kind == "bytes":
        return base64.b64decode(value)
    if kind == LIST:
        assert schema.element is not None
        return b"".join(_field(1, _write(schema.element, item)) for item in value)
    if kind == "quantity":
        return _field(1, str(value).encode())
    if kind in ("time", "microtime"):
        since = parse_time(value) - _EPOCH
        nanos = since.microseconds * 1000
        return _field(1, since.days * 86400 + since.seconds) + (_field(2, nanos) if nanos else b"")
    if kind == "intorstring":
        is_text = isinstance(value, str)
        return _field(1, int(is_text)) + (_field(3, value.encode()) if is_text else _field(2, value))
    if kind in ("raw", "any"):
        return _field(1, value.raw if isinstance(value, RawJson) else go_json(value))
    raise ValueError(f"no protobuf form of {kind}")
