"""Adding to metadata in the binary form: everything else stays, byte for byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.api.media_types import PROTOBUF_TYPE
from dray.api.meta import ObjectMeta
from dray.api.protobuf import MAGIC, encode_field
from dray.client import Client, Conflict, Response, TransportError, change_metadata
from dray.client.metadata_changes import _part, _with_part
from dray.client.resources import CLAIMS

META = ObjectMeta(name="c", namespace="ns", uid="u-1", resource_version="7")
SPEC = b'\x0a\x03abc\x12{ "b" : 1.0 }'  # opaque to us: never looked into
STORED_META = (
    encode_field(1, b"c")
    + encode_field(5, b"u-1")
    + encode_field(6, b"7")
    + b"\x38\x2a"
    + encode_field(12, encode_field(1, b"k") + encode_field(2, b"v"))
)
OBJECT = encode_field(1, STORED_META) + encode_field(2, SPEC)
ENVELOPE = (
    encode_field(1, encode_field(1, b"resource.k8s.io/v1") + encode_field(2, b"ResourceClaim"))
    + encode_field(2, OBJECT)
    + encode_field(4, b"x")
)


class Server:
    """Answers one GET with an object and remembers what is PUT."""

    def __init__(self, body=MAGIC + ENVELOPE):
        self.body, self.requests = body, []

    async def send(self, request):
        self.requests.append(request)
        if request.method == "GET":
            return Response(200, {}, self.body)
        return Response(200, {}, b'{"metadata":{"resourceVersion":"8"}}')


async def test_annotations_and_finalizers_are_appended_and_nothing_else_changes():
    server = Server()
    revision = await change_metadata(Client(server), CLAIMS, META, annotations={"k": "new"}, finalizers=["f"])
    assert revision == "8"
    asked, sent = server.requests
    assert asked.headers == {"Accept": PROTOBUF_TYPE}
    assert (sent.method, sent.content_type, sent.target) == ("PUT", PROTOBUF_TYPE, asked.target)
    assert sent.body.startswith(MAGIC)
    envelope = sent.body[len(MAGIC) :]
    stored = _part(envelope, 2)
    meta = _part(stored, 1)
    assert meta == STORED_META + encode_field(
        12, encode_field(1, b"k") + encode_field(2, b"new")
    ) + encode_field(14, b"f")
    assert _with_part(stored, 1, STORED_META) == OBJECT
    assert _with_part(envelope, 2, OBJECT) == ENVELOPE


async def test_finalizers_are_removed_by_name():
    meta = STORED_META + encode_field(14, b"keep") + encode_field(14, b"drop")
    server = Server(MAGIC + _with_part(ENVELOPE, 2, encode_field(1, meta) + encode_field(2, SPEC)))
    await change_metadata(Client(server), CLAIMS, META, without_finalizers=["drop", "unknown"])
    stored = _part(server.requests[1].body[len(MAGIC) :], 2)
    assert stored == encode_field(1, STORED_META + encode_field(14, b"keep")) + encode_field(2, SPEC)


@pytest.mark.parametrize("known", [{"uid": "u-2"}, {"resource_version": "6"}])
async def test_another_object_or_revision_is_a_conflict(known):
    server = Server()
    fields = {"name": "c", "namespace": "ns", "uid": "u-1", "resource_version": "7", **known}
    with pytest.raises(Conflict):
        await change_metadata(Client(server), CLAIMS, ObjectMeta(**fields), finalizers=["f"])
    assert [each.method for each in server.requests] == ["GET"]


async def test_a_server_that_answers_in_json_is_told_so():
    with pytest.raises(TransportError, match="does not speak"):
        await change_metadata(Client(Server(b"{}")), CLAIMS, META)


@pytest.mark.parametrize("broken", [b"\x0a\x05abc", encode_field(2, b"\x0a\x05abc"), b"\xff" * 11])
async def test_an_answer_that_is_cut_off_is_the_servers_fault(broken):
    server = Server(MAGIC + broken)
    with pytest.raises(TransportError, match="broken"):
        await change_metadata(Client(server), CLAIMS, META, finalizers=["f"])
    assert [each.method for each in server.requests] == ["GET"]


@given(st.binary(max_size=40))
def test_what_is_not_understood_stays_as_it_was_spelled(value):
    """Among it numbers that are longer than they need to be, and fields that nobody knows."""
    message = b"\x98\x00\x81\x80\x00" + encode_field(7, value) + b"\x11" + bytes(8) + b"\x1d" + bytes(4)
    assert _with_part(message + encode_field(9, b"x"), 9, b"y") == message + encode_field(9, b"y")
    assert _part(message, 7) == value
    assert _part(message, 3) == b""
