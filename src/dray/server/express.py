"""The quick lane of the front: plain requests, read and answered without a framework.

Nearly all requests to an API server look alike: HTTP/1.1, a head that comes in one
piece, a body whose length is told. They are handled here, because for them a framework
costs more than the answer. Everything else (a head in pieces, chunked bodies, upgrades,
`Expect`, HTTP/1.0, other methods, anything that is not plainly right) is *diverted*: the
connection, with the bytes at hand, goes to the framework, which knows all of HTTP and has an
answer for nonsense. A connection is diverted only between two requests and stays diverted, so
no request is seen by both lanes.

Invariants (tests/unit/server/test_express.py):
  * one request of a connection is answered at a time, in the order of arrival;
  * what is read ahead is bounded, and so is the time for a body;
  * when the client goes, the work for it is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import AsyncIterator, Callable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol, cast
from urllib.parse import parse_qsl, unquote

from dray.server import errors
from dray.server.requests import Request, Response

HEAD_LIMIT = 16 * 1024  # longer heads are diverted
READ_AHEAD = 64 * 1024  # bytes of later requests that are kept while one is answered
METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})
# Heads that ask for something special are for the framework.
SPECIAL = frozenset({"transfer-encoding", "upgrade", "expect", "content-encoding", "te", "trailer"})

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_END_OF_HEAD = b"\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"
_REASONS = {each.value: each.phrase for each in HTTPStatus}
_BODILESS = (204, 304)

log = logging.getLogger("dray.server")


class Handler(Protocol):
    """Whoever answers requests: ApiServer, or a fake in tests."""

    async def handle(self, request: Request) -> Response:
        """Answer one request; never raises for what a client sent."""


class Head:
    """The head of a request that the quick lane understands."""

    __slots__ = ("headers", "is_last", "length", "method", "target")

    def __init__(self, method: str, target: str, headers: dict[str, str], length: int) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.length = length
        self.is_last = headers.get("connection", "").lower() == "close"


def read_head(data: bytes) -> Head | None:
    r"""Take a head apart; None for all that is not plain.

    >>> read_head(b"GET /api HTTP/1.1\r\nHost: x").target
    '/api'
    >>> read_head(b"GET /api HTTP/1.1\r\nHost: x\r\nUpgrade: websocket") is None
    True
    """
    if not data.isascii():
        return None
    lines = data.decode("ascii").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or words[0] not in METHODS or words[2] != "HTTP/1.1" or words[1][:1] != "/":
        return None
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or _NAME.fullmatch(name) is None or not value.isprintable():
            return None
        name, value = name.lower(), value.strip(" ")
        if name in headers:
            if name in ("content-length", "host"):
                return None
            value = f"{headers[name]}, {value}"
        headers[name] = value
    if "host" not in headers or not words[1].isprintable() or not SPECIAL.isdisjoint(headers):
        return None
    if headers.get("connection", "keep-alive").lower() not in ("keep-alive", "close"):
        return None
    length = headers.get("content-length", "0")
    if not (length.isdigit() and len(length) < 10):
        return None
    return Head(words[0], words[1], headers, int(length))


class Express(asyncio.Protocol):
    """One connection in the quick lane."""

    def __init__(
        self,
        handler: Handler,
        divert: Callable[[], asyncio.Protocol],
        connections: set[Express],
        *,
        body_limit: int,
        body_timeout: float,
        idle_timeout: float,
    ) -> None:
        self._handler = handler
        self._divert_to = divert
        self._connections = connections
        self._body_limit, self._body_timeout, self._idle_timeout = body_limit, body_timeout, idle_timeout
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._head: Head | None = None  # of a request whose body is not all here
        self._body_timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._is_reading_paused = False
        self._active_at = 0.0
        self._remote, self._certificate = "", None
        self._drained: asyncio.Future[None] | None = None  # set while the client reads too slowly
        self.task: asyncio.Task[None] | None = None  # the answer under way

    # --- the connection -------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; what TLS knows of the client holds for all its requests."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not of that class
        self._connections.add(self)
        peer = transport.get_extra_info("peername")
        self._remote = str(peer[0]) if peer else ""
        secure = transport.get_extra_info("ssl_object")
        self._certificate = secure.getpeercert(True) if secure is not None else None
        self._active_at = self._loop.time()
        self._idle_timer = self._loop.call_later(self._idle_timeout, self._close_if_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client went away: so does the work for it."""
        self._forget()
        if self.task is not None:
            self.task.cancel()
        if self._drained is not None and not self._drained.done():
            self._drained.set_exception(ConnectionResetError("the client is gone"))
            self._drained.exception()  # perhaps nobody waits for it

    def _forget(self) -> None:
        self._connections.discard(self)
        self._transport = None
        for timer in (self._body_timer, self._idle_timer):
            if timer is not None:
                timer.cancel()

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()

    def _close_if_idle(self) -> None:
        idle_since = self._loop.time() - self._active_at
        if self.task is None and self._head is None and idle_since >= self._idle_timeout:
            self.close()
            return
        self._idle_timer = self._loop.call_later(
            max(self._idle_timeout - idle_since, 1.0), self._close_if_idle
        )

    def pause_writing(self) -> None:
        """The client does not keep up."""
        self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        """The client has caught up."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None

    # --- reading ----------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Collect bytes; whole requests are answered at once."""
        self._buffer = self._buffer + data if self._buffer else data
        if self.task is None:
            self._advance()
        elif len(self._buffer) > READ_AHEAD and self._transport is not None and not self._is_reading_paused:
            self._is_reading_paused = True
            self._transport.pause_reading()

    def _advance(self) -> None:
        """Begin the next request if it is all here."""
        if self._head is None:
            if not self._buffer:
                return
            end = self._buffer.find(_END_OF_HEAD, 0, HEAD_LIMIT)
            head = read_head(self._buffer[:end]) if end > 0 else None
            if head is None or head.length > self._body_limit:
                self._divert(self._buffer)
                return
            self._head, start = head, end + len(_END_OF_HEAD)
            if len(self._buffer) < start + head.length:
                self._body_timer = self._loop.call_later(self._body_timeout, self._body_is_late)
        else:
            head = self._head
            start = self._buffer.index(_END_OF_HEAD) + len(_END_OF_HEAD)
        size = start + head.length
        if len(self._buffer) < size:
            return
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None
        self._head = None
        raw, self._buffer = self._buffer[:size], self._buffer[size:]
        self.task = self._loop.create_task(self._answer(head, raw, start))

    def _divert(self, data: bytes) -> None:
        """Hand the connection over to the framework."""
        transport = self._transport
        assert transport is not None
        self._forget()
        protocol = self._divert_to()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        self._resume_reading(transport)
        protocol.data_received(data)

    def _body_is_late(self) -> None:
        self._body_timer = None
        problem = errors.bad_request("the request body did not arrive in time")
        self._write_whole(problem.response(), is_last=True)
        self.close()

    # --- answering ----------------------------------------------------------------

    async def _answer(self, head: Head, raw: bytes, start: int) -> None:
        try:
            response = await self._response(head, raw[start:])
            if response.tunnel is not None:
                # Only the framework can carry a tunnel, and say what is wrong if this is none.
                self.task = None
                self._divert(raw + self._buffer)
                return
            if isinstance(response.body, bytes):
                self._write_whole(response, is_last=head.is_last)
            else:
                await self._write_stream(response, response.body, is_last=head.is_last)
        except (ConnectionError, asyncio.CancelledError):
            self.close()
            return
        self.task = None
        self._active_at = self._loop.time()
        if self._transport is None:
            return
        if head.is_last:
            self.close()
            return
        self._resume_reading(self._transport)
        self._advance()

    def _resume_reading(self, transport: asyncio.Transport) -> None:
        if self._is_reading_paused:
            self._is_reading_paused = False
            transport.resume_reading()

    async def _response(self, head: Head, body: bytes) -> Response:
        path, _, query = head.target.partition("?")
        request = Request(
            method=head.method,
            path=unquote(path) if "%" in path else path,
            query=tuple(parse_qsl(query, keep_blank_values=True)) if query else (),
            headers=head.headers,
            body=body,
            client_certificate=self._certificate,
            remote=self._remote,
        )
        try:
            return await self._handler.handle(request)
        except errors.ApiError as problem:
            return problem.response()
        except Exception:
            log.exception("%s %s failed", head.method, path)
            return errors.internal("the request could not be handled; the server's log says why").response()

    def _write_whole(self, response: Response, *, is_last: bool) -> None:
        body = response.body
        assert isinstance(body, bytes)
        if response.status in _BODILESS:
            self._write(_spell_head(response, "", is_last))
        else:
            self._write(_spell_head(response, f"Content-Length: {len(body)}\r\n", is_last) + body)

    def _write(self, data: bytes) -> None:
        if self._transport is None:
            raise ConnectionResetError("the client is gone")
        self._transport.write(data)

    async def _write_stream(self, response: Response, pieces: AsyncIterator[bytes], *, is_last: bool) -> None:
        try:
            self._write(_spell_head(response, "Transfer-Encoding: chunked\r\n", is_last))
            async for piece in pieces:
                if piece:
                    self._write(b"%x\r\n%b\r\n" % (len(piece), piece))
                if self._drained is not None:
                    await self._drained
            self._write(_LAST_CHUNK)
        finally:
            with contextlib.suppress(Exception):
                await pieces.aclose()  # type: ignore[attr-defined]


def _spell_head(response: Response, framing: str, is_last: bool) -> bytes:
    status = response.status
    text = (
        f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}\r\nContent-Type: {response.content_type}\r\n"
        f"{framing}Date: {_date(int(time.time()))}\r\n"
    )
    for name, value in response.headers:
        if "\r" in value or "\n" in value:
            raise ValueError(f"header {name} has a line break")
        text += f"{name}: {value}\r\n"
    if is_last:
        text += "Connection: close\r\n"
    return (text + "\r\n").encode("utf-8", "surrogateescape")


@lru_cache(maxsize=1)  # most answers share their second
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)
