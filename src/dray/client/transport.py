"""The edge to the network: one method, so that real and fake servers are equals.

A `Transport` sends a `Request` and returns a `Response`. Over the network that is
`HttpTransport`; inside one process it is a server's handler; in a test it is a
wrapper that loses answers. The client cannot tell, which is the point.

A streamed response (a watch) hands out its body in pieces as they arrive and
must be closed; every other response has its whole body in `body`.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import aiohttp
from yarl import URL

from dray.client.errors import TransportError

JSON = "application/json"


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
    """HTTP/1.1 over a pool of kept-alive connections."""

    def __init__(
        self,
        server: str,
        *,
        tls: ssl.SSLContext | None = None,
        headers: Mapping[str, str] | None = None,
        connections: int = 64,
        user_agent: str = "dray",
    ) -> None:
        self._server = server.rstrip("/")
        self._tls: ssl.SSLContext | bool = tls if tls is not None else True
        self._headers = {"User-Agent": user_agent, "Accept": JSON, **(headers or {})}
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None
        self._streams: aiohttp.ClientSession | None = None

    async def send(self, request: Request) -> Response:
        """Send over the network."""
        session = self._open_session(request.stream)
        headers = dict(request.headers)
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        url = URL(self._server + request.target, encoded=True)
        limit = aiohttp.ClientTimeout(total=None if request.stream else request.timeout, connect=30)
        try:
            answer = await session.request(
                request.method, url, data=request.body, headers=headers, timeout=limit, allow_redirects=False
            )
            if request.stream and answer.status < 300:
                return Response(answer.status, answer.headers, pieces=_pieces(answer))
            body = await answer.read()
            answer.release()
            return Response(answer.status, answer.headers, body)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise TransportError(f"{request}: {type(error).__name__}: {error}") from error

    def _open_session(self, stream: bool) -> aiohttp.ClientSession:
        # Watches hold a connection each for minutes; they get a pool of their own
        # so that they never starve the verbs.
        session = self._streams if stream else self._session
        if session is None or session.closed:
            connector = aiohttp.TCPConnector(ssl=self._tls, limit=0 if stream else self._connections)
            session = aiohttp.ClientSession(
                connector=connector,
                headers=self._headers,
                auto_decompress=True,
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=1 << 18,
                skip_auto_headers=("Accept-Encoding",),
            )
            if stream:
                self._streams = session
            else:
                self._session = session
        return session

    async def close(self) -> None:
        """Close all connections."""
        for session in (self._session, self._streams):
            if session is not None:
                await session.close()


async def _pieces(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    try:
        async for piece in answer.content.iter_any():
            yield piece
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        raise TransportError(f"{answer.method} {answer.url.path}: cut off: {error}") from error
    finally:
        answer.close()
