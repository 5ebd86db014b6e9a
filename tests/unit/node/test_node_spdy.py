"""SPDY frames: what Go's implementation wrote is read, and nothing that a client sends is too large or too much."""

import struct
import zlib

import pytest

from dray.node.spdy import (
    DICTIONARY,
    MAX_FRAME,
    MAX_HEADERS,
    Ended,
    Opened,
    Pinged,
    Received,
    Reset,
    SpdyConnection,
    SpdyError,
    data_frame,
    reset_frame,
)

# Written by the Go library that kubectl uses: two streams of one request, data, a ping, a reset, the end.
WRITTEN_BY_GO = [
    ("800300010000003e0000000100000000000078f9e3c6a7c202253a703a2b294a4dcc851625aca9a0808614cb45e01c60616061c0c0c0c0590489c64c50f2663400000000ffff",
     Opened(1, {"streamtype": "error", "port": "8080", "requestid": "0"}, is_finished=False)),
    ("0000000101000000", Received(1, b"", is_finished=True)),
    ("800300010000001c00000003000000000000826ac61445350e543225a29b06000000ffff",
     Opened(3, {"streamtype": "data", "port": "8080", "requestid": "0"}, is_finished=False)),
    ("000000030000000568656c6c6f", Received(3, b"hello", is_finished=False)),
    ("800300060000000400000001", Pinged(bytes.fromhex("800300060000000400000001"))),
    ("80030003000000080000000300000005", Reset(3)),
    ("80030007000000080000000000000000", Ended()),
]  # fmt: skip


def opening(stream, headers, pack=None):
    """Return the frame that opens a stream."""
    pack = pack or zlib.compressobj(zdict=DICTIONARY)
    block = struct.pack(">I", len(headers))
    for text in (text for pair in headers.items() for text in pair):
        block += struct.pack(">I", len(text)) + text.encode()
    packed = pack.compress(block) + pack.flush(zlib.Z_SYNC_FLUSH)
    payload = struct.pack(">IIH", stream, 0, 0) + packed
    return struct.pack(">II", 0x8003_0001, len(payload)) + payload


def test_what_go_writes_is_read():
    connection = SpdyConnection()
    for text, event in WRITTEN_BY_GO:
        assert list(connection.receive(bytes.fromhex(text))) == [event]


def test_frames_may_arrive_in_any_pieces():
    sent = b"".join(bytes.fromhex(text) for text, _ in WRITTEN_BY_GO)
    connection = SpdyConnection()
    found = [event for byte in sent for event in connection.receive(bytes([byte]))]
    assert found == [event for _, event in WRITTEN_BY_GO]
    assert list(SpdyConnection().receive(sent)) == found


def test_answers_are_frames_that_go_reads():
    reply = SpdyConnection().reply(1)
    assert reply[:12] == struct.pack(">III", 0x8003_0002, len(reply) - 8, 1)
    with pytest.raises(zlib.error, match="Error 2"):  # the dictionary is asked for
        zlib.decompressobj().decompress(reply[12:])
    assert zlib.decompressobj(zdict=DICTIONARY).decompress(reply[12:]) == bytes(4)
    assert data_frame(3, b"hello").hex() == "000000030000000568656c6c6f"
    assert data_frame(1, b"", is_finished=True).hex() == "0000000101000000"
    assert reset_frame(3).hex() == "80030003000000080000000300000003"


def test_a_second_reply_goes_on_with_the_state_of_the_first():
    connection = SpdyConnection()
    unpack = zlib.decompressobj(zdict=DICTIONARY)
    assert [unpack.decompress(connection.reply(stream)[12:]) for stream in (1, 3)] == [bytes(4), bytes(4)]


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (struct.pack(">II", 1, MAX_FRAME + 1), "at most"),
        (struct.pack(">II", 0x8002_0001, 0), "version 2"),
        (struct.pack(">II", 0x8003_0001, 0), "ends too early"),
        (struct.pack(">III", 0x8003_0003, 0, 0)[:8], "ends too early"),
        (opening(2, {}), "stream 2 after stream 0"),
        (opening(1, {}) + opening(1, {}), "stream 1 after stream 1"),
        (opening(1, {"a": "x" * MAX_HEADERS}), "bytes of headers"),
        (struct.pack(">II", 0x8003_0001, 14) + struct.pack(">IIH", 1, 0, 0) + b"junk", "cannot be unpacked"),
    ],
)  # fmt: skip
def test_what_breaks_the_protocol_is_refused(sent, why):
    with pytest.raises(SpdyError, match=why):
        list(SpdyConnection().receive(sent))


def test_headers_that_promise_more_than_there_is_are_refused():
    block = struct.pack(">II", 2**31 - 1, 2**31 - 1) + b"ab"
    pack = zlib.compressobj(zdict=DICTIONARY)
    payload = struct.pack(">IIH", 1, 0, 0) + pack.compress(block) + pack.flush(zlib.Z_SYNC_FLUSH)
    with pytest.raises(SpdyError, match="end too early"):
        list(SpdyConnection().receive(struct.pack(">II", 0x8003_0001, len(payload)) + payload))
