"""The node's HTTPS server: logs for `kubectl logs`, `kubectl exec`, `attach` and `port-forward`, health and metrics.

The API server finds it through the node's status (address and port) and passes
requests on to it. Every call is authenticated and authorised before its handler runs
(`access`): by a client certificate, where a client CA is given, or by a bearer token.
What is authorised is the path of the route that was found, so no spelling of a path
is authorised as one thing and handled as another.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import ssl
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web

from dray.api.parsing import load_json
from dray.api.pod_logs import parse_boolean, parse_log_options, validate_log_options
from dray.node.access import Access, AccessError
from dray.node.logs import LogQuery, read_log
from dray.node.machine import PodMachine
from dray.node.pods import PodRunner
from dray.node.port_forward import (
    CHANNELS,
    SPDY,
    SpdyTunnel,
    Streams,
    carry_channels,
    connect_to_pod,
    parse_ports,
)
from dray.node.runtime import ContainerId, StartError
from dray.node.runtime.terminal import TerminalProcess

_CHANNEL_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_CERTIFICATE_SCRIPT = Path(__file__).parents[1] / "certificates.py"
_CERTIFICATE_SECONDS = 300 * 86400  # then a new one is made
_MESSAGE_BYTES = 1 << 20
_PING_SECONDS = 60.0
_STDIN, _STDOUT, _STDERR, _ERROR, _RESIZE, _CLOSE = 0, 1, 2, 3, 4, 255

log = logging.getLogger("dray.node")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class NodeServer:
    """Serves what the API server asks of a node."""

    def __init__(
        self,
        pods: PodRunner,
        access: Access,
        address: str,
        pki: Path,  # where certificate and key are kept
        *,
        client_ca: Path | None = None,
        metrics: Callable[[], bytes] = bytes,
    ) -> None:
        self._pods = pods
        self._access = access
        self._address = address
        self._pki = pki
        self._client_ca = client_ca
        self._metrics = metrics
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self, port: int = 0) -> None:
        """Listen; `port` is then the real one."""
        app = web.Application(middlewares=[self._authorize])
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/metrics", self._get_metrics)
        app.router.add_get("/pods", self._get_pods)
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._get_logs)
        for verb in ("GET", "POST"):
            app.router.add_route(verb, "/exec/{namespace}/{pod}/{container}", self._exec)
            app.router.add_route(verb, "/attach/{namespace}/{pod}/{container}", self._attach_to)
            app.router.add_route(verb, "/portForward/{namespace}/{pod}", self._forward_ports)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        if self._client_ca is None:
            log.warning(
                "no client CA is given (--client-ca): only bearer tokens are accepted on the node's port, "
                "so an API server that shows a certificate cannot fetch logs"
            )
        site = web.TCPSite(self._runner, self._address, port, ssl_context=await self._tls())
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _tls(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate, key = self._pki / "node.crt", self._pki / "node.key"
        if not certificate.exists() or time.time() - certificate.stat().st_mtime > _CERTIFICATE_SECONDS:
            # A process of its own: the library that makes certificates would cost the agent 10 MB for ever.
            # -P: the script's folder has modules with names that others may have, too.
            line = (sys.executable, "-P", str(_CERTIFICATE_SCRIPT), str(self._pki), self._address)
            process = await asyncio.create_subprocess_exec(*line)
            if await process.wait() != 0:
                raise OSError(f"no certificate could be made in {self._pki}")
        context.load_cert_chain(certificate, key)
        if self._client_ca is not None:
            context.load_verify_locations(self._client_ca)
            # A caller may have a token instead; `access` refuses those who have neither.
            context.verify_mode = ssl.CERT_OPTIONAL
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context

    @web.middleware
    async def _authorize(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        path = request.path if resource is None else resource.canonical
        certificate = request.get_extra_info("peercert") if self._client_ca is not None else None
        try:
            await self._access.check(
                request.method, path, certificate, request.headers.get("Authorization", "")
            )
        except AccessError as refusal:
            return web.Response(status=refusal.status, text=str(refusal))
        return await handler(request)

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _get_metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics(), content_type="text/plain")

    async def _get_pods(self, request: web.Request) -> web.Response:
        items = [
            {"metadata": {"namespace": found.pod.metadata.namespace, "name": found.pod.metadata.name, "uid": found.pod.metadata.uid},
             "status": {"phase": found.phase}}
            for found in self._pods.machines()
        ]  # fmt: skip
        return web.json_response({"kind": "PodList", "apiVersion": "v1", "items": items})

    def _pod(self, request: web.Request) -> PodMachine:
        namespace, pod = request.match_info["namespace"], request.match_info["pod"]
        machine = self._pods.find(namespace, pod)
        if machine is None:
            raise web.HTTPNotFound(text=f'pod "{pod}" not found in namespace "{namespace}"\n')
        return machine

    def _container(self, request: web.Request) -> tuple[PodMachine, Any]:
        machine, name = self._pod(request), request.match_info["container"]
        state = machine.find(name)
        if state is None:
            raise web.HTTPNotFound(
                text=f'container "{name}" not found in pod "{machine.pod.metadata.name}"\n'
            )
        return machine, state

    async def _get_logs(self, request: web.Request) -> web.StreamResponse:
        query = _log_query(request)
        machine, state = self._container(request)
        attempt = state.attempt
        is_previous = parse_boolean(request.query.get("previous", "false"))
        if is_previous:
            if state.last_ended is None:
                raise web.HTTPBadRequest(
                    text=f'previous terminated container "{state.spec.name}" not found\n'
                )
            attempt = state.last_ended.attempt
        elif not state.started_at and state.last_ended is not None:
            attempt = state.last_ended.attempt
        kept = self._pods.kept_attempt(machine, state.spec.name)
        if kept is not None and not is_previous:
            attempt = kept
        path = self._pods.log_path(machine.pod, state.spec.name, attempt)
        if not state.started_at and state.last_ended is None and kept is None:
            reason = state.waiting_reason or "ContainerCreating"
            raise web.HTTPBadRequest(
                text=f'container "{state.spec.name}" in pod "{machine.pod.metadata.name}" is waiting to start: {reason}\n'
            )
        over = self._pods.over_event(machine.pod.metadata.uid, state.spec.name)
        if over is None or state.ended is not None or is_previous or kept is not None:
            over = asyncio.Event()
            over.set()
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        async for piece in read_log(path, query, over):
            await response.write(piece)
        await response.write_eof()
        return response

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        """Run a command over a websocket with numbered channels (v4 and v5 of the protocol)."""
        machine, state = self._container(request)
        command = request.query.getall("command", [])
        if not command:
            raise web.HTTPBadRequest(text="you must specify at least 1 command for the container\n")
        if request.headers.get("Upgrade", "").lower() != "websocket":
            raise web.HTTPBadRequest(
                text="this node speaks exec over websockets only (kubectl 1.30 or newer)\n"
            )
        socket = web.WebSocketResponse(
            protocols=_CHANNEL_PROTOCOLS, max_msg_size=_MESSAGE_BYTES, heartbeat=_PING_SECONDS
        )
        await socket.prepare(request)
        id = ContainerId(machine.pod.metadata.uid, state.spec.name, state.attempt)  # noqa: A001
        with_stdin = _is_true(request, "stdin") or _is_true(request, "input")
        runtime = self._pods.runtime
        try:
            if _is_true(request, "tty"):
                await _attach_terminal(
                    socket, await runtime.open_terminal(id, command), with_stdin=with_stdin
                )
            else:
                await _attach(socket, await runtime.open_exec(id, command), with_stdin=with_stdin)
        except StartError as error:
            await _send_outcome(socket, 126, str(error))
        await socket.close()
        return socket

    async def _attach_to(self, request: web.Request) -> web.StreamResponse:
        """Show what a running container writes from now on, until it ends or the caller goes.

        Containers run without standard input, so there is nothing to attach to on that side.
        """
        machine, state = self._container(request)
        name, pod = state.spec.name, machine.pod
        if request.headers.get("Upgrade", "").lower() != "websocket":
            raise web.HTTPBadRequest(
                text="this node speaks attach over websockets only (kubectl 1.30 or newer)\n"
            )
        if _is_true(request, "stdin") or _is_true(request, "input"):
            raise web.HTTPBadRequest(
                text=f'container "{name}" runs without standard input; use kubectl exec for a command of your own\n'
            )
        over = self._pods.over_event(pod.metadata.uid, name)
        if over is None or not state.started_at or state.ended is not None:
            raise web.HTTPBadRequest(text=f'container "{name}" in pod "{pod.metadata.name}" is not running\n')
        socket = web.WebSocketResponse(
            protocols=_CHANNEL_PROTOCOLS, max_msg_size=_MESSAGE_BYTES, heartbeat=_PING_SECONDS
        )
        await socket.prepare(request)
        await _show_log(socket, self._pods.log_path(pod, name, state.attempt), over)
        await socket.close()
        return socket

    async def _forward_ports(self, request: web.Request) -> web.StreamResponse:
        """Carry connections to ports on which processes of the pod listen."""
        machine = self._pod(request)
        if request.headers.get("Upgrade", "").lower() != "websocket":
            raise web.HTTPBadRequest(
                text="this node speaks portforward over websockets only (kubectl 1.31 or newer)\n"
            )
        uid, runtime = machine.pod.metadata.uid, self._pods.runtime
        if not runtime.first_processes(uid):
            raise web.HTTPBadRequest(text=f'pod "{machine.pod.metadata.name}" has no running container\n')
        socket = web.WebSocketResponse(
            protocols=(SPDY, CHANNELS), max_msg_size=_MESSAGE_BYTES, heartbeat=_PING_SECONDS
        )
        wants_spdy = SPDY in request.headers.get("Sec-WebSocket-Protocol", "")
        ports = [] if wants_spdy else _ports(request)
        await socket.prepare(request)

        async def connect(port: int) -> Streams:
            return await connect_to_pod(runtime.first_processes(uid), port)

        if wants_spdy:
            await SpdyTunnel(socket, connect).run()
        else:
            await carry_channels(socket, ports, connect)
        await socket.close()
        return socket


def _ports(request: web.Request) -> list[int]:
    try:
        return parse_ports(request.query.getall("ports", []))
    except ValueError as problem:
        raise web.HTTPBadRequest(text=f"{problem}\n") from None


async def _show_log(socket: web.WebSocketResponse, path: Path, over: asyncio.Event) -> None:
    async def show() -> None:
        async for piece in read_log(path, LogQuery(follow=True, tail_lines=0), over):
            await socket.send_bytes(bytes([_STDOUT]) + piece)

    async def receive() -> None:
        async for _ in socket:
            pass  # nothing is expected; the loop ends when the caller goes

    showing, receiving = asyncio.create_task(show()), asyncio.create_task(receive())
    await asyncio.wait({showing, receiving}, return_when=asyncio.FIRST_COMPLETED)
    has_ended = showing.done()
    for task in (showing, receiving):
        task.cancel()
    await asyncio.gather(showing, receiving, return_exceptions=True)
    if has_ended and not socket.closed:
        await _send_outcome(socket, 0, "")


async def _attach(
    socket: web.WebSocketResponse, process: asyncio.subprocess.Process, *, with_stdin: bool
) -> None:
    async def carry(stream: asyncio.StreamReader | None, channel: int) -> None:
        assert stream is not None
        while piece := await stream.read(65536):
            await socket.send_bytes(bytes([channel]) + piece)

    async def feed() -> None:
        assert process.stdin is not None
        async for message in socket:
            if message.type is not WSMsgType.BINARY or not message.data:
                continue
            channel, piece = message.data[0], message.data[1:]
            if channel == _STDIN and piece:
                process.stdin.write(piece)
                await process.stdin.drain()
            elif channel == _CLOSE and piece[:1] == bytes([_STDIN]):
                process.stdin.close()
        if process.returncode is None:
            # The caller is gone: the command and what it started end with it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

    if not with_stdin and process.stdin is not None:
        process.stdin.close()
    feeding = asyncio.create_task(feed())
    await asyncio.gather(carry(process.stdout, _STDOUT), carry(process.stderr, _STDERR))
    code = await process.wait()
    feeding.cancel()
    await asyncio.gather(feeding, return_exceptions=True)
    await _send_outcome(socket, code if code >= 0 else 128 - code, "")


async def _attach_terminal(
    socket: web.WebSocketResponse, terminal: TerminalProcess, *, with_stdin: bool
) -> None:
    """Carry what is typed and shown; a terminal has one output only."""

    async def show() -> None:
        while piece := await terminal.read():
            await socket.send_bytes(bytes([_STDOUT]) + piece)

    async def feed() -> None:
        async for message in socket:
            if message.type is not WSMsgType.BINARY or not message.data:
                continue
            channel, piece = message.data[0], message.data[1:]
            if channel == _STDIN and with_stdin:
                await terminal.write(piece)
            elif channel == _RESIZE:
                terminal.resize(*_size(piece))
        terminal.hang_up()  # the caller is gone

    feeding, showing = asyncio.create_task(feed()), asyncio.create_task(show())
    try:
        code = await terminal.wait()
        await showing
    except ConnectionError:
        terminal.hang_up()
        return
    finally:
        for task in (feeding, showing):
            task.cancel()
        await asyncio.gather(feeding, showing, return_exceptions=True)
        terminal.close()
    await _send_outcome(socket, code if code >= 0 else 128 - code, "")


def _size(piece: bytes) -> tuple[int, int]:
    """Return columns and rows; nonsense is a size that changes nothing."""
    try:
        size = load_json(piece)
        return int(size["Width"]), int(size["Height"])
    except (ValueError, KeyError, TypeError):
        return 0, 0


async def _send_outcome(socket: web.WebSocketResponse, code: int, message: str) -> None:
    status: dict[str, Any] = {"metadata": {}, "status": "Success"}
    if code:
        status = {
            "metadata": {},
            "status": "Failure",
            "reason": "NonZeroExitCode",
            "message": message or f"command terminated with non-zero exit code: exit status {code}",
            "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
        }
    await socket.send_bytes(bytes([_ERROR]) + json.dumps(status).encode())


def _is_true(request: web.Request, name: str) -> bool:
    return parse_boolean(request.query.get(name, "false"))


def _log_query(request: web.Request) -> LogQuery:
    """Read the options of a log; raises 400 for what cannot be read and 422 for what is not allowed."""
    try:
        options = parse_log_options(request.query.items())
    except ValueError as error:
        raise web.HTTPBadRequest(text=f"Unable to decode query: {error}\n") from None
    problems = validate_log_options(options)
    if problems:
        listed = ", ".join(problem.message() for problem in problems)
        raise web.HTTPUnprocessableEntity(text=f"Invalid request: {listed}\n")
    since = None
    if options.since_time is not None:
        since = options.since_time.timestamp()
    elif options.since_seconds is not None:
        since = max(time.time() - options.since_seconds, 0.0)
    return LogQuery(
        follow=options.follow,
        tail_lines=options.tail_lines,
        since=since,
        timestamps=options.timestamps,
        limit_bytes=options.limit_bytes,
    )
