"""The fast path of the front: plain requests, read and answered without a framework.

Nearly all requests to an API server look alike: HTTP/1.1, a head that comes in one
piece or a few, a body whose length is told. They are handled here, because for them a framework
costs more than the answer. Everything else (very long heads, chunked bodies, upgrades,
`Expect`, HTTP/1.0, other methods, anything that is not plainly right) is *diverted*: the
connection, with the bytes at hand, goes to the framework, which knows all of HTTP and has an
answer for nonsense. A connection is diverted only between two requests and stays diverted, so
no request is seen by both lanes.

The request is handled as soon as its head is here: the server decides from the head who asks
and whether they may, and only then asks for the body (`_Body`). Answers go out in pieces, the
next one when the client has read most of the last one, so a client that does not read costs one piece.

Invariants (tests/unit/server/test_fast_http.py):
  * one request of a connection is answered at a time, in the order of arrival;
  * what is read ahead and what waits to be sent is bounded, and so is every wait for the client;
  * a body that the server does not ask for is not kept;
  * when the client goes, the work for it is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol, cast
from urllib.parse import parse_qsl, unquote

import httptools

from dray.host.sockets import peer_uid
from dray.http1 import MessageReader
from dray.server.http.connection_limits import BodyBudget, Connection, Connections
from dray.server.requests import Request, Response, TimeSlice, errors

HEAD_LIMIT = 16 * 1024  # longer heads are diverted
HEADER_COUNT = 128  # heads with more lines are diverted; the framework refuses them
READ_AHEAD = 64 * 1024  # bytes that are kept of what nobody asked for yet: later requests, a body
WRITE_BUFFER = 64 * 1024  # bytes that wait in memory for a client to read them; larger answers go in pieces
SHORT_LINGER = 0.05  # the same for a client without credentials
TLS_READ_AHEAD = 32 * 1024  # bytes that TLS takes from the kernel while reading is paused
LINGER = 1.0  # seconds in which a client that still sends can read its answer before the connection ends
METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})
# Heads that ask for something special are for the framework.
SPECIAL = frozenset({"transfer-encoding", "upgrade", "expect", "content-encoding", "te", "trailer"})

_END_OF_HEAD = b"\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"
_REASONS = {each.value: each.phrase for each in HTTPStatus}
_BODILESS = (204, 304)

log = logging.getLogger("dray.server")


@dataclass(frozen=True, slots=True)
class Times:
    """How many seconds a client may let the server wait."""

    head: float = 32.0  # for the head of a request, and for the first one; kube-apiserver's ReadHeaderTimeout
    body: float = 60.0  # for a whole body
    write: float = 30.0  # for an answer to be read far enough to send more of it
    idle: float = 120.0  # between two requests
    linger: float = 5.0  # for an answer to be read that is the last one


class Diverted(Connection, Protocol):
    """What the framework makes of a connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""

    def data_received(self, data: bytes) -> None:
        """Take bytes."""


class Handler(Protocol):
    """Whoever answers requests: ApiServer, or a fake in tests."""

    async def handle(self, request: Request) -> Response:
        """Answer one request; never raises for what a client sent."""


class Head(MessageReader):
    """The head of a request that the fast path understands."""

    def __init__(self, method: str, target: str) -> None:
        super().__init__(HEADER_COUNT)
        self.method = method
        self.target = target

    @property
    def length(self) -> int:
        """Return how many bytes the body has."""
        return int(self.headers.get("content-length", "0"))

    @property
    def is_last(self) -> bool:
        """Return whether the client wants the connection closed after the answer."""
        return self.headers.get("connection", "").lower() == "close"

    @property
    def is_plain(self) -> bool:
        """Return whether no header asks for something that is for the framework."""
        headers = self.headers
        return (
            "host" in headers
            and SPECIAL.isdisjoint(headers)
            and headers.get("connection", "keep-alive").lower() in ("keep-alive", "close")
            and len(headers.get("content-length", "")) < 10
        )


def read_head(data: bytes) -> Head | None:
    r"""Take a head apart; None for all that is not plain.

    >>> read_head(b"GET /api HTTP/1.1\r\nHost: x").target
    '/api'
    >>> read_head(b"GET /api HTTP/1.1\r\nHost: x\r\nUpgrade: websocket") is None
    True
    """
    if not data.isascii():
        return None
    words = data.partition(b"\r\n")[0].decode("ascii").split(" ")
    if len(words) != 3 or words[0] not in METHODS or words[2] != "HTTP/1.1" or words[1][:1] != "/":
        return None
    head = Head(words[0], words[1])
    try:
        httptools.HttpRequestParser(head).feed_data(data + _END_OF_HEAD)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return None
    return head if head.is_plain else None


