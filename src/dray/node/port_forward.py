"""`kubectl port-forward` on the node: connections that come through a websocket go on to a port of a pod.

Two protocols, as kubelet and kube-apiserver have them:

* `SPDY/3.1+portforward.k8s.io` (kubectl): the messages of the websocket are the bytes of a SPDY connection. For each
  connection the client opens two streams with one `requestID`: `data`, and `error`, on which the node says in words
  why it cannot connect. The node ends the error stream when the connection is over.
* `v4.channel.k8s.io` (clients in Python and JavaScript): `ports` of the query names the ports. Each has two channels,
  number 2i for data and 2i + 1 for an error; the first message of each channel is the port, two bytes.

A port is connected to only when a process of the pod listens on it (`listeners`).

What is read from one side is written to the other before more is read, so a tunnel holds one frame and the sockets'
buffers. A program that does not read holds up all connections of its tunnel, and no other tunnel.

Tests: tests/unit/node/test_node_port_forward.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from aiohttp import WSMsgType, web

from dray.node.listeners import find_listener
from dray.node.spdy import Opened, Pinged, Received, Reset, SpdyConnection, SpdyError, data_frame, reset_frame

SPDY = "SPDY/3.1+portforward.k8s.io"
CHANNELS = "v4.channel.k8s.io"
MAX_CONNECTIONS = 128  # of one tunnel at a time
_PIECE = 32 * 1024
_CONNECT_SECONDS = 10.0

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[int], Awaitable[Streams]]  # to a port of the pod; raises OSError


@dataclass(slots=True)
class _Connection:
    """The two streams of a forwarded connection, and where it leads."""

    data: int = 0
    error: int = 0
    port: int = 0
    writer: asyncio.StreamWriter | None = None
    task: asyncio.Task[None] | None = None


class SpdyTunnel:
    """Connections to a pod's ports through one websocket that carries SPDY."""

    def __init__(self, socket: web.WebSocketResponse, connect: Connect) -> None:
        self._socket = socket
        self._connect = connect
        self._spdy = SpdyConnection()
        self._by_request: dict[str, _Connection] = {}  # until both streams are there
        self._by_stream: dict[int, _Connection] = {}  # data streams

    async def run(self) -> None:
        """Carry until the client goes or breaks the protocol."""
        try:
            async for message in self._socket:
                if message.type is WSMsgType.BINARY:
                    for event in self._spdy.receive(message.data):
                        await self._handle(event)
        except (SpdyError, ConnectionError):
            pass  # the websocket is closed, which is all that the protocol has for it
        finally:
            tasks = [each.task for each in self._by_stream.values() if each.task is not None]
            for connection in self._by_stream.values():
                if connection.writer is not None:
                    connection.writer.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _handle(self, event: object) -> None:
        match event:
            case Opened():
                await self._open(event)
            case Received(stream, data, is_finished):
                await self._receive(stream, data, is_finished=is_finished)
            case Reset(stream):
                found = self._by_stream.get(stream)
                if found is not None and found.writer is not None:
                    found.writer.transport.abort()
            case Pinged(answer):
                await self._socket.send_bytes(answer)

    async def _open(self, opened: Opened) -> None:
        headers = opened.headers
        port, request = _port(headers.get("port", "")), headers.get("requestid", "")
        role = headers.get("streamtype", "")
        if not port or role not in ("data", "error") or self._n_connections() >= MAX_CONNECTIONS:
            await self._socket.send_bytes(reset_frame(opened.stream))
            return
        await self._socket.send_bytes(self._spdy.reply(opened.stream))
        connection = self._by_request.setdefault(request, _Connection(port=port))
        if role == "error":
            connection.error = opened.stream
        else:
            connection.data = opened.stream
        if connection.data and connection.error:
            del self._by_request[request]
            await self._begin(connection)

    def _n_connections(self) -> int:
        return len(self._by_stream) + len(self._by_request)

    async def _begin(self, connection: _Connection) -> None:
        self._by_stream[connection.data] = connection
        try:
            reader, connection.writer = await self._connect(connection.port)
        except OSError as problem:
            await self._end(connection, str(problem))
            return
        connection.task = asyncio.create_task(self._answer(connection, reader))

    async def _answer(self, connection: _Connection, reader: asyncio.StreamReader) -> None:
        """Carry what the pod sends."""
        problem = ""
        try:
            while piece := await reader.read(_PIECE):
                await self._socket.send_bytes(data_frame(connection.data, piece))
        except OSError as error:
            problem = str(error)
        with contextlib.suppress(ConnectionError):  # the client has gone
            await self._end(connection, problem)

    async def _end(self, connection: _Connection, problem: str) -> None:
        self._by_stream.pop(connection.data, None)
        if connection.writer is not None:
            connection.writer.close()
        if problem:
            text = f"error forwarding port {connection.port}: {problem}"
            await self._socket.send_bytes(data_frame(connection.error, text.encode()))
        for stream in (connection.error, connection.data):
            await self._socket.send_bytes(data_frame(stream, b"", is_finished=True))

    async def _receive(self, stream: int, data: bytes, *, is_finished: bool) -> None:
        found = self._by_stream.get(stream)
        if found is None or found.writer is None:
            return  # an error stream, or a connection that is over
        with contextlib.suppress(OSError):  # the answering task says why
            found.writer.write(data)
            await found.writer.drain()
            if is_finished:
                found.writer.write_eof()


