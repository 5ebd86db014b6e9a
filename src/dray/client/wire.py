"""HTTP/1.1 as far as an API server speaks it: one connection, one request at a time.

Why not a general client: a scheduler sends three small requests a pod and reads six
watch events, and a general client spends most of a millisecond on each request in
layers that nobody here needs (cookies, redirects, compression). This one costs a
fifth of it (docs/client.md has the figures) and is still only a state machine:

    idle ── send ──▶ head ──▶ body ──▶ idle          (or closed, when either side says so)

The head ends at an empty line; the body is counted, chunked, or lasts until the end of
the connection. A streamed body is handed out in pieces while it arrives; when the reader is
slow, reading from the socket pauses.

A server may be hostile or broken, so everything it can make large has a bound (`MOST_…`)
that is checked before memory is taken. A successful answer over the bound fails; an
error's body is cut off, because its beginning says enough. Compressed answers are not asked for
and not accepted. Bytes that nobody asked for close the connection: taken for the beginning of
the next answer they would let a server answer a question before it is put.
Tests: tests/unit/client/test_client_hostile.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import AsyncIterator

from dray.client.endpoint import Proxy
from dray.client.errors import TransportError

Headers = dict[str, str]  # names in lower case

MOST_HEAD = 256 << 10  # bytes of status line and headers
MOST_HEADERS = 1000
MOST_BODY = 1 << 30  # bytes of a successful answer; 500 objects of 2 MiB fit
MOST_ERROR_BODY = 4 << 20  # bytes of an error's body that are read
MOST_INTERIM = 16  # answers 1xx before the real one
_MOST_SIZE_LINE = 4096  # bytes of the line before a chunk, with extensions

_PAUSE_ABOVE = 8 << 20  # bytes of a stream that nobody has read yet
_NO_BODY = (204, 304)
_HANDSHAKE_GRACE = 0.5  # seconds
_CONNECT_SECONDS = 30.0
_KEEPALIVE = (
    ("TCP_KEEPIDLE", 30),
    ("TCP_KEEPINTVL", 10),
    ("TCP_KEEPCNT", 6),
)  # a dead peer is noticed in 90 s
_SIZE = re.compile(rb"[0-9a-fA-F]{1,15}")
_LENGTH = re.compile(r"[0-9]{1,18}")
_STATUS = re.compile(r"HTTP/1\.[01] ([1-9][0-9]{2})( .*)?", re.DOTALL)


class ConnectionLost(TransportError):
    """The other side went away before the answer began; the request may be sent anew if harmless."""


class Connection(asyncio.Protocol):
    """One kept-alive connection."""

    def __init__(self, most_body: int = MOST_BODY) -> None:
        self.is_closed = False
        self._most_body = most_body
        self._received = 0  # bytes of the body so far
        self._interim = 0  # answers 1xx so far
        self._looked = 0  # bytes of the head without an end in them
        self._ends_chunk = False  # whether the line break after a chunk is still to come
        self.idle_since = 0.0
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._state = "idle"
        self._is_stream = False
        self._keep = True  # whether the connection may be used again
        self._status = 0
        self._headers: Headers = {}
        self._left = 0  # bytes of the body (or of the chunk) still to come; -1 means: until the end
        self._is_chunked = False
        self._parts: list[bytes] = []
        self._answer: asyncio.Future[tuple[int, Headers, bytes]] | None = None
        self._pieces: list[bytes] = []
        self._waiting = 0  # bytes in `_pieces`
        self._is_paused = False
        self._stream_error: str | None = None
        self._wake: asyncio.Future[None] | None = None

    # --- using it -------------------------------------------------------------

    async def exchange(self, head: bytes, body: bytes | None, *, stream: bool) -> tuple[int, Headers, bytes]:
        """Send a request; return the answer. Of a streamed one the body is read with `pieces`."""
        if self.is_closed or self._transport is None:
            raise ConnectionLost("the connection is closed")
        self._state, self._is_stream, self._keep = "head", stream, True
        self._parts, self._answer = [], self._loop.create_future()
        self._received = self._interim = 0
        self._ends_chunk = False
        self._transport.write(head + body if body else head)
        try:
            return await self._answer
        finally:
            self._answer = None
            if self._state != "idle" and not (stream and self._state in ("body", "ended")):
                self.close()  # given up half-way: what still comes would be taken for the next answer

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body of a streamed answer as it arrives; closes the connection at the end."""
        try:
            while True:
                while self._pieces:
                    # Small chunks that have come together are handed out together: that costs less.
                    piece = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
                    self._pieces.clear()
                    self._waiting = 0
                    if self._is_paused and self._transport is not None:
                        self._is_paused = False
                        self._transport.resume_reading()
                    yield piece
                if self._state == "ended":
                    if self._stream_error is not None:
                        raise TransportError(self._stream_error)
                    return
                self._wake = self._loop.create_future()
                try:
                    await self._wake
                finally:
                    self._wake = None
        finally:
            self.close()

    def close(self) -> None:
        """Drop the connection."""
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()

    @property
    def can_be_kept(self) -> bool:
        """Whether another request may follow."""
        return not self.is_closed and self._keep and self._state == "idle"

    # --- what the event loop tells us ------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the way out."""
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]  # uvloop's class is no subclass
        _keep_alive(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """End whatever was under way."""
        self.is_closed = True
        answer = self._answer
        if self._state == "body" and self._left == -1:
            self._finish()  # a body without length ends with the connection
        elif answer is not None and not answer.done():
            kind = ConnectionLost if self._state == "head" and not self._buffer else TransportError
            answer.set_exception(kind(f"the connection was lost: {exc or 'closed by the server'}"))
        elif self._is_stream and self._state == "body":
            self._stream_error = f"the stream was cut off: {exc or 'closed by the server'}"
            self._end_stream()

    def data_received(self, data: bytes) -> None:
        """Take in what has arrived."""
        try:
            if self._state == "body" and not self._is_chunked and not self._buffer:
                self._take_counted(data)
                return
            if self._state in ("idle", "ended"):
                self._fail("the server sent more than was asked for")
                return
            self._buffer += data
            if self._state == "head":
                self._read_head()
            if self._state == "body":
                if self._is_chunked:
                    self._read_chunks()
                elif self._buffer:
                    rest = bytes(self._buffer)
                    self._buffer.clear()
                    self._take_counted(rest)
        except (ValueError, IndexError) as error:
            self._fail(f"the answer is not HTTP as expected: {error}")

    # --- reading ---------------------------------------------------------------

    def _read_head(self) -> None:
        while True:
            # Where an earlier look ended: a head that comes byte by byte is looked through once.
            end = self._buffer.find(b"\r\n\r\n", max(0, self._looked - 3), MOST_HEAD)
            self._looked = len(self._buffer) if end < 0 else 0
            if end < 0:
                if len(self._buffer) >= MOST_HEAD:
                    raise ValueError(f"its headers are longer than {MOST_HEAD} bytes")
                return
            lines = self._buffer[:end].decode("latin-1").split("\r\n")
            del self._buffer[: end + 4]
            found = _STATUS.fullmatch(lines[0])
            if found is None:
                raise ValueError(f"it begins with {lines[0][:40]!r}")
            status = int(found[1])
            if status >= 200 or status == 101:
                break
            self._interim += 1  # an interim answer: the real one follows
            if self._interim > MOST_INTERIM:
                raise ValueError(f"more than {MOST_INTERIM} interim answers")
        self._begin_body(status, _headers(lines[1:]), is_old=lines[0].startswith("HTTP/1.0"))

    def _begin_body(self, status: int, headers: Headers, *, is_old: bool) -> None:
        self._status, self._headers = status, headers
        self._keep = headers.get("connection", "").lower() != "close" and not is_old
        self._is_chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        self._left = 0 if self._is_chunked else _length(headers.get("content-length"))
        if status in _NO_BODY:
            self._is_chunked, self._left = False, 0
        elif headers.get("content-encoding", "identity").lower() not in ("identity", ""):
            raise ValueError(
                f"it is compressed ({headers['content-encoding'][:40]}), which was not asked for"
            )
        self._state = "body"
        # A refused watch is an ordinary answer with an ordinary body.
        self._is_stream = self._is_stream and status < 300
        if self._is_stream and self._answer is not None and not self._answer.done():
            self._answer.set_result((status, headers, b""))
        if not self._is_stream and status < 300 and self._left > self._most_body:
            raise ValueError(self._too_long())
        if not self._is_chunked and self._left == 0:
            self._finish()

    def _too_long(self) -> str:
        return f"its body is longer than {self._most_body} bytes"

    def _take_counted(self, data: bytes) -> None:
        if self._left >= 0:
            if len(data) > self._left:
                raise ValueError("more bytes than announced")
            self._left -= len(data)
        self._deliver(data)
        if self._left == 0 and self._state == "body":
            self._finish()

    def _read_chunks(self) -> None:
        buffer, position = self._buffer, 0
        while self._state == "body":
            if self._left > 0:
                piece = bytes(buffer[position : position + self._left])
                if not piece:
                    break
                position += len(piece)
                self._left -= len(piece)
                self._ends_chunk = self._left == 0
                self._deliver(piece)
                continue
            if self._ends_chunk:
                if len(buffer) < position + 2:
                    break
                if buffer[position : position + 2] != b"\r\n":
                    raise ValueError("a chunk is longer than announced")
                position, self._ends_chunk = position + 2, False
            end = buffer.find(b"\r\n", position, position + _MOST_SIZE_LINE)
            if end < 0:
                if len(buffer) - position >= _MOST_SIZE_LINE:
                    raise ValueError("the size of a chunk is not a number")
                break
            size = bytes(buffer[position:end]).split(b";", 1)[0].strip()
            if not _SIZE.fullmatch(size):
                raise ValueError(f"the size of a chunk is {size[:20]!r}")
            self._left = int(size, 16)
            if self._left == 0:
                # Trailers, if any, end with an empty line; API servers send none.
                if len(buffer) < end + 4:
                    break
                del buffer[:]
                self._finish()
                return
            position = end + 2
        if position:
            del buffer[:position]

    def _deliver(self, piece: bytes) -> None:
        if not self._is_stream:
            self._received += len(piece)
            self._parts.append(piece)
            if self._status >= 300 and self._received > MOST_ERROR_BODY:
                self._keep = False  # the rest is never read
                self._finish()
                self.close()
            elif self._received > self._most_body and self._status < 300:
                raise ValueError(self._too_long())
            return
        self._pieces.append(piece)
        self._waiting += len(piece)
        if self._waiting > _PAUSE_ABOVE and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _finish(self) -> None:
        if self._is_stream:
            self._end_stream()
            return
        self._state = "idle"
        parts = self._parts
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        self._parts = []
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((self._status, self._headers, body))

    def _end_stream(self) -> None:
        self._state = "ended"
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _fail(self, message: str) -> None:
        self._keep = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(TransportError(message))
        if self._is_stream:
            self._stream_error = message
            self._end_stream()
        self.close()


async def open_connection(
    host: str,
    port: int,
    tls: ssl.SSLContext | None,
    *,
    server_name: str | None = None,  # in the server's certificate; None means: the host
    proxy: Proxy | None = None,  # with TLS a tunnel is asked of it; without, it gets the requests itself
    most_body: int = MOST_BODY,
) -> Connection:
    """Connect; raises TransportError when nobody answers."""
    attempt = asyncio.ensure_future(_open(host, port, tls, server_name, proxy, most_body))
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            try:
                return await asyncio.shield(attempt)
            except asyncio.CancelledError:
                # uvloop logs a stack trace when a handshake is given up at the wrong moment, so whoever
                # goes away lets it end first; one that takes long is dropped when it does end.
                attempt.add_done_callback(_drop)
                await asyncio.wait([attempt], timeout=_HANDSHAKE_GRACE)
                raise
    except (OSError, ssl.SSLError, TimeoutError, UnicodeError) as error:
        by = f" by way of the proxy {proxy}" if proxy is not None else ""
        raise TransportError(
            f"cannot connect to {host}:{port}{by}: {error or type(error).__name__}"
        ) from error


async def _open(
    host: str, port: int, tls: ssl.SSLContext | None, server_name: str | None, proxy: Proxy | None, most_body: int
) -> Connection:  # fmt: skip
    loop = asyncio.get_running_loop()
    name = (server_name or host) if tls is not None else None
    if proxy is None or tls is None:
        where = (proxy.host, proxy.port) if proxy is not None else (host, port)
        made = await loop.create_connection(
            lambda: Connection(most_body), *where, ssl=tls, server_hostname=name
        )
        return made[1]
    tunnel = await _tunnel(proxy, host, port)
    try:
        made = await loop.create_connection(
            lambda: Connection(most_body), sock=tunnel, ssl=tls, server_hostname=name
        )
    except BaseException:
        tunnel.close()
        raise
    return made[1]


async def _tunnel(proxy: Proxy, host: str, port: int) -> socket.socket:
    """Ask a proxy for a connection to a host; raise OSError when it refuses."""
    loop = asyncio.get_running_loop()
    target = f"{f'[{host}]' if ':' in host else host}:{port}"
    head = f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n"
    if proxy.authorization:
        head += f"Proxy-Authorization: {proxy.authorization}\r\n"
    found = await loop.getaddrinfo(proxy.host, proxy.port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = found[0]
    connection = socket.socket(family, kind, protocol)
    try:
        connection.setblocking(False)
        await loop.sock_connect(connection, address)
        await loop.sock_sendall(connection, f"{head}\r\n".encode("ascii"))
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            # The server speaks only after us, so nothing follows the proxy's headers yet.
            piece = await loop.sock_recv(connection, 4096)
            answer += piece
            if not piece or len(answer) > MOST_HEAD or b"\r\n\r\n" in answer[:-4]:
                raise OSError("the proxy does not answer as an HTTP proxy does")
        status = answer.split(b"\r\n", 1)[0].decode("latin-1")[:100]
        if not re.match(r"HTTP/1\.[01] 2[0-9]{2}\b", status):
            raise OSError(f"the proxy refuses: {status}")
    except BaseException:
        connection.close()
        raise
    return connection


def _headers(lines: list[str]) -> Headers:
    if len(lines) > MOST_HEADERS:
        raise ValueError(f"it has more than {MOST_HEADERS} headers")
    headers: Headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return headers


def _length(text: str | None) -> int:
    """Read Content-Length; -1 means: there is none."""
    if text is None:
        return -1
    if not _LENGTH.fullmatch(text):
        raise ValueError(f"its Content-Length is {text[:20]!r}")
    return int(text)


def _keep_alive(transport: asyncio.BaseTransport) -> None:
    """Have the kernel ask whether the peer of a quiet watch is still there."""
    found = transport.get_extra_info("socket")
    if found is None or found.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with contextlib.suppress(OSError, AttributeError, TypeError):
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _drop(attempt: asyncio.Task[Connection]) -> None:
    """Close the connection that nobody waits for any more."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()
