"""The edge to the network: one method, so that real and fake servers are equals.

A `Transport` sends a `Request` and returns a `Response`. Over the network that is
`HttpTransport`; inside one process it is a server's handler; in a test it is a
wrapper that loses answers. The client cannot tell, which is the point.

A streamed response (a watch) hands out its body in pieces as they arrive and
must be closed; every other response has its whole body in `body`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlsplit

from dray.api.media_types import JSON_TYPE
from dray.client.change_log import ChangeLog
from dray.client.endpoint import Endpoint, Secret, socket_path
from dray.client.errors import KubeconfigError, TransportError, error_from
from dray.client.http_connection import (
    MOST_BODY,
    Connection,
    ConnectionLost,
    open_connection,
    open_unix_connection,
)

log = logging.getLogger("dray.client")

_UNAUTHORIZED = 401
_FORCE_EVERY = 5.0  # seconds between renewals because of a 401: plugins may be slow
_KEEP_IDLE = 60.0  # seconds; API servers close idle connections after 90


@dataclass(slots=True)
class Request:
    """One HTTP request, without the parts that a transport knows itself (host, credentials)."""

    method: str
    target: str  # path and query, already quoted
    body: bytes | None = None
    content_type: str = JSON_TYPE
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
        """Close connections."""
        ...


class HttpTransport:
    """HTTP/1.1 over a pool of kept-alive connections; watches get connections of their own.

    Credentials are renewed before they are used when they are due, and after a 401, with which the
    request is sent once more. A 401 that stays is one WARNING line; the caller decides whether to go on.
    Redirects are not followed: they would carry the credentials to another server.
    """

    def __init__(
        self,
        server: str | Endpoint,
        *,
        headers: Mapping[str, str] | None = None,
        connections: int = 64,
        user_agent: str = "dray",
        most_body: int = MOST_BODY,
    ) -> None:
        self._endpoint = endpoint = server if isinstance(server, Endpoint) else Endpoint(server)
        self._socket = socket_path(endpoint.server)
        parts = urlsplit(endpoint.server if self._socket is None else "http://localhost")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise TransportError(f"{endpoint.server!r} is not an http, https or unix address")
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._is_tls = parts.scheme == "https"
        self._prefix = parts.path.rstrip("/")
        self._lines = {
            "Host": parts.netloc.rpartition("@")[2],
            "User-Agent": user_agent,
            "Accept": JSON_TYPE,
            **(headers or {}),
        }
        if endpoint.proxy is not None and not self._is_tls and self._socket is None:
            # A proxy without a tunnel is asked for the whole address.
            self._prefix = f"http://{self._lines['Host']}{self._prefix}"
            if endpoint.proxy.authorization:
                self._lines["Proxy-Authorization"] = endpoint.proxy.authorization
        self._most_body = most_body
        self._credentials = endpoint.credentials
        self._renewing = asyncio.Lock()
        self._forced = float("-inf")  # when credentials were last renewed because of a 401
        self._refusals = ChangeLog(log)
        self._use(self._credentials.secret)
        self._free = asyncio.Semaphore(connections)
        self._idle: list[Connection] = []
        self._streams: set[Connection] = set()
        self._is_closed = False

    @property
    def endpoint(self) -> Endpoint:
        """Where requests go, and as whom: for other protocols, such as websockets."""
        return self._endpoint

    async def send(self, request: Request) -> Response:
        """Send over the network; raises KubeconfigError when there are no credentials to be had."""
        if self._credentials.is_due():
            await self._renew(self._secret, was_refused=False)
        secret = self._secret
        response = await self._send(request)
        if response.status == _UNAUTHORIZED and await self._renew(secret, was_refused=True):
            response = await self._send(request)
        if response.status == _UNAUTHORIZED:
            text = error_from(response.status, response.body).status.message or "Unauthorized"
            self._refusals.warn(
                f"{request}: the API server refuses the credentials of {self._who} (401: {text}):"
                " they are wrong or expired; trying again with what is renewed there",
                trouble=text,  # ten caches with the same trouble are one line
            )
        elif self._refusals.is_set:
            self._refusals.clear(f"the API server accepts the credentials of {self._who} again")
        return response

    @property
    def _who(self) -> str:
        user = f"user {self._endpoint.user!r}" if self._endpoint.user else "this client"
        return f"{user} ({self._endpoint.origin})" if self._endpoint.origin else user

    async def _renew(self, used: Secret, *, was_refused: bool) -> bool:
        """Renew the credentials; return whether there are now others than those that were used."""
        async with self._renewing:
            now = asyncio.get_running_loop().time()
            if self._secret != used:
                return True  # another request has done it
            if was_refused:
                if now - self._forced < _FORCE_EVERY:
                    return False
                self._forced = now
            try:
                await self._credentials.renew(was_refused=was_refused)
                if self._credentials.secret != self._secret:
                    self._use(self._credentials.secret)
            except KubeconfigError as error:
                self._refusals.warn(f"no credentials for {self._who}: {error}")
                raise KubeconfigError(f"{self._endpoint.origin or self._endpoint.server}: {error}") from error
            return self._secret != used

    def _use(self, secret: Secret) -> None:
        """Take credentials into use; connections with another client certificate are closed."""
        known = getattr(self, "_secret", None)
        if known is None or (known.certificate, known.key) != (secret.certificate, secret.key):
            self._tls = self._endpoint.trust.context(secret) if self._is_tls else None
            if known is not None:
                self._close_connections()
        self._secret = secret
        self._head = "".join(
            f"{name}: {value}\r\n" for name, value in ([*self._lines.items(), *self._identity(secret)])
        )

    def _identity(self, secret: Secret) -> list[tuple[str, str]]:
        lines = [("Authorization", secret.authorization)] if secret.authorization else []
        return [*lines, *self._endpoint.impersonation]

    async def _send(self, request: Request) -> Response:
        head = self._format(request)
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
            return await self._exchange(await self._open(), request, head)

    async def _open(self) -> Connection:
        endpoint = self._endpoint
        if self._socket is not None:
            return await open_unix_connection(self._socket, most_body=self._most_body)
        return await open_connection(
            self._host,
            self._port,
            self._tls,
            server_name=endpoint.server_name,
            proxy=endpoint.proxy,
            most_body=self._most_body,
        )

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
        connection = await self._open()
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

    def _format(self, request: Request) -> bytes:
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
        return await self._open(), True

    async def close(self) -> None:
        """Close all connections."""
        self._is_closed = True
        self._close_connections()
        await asyncio.sleep(0)

    def _close_connections(self) -> None:
        for connection in (*self._idle, *self._streams):
            connection.close()
        self._idle.clear()
