"""Change an object's metadata and leave every other byte as it is stored.

kube-apiserver keeps the opaque parameters of a claim as the bytes that somebody sent, compares them byte
by byte, and yet shows them without whitespace when it is asked for JSON. So a claim made by a client
that writes spaces (Python's json.dumps does) cannot be updated by way of JSON at all: whatever is sent
back differs, and "spec: field is immutable" is the answer. In the binary form nothing gets
lost. Here is as much of it as is needed to change the metadata without understanding the rest:

    Unknown{1: TypeMeta, 2: object, …}      object{1: ObjectMeta, …}

In a message that is read from the left the later of two equal map keys wins, and list entries add up. So
adding is appending, and removing is leaving out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from dray.api.media_types import PROTOBUF_TYPE
from dray.api.meta import ObjectMeta
from dray.api.protobuf import MAGIC, OBJECT, ProtobufError, encode_field, read_field
from dray.client.api_client import Client
from dray.client.decoding import decoder_of
from dray.client.errors import Conflict, Status, TransportError
from dray.client.resources import Resource
from dray.client.transport import Request

_META = 1  # of every object
_UID, _REVISION, _ANNOTATIONS, _FINALIZERS = 5, 6, 12, 14  # of ObjectMeta


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
    asked = Request("GET", path, headers={"Accept": PROTOBUF_TYPE})
    found = await client.answer(asked)
    if not found.body.startswith(MAGIC):
        raise TransportError(f"{asked}: the server does not speak {PROTOBUF_TYPE}")
    envelope = found.body[len(MAGIC) :]
    try:
        stored = _part(envelope, OBJECT)
        old = _part(stored, _META)
        seen = _part(old, _UID), _part(old, _REVISION)
        new = _without(old, _FINALIZERS, {each.encode() for each in without_finalizers})
    except ProtobufError as error:
        raise TransportError(f"{asked}: the server answers with broken {PROTOBUF_TYPE}: {error}") from error
    if seen != (meta.uid.encode(), meta.resource_version.encode()):
        raise Conflict(409, Status(409, "Conflict", "the object has changed"), str(asked))
    for key, value in (annotations or {}).items():
        new += encode_field(_ANNOTATIONS, encode_field(1, key.encode()) + encode_field(2, value.encode()))
    for finalizer in finalizers:
        new += encode_field(_FINALIZERS, finalizer.encode())
    body = MAGIC + _with_part(envelope, OBJECT, _with_part(stored, _META, new))
    answer = await client.answer(Request("PUT", path, body, PROTOBUF_TYPE))
    written: _Written = decoder_of(_Written).decode(answer.body)
    return written.metadata.resource_version


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes, bytes]]:
    """Yield (number, value, the whole field as it is spelled) of each field of a message."""
    position = 0
    while position < len(message):
        number, value, end = read_field(message, position)
        yield number, value, message[position:end]
        position = end


def _part(message: bytes, number: int) -> bytes:
    """Return the value of a field, empty when it is not there."""
    found = b""
    for each, value, _ in _fields(message):
        if each == number and isinstance(value, bytes):
            found = value
    return found


def _with_part(message: bytes, number: int, value: bytes) -> bytes:
    """Return the message with another value of one field; the others stay as and where they are."""
    return b"".join(
        encode_field(number, value) if each == number else spelled for each, _, spelled in _fields(message)
    )


def _without(message: bytes, number: int, values: Collection[bytes]) -> bytes:
    """Return the message without the entries of a list that have one of these values."""
    return b"".join(
        spelled for each, value, spelled in _fields(message) if each != number or value not in values
    )
