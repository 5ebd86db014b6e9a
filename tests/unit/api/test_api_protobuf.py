"""Protobuf, field by field."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.api.protobuf import ProtobufError, encode_field, read_field, read_varint


def fields(message):
    found, position = [], 0
    while position < len(message):
        number, value, end = read_field(message, position)
        found.append((number, value, message[position:end]))
        position = end
    return found


@given(st.lists(st.tuples(st.integers(1, 3000), st.binary(max_size=300)), max_size=20))
def test_messages_are_cut_where_their_fields_end(parts):
    message = b"".join(encode_field(number, value) for number, value in parts)
    assert [(number, value) for number, value, _ in fields(message)] == parts
    assert b"".join(spelled for *_, spelled in fields(message)) == message


def test_numbers_of_all_wire_types_are_read():
    message = b"\x08\x96\x01" + b"\x11\x01" + bytes(7) + b"\x1d\x02" + bytes(3) + encode_field(9, b"x")
    assert [each[:2] for each in fields(message)] == [(1, 150), (2, 1), (3, 2), (9, b"x")]


@pytest.mark.parametrize(
    ("spelled", "value"),
    [(b"\x00", 0), (b"\x96\x01", 150), (b"\x81\x80\x00", 1), (b"\xff" * 9 + b"\x01", 2**64 - 1)],
)
def test_numbers_may_be_longer_than_they_need_to_be(spelled, value):
    assert read_varint(b"?" + spelled + b"?", 1) == (value, 1 + len(spelled))


@pytest.mark.parametrize(
    "message",
    [
        b"\x0a\x05abc",
        b"\xff" * 11,
        b"\x0b",
        b"\x0c",
        b"\x0e\x00",
        b"\x80",
        b"\x08",
        b"\x0a",
        b"\x11abcdefg",
        b"\x1dabc",
    ],
)
def test_messages_that_end_too_early_or_make_no_sense_are_refused(message):
    with pytest.raises(ProtobufError):
        fields(message)


@given(st.binary(max_size=60))
def test_no_bytes_are_read_beyond_the_end(message):
    try:
        assert b"".join(spelled for *_, spelled in fields(message)) == message
    except ProtobufError:
        pass