async def carry_channels(socket: web.WebSocketResponse, ports: Sequence[int], connect: Connect) -> None:
    """Carry one connection to each of the ports, in channels, until all have ended or the client goes."""
    writers: dict[int, asyncio.StreamWriter] = {}

    async def answer(channel: int, reader: asyncio.StreamReader) -> None:
        while piece := await reader.read(_PIECE):
            await socket.send_bytes(bytes([channel]) + piece)

    async def feed() -> None:
        async for message in socket:
            if message.type is WSMsgType.BINARY and message.data[:1] and message.data[0] in writers:
                writer = writers[message.data[0]]
                with contextlib.suppress(OSError):  # its answer ends, too
                    writer.write(message.data[1:])
                    await writer.drain()

    answers: list[asyncio.Task[None]] = []
    try:
        for number, port in enumerate(ports):
            data, error = 2 * number, 2 * number + 1
            for channel in (data, error):
                await socket.send_bytes(struct.pack("<BH", channel, port))
            try:
                reader, writers[data] = await connect(port)
            except OSError as problem:
                text = f"error forwarding port {port}: {problem}"
                await socket.send_bytes(bytes([error]) + text.encode())
                continue
            answers.append(asyncio.create_task(answer(data, reader)))
        if not answers:
            return
        feeding = asyncio.create_task(feed())
        feeding.add_done_callback(lambda _: [task.cancel() for task in answers])  # the client has gone
        await asyncio.gather(*answers, return_exceptions=True)
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
    finally:
        for task in answers:
            task.cancel()
        await asyncio.gather(*answers, return_exceptions=True)
        for writer in writers.values():
            writer.close()


async def connect_to_pod(first_processes: Sequence[int], port: int) -> Streams:
    """Connect to a port on which a process of a pod listens; raises OSError."""
    listener = await asyncio.to_thread(find_listener, first_processes, port)
    if listener is None:
        raise ConnectionRefusedError(
            f"no process of the pod listens on port {port} of the loopback interface or of all interfaces"
        )
    socket = await asyncio.to_thread(listener.open_socket)
    try:
        socket.setblocking(False)
        async with asyncio.timeout(_CONNECT_SECONDS):
            await asyncio.get_running_loop().sock_connect(socket, (listener.host, port))
        return await asyncio.open_connection(sock=socket)
    except BaseException:
        socket.close()
        raise


def parse_ports(texts: Sequence[str]) -> list[int]:
    """Return the ports of a query, each time or separated by commas; raises ValueError."""
    words = [word for text in texts for word in text.split(",")]
    ports = [_port(word) for word in words]
    if not words or len(words) > MAX_CONNECTIONS - 1 or not all(ports):
        raise ValueError(f"ports must name 1 to {MAX_CONNECTIONS - 1} ports between 1 and 65535")
    return ports


def _port(text: str) -> int:
    """Return a port; 0 for what is none."""
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= 5 else 0
    return number if number <= 65535 else 0
