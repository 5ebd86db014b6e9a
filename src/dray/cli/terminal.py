"""Commands in a job, over a websocket: `dray exec`, `dray shell`, `dray run -it`.

Speaks Kubernetes' channel protocol (v5, v4), so it works on any cluster. With a terminal on both sides the local
one is in raw mode: keys, Ctrl-C and Ctrl-Z included, go to the job, and changes of the window's size follow.
The far side ends the command when the connection is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from dray.api.parsing import load_json
from dray.cli.output import CommandError
from dray.workbench.run_manifests import CONTAINER

if TYPE_CHECKING:
    from aiohttp import ClientWebSocketResponse

    from dray.client import Client

_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_STDIN, _STDOUT, _STDERR, _ERROR, _RESIZE, _CLOSE = 0, 1, 2, 3, 4, 255
_MESSAGE_BYTES = 4 << 20
_PING_SECONDS = 30.0
_PIECE = 65_536


async def run_in_job(
    client: Client, namespace: str, name: str, command: Sequence[str], *, with_stdin: bool, with_tty: bool
) -> int:
    """Run a command in a job, with our standard streams; returns its exit code."""
    from aiohttp import ClientError, ClientSession, UnixConnector, WSServerHandshakeError

    from dray.client.resources import PODS

    # The first request renews credentials that are due, and answers for a job that does not exist.
    await client.get(PODS, name, namespace)
    endpoint = client.transport.endpoint  # type: ignore[attr-defined]  # every transport of `connect` has one
    path = endpoint.server.removeprefix("unix://") if endpoint.server.startswith("unix:") else ""
    server = "http://localhost" if path else endpoint.server.rstrip("/")
    query = [
        *(("command", word) for word in command),
        ("container", CONTAINER),
        ("stdin", str(with_stdin).lower()),
        ("stdout", "true"),
        ("stderr", str(not with_tty).lower()),
        ("tty", str(with_tty).lower()),
    ]
    headers = list(endpoint.impersonation)
    if endpoint.credentials.secret.authorization:
        headers.append(("Authorization", endpoint.credentials.secret.authorization))
    options: dict[str, Any] = {"server_hostname": endpoint.server_name} if endpoint.server_name else {}
    async with ClientSession(connector=UnixConnector(path) if path else None) as session:
        try:
            async with session.ws_connect(
                f"{server}{PODS.path(namespace, name, 'exec')}?{urlencode(query)}",
                protocols=_PROTOCOLS,
                headers=headers,
                ssl=endpoint.tls or True,
                max_msg_size=_MESSAGE_BYTES,
                heartbeat=_PING_SECONDS,
                proxy=str(endpoint.proxy) if endpoint.proxy is not None else None,
                **options,
            ) as socket:
                with _raw_terminal() if with_tty and sys.stdin.isatty() else contextlib.nullcontext():
                    return await _carry(socket, with_stdin=with_stdin, with_tty=with_tty)
        except WSServerHandshakeError as error:
            raise CommandError(f"the server refused ({error.status}): {error.message}", code=1) from error
        except (ClientError, OSError) as error:
            raise CommandError(f"the connection failed: {error}", code=1) from error


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor, termios.TCSADRAIN)  # what was typed meanwhile is kept
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


async def _carry(socket: ClientWebSocketResponse, *, with_stdin: bool, with_tty: bool) -> int:
    from aiohttp import WSMsgType

    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[None]] = []
    if with_stdin:
        tasks.append(asyncio.create_task(_send_stdin(socket)))
    if with_tty:
        resized = asyncio.Event()
        resized.set()
        loop.add_signal_handler(signal.SIGWINCH, resized.set)
        tasks.append(asyncio.create_task(_send_sizes(socket, resized)))
    try:
        async for message in socket:
            if message.type is not WSMsgType.BINARY or not message.data:
                continue
            channel, piece = message.data[0], message.data[1:]
            if channel in (_STDOUT, _STDERR):
                stream = sys.stdout if channel == _STDOUT else sys.stderr
                stream.buffer.write(piece)
                stream.flush()
            elif channel == _ERROR:
                return outcome_code(piece)
    finally:
        if with_tty:
            loop.remove_signal_handler(signal.SIGWINCH)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    raise CommandError("the connection to the job was lost", code=1)


async def _send_stdin(socket: ClientWebSocketResponse) -> None:
    """Send what comes on standard input."""
    descriptor = sys.stdin.fileno()
    while True:
        await _readable(descriptor)
        piece = os.read(descriptor, _PIECE)
        if not piece:
            if socket.protocol == _PROTOCOLS[0]:
                await socket.send_bytes(bytes([_CLOSE, _STDIN]))
            return
        await socket.send_bytes(bytes([_STDIN]) + piece)


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    try:
        loop.add_reader(descriptor, wake)
    except PermissionError:
        return  # a regular file, or /dev/null: always ready
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


async def _send_sizes(socket: ClientWebSocketResponse, resized: asyncio.Event) -> None:
    while True:
        await resized.wait()
        resized.clear()
        columns, rows = shutil.get_terminal_size()
        size = json.dumps({"Width": columns, "Height": rows}).encode()
        await socket.send_bytes(bytes([_RESIZE]) + size)


def outcome_code(piece: bytes) -> int:
    """Return the exit code that a status on the error channel tells; raises CommandError for other failures.

    >>> outcome_code(b'{"status":"Success"}')
    0
    >>> outcome_code(b'{"status":"Failure","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}')
    7
    """
    try:
        status = load_json(piece)
        if status["status"] == "Success":
            return 0
        for cause in (status.get("details") or {}).get("causes") or []:
            if cause.get("reason") == "ExitCode":
                return int(cause["message"])
        message = str(status.get("message") or "the command failed")
    except (ValueError, KeyError, TypeError, AttributeError):
        message = piece[:200].decode("utf-8", "replace")
    raise CommandError(message, code=1)
