"""SPDY/3.1 frames, as far as port forwarding needs them: bytes that arrive become events, answers become bytes.

`kubectl port-forward` speaks SPDY inside a websocket: each connection to a forwarded port is a pair of streams that the
client opens. Only the server's side is here, without sockets; `port_forward` has those. There is no flow control,
since neither kubectl nor kubelet does any: the tunnel around the frames holds back who sends too much.

What a client sends is bounded before it is taken apart: `MAX_FRAME` bytes a frame, `MAX_HEADERS` bytes of headers when
unpacked (they are compressed). Anything out of order is a `SpdyError`, which ends the tunnel.

Tests: tests/unit/node/test_node_spdy.py (frames that Go's implementation wrote among them).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

MAX_FRAME = 256 * 1024  # bytes; clients send 32 KiB
MAX_HEADERS = 16 * 1024  # bytes of the headers of one stream
_CONTROL = 0x8003_0000  # the control bit and version 3, above the kind of frame
_SYN_STREAM, _SYN_REPLY, _RST_STREAM, _PING, _GOAWAY = 1, 2, 3, 6, 7
_FIN = 0x01
_HEAD = 8  # bytes before the payload of any frame
# What both sides assume to have been sent before the first headers, so that those compress well (SPDY/3, 2.6.10.1).
_NAMES = (
    "options,head,post,put,delete,trace,accept,accept-charset,accept-encoding,accept-language,accept-ranges,age,allow,"
    "authorization,cache-control,connection,content-base,content-encoding,content-language,content-length,"
    "content-location,content-md5,content-range,content-type,date,etag,expect,expires,from,host,if-match,"
    "if-modified-since,if-none-match,if-range,if-unmodified-since,last-modified,location,max-forwards,pragma,"
    "proxy-authenticate,proxy-authorization,range,referer,retry-after,server,te,trailer,transfer-encoding,upgrade,"
    "user-agent,vary,via,warning,www-authenticate,method,get,status,200 OK,version,HTTP/1.1,url,public,set-cookie,"
    "keep-alive,origin"
)
_VALUES = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden"
    "404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,"
    "publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)
DICTIONARY = (
    b"".join(struct.pack(">I", len(name)) + name.encode() for name in _NAMES.split(",")) + _VALUES.encode()
)


class SpdyError(ValueError):
    """The client broke the protocol."""


class Opened(NamedTuple):
    """The client opened a stream."""

    stream: int
    headers: dict[str, str]  # names in lower case
    is_finished: bool  # the client will send nothing on it


class Received(NamedTuple):
    """Data of a stream."""

    stream: int
    data: bytes
    is_finished: bool  # nothing follows


class Reset(NamedTuple):
    """The client gave a stream up."""

    stream: int


class Pinged(NamedTuple):
    """The client wants `answer` back."""

    answer: bytes


class Ended(NamedTuple):
    """The client opens no more streams."""


Event = Opened | Received | Reset | Pinged | Ended


class SpdyConnection:
    """The server's side of one connection. Made by one task: the state of compression depends on the order of calls."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._newest = 0
        self._unpack = zlib.decompressobj(zdict=DICTIONARY)
        self._pack = zlib.compressobj(zdict=DICTIONARY)

    def receive(self, piece: bytes) -> Iterator[Event]:
        """Yield what a piece of the client's bytes completes; raises SpdyError."""
        self._buffer += piece
        while len(self._buffer) >= _HEAD:
            first, rest = struct.unpack_from(">II", self._buffer)
            flags, length = rest >> 24, rest & 0xFF_FFFF
            if length > MAX_FRAME:
                raise SpdyError(f"a frame of {length} bytes; at most {MAX_FRAME} are taken")
            if len(self._buffer) < _HEAD + length:
                return
            payload = bytes(self._buffer[_HEAD : _HEAD + length])
            del self._buffer[: _HEAD + length]
            event = self._event(first, flags, payload)
            if event is not None:
                yield event

    def _event(self, first: int, flags: int, payload: bytes) -> Event | None:
        if not first & 0x8000_0000:
            return Received(first, payload, bool(flags & _FIN))
        if first & 0xFFFF_0000 != _CONTROL:
            raise SpdyError(f"version {first >> 16 & 0x7FFF} of SPDY; this is version 3")
        kind = first & 0xFFFF
        if kind == _SYN_STREAM:
            return self._opened(flags, payload)
        if kind == _RST_STREAM:
            return Reset(_number(payload))
        if kind == _PING:
            return Pinged(_frame(_PING, payload[:4]))
        # Settings and the like change nothing here.
        return Ended() if kind == _GOAWAY else None

    def _opened(self, flags: int, payload: bytes) -> Opened:
        stream = _number(payload)
        if stream % 2 == 0 or stream <= self._newest:
            raise SpdyError(f"stream {stream} after stream {self._newest}")
        self._newest = stream
        return Opened(stream, self._headers(payload[10:]), bool(flags & _FIN))

    def _headers(self, packed: bytes) -> dict[str, str]:
        try:
            block = self._unpack.decompress(packed, MAX_HEADERS)
        except zlib.error as problem:
            raise SpdyError(f"headers that cannot be unpacked: {problem}") from None
        if self._unpack.unconsumed_tail or len(block) == MAX_HEADERS:
            raise SpdyError(f"more than {MAX_HEADERS} bytes of headers")
        place = 4
        headers: dict[str, str] = {}
        for _ in range(_number(block)):
            name, place = _text(block, place)
            headers[name.lower()], place = _text(block, place)
        return headers

    def reply(self, stream: int) -> bytes:
        """Return the frame that accepts a stream."""
        packed = self._pack.compress(bytes(4)) + self._pack.flush(zlib.Z_SYNC_FLUSH)
        return _frame(_SYN_REPLY, struct.pack(">I", stream) + packed)


def data_frame(stream: int, data: bytes, *, is_finished: bool = False) -> bytes:
    """Return a frame of data."""
    return struct.pack(">II", stream, (_FIN if is_finished else 0) << 24 | len(data)) + data


def reset_frame(stream: int) -> bytes:
    """Return the frame that refuses a stream, or gives it up."""
    refused = 3
    return _frame(_RST_STREAM, struct.pack(">II", stream, refused))


def _frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">II", _CONTROL | kind, len(payload)) + payload


def _number(data: bytes, place: int = 0) -> int:
    if len(data) < place + 4:
        raise SpdyError("a frame that ends too early")
    (number,) = struct.unpack_from(">I", data, place)
    return int(number) & 0x7FFF_FFFF


def _text(block: bytes, place: int) -> tuple[str, int]:
    length = _number(block, place)
    end = place + 4 + length
    if end > len(block):
        raise SpdyError("headers that end too early")
    return block[place + 4 : end].decode("latin-1"), end
