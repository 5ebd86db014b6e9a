"""The node's HTTPS server: logs for `kubectl logs`, commands for `kubectl exec`, health and metrics.

The API server finds it through the node's status (address and port) and passes
requests on to it. With a client CA, callers must show a certificate of that CA;
without one the server listens on the loopback interface only.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import ssl
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web

from dray.node.logs import LogQuery, read_log
from dray.node.pods import PodRunner
from dray.node.runtime import ContainerId, StartError

_CHANNEL_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_CERTIFICATE_SCRIPT = Path(__file__).with_name("certificate.py")
_CERTIFICATE_SECONDS = 300 * 86400  # then a new one is made
_STDIN, _STDOUT, _STDERR, _ERROR, _RESIZE, _CLOSE = 0, 1, 2, 3, 4, 255


class NodeServer:
    """Serves what the API server asks of a node."""

    def __init__(
        self,
        pods: PodRunner,
        address: str,
        pki: Path,  # where certificate and key are kept
        *,
        client_ca: Path | None = None,
        metrics: Callable[[], bytes] = bytes,
    ) -> None:
        self._pods = pods
        self._address = address
        self._pki = pki
        self._client_ca = client_ca
        self._metrics = metrics
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self, port: int = 0) -> None:
        """Listen; `port` is then the real one."""
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/metrics", self._get_metrics)
        app.router.add_get("/pods", self._get_pods)
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._get_logs)
        for verb in ("GET", "POST"):
            app.router.add_route(verb, "/exec/{namespace}/{pod}/{container}", self._exec)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        host = self._address if self._client_ca is not None else "127.0.0.1"
        site = web.TCPSite(self._runner, host, port, ssl_context=await self._tls())
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
            line = (sys.executable, str(_CERTIFICATE_SCRIPT), str(self._pki), self._address)
            process = await asyncio.create_subprocess_exec(*line)
            if await process.wait() != 0:
                raise OSError(f"no certificate could be made in {self._pki}")
        context.load_cert_chain(certificate, key)
        if self._client_ca is not None:
            context.load_verify_locations(self._client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

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

    def _container(self, request: web.Request) -> tuple[Any, Any]:
        namespace, pod, name = (request.match_info[key] for key in ("namespace", "pod", "container"))
        machine = self._pods.find(namespace, pod)
        if machine is None:
            raise web.HTTPNotFound(text=f'pod "{pod}" not found in namespace "{namespace}"\n')
        state = machine.find(name)
        if state is None:
            raise web.HTTPNotFound(text=f'container "{name}" not found in pod "{pod}"\n')
        return machine, state

    async def _get_logs(self, request: web.Request) -> web.StreamResponse:
        machine, state = self._container(request)
        attempt = state.attempt
        if request.query.get("previous") == "true":
            if state.last_ended is None:
                raise web.HTTPBadRequest(
                    text=f'previous terminated container "{state.spec.name}" not found\n'
                )
            attempt = state.last_ended.attempt
        elif not state.started_at and state.last_ended is not None:
            attempt = state.last_ended.attempt
        path = self._pods.log_path(machine.pod, state.spec.name, attempt)
        if not state.started_at and state.last_ended is None:
            reason = state.waiting_reason or "ContainerCreating"
            raise web.HTTPBadRequest(
                text=f'container "{state.spec.name}" in pod "{machine.pod.metadata.name}" is waiting to start: {reason}\n'
            )
        query = _log_query(request)
        over = self._pods.over_event(machine.pod.metadata.uid, state.spec.name)
        if over is None or state.ended is not None or request.query.get("previous") == "true":
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
        socket = web.WebSocketResponse(protocols=_CHANNEL_PROTOCOLS)
        await socket.prepare(request)
        id = ContainerId(machine.pod.metadata.uid, state.spec.name, state.attempt)  # noqa: A001
        try:
            process = await self._pods.runtime.open_exec(id, command, tty=_is_true(request, "tty"))
        except StartError as error:
            await _send_outcome(socket, 126, str(error))
        else:
            await _attach(
                socket, process, with_stdin=_is_true(request, "stdin") or _is_true(request, "input")
            )
        await socket.close()
        return socket


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
            process.kill()  # the user hung up

    if not with_stdin and process.stdin is not None:
        process.stdin.close()
    feeding = asyncio.create_task(feed())
    await asyncio.gather(carry(process.stdout, _STDOUT), carry(process.stderr, _STDERR))
    code = await process.wait()
    feeding.cancel()
    await asyncio.gather(feeding, return_exceptions=True)
    await _send_outcome(socket, code if code >= 0 else 128 - code, "")


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
    return request.query.get(name, "").lower() in ("true", "1")


def _log_query(request: web.Request) -> LogQuery:
    def number(name: str) -> int | None:
        text = request.query.get(name)
        if text is None:
            return None
        if not text.isdigit():
            raise web.HTTPBadRequest(text=f"{name} must be a number, not {text!r}\n")
        return int(text)

    since = number("sinceSeconds")
    since_time = request.query.get("sinceTime")
    start = time.time() - since if since is not None else None
    if since_time:
        start = datetime.datetime.fromisoformat(since_time.replace("Z", "+00:00")).timestamp()
    return LogQuery(
        follow=_is_true(request, "follow"),
        tail_lines=number("tailLines"),
        since=start,
        timestamps=_is_true(request, "timestamps"),
        limit_bytes=number("limitBytes"),
    )