class _Body:
    """The body of one request while it arrives; a `BodySource`.

    Nothing of it is kept beyond what may be read ahead until the server asks for it.
    Then it is collected, as far as all bodies together may take memory. What the
    server does not want is thrown away as it comes.
    """

    def __init__(self, connection: FastConnection, length: int, limit: int, budget: BodyBudget) -> None:
        self._connection = connection
        self._length = length
        self._limit = limit
        self._budget = budget
        self._pieces: list[bytes] = []
        self._received = 0
        self._charged = 0  # bytes taken from the budget
        self._is_discarded = False
        self._whole: asyncio.Future[None] | None = None  # set once the server wants it

    @property
    def missing(self) -> int:
        """Return how many bytes have not arrived."""
        return self._length - self._received

    @property
    def kept(self) -> bytes:
        """Return what is in memory."""
        return b"".join(self._pieces)

    def feed(self, data: bytes) -> bytes:
        """Take what belongs to this body and return the rest."""
        taken, rest = (
            (data, b"") if len(data) <= self.missing else (data[: self.missing], data[self.missing :])
        )
        self._received += len(taken)
        if self._is_discarded:
            return rest
        self._pieces.append(taken)
        if self._whole is None:
            if self._received > READ_AHEAD and self.missing:
                self._connection.pause_reading()
            return rest
        try:
            self._charge(len(taken))
        except errors.ApiError as problem:
            self.fail(problem)
            return rest
        if not self.missing and not self._whole.done():
            self._whole.set_result(None)
        return rest

    async def read(self) -> bytes:
        """Collect the whole body; raises 413, 429 and 400."""
        if self._length > self._limit:
            raise errors.too_large(f"Request entity too large: limit is {self._limit}")
        self._whole = asyncio.get_running_loop().create_future()
        self._charge(self._received)
        if self.missing:
            self._connection.resume_reading()
            await self._whole
        return self.kept

    def fail(self, problem: Exception) -> None:
        """Give up on the body: whoever waits for it gets the problem."""
        if self._whole is not None and not self._whole.done():
            self._whole.set_exception(problem)
        self.discard()

    def discard(self) -> None:
        """Drop the body received so far and all that is still to come; idempotent."""
        self._is_discarded = True
        self._pieces.clear()
        self._budget.give_back(self._charged)
        self._charged = 0

    def _charge(self, count: int) -> None:
        self._budget.take(count)
        self._charged += count


