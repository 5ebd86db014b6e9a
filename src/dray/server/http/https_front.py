"""HTTPS in front of the handlers: the only module that knows aiohttp.

A connection begins in the fast path (`fast_http`), which handles plain requests itself; what
is not plain comes here, to aiohttp. Both turn bytes into a `Request` and a `Response` into bytes, and keep a hostile
or broken client from costing more than its connection: connections are counted
(`connection_limits`, `listening`), a body is read when the server asks for it, which is after
authentication and authorisation, up to the limit of kube-apiserver; slow bodies time out, header
lines are bounded, and an answer is sent in pieces, so that a client that stops reading
costs one piece and is dropped after a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import parse_qsl, unquote

from aiohttp import ClientError, web
from aiohttp.http_exceptions import BadHttpMethod
from aiohttp.web_protocol import RequestHandler, RequestPayloadError
from aiohttp.web_request import BaseRequest

from dray.host.sockets import UnixSocket, peer_uid
from dray.server.http.connection_limits import BodyBudget, Connections
from dray.server.http.fast_http import WRITE_BUFFER, FastConnection, Handler, Times, parts_to_write
from dray.server.http.listening import Listener, connection_limit
from dray.server.http.websocket_tunnels import join
from dray.server.requests import Request, Response, errors

BODY_LIMIT = 3 * 1024 * 1024  # kube-apiserver's MaxRequestBodyBytes
LINE_LIMIT = 64 * 1024  # a request line carries selectors, which may be long
FIELD_LIMIT = 64 * 1024  # bearer tokens and Accept headers fit many times
TIMES = Times()  # how long clients may let the server wait
SHUTDOWN_TIMEOUT = 1.0  # seconds for answers in progress when the server stops

log = logging.getLogger("dray.server")


class Front:
    """The listening sockets, TCP and (if wanted) Unix, that feed a handler."""

    def __init__(
        self,
        handler: Handler,
        address: str,
        port: int,
        tls: ssl.SSLContext | None,
        times: Times = TIMES,
        unix_socket: UnixSocket | None = None,
    ) -> None:
        self._handler = handler
        self._address = address
        self._wanted_port = port
        self._tls = tls
        self._times = times
        self.connections = Connections(connection_limit())
        self._framework: _Server | None = None
        self._listener: Listener | None = None
        self._unix_socket = unix_socket
        self._unix_listener: Listener | None = None
        self.port = 0  # the real one, once started

    async def start(self) -> None:
        """Listen; raises OSError when the port is taken."""
        times = self._times
        framework = self._framework = _Server(
            self._serve,
            self.connections,
            access_log=None,
            # As kube-apiserver: a body is what was sent, whatever Content-Encoding says.
            auto_decompress=False,
            max_line_size=LINE_LIMIT,
            max_field_size=FIELD_LIMIT,
            keepalive_timeout=times.head,  # also the time for the head that brought the connection here
            handler_cancellation=True,
            lingering_time=2.0,
        )

        def connection() -> FastConnection:
            return FastConnection(self._handler, framework, self.connections, times, BODY_LIMIT)

        self._listener = Listener(connection, self.connections, self._tls)
        self.port = self._listener.open(self._address, self._wanted_port)
        if self._unix_socket is not None:
            self._unix_listener = Listener(connection, self.connections, None)
            self._unix_listener.open_unix(self._unix_socket)
        self.connections.start()

    async def stop(self) -> None:
        """Stop listening and drop connections; answers in progress get a second."""
        if self._listener is None or self._framework is None:
            return
        self._listener.close()
        if self._unix_listener is not None:
            self._unix_listener.close()
        quick = [each for each in self.connections.all() if isinstance(each, FastConnection)]
        answers = [each.task for each in quick if each.task is not None]
        if answers:
            await asyncio.wait(answers, timeout=SHUTDOWN_TIMEOUT)
        for each in quick:
            each.close()
        await self._framework.shutdown(SHUTDOWN_TIMEOUT)
        self.connections.stop()
        self._listener = self._unix_listener = self._framework = None

    async def _serve(self, incoming: BaseRequest) -> web.StreamResponse:
        body = _Body(incoming, self.connections.bodies, self._times)
        try:
            request = _read(incoming, body)
            try:
                response = await self._handler.handle(request)
            finally:
                body.release()
            if request.is_identified and isinstance(incoming.protocol, _Protocol):
                self.connections.identify(incoming.protocol)
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
        if isinstance(response.body, bytes) and len(response.body) <= WRITE_BUFFER:
            return _whole(response, response.body)
        return await self._stream(incoming, response)

    async def _stream(self, incoming: BaseRequest, response: Response) -> web.StreamResponse:
        """Send an answer in pieces, the next one when most of the last one is read."""
        answer = web.StreamResponse(status=response.status)
        _prepared(response, answer)
        body = response.body
        if isinstance(body, bytes):
            answer.content_length = len(body)
            pieces: AsyncIterator[bytes] = _only(body)
        else:
            pieces = body
            if response.length is None:
                answer.enable_chunked_encoding()
            else:
                answer.content_length = response.length
        try:
            await answer.prepare(incoming)
            async for piece in pieces:
                for part in parts_to_write(piece):
                    async with asyncio.timeout(self._times.write):
                        await answer.write(part)
            await answer.write_eof()
        except (ConnectionResetError, ConnectionAbortedError, BrokenPipeError):
            pass  # the client went away; that is how most watches end
        except TimeoutError:
            log.info("%s does not read its answer; closing the connection", incoming.remote)
            if incoming.transport is not None:
                incoming.transport.abort()
        finally:
            with contextlib.suppress(Exception):
                await pieces.aclose()  # type: ignore[attr-defined]
        return answer


class _Protocol(RequestHandler):
    """Answers what cannot even be parsed with a Status, like everything else."""

    __slots__ = ("connections",)

    def __init__(self, manager: _Server, connections: Connections, **options: Any) -> None:
        super().__init__(manager, **options)
        self.connections = connections

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

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the connection."""
        self.connections.remove(self)
        super().connection_lost(exc)

    def tick(self) -> None:
        """Nothing to do: the framework has timers of its own."""

    def abort(self) -> None:
        """Hang up at once."""
        if self.transport is not None:
            self.transport.abort()


