"""Probes: asking a container, again and again, whether it is well.

A startup probe holds the others back until it has succeeded once. Each probe
reports only when it changes its mind, after as many equal answers in a row as its
thresholds say.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable

import aiohttp

from dray.api.podspec import HttpGetAction, Probe, RunContainer

# Runs a command in the container: (command, seconds) -> (exit code, output).
RunIn = Callable[[list[str], float], Awaitable[tuple[int, bytes]]]
Emit = Callable[[str, bool, str], None]  # kind, is well, message

_OUTPUT_SHOWN = 1024


class Prober:
    """Asks; one per agent, since it holds the HTTP connections."""

    def __init__(self, host: str) -> None:
        self._host = host  # where containers listen, unless the probe names a host
        self._session: aiohttp.ClientSession | None = None

    async def watch(self, container: RunContainer, run_in: RunIn, emit: Emit) -> None:
        """Probe a container until cancelled."""
        if container.startup_probe is not None:
            await self._until_started(container, container.startup_probe, run_in, emit)
        loops = []
        for kind, probe in (("readiness", container.readiness_probe), ("liveness", container.liveness_probe)):
            if probe is not None:
                loops.append(self._loop(kind, container, probe, run_in, emit))
        if loops:
            await asyncio.gather(*loops)

    async def _until_started(self, container: RunContainer, probe: Probe, run_in: RunIn, emit: Emit) -> None:
        await asyncio.sleep(probe.initial_delay_seconds)
        failures = 0
        while True:
            problem = await self.ask(container, probe, run_in)
            if problem is None:
                emit("startup", True, "")
                return
            failures += 1
            if failures == probe.failure_threshold:
                emit("startup", False, problem)
                await asyncio.Event().wait()  # the container is being stopped, and this task with it
            await asyncio.sleep(probe.period_seconds)

    async def _loop(
        self, kind: str, container: RunContainer, probe: Probe, run_in: RunIn, emit: Emit
    ) -> None:
        await asyncio.sleep(probe.initial_delay_seconds)
        # Until shown otherwise, a container is live and not ready.
        is_well = kind == "liveness"
        in_a_row = 0
        while True:
            problem = await self.ask(container, probe, run_in)
            if (problem is None) == is_well:
                in_a_row = 0
            else:
                in_a_row += 1
                needed = probe.success_threshold if problem is None else probe.failure_threshold
                if in_a_row >= needed:
                    is_well, in_a_row = not is_well, 0
                    emit(kind, is_well, problem or "")
            await asyncio.sleep(probe.period_seconds)

    async def ask(self, container: RunContainer, probe: Probe, run_in: RunIn) -> str | None:
        """Ask once; return what is wrong, or None."""
        try:
            async with asyncio.timeout(probe.timeout_seconds):
                if probe.exec is not None:
                    code, output = await run_in(probe.exec.command, probe.timeout_seconds)
                    return None if code == 0 else f"exit code {code}: {_shown(output)}"
                if probe.http_get is not None:
                    return await self.get(container, probe.http_get)
                if probe.tcp_socket is not None:
                    host = probe.tcp_socket.host or self._host
                    _, writer = await asyncio.open_connection(host, _port(container, probe.tcp_socket.port))
                    writer.close()
                    return None
                if probe.grpc is not None:
                    return await self._grpc(probe.grpc.port, probe.grpc.service or "")
        except TimeoutError:
            return f"no answer within {probe.timeout_seconds} s"
        except (OSError, aiohttp.ClientError, ValueError) as error:
            return str(error) or type(error).__name__
        return None

    async def get(self, container: RunContainer, action: HttpGetAction) -> str | None:
        """Ask an HTTP server once; return what is wrong, or None."""
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))
        host, port = action.host or self._host, _port(container, action.port)
        path = action.path if action.path.startswith("/") else f"/{action.path}"
        # As kubelet does: a probe checks that somebody answers, not who.
        tls = _unverified() if action.scheme == "HTTPS" else True
        headers = {header.name: header.value for header in action.http_headers}
        async with self._session.get(
            f"{action.scheme.lower()}://{host}:{port}{path}", ssl=tls, headers=headers, allow_redirects=False
        ) as answer:
            if 200 <= answer.status < 400:
                return None
            return f"HTTP {answer.status}"

    async def _grpc(self, port: int, service: str) -> str | None:
        import grpc  # only here: most probes are HTTP or exec

        name = service.encode()
        request = b"\x0a" + bytes([len(name)]) + name if name else b""
        async with grpc.aio.insecure_channel(f"{self._host}:{port}") as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            try:
                answer = await check(request)
            except grpc.RpcError as error:
                return f"{error.code().name}: {error.details()}"
        # HealthCheckResponse{status = 1}: field 1, SERVING is 1.
        return None if answer == b"\x08\x01" else "not serving"

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()


def _unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _port(container: RunContainer, port: int | str) -> int:
    if isinstance(port, int):
        return port
    if port.isdigit():
        return int(port)
    for known in container.ports:
        if known.name == port:
            return known.container_port
    raise ValueError(f"port {port!r} is not one of the container's")


def _shown(output: bytes) -> str:
    return output[:_OUTPUT_SHOWN].decode(errors="replace").strip()
