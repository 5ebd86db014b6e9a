"""Adding to metadata in the binary form: everything else stays, byte for byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.api.meta import ObjectMeta
from dray.client import Client, Conflict, Response, TransportError, change_metadata
from dray.client.exact import _MAGIC, PROTOBUF, _fields, _part, _spell, _varint, _with_part
from dray.client.resources import CLAIMS

META = ObjectMeta(name="c", namespace="ns", uid="u-1", resource_version="7")
SPEC = b'\x0a\x03abc\x12{ "b" : 1.0 }'  # opaque to us: never looked into
STORED_META = (
    _spell(1, b"c")
    + _spell(5, b"u-1")
    + _spell(6, b"7")
    + b"\x38\x2a"
    + _spell(12, _spell(1, b"k") + _spell(2, b"v"))
)
OBJECT = _spell(1, STORED_META) + _spell(2, SPEC)
ENVELOPE = (
    _spell(1, _spell(1, b"resource.k8s.io/v1") + _spell(2, b"ResourceClaim"))
    + _spell(2, OBJECT)
    + _spell(4, b"x")
)


class Server:
    """Answers one GET with an object and remembers what is PUT."""

    def __init__(self, body=_MAGIC + ENVELOPE):
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
    assert asked.headers == {"Accept": PROTOBUF}
    assert (sent.method, sent.content_type, sent.target) == ("PUT", PROTOBUF, asked.target)
    assert sent.body.startswith(_MAGIC)
    envelope = sent.body[len(_MAGIC) :]
    stored = _part(envelope, 2)
    meta = _part(stored, 1)
    assert meta == STORED_META + _spell(12, _spell(1, b"k") + _spell(2, b"new")) + _spell(14, b"f")
    assert _with_part(stored, 1, STORED_META) == OBJECT
    assert _with_part(envelope, 2, OBJECT) == ENVELOPE


async def test_finalizers_are_removed_by_name():
    meta = STORED_META + _spell(14, b"keep") + _spell(14, b"drop")
    server = Server(_MAGIC + _with_part(ENVELOPE, 2, _spell(1, meta) + _spell(2, SPEC)))
    await change_metadata(Client(server), CLAIMS, META, without_finalizers=["drop", "unknown"])
    stored = _part(server.requests[1].body[len(_MAGIC) :], 2)
    assert stored == _spell(1, STORED_META + _spell(14, b"keep")) + _spell(2, SPEC)


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


@given(st.lists(st.tuples(st.integers(1, 3000), st.binary(max_size=300)), max_size=20))
def test_messages_are_cut_where_their_fields_end(fields):
    message = b"".join(_spell(number, value) for number, value in fields)
    assert [(number, message[value:end]) for number, _, value, end in _fields(message)] == fields
    assert b"".join(message[start:end] for _, start, _, end in _fields(message)) == message


@pytest.mark.parametrize("message", [b"\x0a\x05abc", b"\xff" * 11, b"\x0b", b"\x80"])
def test_messages_that_end_too_early_are_refused(message):
    with pytest.raises(ValueError):
        list(_fields(message))


def test_numbers_of_all_wire_types_are_passed_over():
    message = b"\x08\x96\x01" + b"\x11" + bytes(8) + b"\x1d" + bytes(4) + _spell(9, b"x")
    assert [number for number, *_ in _fields(message)] == [1, 2, 3, 9]
    assert _varint(b"\x96\x01", 0) == (150, 2)
