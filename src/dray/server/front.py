"""HTTPS in front of the handlers: the only module that knows aiohttp.

A connection begins in the quick lane (`express`), which handles plain requests itself; what
is not plain comes here, to aiohttp. Both turn bytes into a `Request` and a `Response` into bytes, and keep a hostile
or broken client from costing more than its connection: bodies stop at the limit
of kube-apiserver, slow bodies time out, header lines are bounded, and a client
that stops reading a watch stops that watch only (the store cuts it off).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator
from urllib.parse import parse_qsl, unquote

from aiohttp import ClientError, web
from aiohttp.http_exceptions import BadHttpMethod
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest

from dray.server import errors
from dray.server.express import Express, Handler
from dray.server.requests import Request, Response
from dray.server.tunnels import join

BODY_LIMIT = 3 * 1024 * 1024  # kube-apiserver's MaxRequestBodyBytes
LINE_LIMIT = 64 * 1024  # a request line carries selectors, which may be long
FIELD_LIMIT = 64 * 1024  # bearer tokens and Accept headers fit many times
BODY_TIMEOUT = 60.0  # seconds for a whole body
IDLE_TIMEOUT = 120.0  # seconds a connection may stay without request
SHUTDOWN_TIMEOUT = 1.0  # seconds for answers in progress when the server stops

log = logging.getLogger("dray.server")


class Front:
    """One listening socket that feeds a handler."""

    def __init__(self, handler: Handler, address: str, port: int, tls: ssl.SSLContext | None) -> None:
        self._handler = handler
        self._address = address
        self._wanted_port = port
        self._tls = tls
        self._connections: set[Express] = set()
        self._framework: _Server | None = None
        self._listener: asyncio.Server | None = None
        self.port = 0  # the real one, once started

    async def start(self) -> None:
        """Listen; raises OSError when the port is taken."""
        framework = self._framework = _Server(
            self._serve,
            access_log=None,
            max_line_size=LINE_LIMIT,
            max_field_size=FIELD_LIMIT,
            keepalive_timeout=IDLE_TIMEOUT,
            handler_cancellation=True,
            lingering_time=2.0,
        )

        def connection() -> Express:
            return Express(
                self._handler,
                framework,
                self._connections,
                body_limit=BODY_LIMIT,
                body_timeout=BODY_TIMEOUT,
                idle_timeout=IDLE_TIMEOUT,
            )

        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            connection, self._address, self._wanted_port, ssl=self._tls, backlog=1024, reuse_address=True
        )
        self.port = int(self._listener.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening and drop connections; answers in progress get a second."""
        if self._listener is None or self._framework is None:
            return
        self._listener.close()
        answers = [each.task for each in self._connections if each.task is not None]
        if answers:
            await asyncio.wait(answers, timeout=SHUTDOWN_TIMEOUT)
        for each in list(self._connections):
            each.close()
        await self._framework.shutdown(SHUTDOWN_TIMEOUT)
        self._listener = self._framework = None

    async def _serve(self, incoming: BaseRequest) -> web.StreamResponse:
        try:
            request = await _read(incoming)
            response = await self._handler.handle(request)
        except errors.ApiError as problem:
            response = problem.response()
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("%s %s failed", incoming.method, incoming.path)
            response = errors.internal(
                "the request could not be handled; the server's log says why"
            ).response()
        if response.tunnel is not None:
            joined = await join(incoming, response.tunnel)
            if not isinstance(joined, Response):
                return joined
            response = joined
        if isinstance(response.body, bytes):
            return _whole(response, response.body)
        return await _stream(incoming, response, response.body)


class _Protocol(RequestHandler):
    """Answers what cannot even be parsed with a Status, like everything else."""

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return the answer to a broken request; the connection ends with it."""
        if isinstance(exc, BadHttpMethod) or (message or "").find("Invalid method") >= 0:
            problem = errors.method_not_allowed()
        elif status < 500:
            problem = errors.ApiError(status, "BadRequest", f"cannot read the request: {exc or message}")
        else:
            return super().handle_error(request, status, exc, message)
        response = problem.response()
        assert isinstance(response.body, bytes)
        answer = _whole(response, response.body)
        answer.force_close()
        return answer


class _Server(web.Server):
    """Makes the protocol above for every connection."""

    def __call__(self) -> RequestHandler:
        return _Protocol(self, loop=self._loop, **self._kwargs)


async def _read(incoming: BaseRequest) -> Request:
    path, _, query = incoming.raw_path.partition("?")
    if path.startswith(("http://", "https://")):
        path = "/" + path.split("/", 3)[-1] if path.count("/") > 2 else "/"
    body = await _read_body(incoming) if incoming.body_exists else b""
    transport = incoming.transport
    peer = transport.get_extra_info("peername") if transport is not None else None
    secure = transport.get_extra_info("ssl_object") if transport is not None else None
    headers: dict[str, str] = {}
    for name, value in incoming.headers.items():
        lower = name.lower()
        headers[lower] = f"{headers[lower]}, {value}" if lower in headers else value
    return Request(
        method=incoming.method,
        path=unquote(path) if "%" in path else path,
        query=tuple(parse_qsl(query, keep_blank_values=True)) if query else (),
        headers=headers,
        body=body,
        client_certificate=secure.getpeercert(True) if secure is not None else None,
        remote=str(peer[0]) if peer else "",
    )


async def _read_body(incoming: BaseRequest) -> bytes:
    if (incoming.content_length or 0) > BODY_LIMIT:
        raise _too_large()
    pieces: list[bytes] = []
    size = 0
    if (
        incoming.content.is_eof() and incoming.content.exception() is None
    ):  # most bodies arrive with their head
        body = incoming.content.read_nowait()
        if len(body) > BODY_LIMIT:
            raise _too_large()
        return body
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            async for piece in incoming.content.iter_any():
                size += len(piece)
                if size > BODY_LIMIT:
                    raise _too_large()
                pieces.append(piece)
    except TimeoutError:
        raise errors.bad_request("the request body did not arrive in time") from None
    except (ClientError, ValueError) as problem:  # broken chunking or compression
        raise errors.bad_request(f"cannot read the request body: {problem}") from None
    return b"".join(pieces)


def _too_large() -> errors.ApiError:
    return errors.too_large(f"Request entity too large: limit is {BODY_LIMIT}")


def _prepared(response: Response, answer: web.StreamResponse) -> None:
    answer.headers["Content-Type"] = response.content_type
    for name, value in response.headers:
        answer.headers.add(name, value)


def _whole(response: Response, body: bytes) -> web.Response:
    answer = web.Response(status=response.status, body=body)
    _prepared(response, answer)
    return answer


async def _stream(
    incoming: BaseRequest, response: Response, pieces: AsyncIterator[bytes]
) -> web.StreamResponse:
    answer = web.StreamResponse(status=response.status)
    _prepared(response, answer)
    answer.enable_chunked_encoding()
    try:
        await answer.prepare(incoming)
        async for piece in pieces:
            await answer.write(piece)
        await answer.write_eof()
    except (ConnectionResetError, ConnectionAbortedError, BrokenPipeError):
        pass  # the client went away; that is how most watches end
    finally:
        with contextlib.suppress(Exception):
            await pieces.aclose()  # type: ignore[attr-defined]
    return answer
