"""Kubernetes protobuf bodies, encoded here by hand from the published field numbers."""

import pytest
from server_cluster import running_cluster

from dray.api.schema import schema_of
from dray.server.protobuf import MAGIC, MEDIA_TYPE, ProtobufError, decode_object


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def text(field: int, value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(raw)) + raw


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def envelope(api_version: str, kind: str, message: bytes) -> bytes:
    return MAGIC + text(1, text(1, api_version) + text(2, kind)) + text(2, message)


def test_a_pod_is_read_by_its_field_numbers() -> None:
    entry = text(1, "app") + text(2, "x")
    metadata = text(1, "p") + text(11, entry)
    container = text(1, "c") + text(2, "image:1")
    volume = text(1, "v") + text(2, text(2, b""))  # the source is a message inlined in JSON: emptyDir
    spec = text(1, volume) + text(2, container) + number(4, 30) + number(5, -1)
    body = envelope("v1", "Pod", text(1, metadata) + text(2, spec))
    pod = decode_object(schema_of("", "v1", "Pod"), body)
    assert pod["metadata"] == {"name": "p", "labels": {"app": "x"}}
    assert pod["spec"]["containers"] == [{"name": "c", "image": "image:1"}]
    assert pod["spec"]["volumes"] == [{"name": "v", "emptyDir": {}}]
    assert (pod["spec"]["terminationGracePeriodSeconds"], pod["spec"]["activeDeadlineSeconds"]) == (30, -1)


@pytest.mark.parametrize(
    "body",
    [b"", b"nope", MAGIC + b"\xff", envelope("v1", "Pod", b"\x0a\x7f"), envelope("v1", "Pod", b"\x0b")],
)
def test_what_is_no_message_is_refused(body) -> None:
    with pytest.raises(ProtobufError):
        decode_object(schema_of("", "v1", "Pod"), body)


async def test_a_namespace_can_be_created_from_protobuf() -> None:
    async with running_cluster() as client:
        body = envelope("v1", "Namespace", text(1, text(1, "made")))
        made = await client.call("POST", "/api/v1/namespaces", body, content=MEDIA_TYPE)
        assert (made.code, made.json["metadata"]["name"]) == (201, "made")
        broken = await client.call("POST", "/api/v1/namespaces", MAGIC + b"\xff", content=MEDIA_TYPE)
        assert broken.code == 400
