"""Follow a collection at little cost: a list, then every change as the line that came.

What a follower pays, nobody else on the machine can use, so lines are handed on as bytes
and decoded by those who must, as far as they must, when they have the time.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import msgspec

from bench.server.load import Connection, prepared
from bench.stacks import unverified

Notice = Callable[[bytes], None]
_VERSION = re.compile(rb'"resourceVersion":"(\d+)"')  # the first one of an event is the object's own


async def get(connection: Connection, path: str) -> Any:
    """Return what is at a path, decoded."""
    status, body = await connection.ask(prepared("GET", path))
    if status != 200:
        raise RuntimeError(f"GET {path} was answered with {status}: {body[:300]!r}")
    return msgspec.json.decode(body)


async def follow(port: int, path: str, version: str, notice: Notice) -> None:
    """Hand on every event since a version until cancelled.

    Servers end watches now and then, kube-apiserver often: when a burst of ten events finds the
    watch's goroutine busy. The next one goes on where the last one stopped, at once and on the same
    connection, or it would start with a backlog and end for that. An error that the server sends raises.
    """
    loop = asyncio.get_running_loop()
    watch = _Watch(path, version.encode(), notice)
    while True:
        watch.begin()
        transport, _ = await loop.create_connection(lambda: watch, "127.0.0.1", port, ssl=unverified())
        try:
            await watch.lost
        finally:
            transport.close()


class _Watch(asyncio.Protocol):
    """Takes the chunks of an answer apart into lines."""

    def __init__(self, path: str, version: bytes, notice: Notice) -> None:
        self._path, self._version, self._notice = path, version, notice
        self._last = b""  # event

    def begin(self) -> None:
        """Be ready for a new connection."""
        self._buffer = bytearray()
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def request(self) -> bytes:
        """Return the request for all that comes after the last event."""
        found = _VERSION.search(self._last)
        version = (found[1] if found else self._version).decode()
        return prepared("GET", f"{self._path}?watch=1&timeoutSeconds=3600&resourceVersion={version}")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._ask()

    def _ask(self) -> None:
        self._in_body = False
        self._line = b""  # the beginning of a line whose end is in a later chunk
        self._transport.write(self.request())

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        try:
            self._buffer += data
            if self._in_body or self._read_head():
                self._read_chunks()
        except Exception as error:  # whoever follows must know
            if not self.lost.done():
                self.lost.set_exception(error)

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = bytes(self._buffer[:end])
        if not head.startswith(b"HTTP/1.1 200") or b"chunked" not in head.lower():
            raise RuntimeError(f"a watch was answered with {bytes(self._buffer[:600])!r}")
        del self._buffer[: end + 4]
        self._in_body = True
        return True

    def _read_chunks(self) -> None:
        buffer, at = self._buffer, 0
        while (end := buffer.find(b"\r\n", at)) >= 0:
            size = int(buffer[at:end], 16)
            begin, after = end + 2, end + 2 + size
            if len(buffer) < after + 2:
                break
            if size == 0:
                at = after + 2
                self._ask()
                break
            *lines, self._line = (self._line + bytes(buffer[begin:after])).split(b"\n")
            for line in lines:
                self._event(line)
            at = after + 2
        del buffer[:at]

    def _event(self, line: bytes) -> None:
        if line.startswith(b'{"type":"ERROR"'):
            raise RuntimeError(f"a watch ended with an error: {line[:600]!r}")
        if line:
            self._last = line
            self._notice(line)
