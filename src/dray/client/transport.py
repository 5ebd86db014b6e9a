"""The edge to the network: one method, so that real and fake servers are equals.

A `Transport` sends a `Request` and returns a `Response`. Over the network that is
`HttpTransport`; inside one process it is a server's handler; in a test it is a
wrapper that loses answers. The client cannot tell, which is the point.

A streamed response (a watch) hands out its body in pieces as they arrive and
must be closed; every other response has its whole body in `body`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from dray.client.errors import TransportError
from dray.client.wire import Connection, ConnectionLost, open_connection

JSON = "application/json"
_TOKEN_AGE = 60.0  # seconds
_KEEP_IDLE = 60.0  # seconds; API servers close idle connections after 90


@dataclass(slots=True)
class Request:
    """One HTTP request, without the parts that a transport knows itself (host, credentials)."""

    method: str
    target: str  # path and query, already quoted
    body: bytes | None = None
    content_type: str = JSON
    stream: bool = False  # hand out the body in pieces
    timeout: float | None = 60.0  # seconds until the whole answer is there; None means: no limit
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.method} {self.target.partition('?')[0]}"


@dataclass(slots=True)
class Response:
    """The answer; `pieces` is set only for streamed requests that succeeded."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    pieces: AsyncIterator[bytes] | None = None

    async def close(self) -> None:
        """Give up a streamed body; harmless otherwise."""
        if self.pieces is not None:
            aclose = getattr(self.pieces, "aclose", None)
            if aclose is not None:
                await aclose()


class Transport(Protocol):
    """Anything that answers requests."""

    async def send(self, request: Request) -> Response:
        """Answer the request; raise TransportError when there is no answer."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class HttpTransport:
    """HTTP/1.1 over a pool of kept-alive connections; watches get connections of their own."""

    def __init__(
        self,
        server: str,
        *,
        tls: ssl.SSLContext | None = None,
        headers: Mapping[str, str] | None = None,
        token_file: Path | None = None,  # a bearer token that somebody renews, as in a pod
        connections: int = 64,
        user_agent: str = "dray",
    ) -> None:
        parts = urlsplit(server)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise TransportError(f"{server!r} is no http or https address")
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/")
        self._lines = {
            "Host": parts.netloc.rpartition("@")[2],
            "User-Agent": user_agent,
            "Accept": JSON,
            **(headers or {}),
        }
        self._token_file, self._token_read = token_file, float("-inf")
        self._head = _spell_headers(self._lines)
        self._free = asyncio.Semaphore(connections)
        self._idle: list[Connection] = []
        self._streams: set[Connection] = set()
        self._is_closed = False

    async def send(self, request: Request) -> Response:
        """Send over the network."""
        head = self._spell(request)
        if request.stream:
            return await self._open_stream(request, head)
        async with self._free:
            connection, is_fresh = await self._connection()
            try:
                return await self._exchange(connection, request, head)
            except ConnectionLost as error:
                # The server closes idle connections when it likes. What can be done twice is
                # sent again on a fresh connection; the rest is for the caller to judge.
                if is_fresh or request.method not in ("GET", "PUT", "DELETE"):
                    raise TransportError(f"{request}: {error}") from error
            connection = await open_connection(self._host, self._port, self._tls)
            return await self._exchange(connection, request, head)

    async def _exchange(self, connection: Connection, request: Request, head: bytes) -> Response:
        try:
            async with asyncio.timeout(request.timeout):
                status, headers, body = await connection.exchange(head, request.body, stream=False)
        except TimeoutError:
            raise TransportError(f"{request}: no answer within {request.timeout} s") from None
        except ConnectionLost:
            raise
        except TransportError as error:
            raise TransportError(f"{request}: {error}") from error
        if connection.can_be_kept and not self._is_closed:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)
        else:
            connection.close()
        return Response(status, headers, body)

    async def _open_stream(self, request: Request, head: bytes) -> Response:
        connection = await open_connection(self._host, self._port, self._tls)
        self._streams.add(connection)
        try:
            async with asyncio.timeout(60):
                status, headers, body = await connection.exchange(head, request.body, stream=True)
        except TimeoutError:
            self._streams.discard(connection)
            connection.close()
            raise TransportError(f"{request}: no answer within 60 s") from None
        except BaseException:
            self._streams.discard(connection)
            connection.close()
            raise
        if status >= 300:
            self._streams.discard(connection)
            connection.close()
            return Response(status, headers, body)
        return Response(status, headers, pieces=self._pieces(connection))

    async def _pieces(self, connection: Connection) -> AsyncIterator[bytes]:
        try:
            async for piece in connection.pieces():
                yield piece
        finally:
            self._streams.discard(connection)
            connection.close()

    def _renew_token(self) -> None:
        """Read the token again once a minute; an unreadable file leaves the old one in place."""
        now = asyncio.get_running_loop().time()
        if self._token_file is None or now - self._token_read < _TOKEN_AGE:
            return
        self._token_read = now
        try:
            self._lines["Authorization"] = f"Bearer {self._token_file.read_text().strip()}"
        except OSError:
            return
        self._head = _spell_headers(self._lines)

    def _spell(self, request: Request) -> bytes:
        self._renew_token()
        lines = f"{request.method} {self._prefix}{request.target} HTTP/1.1\r\n{self._head}"
        for name, value in request.headers.items():
            if name in self._lines:  # what a request asks for goes before what is usual
                lines = lines.replace(f"{name}: {self._lines[name]}\r\n", "")
            lines += f"{name}: {value}\r\n"
        if request.body is not None:
            lines += f"Content-Type: {request.content_type}\r\nContent-Length: {len(request.body)}\r\n"
        return (lines + "\r\n").encode("latin-1")

    async def _connection(self) -> tuple[Connection, bool]:
        """Return a kept connection, the youngest first, or open one."""
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed and now - connection.idle_since < _KEEP_IDLE:
                return connection, False
            connection.close()
        return await open_connection(self._host, self._port, self._tls), True

    async def close(self) -> None:
        """Close all connections."""
        self._is_closed = True
        for connection in (*self._idle, *self._streams):
            connection.close()
        self._idle.clear()
        await asyncio.sleep(0)


def _spell_headers(lines: Mapping[str, str]) -> str:
    return "".join(f"{name}: {value}\r\n" for name, value in lines.items())
