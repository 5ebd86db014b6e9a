"""Change an object's metadata and leave every other byte as it is stored.

kube-apiserver keeps the opaque parameters of a claim as the bytes that somebody sent, compares them byte
by byte, and yet shows them without blanks when it is asked for JSON. So a claim made by a client
that writes blanks (Python's json.dumps does) cannot be updated by way of JSON at all: whatever is sent
back differs, and "spec: field is immutable" is the answer. In the binary form nothing gets
lost. Here is as much of it as is needed to change the metadata without understanding the rest:

    "k8s\\0" Unknown{1: TypeMeta, 2: object, …}      object{1: ObjectMeta, …}

A field is a key (number and wire type) and a value; in a message that is read from the left the later
of two equal map keys wins, and list entries add up. So adding is appending, and removing is leaving out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from dray.api.meta import ObjectMeta
from dray.client.api import Client, decoder_of
from dray.client.errors import Conflict, Status, TransportError
from dray.client.resources import Resource
from dray.client.transport import Request

PROTOBUF = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_OBJECT = 2  # of Unknown
_META = 1  # of every object
_UID, _REVISION, _ANNOTATIONS, _FINALIZERS = 5, 6, 12, 14  # of ObjectMeta
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types


class _Written(msgspec.Struct):
    metadata: ObjectMeta


async def change_metadata(
    client: Client,
    resource: Resource,
    meta: ObjectMeta,
    *,
    annotations: Mapping[str, str] | None = None,
    finalizers: Sequence[str] = (),
    without_finalizers: Sequence[str] = (),
) -> str:
    """Set annotations, add or remove finalizers at the revision of `meta`; return the new revision.

    Raises Conflict when the object is another one or has changed, NotFound when it is gone.
    """
    path = resource.path(meta.namespace, meta.name)
    asked = Request("GET", path, headers={"Accept": PROTOBUF})
    found = await client.answer(asked)
    if not found.body.startswith(_MAGIC):
        raise TransportError(f"{asked}: the server does not speak {PROTOBUF}")
    envelope = found.body[len(_MAGIC) :]
    stored = _part(envelope, _OBJECT)
    old = _part(stored, _META)
    if (_part(old, _UID).decode(), _part(old, _REVISION).decode()) != (meta.uid, meta.resource_version):
        raise Conflict(409, Status(409, "Conflict", "the object has changed"), str(asked))
    new = _without(old, _FINALIZERS, {each.encode() for each in without_finalizers})
    for key, value in (annotations or {}).items():
        new += _spell(_ANNOTATIONS, _spell(1, key.encode()) + _spell(2, value.encode()))
    for finalizer in finalizers:
        new += _spell(_FINALIZERS, finalizer.encode())
    body = _MAGIC + _with_part(envelope, _OBJECT, _with_part(stored, _META, new))
    answer = await client.answer(Request("PUT", path, body, PROTOBUF))
    written: _Written = decoder_of(_Written).decode(answer.body)
    return written.metadata.resource_version


def _fields(message: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield (number, start of the field, start of its value, end) of each field of a message."""
    position = 0
    while position < len(message):
        start = position
        key, position = _varint(message, position)
        kind = key & 7
        value = position
        if kind == _VARINT:
            _, position = _varint(message, position)
        elif kind == _BYTES:
            length, value = _varint(message, position)
            position = value + length
        elif kind in (_FIXED64, _FIXED32):
            position += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind} at byte {start}")
        if position > len(message):
            raise ValueError("the message ends in the middle of a field")
        yield key >> 3, start, value, position


def _part(message: bytes, number: int) -> bytes:
    """Return the value of a field, empty when it is not there."""
    found = b""
    for each, _, value, end in _fields(message):
        if each == number:
            found = message[value:end]
    return found


def _with_part(message: bytes, number: int, value: bytes) -> bytes:
    """Return the message with another value of one field; the others stay where they are."""
    pieces = [
        _spell(number, value) if each == number else message[start:end]
        for each, start, _, end in _fields(message)
    ]
    return b"".join(pieces)


def _without(message: bytes, number: int, values: Collection[bytes]) -> bytes:
    """Return the message without the entries of a list that have one of these values."""
    return b"".join(
        message[start:end]
        for each, start, value, end in _fields(message)
        if each != number or message[value:end] not in values
    )


def _spell(number: int, value: bytes) -> bytes:
    return _spell_varint(number << 3 | _BYTES) + _spell_varint(len(value)) + value


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(message) or shift > 63:
            raise ValueError("a number does not end")
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _spell_varint(value: int) -> bytes:
    spelled = bytearray()
    while value > 0x7F:
        spelled.append(value & 0x7F | 0x80)
        value >>= 7
    spelled.append(value)
    return bytes(spelled)