class _Server(web.Server):
    """Makes the protocol above for every connection."""

    def __init__(
        self,
        handler: Callable[[BaseRequest], Awaitable[web.StreamResponse]],
        connections: Connections,
        **options: Any,
    ) -> None:
        super().__init__(handler, **options)
        self._connections_of_all_lanes = connections

    def __call__(self) -> _Protocol:
        return _Protocol(self, self._connections_of_all_lanes, loop=self._loop, **self._kwargs)


def _read(incoming: BaseRequest, body: _Body) -> Request:
    """Return the request without its body, which is read when the server asks for it."""
    path, _, query = incoming.raw_path.partition("?")
    if path.startswith(("http://", "https://")):
        path = "/" + path.split("/", 3)[-1] if path.count("/") > 2 else "/"
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
        client_certificate=secure.getpeercert(True) if secure is not None else None,
        peer_uid=peer_uid(transport) if transport is not None else None,
        remote=str(peer[0]) if peer else "",
        pending_body=body if incoming.body_exists else None,
    )


class _Body:
    """The body of a request in the framework; a `BodySource`. What nobody reads stays with the client."""

    def __init__(self, incoming: BaseRequest, budget: BodyBudget, times: Times) -> None:
        self._incoming = incoming
        self._budget = budget
        self._times = times
        self._charged = 0

    async def read(self) -> bytes:
        """Collect the body; raises 413, 429 and 400."""
        if (self._incoming.content_length or 0) > BODY_LIMIT:
            raise _too_large()
        pieces: list[bytes] = []
        try:
            async with asyncio.timeout(self._times.body):
                async for piece in self._incoming.content.iter_any():
                    self._budget.take(len(piece))
                    self._charged += len(piece)
                    if self._charged > BODY_LIMIT:
                        raise _too_large()
                    pieces.append(piece)
        except TimeoutError:
            raise errors.bad_request("the request body did not arrive in time") from None
        except (ClientError, RequestPayloadError, ValueError) as problem:  # broken chunking
            raise errors.bad_request(f"cannot read the request body: {problem}") from None
        return b"".join(pieces)

    def release(self) -> None:
        """Return what the body took to the budget."""
        self._budget.give_back(self._charged)
        self._charged = 0


def _too_large() -> errors.ApiError:
    return errors.too_large(f"Request entity too large: limit is {BODY_LIMIT}")


def _prepared(response: Response, answer: web.StreamResponse) -> None:
    answer.headers["Content-Type"] = response.content_type
    for name, value in response.wire_headers():
        answer.headers.add(name, value)


def _whole(response: Response, body: bytes) -> web.Response:
    answer = web.Response(status=response.status, body=body)
    _prepared(response, answer)
    return answer


async def _only(body: bytes) -> AsyncIterator[bytes]:
    yield body
