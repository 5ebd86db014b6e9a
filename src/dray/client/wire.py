"""HTTP/1.1 as far as an API server speaks it: one connection, one request at a time.

Why not a general client: a scheduler sends three small requests a pod and reads six
watch events, and a general client spends most of a millisecond on each request in
layers that nobody here needs (cookies, redirects, proxies, compression). This one costs a
fifth of it (docs/client.md has the figures) and is still only a state machine:

    idle ── send ──▶ head ──▶ body ──▶ idle          (or closed, when either side says so)

The head ends at an empty line; the body is counted, chunked, or lasts until the end of
the connection. A streamed body is handed out in pieces while it arrives; when the reader is
slow, reading from the socket pauses.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator

from dray.client.errors import TransportError

Headers = dict[str, str]  # names in lower case

_PAUSE_ABOVE = 8 << 20  # bytes of a stream that nobody has read yet
_NO_BODY = (204, 304)
_HANDSHAKE_GRACE = 0.5  # seconds


class ConnectionLost(TransportError):
    """The other side went away before the answer began; the request may be sent anew if harmless."""


class Connection(asyncio.Protocol):
    """One kept-alive connection."""

    def __init__(self) -> None:
        self.is_closed = False
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
        self._pieces: deque[bytes] = deque()
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
                    piece = self._pieces.popleft()
                    self._waiting -= len(piece)
                    if self._is_paused and self._waiting < _PAUSE_ABOVE // 2 and self._transport is not None:
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
        if self._state == "body" and not self._is_chunked and not self._buffer:
            self._take_counted(data)
            return
        self._buffer += data
        try:
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
            self._fail(f"the answer is no HTTP: {error}")

    # --- reading ---------------------------------------------------------------

    def _read_head(self) -> None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        lines = self._buffer[:end].decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        status = int(lines[0].split(" ", 2)[1])
        if status < 200 and status != 101:
            self._read_head()  # an interim answer: the real one follows
            return
        headers: Headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        self._status, self._headers = status, headers
        self._keep = headers.get("connection", "").lower() != "close" and not lines[0].startswith("HTTP/1.0")
        self._is_chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        self._left = 0 if self._is_chunked else int(headers.get("content-length", -1))
        if status in _NO_BODY:
            self._is_chunked, self._left = False, 0
        self._state = "body"
        # A refused watch is an ordinary answer with an ordinary body.
        self._is_stream = self._is_stream and status < 300
        if self._is_stream and self._answer is not None and not self._answer.done():
            self._answer.set_result((status, headers, b""))
        if not self._is_chunked and self._left == 0:
            self._finish()

    def _take_counted(self, data: bytes) -> None:
        if self._left >= 0:
            if len(data) > self._left:
                raise ValueError("more bytes than announced")
            self._left -= len(data)
        self._deliver(data)
        if self._left == 0:
            self._finish()

    def _read_chunks(self) -> None:
        buffer, position = self._buffer, 0
        while True:
            end = buffer.find(b"\r\n", position)
            if end < 0:
                break
            size = int(buffer[position:end].split(b";", 1)[0], 16)
            start = end + 2
            if size == 0:
                # Trailers, if any, end with an empty line; API servers send none.
                if len(buffer) < start + 2:
                    break
                del buffer[:]
                self._finish()
                return
            if len(buffer) < start + size + 2:
                break
            self._deliver(bytes(buffer[start : start + size]))
            position = start + size + 2
        if position:
            del buffer[:position]

    def _deliver(self, piece: bytes) -> None:
        if not self._is_stream:
            self._parts.append(piece)
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


async def open_connection(host: str, port: int, tls: ssl.SSLContext | None) -> Connection:
    """Connect; raises TransportError when nobody answers."""
    loop = asyncio.get_running_loop()
    attempt = asyncio.ensure_future(
        loop.create_connection(
            Connection, host, port, ssl=tls, server_hostname=host if tls is not None else None
        )
    )
    try:
        async with asyncio.timeout(30):
            try:
                return (await asyncio.shield(attempt))[1]
            except asyncio.CancelledError:
                # uvloop logs a stack trace when a handshake is given up at the wrong moment, so whoever
                # goes away lets it end first; one that takes long is dropped when it does end.
                attempt.add_done_callback(_drop)
                await asyncio.wait([attempt], timeout=_HANDSHAKE_GRACE)
                raise
    except (OSError, ssl.SSLError, TimeoutError) as error:
        raise TransportError(f"cannot connect to {host}:{port}: {error or type(error).__name__}") from error


def _drop(attempt: asyncio.Task[tuple[asyncio.Transport, Connection]]) -> None:
    """Close the connection that nobody waits for any more."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result()[1].close()
