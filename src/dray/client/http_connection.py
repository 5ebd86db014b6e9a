"""HTTP/1.1 as far as an API server speaks it: one connection, one request at a time.

Why not a general client: a scheduler sends three small requests a pod and reads six
watch events, and a general client spends most of a millisecond on each request in
layers that nobody here needs (cookies, redirects, compression). This one costs a
fifth of it (docs/client.md has the figures) and is still only a state machine:

    idle ── send ──▶ head ──▶ body ──▶ idle          (or closed, when either side says so)

The parser is llhttp (`dray.http1`); the body is counted, chunked, or lasts until the end of
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

import httptools

from dray.client.endpoint import Proxy
from dray.client.errors import TransportError
from dray.http1 import Headers, MessageReader

MOST_HEAD = 256 << 10  # bytes of status line and headers
MOST_HEADERS = 1000
MOST_BODY = 1 << 30  # bytes of a successful answer; 500 objects of 2 MiB fit
MOST_ERROR_BODY = 4 << 20  # bytes of an error's body that are read
MOST_INTERIM = 16  # answers 1xx before the real one
_MOST_FRAMING = 4096  # bytes without a byte of the body: sizes of chunks, extensions, trailers

_PAUSE_ABOVE = 8 << 20  # bytes of a stream that nobody has read yet
_NO_BODY = (204, 304)
_HANDSHAKE_GRACE = 0.5  # seconds
_CONNECT_SECONDS = 30.0
_KEEPALIVE = (
    ("TCP_KEEPIDLE", 30),
    ("TCP_KEEPINTVL", 10),
    ("TCP_KEEPCNT", 6),
)  # a dead peer is noticed in 90 s


class ConnectionLost(TransportError):
    """The other side went away before the answer began; the request may be sent anew if harmless."""


class Connection(MessageReader, asyncio.Protocol):
    """One kept-alive connection; the `on_…` methods are called by the parser while it is fed."""

    def __init__(self, most_body: int = MOST_BODY) -> None:
        super().__init__(MOST_HEADERS)
        self.is_closed = False
        self.idle_since = 0.0
        self._most_body = most_body
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._state = "idle"
        self._status = 0
        self._headers: Headers = {}
        self._received = 0  # bytes of the body so far
        self._framing = 0  # bytes since the last one of the body
        self._interim = 0  # answers 1xx so far
        self._is_complete = False  # the answer has ended; seen while more bytes may be at hand
        self._is_stream = False
        self._keep = True  # whether the connection may be used again
        self._ends_with_connection = False
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
        self._received = self._framing = self._interim = self.n_headers = 0
        self._is_complete, self.headers = False, {}
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
        """Return whether another request may follow."""
        return not self.is_closed and self._keep and self._state == "idle"

    # --- what the event loop tells us ------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the way out."""
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]  # uvloop's class is not a subclass
        _keep_alive(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """End whatever was under way."""
        self.is_closed = True
        answer = self._answer
        if self._state == "body" and self._ends_with_connection:
            self._finish()  # a body without length ends with the connection
        elif answer is not None and not answer.done():
            has_begun = self._state != "head" or self._framing > 0
            kind = TransportError if has_begun else ConnectionLost
            answer.set_exception(kind(f"the connection was lost: {exc or 'closed by the server'}"))
        elif self._is_stream and self._state == "body":
            self._stream_error = f"the stream was cut off: {exc or 'closed by the server'}"
            self._end_stream()

    def data_received(self, data: bytes) -> None:
        """Take in what has arrived."""
        if self._state in ("idle", "ended"):
            self._fail("the server sent more than was asked for")
            return
        before = (self._state, self._received)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            # A ValueError of a callback is the context of the parser's error.
            self._fail(f"the answer is not HTTP as expected: {error.__context__ or error}")
            return
        if self._is_complete:
            self._finish()
            return
        self._framing = self._framing + len(data) if before == (self._state, self._received) else 0
        if self._state == "head" and self._framing >= MOST_HEAD:
            self._fail(f"the answer is not HTTP as expected: its headers are longer than {MOST_HEAD} bytes")
        elif self._state == "body" and self._framing >= _MOST_FRAMING:
            self._fail(f"the answer is not HTTP as expected: {_MOST_FRAMING} bytes between two chunks")

    # --- what the parser tells us ------------------------------------------------

    def on_message_begin(self) -> None:
        """An answer begins: the only one, or the one after an interim one."""
        if self._is_complete:
            raise ValueError("more bytes than announced")

    def on_headers_complete(self) -> None:
        """Decide how the body is read."""
        status, headers = self._parser.get_status_code(), self.headers
        if self._parser.get_http_version() not in ("1.0", "1.1"):
            raise ValueError(f"its version is {self._parser.get_http_version()}")
        if status < 200:  # an interim answer: the real one follows
            self.headers = {}
            self._interim += 1
            if self._interim > MOST_INTERIM:
                raise ValueError(f"more than {MOST_INTERIM} interim answers")
            return
        self._state, self._status = "body", status
        self._headers, self.headers = headers, {}  # trailers, if any, are not mixed with headers
        self._keep = self._parser.should_keep_alive()
        has_body = status not in _NO_BODY
        self._ends_with_connection = has_body and not {"content-length", "transfer-encoding"} & headers.keys()
        if has_body and headers.get("content-encoding", "identity").lower() not in ("identity", ""):
            raise ValueError(
                f"it is compressed ({headers['content-encoding'][:40]}), which was not asked for"
            )
        # A refused watch is an ordinary answer with an ordinary body.
        self._is_stream = self._is_stream and status < 300
        if self._is_stream and self._answer is not None and not self._answer.done():
            self._answer.set_result((status, headers, b""))
        if not self._is_stream and status < 300 and int(headers.get("content-length", 0)) > self._most_body:
            raise ValueError(self._too_long())

    def on_body(self, piece: bytes) -> None:
        """Hand out a piece of a stream, or keep one of an answer."""
        self._received += len(piece)
        if not self._is_stream:
            self._parts.append(piece)
            if self._status >= 300 and self._received > MOST_ERROR_BODY:
                self._keep, self._is_complete = False, True  # the rest is never read
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

    def on_message_complete(self) -> None:
        """The answer has ended, unless it was an interim one."""
        self._is_complete = self._state == "body"

    # --- ending ------------------------------------------------------------------

    def _too_long(self) -> str:
        return f"its body is longer than {self._most_body} bytes"

    def _finish(self) -> None:
        if self._is_stream:
            self._end_stream()
            return
        self._state = "idle"
        if not self._keep:
            self.close()
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


async def open_unix_connection(path: str, *, most_body: int = MOST_BODY) -> Connection:
    """Connect to a Unix socket; raises TransportError when nobody answers."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            made = await loop.create_unix_connection(lambda: Connection(most_body), path)
    except (OSError, TimeoutError) as error:
        raise TransportError(f"cannot connect to {path}: {error or type(error).__name__}") from error
    return made[1]


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
