"""Requests as bytes, and connections that send many of them.

A `Connection` keeps a few requests under way at a time (HTTP/1.1 pipelining) and hands every answer to
a function; it parses no more than the head and the framing. The request that is first in
line when the server hangs up is the one that made it do so; those behind it are sent again.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

HOST = "127.0.0.1"  # the only host that anything here connects to
ADMIN = "admintoken"
JSON_TYPE = "application/json"


@dataclass(slots=True)
class Request:
    """One request and what the report needs to know of it."""

    method: str
    target: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    token: str = ADMIN  # empty: anonymous
    shape: str = ""  # the form of request, for counting, such as `create` or `patch json`
    deep: bool = False  # valid up to the one field that was changed last
    changes: bool = False  # may change stored objects
    path: str = ""  # where the object goes wrong, for reading

    def encode(self) -> bytes:
        """Return the bytes to send."""
        lines = [f"{self.method} {self.target} HTTP/1.1", "Host: 127.0.0.1"]
        if self.token:
            lines.append(f"Authorization: Bearer {self.token}")
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if self.body or self.method in ("POST", "PUT", "PATCH"):
            lines.append(f"Content-Length: {len(self.body)}")
        return "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + self.body

    def record(self) -> dict[str, Any]:
        """Return the request as JSON, to be replayed."""
        kept = {"method": self.method, "target": self.target, "headers": self.headers, "token": self.token}
        try:
            body = {"body": self.body.decode("ascii")}
        except UnicodeDecodeError:
            body = {"body64": base64.b64encode(self.body).decode()}
        return {**kept, **body, "shape": self.shape, "path": self.path}


def request_of(record: dict[str, Any]) -> Request:
    """Read a request that `record` wrote."""
    body = base64.b64decode(record["body64"]) if "body64" in record else record.get("body", "").encode()
    return Request(
        record["method"], record["target"], dict(record.get("headers") or {}), body, record.get("token", ADMIN),
        record.get("shape", ""),
    )  # fmt: skip


def json_request(
    method: str, target: str, value: Any, token: str = ADMIN, content: str = JSON_TYPE
) -> Request:
    """Return a request with a JSON body."""
    return Request(method, target, {"Content-Type": content}, json.dumps(value).encode(), token)


@dataclass(slots=True)
class Answer:
    """What came back; status 0 means that the server hung up."""

    status: int
    head: bytes = b""
    body: bytes = b""

    def message(self) -> str:
        """Return the message of a Status, or the beginning of another body."""
        try:
            found = json.loads(self.body)
            if isinstance(found, dict) and found.get("kind") == "Status":
                return str(found.get("message", ""))
        except (ValueError, RecursionError):
            pass
        return self.body[:300].decode("utf-8", "replace")


def client_tls() -> ssl.SSLContext:
    """Return TLS without verification: the server is a child of this program on loopback."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


OnAnswer = Callable[[Request, Answer], None]
NextRequest = Callable[[], Request | None]


class Connection(asyncio.Protocol):
    """Keeps `depth` requests under way until there are no more."""

    def __init__(self, next_request: NextRequest, on_answer: OnAnswer, depth: int = 1) -> None:
        self._next, self._on_answer, self._depth = next_request, on_answer, depth
        self._waiting: deque[Request] = deque()  # sent, not answered
        self._again: deque[Request] = deque()  # to be sent again on a new connection
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._lost: asyncio.Future[None] | None = None
        self._answered = 0

    async def run(self, port: int, tls: ssl.SSLContext, patience: float = 60.0) -> None:
        """Send requests until none is left, on as many connections one after the other as it takes."""
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            self._lost = loop.create_future()
            self._buffer.clear()
            try:
                async with asyncio.timeout(patience):
                    await loop.create_connection(lambda: self, HOST, port, ssl=tls)
            except (OSError, TimeoutError):
                failures += 1
                if failures > 5:
                    raise
                await asyncio.sleep(0.2 * failures)
                continue
            failures = 0
            answered = -1
            while not self._lost.done():
                if answered == self._answered and self._waiting:
                    assert self._transport is not None
                    self._transport.abort()  # nothing came for a whole period of patience
                answered = self._answered
                await asyncio.wait([self._lost], timeout=patience)
            if self._waiting:
                culprit = self._waiting.popleft()
                self._again.extend(self._waiting)
                self._waiting.clear()
                self._on_answer(culprit, Answer(0))
            elif not self._again:
                return

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to send."""
        self._transport = transport  # type: ignore[assignment]
        self._send()

    def _send(self) -> None:
        assert self._transport is not None
        pieces = []
        while len(self._waiting) < self._depth:
            request = self._again.popleft() if self._again else self._next()
            if request is None:
                break
            self._waiting.append(request)
            pieces.append(request.encode())
        if pieces:
            self._transport.write(b"".join(pieces))
        elif not self._waiting:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell `run`."""
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Take whole answers off the buffer."""
        self._buffer += data
        while self._waiting:
            found = take_answer(self._buffer)
            if found is None:
                return
            self._answered += 1
            self._on_answer(self._waiting.popleft(), found)
            self._send()


def take_answer(buffer: bytearray) -> Answer | None:
    """Remove one whole answer from the front of a buffer, if there is one."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = bytes(buffer[:end])
    status = int(head[9:12])
    lower = head.lower()
    start = end + 4
    at = lower.find(b"\r\ncontent-length:")
    if at >= 0:
        stop = lower.find(b"\r\n", at + 2)
        length = int(lower[at + 17 : stop if stop >= 0 else len(lower)])
        if len(buffer) < start + length:
            return None
        body = bytes(buffer[start : start + length])
        del buffer[: start + length]
        return Answer(status, head, body)
    if b"transfer-encoding: chunked" in lower:
        return _take_chunks(buffer, status, head, start)
    del buffer[:start]
    return Answer(status, head)


def _take_chunks(buffer: bytearray, status: int, head: bytes, position: int) -> Answer | None:
    pieces = []
    while True:
        end = buffer.find(b"\r\n", position)
        if end < 0:
            return None
        size = int(buffer[position:end], 16)
        if len(buffer) < end + 2 + size + 2:
            return None
        pieces.append(bytes(buffer[end + 2 : end + 2 + size]))
        position = end + 2 + size + 2
        if size == 0:
            del buffer[:position]
            return Answer(status, head, b"".join(pieces))


async def ask(port: int, request: Request, tls: ssl.SSLContext, patience: float = 60.0) -> Answer:
    """Send one request on a connection of its own; status 0 if no whole answer came in time."""
    writer = None
    buffer = bytearray()
    try:
        async with asyncio.timeout(patience):
            reader, writer = await asyncio.open_connection(HOST, port, ssl=tls)
            writer.write(request.encode())
            while True:
                found = take_answer(buffer)
                if found is not None:
                    return found
                piece = await reader.read(1 << 20)
                if not piece:
                    return Answer(0)
                buffer += piece
    except (OSError, TimeoutError):
        return Answer(0)
    finally:
        if writer is not None:
            writer.transport.abort()
