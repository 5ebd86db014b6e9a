"""Requests and responses of the API, free of any HTTP framework.

Handlers see a `Request` and answer a `Response`; only the package `http` knows aiohttp. So
the same handlers serve HTTPS, the in-process transport of tests and of the
simulator, and a faster front could replace aiohttp without touching them.

A request's body may still be on its way when the request is handled: `load_body`
waits for it. The server calls it once it is known who asks and that they may, so
that nobody's body is collected for nothing (see `http.ApiServer`).

Invariants: header names are lower case; a body that streams is closed by
whoever consumes it (`aclose` of the iterator ends the watch behind it).
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from yarl import URL

from dray.api import codec
from dray.api.media_types import JSON_TYPE
from dray.server.requests.users import User

# Sent with every answer that does not say otherwise: what the API tells one caller must not
# be kept for another, and nothing here is to be taken for a script.
DEFAULT_HEADERS = (("Cache-Control", "no-cache, private"), ("X-Content-Type-Options", "nosniff"))
_DEFAULT_NAMES = frozenset(name.lower() for name, _ in DEFAULT_HEADERS)


class BodySource(Protocol):
    """A request body that has not arrived completely."""

    async def read(self) -> bytes:
        """Wait for the rest and return the whole; raises an ApiError when it is late, too large or too much."""


@dataclass(slots=True)
class Request:
    """One HTTP request; its body may still be on its way."""

    method: str
    path: str  # percent-decoded, without query
    query: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)  # lower-case name -> value
    body: bytes = b""
    client_certificate: bytes | None = None  # DER, already verified by TLS against the client CA
    peer_uid: int | None = None  # of a caller over the Unix socket, as the kernel tells it
    remote: str = ""
    pending_body: BodySource | None = None  # set while `body` has not arrived
    is_identified: bool = False  # set by the server: the caller showed valid credentials
    sender: User | None = None  # set by the server: who asks; None until that is known
    user: User | None = (
        None  # set by the server: whom the request acts for; differs from the sender if impersonated
    )
    is_permitted: bool = False  # set by the server: authorisation said yes

    async def load_body(self) -> None:
        """Wait until `body` is the whole body; idempotent."""
        source = self.pending_body
        if source is not None:
            self.body = await source.read()
            self.pending_body = None

    def first(self, name: str, default: str = "") -> str:
        """Return the first value of a query parameter."""
        return next((value for key, value in self.query if key == name), default)

    def all(self, name: str) -> list[str]:
        """Return all values of a query parameter."""
        return [value for key, value in self.query if key == name]

    def has(self, name: str) -> bool:
        """Return whether a query parameter is present, even empty."""
        return any(key == name for key, _ in self.query)

    def header(self, name: str, default: str = "") -> str:
        """Return a header by its lower-case name."""
        return self.headers.get(name, default)


@dataclass(frozen=True, slots=True)
class Tunnel:
    """Where to carry a websocket on to: the front joins the client's with this one, frame by frame."""

    url: URL
    tls: ssl.SSLContext | None  # None: plain HTTPS without a certificate of ours


@dataclass(slots=True)
class Response:
    """An answer: whole bytes, a stream that lasts as long as its watch, or a tunnel."""

    status: int
    body: bytes | AsyncIterator[bytes] = b""
    headers: list[tuple[str, str]] = field(default_factory=list)
    content_type: str = JSON_TYPE
    tunnel: Tunnel | None = None  # set: the connection becomes a websocket
    length: int | None = None  # of a body that streams, where it is known beforehand

    def wire_headers(self) -> list[tuple[str, str]]:
        """Return the headers to send: the answer's own and the defaults it does not set itself."""
        if not self.headers:
            return list(DEFAULT_HEADERS)
        own = {name.lower() for name, _ in self.headers}
        if _DEFAULT_NAMES.isdisjoint(own):
            return [*DEFAULT_HEADERS, *self.headers]
        return [pair for pair in DEFAULT_HEADERS if pair[0].lower() not in own] + self.headers


class EndingStream:
    """A streaming body that tells when it has ended, however it ends."""

    def __init__(self, inner: AsyncIterator[bytes], ended: Callable[[], None]) -> None:
        self._inner = inner
        self._ended: Callable[[], None] | None = ended

    def __aiter__(self) -> EndingStream:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._inner)
        except BaseException:
            self._end()
            raise

    async def aclose(self) -> None:
        """End the stream and whatever is behind it."""
        try:
            close = getattr(self._inner, "aclose", None)
            if close is not None:
                await close()
        finally:
            self._end()

    def _end(self) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended()


def json_response(status: int, value: Any, headers: list[tuple[str, str]] | None = None) -> Response:
    """Encode a JSON value as a response, ended by a newline as Kubernetes does."""
    return Response(status, codec.encode(value) + b"\n", headers or [])


def text_response(status: int, text: str) -> Response:
    """Answer plain text (health, unknown paths)."""
    return Response(status, text.encode(), content_type="text/plain; charset=utf-8")
