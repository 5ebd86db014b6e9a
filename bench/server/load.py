"""Connections that send prepared requests and do as little else as possible.

A `Connection` speaks just enough HTTP/1.1 over TLS: one request at a time, answers with
a length or in chunks. `drive` keeps a number of them busy until a list of requests is
done.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.stacks import TOKEN, unverified

JSON = "application/json"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def prepared(method: str, path: str, body: object = None, accept: str = JSON) -> bytes:
    """Return the bytes of a request; a body of bytes is sent as it is."""
    if isinstance(body, bytes):
        content = body
    else:
        content = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\nAccept: {accept}\r\n"
        f"User-Agent: bench/1\r\nContent-Type: {JSON}\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


class Connection(asyncio.Protocol):
    """One keep-alive connection; `ask` sends a request and returns (status, body)."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._body_at = -1  # where the body starts; -1 while the head is incomplete
        self._length = -1  # of the body; -1: in chunks
        self._status = 0

    @classmethod
    async def open(cls, port: int) -> Connection:
        """Connect to a server on this machine."""
        loop = asyncio.get_running_loop()
        _, protocol = await loop.create_connection(cls, "127.0.0.1", port, ssl=unverified())
        return protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(f"the server closed the connection: {exc}"))

    def ask(self, request: bytes) -> asyncio.Future[tuple[int, bytes]]:
        """Send a request; await the result before the next one."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._buffer, self._body_at = bytearray(), -1
        self._transport.write(request)
        return self._answer

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._body_at < 0:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self._buffer[:end]).lower()
            self._status = int(head[9:12])
            at = head.find(b"content-length:")
            self._length = -1 if at < 0 else int(head[at + 15 :].split(b"\r\n", 1)[0])
            self._body_at = end + 4
        if self._length >= 0:
            if len(self._buffer) - self._body_at >= self._length:
                self._done(bytes(self._buffer[self._body_at :]))
        elif self._buffer.endswith(b"0\r\n\r\n"):
            self._done(_joined(self._buffer, self._body_at))

    def _done(self, body: bytes) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_result((self._status, body))


def _joined(buffer: bytearray, at: int) -> bytes:
    """Return a body without the marks of its chunks."""
    pieces: list[bytes] = []
    while True:
        end = buffer.index(b"\r\n", at)
        size = int(buffer[at:end], 16)
        if size == 0:
            return b"".join(pieces)
        pieces.append(bytes(buffer[end + 2 : end + 2 + size]))
        at = end + 2 + size + 2


@dataclass
class Driven:
    """What came of a list of requests."""

    seconds: float
    answers: list[bytes]
    latencies: list[float]


async def drive(
    port: int,
    requests: Sequence[bytes],
    n_clients: int,
    limit: float = 0.0,
    on_start: Callable[[], None] = lambda: None,
) -> Driven:
    """Send requests over `n_clients` connections, each as fast as answers come.

    With a `limit` no request starts after so many seconds; `on_start` is called when all
    connections are open. An answer that is no success ends the bench: refused requests
    are cheap, and must not count.
    """
    connections = await asyncio.gather(*[Connection.open(port) for _ in range(n_clients)])
    on_start()
    answers: list[bytes] = []
    latencies: list[float] = []
    queue = iter(requests)
    clock = time.perf_counter
    started = clock()

    async def work(connection: Connection) -> None:
        for request in queue:
            sent = clock()
            if limit and sent - started > limit:
                return
            status, body = await connection.ask(request)
            latencies.append(clock() - sent)
            if status >= 300:
                raise RuntimeError(f"{request[:200]!r} was answered with {status}: {body[:300]!r}")
            answers.append(body)

    try:
        await asyncio.gather(*[work(each) for each in connections])
        return Driven(clock() - started, answers, latencies)
    finally:
        for each in connections:
            each.close()
