"""Protobuf as Kubernetes sends it: the envelope's marks, and fields one by one, without a schema.

A body is four magic bytes and a message `Unknown` {1: TypeMeta, 2: the object's own message, …}. A message is
a row of fields, each a key (number and wire type) and a value. Reading goes from the left; the reader knows
where each field ends, so who does not understand a field can pass it over or keep it byte for byte.

Everything here may come from strangers: what does not end within the message is refused.
"""

from __future__ import annotations

import struct

MAGIC = b"k8s\x00"
OBJECT = 2  # the number of the object's message in the envelope

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_WIDTHS = {_FIXED64: 8, _FIXED32: 4}


class ProtobufError(ValueError):
    """The bytes are no message."""


def read_field(message: bytes, position: int) -> tuple[int, int | bytes, int]:
    """Return (number, value, end) of the field at a position: numbers as they are, all else as bytes."""
    key, position = read_varint(message, position)
    number, wire = key >> 3, key & 7
    if wire == _BYTES:
        length, position = read_varint(message, position)
        end = position + length
        if end > len(message):
            raise ProtobufError("the message ends in the middle of a field")
        return number, message[position:end], end
    if wire == _VARINT:
        value, end = read_varint(message, position)
        return number, value, end
    if wire not in _WIDTHS:
        raise ProtobufError(f"illegal wire type {wire} before byte {position}")
    end = position + _WIDTHS[wire]
    if end > len(message):
        raise ProtobufError("the message ends in the middle of a field")
    return number, int.from_bytes(message[position:end], "little"), end


def read_varint(message: bytes, position: int) -> tuple[int, int]:
    """Return the number at a position, and where it ends."""
    value = shift = 0
    while True:
        if position >= len(message) or shift > 63:
            raise ProtobufError("a number does not end")
        byte = message[position]
        position += 1
        if byte < 0x80:
            return value | byte << shift, position
        value |= (byte & 0x7F) << shift
        shift += 7


def encode_field(number: int, value: bytes) -> bytes:
    """Write a field that is text, bytes or a message."""
    return encode_varint(number << 3 | _BYTES) + encode_varint(len(value)) + value


def encode_number(number: int, value: int) -> bytes:
    """Write a field that is a whole number or (0 or 1) a boolean; negative ones have ten bytes."""
    return encode_varint(number << 3 | _VARINT) + encode_varint(value & 0xFFFF_FFFF_FFFF_FFFF)


def encode_double(number: int, value: float) -> bytes:
    """Write a field that is a number with a fraction."""
    return encode_varint(number << 3 | _FIXED64) + struct.pack("<d", value)


def encode_varint(value: int) -> bytes:
    """Write a number that is not negative, seven bits a byte."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