class FastConnection(asyncio.Protocol):
    """One connection in the fast path."""

    def __init__(
        self,
        handler: Handler,
        divert: Callable[[], Diverted],
        connections: Connections,
        times: Times,
        body_limit: int,
    ) -> None:
        self._handler = handler
        self._divert_to = divert
        self._connections = connections
        self._times = times
        self._body_limit = body_limit
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._body: _Body | None = (
            None  # of the request that is being answered, while bytes of it are missing
        )
        self._ticks = 0  # since the last progress of whatever is waited for
        self._n_requests = 0
        self._is_reading_paused = False
        self._is_closing = False  # answered for the last time; only what is on its way is still read
        self._remote, self._certificate = "", None
        self._peer_uid: int | None = None
        self._drained: asyncio.Future[None] | None = None  # set while the client reads too slowly
        self.task: asyncio.Task[None] | None = None  # the answer under way

    # --- the connection -------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; what TLS knows of the client holds for all its requests."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not of that class
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER)
        limit_reading = getattr(transport, "set_read_buffer_limits", None)  # TLS keeps what it reads ahead
        if limit_reading is not None:
            limit_reading(high=TLS_READ_AHEAD)
        peer = transport.get_extra_info("peername")
        self._remote = str(peer[0]) if peer else ""
        secure = transport.get_extra_info("ssl_object")
        self._certificate = secure.getpeercert(True) if secure is not None else None
        self._peer_uid = peer_uid(transport)
        is_identified = self._certificate is not None or self._peer_uid is not None
        self._connections.add(self, self._remote, is_identified=is_identified, uid=self._peer_uid)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client went away: so does the work for it."""
        self._forget()
        if self.task is not None:
            self.task.cancel()
        if self._body is not None:
            self._body.fail(ConnectionResetError("the client is gone"))
        if self._drained is not None and not self._drained.done():
            self._drained.set_exception(ConnectionResetError("the client is gone"))
            self._drained.exception()  # perhaps nobody waits for it

    def _forget(self) -> None:
        self._connections.remove(self)
        self._transport = None

    def close(self) -> None:
        """Hang up once everything is sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Hang up at once; what was not sent is lost."""
        if self._transport is not None:
            self._transport.abort()

    def tick(self) -> None:
        """Notice that a second has passed, and that a client lets us wait too long."""
        self._ticks += 1
        times, ticks = self._times, self._ticks
        if self._is_closing:
            if ticks > times.linger:
                self.abort()
        elif self._drained is not None:
            if ticks > times.write:
                log.info("%s does not read its answer; closing the connection", self._remote)
                self.abort()
        elif self._body is not None and self._body.missing:
            if ticks > times.body:
                self._body.fail(errors.bad_request("the request body did not arrive in time"))
        elif self.task is None:
            if self._buffer and ticks > times.head:
                self._end_with(
                    errors.ApiError(408, "Timeout", "the head of the request did not arrive in time")
                )
            elif not self._buffer and ticks > (times.idle if self._n_requests else times.head):
                self.close()

    def pause_writing(self) -> None:
        """The client does not keep up."""
        self._drained = self._loop.create_future()
        self._ticks = 0

    def resume_writing(self) -> None:
        """The client has caught up."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None

    # --- reading ----------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Take bytes: of the body under way, or of the next requests."""
        if self._body is not None:
            data = self._body.feed(data)
            if self._body.missing:
                return
            if self.task is None:  # the rest of a body that nobody wanted: the next request may begin
                self._body = None
                self._ticks = 0
        if self._is_closing:
            return
        self._buffer = self._buffer + data if self._buffer else data
        if self.task is None:
            self._advance()
        elif len(self._buffer) > READ_AHEAD:
            self.pause_reading()

    def pause_reading(self) -> None:
        """Let the kernel, and then the client, keep what comes next."""
        if self._transport is not None and not self._is_reading_paused:
            self._is_reading_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        if self._transport is not None and self._is_reading_paused:
            self._is_reading_paused = False
            self._transport.resume_reading()

    def _advance(self) -> None:
        """Begin the next request if its head is all here."""
        if not self._buffer:
            return
        end = self._buffer.find(_END_OF_HEAD, 0, HEAD_LIMIT)
        if end < 0 and len(self._buffer) < HEAD_LIMIT:
            return  # the rest of the head has some seconds to come
        head = read_head(self._buffer[:end]) if end > 0 else None
        if head is None:
            self._divert(self._buffer)
            return
        start = end + len(_END_OF_HEAD)
        size = start + head.length
        self._ticks = 0
        self._n_requests += 1
        raw, self._buffer = self._buffer[:size], self._buffer[size:]
        if len(raw) < size or head.length > self._body_limit:
            self._body = _Body(self, head.length, self._body_limit, self._connections.bodies)
            self._body.feed(raw[start:])
            self.task = self._loop.create_task(self._answer(head, raw[:start], b""))
        else:
            self.task = self._loop.create_task(self._answer(head, raw, raw[start:]))

    def _divert(self, data: bytes) -> None:
        """Hand the connection over to the framework."""
        transport = self._transport
        assert transport is not None
        protocol = self._divert_to()
        self.resume_reading()
        self._connections.replace(self, protocol)
        self._transport = None
        transport.set_protocol(cast(asyncio.Protocol, protocol))
        protocol.connection_made(transport)
        protocol.data_received(data)

    # --- answering ----------------------------------------------------------------

    async def _answer(self, head: Head, raw: bytes, body: bytes) -> None:
        """Answer one request; `raw` is what was read of it, for the framework if that is to answer."""
        arriving = self._body
        try:
            response = await self._response(head, body)
            if response.tunnel is not None:
                # Only the framework can carry a tunnel, and say what is wrong if this is none.
                self.task = self._body = None
                self._divert(raw + (arriving.kept if arriving is not None else b"") + self._buffer)
                return
            # Most of a large body that nobody wanted is still to come: not worth waiting for.
            is_last = head.is_last or (arriving is not None and arriving.missing > READ_AHEAD)
            await self._write_response(response, is_last=is_last)
        except (ConnectionError, asyncio.CancelledError):
            self.close()
            return
        finally:
            if arriving is not None:
                arriving.discard()
        self.task = None
        self._ticks = 0
        if self._transport is None:
            return
        if arriving is None or not arriving.missing:
            self._body = None
        if not is_last:
            self.resume_reading()
            if self._body is None:
                self._advance()
        elif self._body is None:
            self.close()
        elif not self._connections.is_identified(self):
            # A large body of an unknown sender is not waited for. The answer is on its way already.
            self.pause_reading()
            self._is_closing = True
            self._loop.call_later(SHORT_LINGER, self.abort)
        else:
            # Closing while the client still sends may make it lose the answer, so wait a little.
            self.resume_reading()
            self._is_closing = True
            self._loop.call_later(LINGER, self.close)

    async def _response(self, head: Head, body: bytes) -> Response:
        path, _, query = head.target.partition("?")
        request = Request(
            method=head.method,
            path=unquote(path) if "%" in path else path,
            query=tuple(parse_qsl(query, keep_blank_values=True)) if query else (),
            headers=head.headers,
            body=body,
            client_certificate=self._certificate,
            peer_uid=self._peer_uid,
            remote=self._remote,
            pending_body=self._body,
        )
        try:
            response = await self._handler.handle(request)
        except errors.ApiError as problem:
            response = problem.response()
        except Exception:
            log.exception("%s %s failed", head.method, path)
            return errors.internal("the request could not be handled; the server's log says why").response()
        if request.is_identified:
            self._connections.identify(self)
        return response

    def _end_with(self, problem: errors.ApiError) -> None:
        response = problem.response()
        assert isinstance(response.body, bytes)
        self._is_closing = True
        with contextlib.suppress(ConnectionError):
            self._write(
                _format_head(response, f"Content-Length: {len(response.body)}\r\n", True) + response.body
            )
        self.close()

    async def _write_response(self, response: Response, *, is_last: bool) -> None:
        body = response.body
        if not isinstance(body, bytes):
            await self._write_stream(response, body, is_last=is_last)
        elif response.status in _BODILESS:
            self._write(_format_head(response, "", is_last))
        else:
            head = _format_head(response, f"Content-Length: {len(body)}\r\n", is_last)
            if len(body) <= WRITE_BUFFER:
                self._write(head + body)
                return
            self._write(head)
            await self._write_in_pieces(body, TimeSlice())

    def _write(self, data: bytes | memoryview) -> None:
        if self._transport is None:
            raise ConnectionResetError("the client is gone")
        self._transport.write(data)

    async def _write_in_pieces(self, data: bytes, turn: TimeSlice) -> None:
        for part in parts_to_write(data):
            await self._write_piece(part, turn)

    async def _write_piece(self, data: bytes | memoryview, turn: TimeSlice) -> None:
        """Send some bytes; returns when there is room for more."""
        self._write(data)
        if self._drained is not None:
            await self._drained
            self._ticks = 0
        else:
            await turn.check()

    async def _write_stream(self, response: Response, pieces: AsyncIterator[bytes], *, is_last: bool) -> None:
        length, turn = response.length, TimeSlice()
        framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        try:
            self._write(_format_head(response, f"{framing}\r\n", is_last))
            async for piece in pieces:
                if not piece:
                    continue
                if length is not None:
                    await self._write_in_pieces(piece, turn)
                elif len(piece) <= WRITE_BUFFER:
                    await self._write_piece(b"%x\r\n%b\r\n" % (len(piece), piece), turn)
                else:
                    self._write(b"%x\r\n" % len(piece))
                    await self._write_in_pieces(piece, turn)
                    self._write(b"\r\n")
            if length is None:
                self._write(_LAST_CHUNK)
        finally:
            with contextlib.suppress(Exception):
                await pieces.aclose()  # type: ignore[attr-defined]


def parts_to_write(data: bytes) -> Iterator[memoryview]:
    """Split what many clients may share, so that what is copied and encrypted for each is one part at a time."""
    view = memoryview(data)
    for place in range(0, len(data), WRITE_BUFFER):
        yield view[place : place + WRITE_BUFFER]


def _format_head(response: Response, framing: str, is_last: bool) -> bytes:
    status = response.status
    text = (
        f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}\r\nContent-Type: {response.content_type}\r\n"
        f"{framing}Date: {_date(int(time.time()))}\r\n"
    )
    for name, value in response.wire_headers():
        if "\r" in value or "\n" in value:
            raise ValueError(f"header {name} has a line break")
        text += f"{name}: {value}\r\n"
    if is_last:
        text += "Connection: close\r\n"
    return (text + "\r\n").encode("utf-8", "surrogateescape")


@lru_cache(maxsize=1)  # most answers share their second
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)
