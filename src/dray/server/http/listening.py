"""Accepting connections: bounded, and calm when file descriptors run out.

The event loops accept connections by themselves, but then each costs a TLS handshake
before anybody can count it, and what happens when the process has no file descriptor
left differs from loop to loop. So sockets are accepted here: a connection beyond the
limit is closed before TLS begins, and without descriptors accepting pauses for a
moment (the kernel keeps the clients waiting) and says so once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
import socket
import ssl
from collections.abc import Callable

from dray.host.sockets import UnixSocket
from dray.server.http.connection_limits import MAX_CONNECTIONS, Connections

BACKLOG = 1024
BATCH = 8  # connections accepted in one turn of the loop: each brings a TLS handshake of a millisecond or two
HANDSHAKE_TIMEOUT = 10.0  # seconds for TLS to be agreed on
SHUTDOWN_TIMEOUT = 2.0  # seconds for TLS to be ended by both sides
PAUSE = 0.5  # seconds without accepting when there are no descriptors
RESERVED_DESCRIPTORS = 32  # for the store, logs, node agents
SAY_AGAIN = 60.0  # seconds before the same trouble is logged again
_NO_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = logging.getLogger("dray.server")


def connection_limit() -> int:
    """Return how many connections this process may have, by its limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(8, min(MAX_CONNECTIONS, soft - RESERVED_DESCRIPTORS))


class Listener:
    """Listening sockets whose connections are counted before anything is spent on them."""

    def __init__(
        self,
        make_protocol: Callable[[], asyncio.Protocol],
        connections: Connections,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._make_protocol = make_protocol
        self._connections = connections
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._handshakes: dict[asyncio.Task[None], socket.socket] = {}  # in order of arrival
        self._logged: dict[str, float] = {}  # what was logged, and when
        self._unix: UnixSocket | None = None
        self._is_closed = False

    def open(self, address: str, port: int) -> int:
        """Listen and return the port; raises OSError when that is not possible."""
        found = socket.getaddrinfo(address or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, kind, protocol, _, where in dict.fromkeys(found):
                listening = socket.socket(family, kind, protocol)
                self._sockets.append(listening)
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listening.bind((where[0], port or where[1], *where[2:]))
                listening.listen(BACKLOG)
                listening.setblocking(False)
                port = port or int(listening.getsockname()[1])  # all addresses share one port
        except OSError:
            self.close()
            raise
        for listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)
        return port

    def open_unix(self, unix: UnixSocket) -> None:
        """Listen at a path; raises OSError (SocketTakenError when somebody serves there)."""
        listening = unix.listen(BACKLOG)
        self._unix = unix
        self._sockets.append(listening)
        self._loop.add_reader(listening, self._accept, listening)

    def close(self) -> None:
        """Stop listening; idempotent."""
        self._is_closed = True
        for listening in self._sockets:
            if listening.fileno() >= 0:
                self._loop.remove_reader(listening)
                listening.close()
        if self._unix is not None:
            self._unix.close()
        for handshake in list(self._handshakes):
            handshake.cancel()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(BATCH):
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as problem:
                if problem.errno not in _NO_RESOURCES:
                    self._log("accept", f"cannot accept a connection: {problem}")
                    return
                self._log("resources", f"cannot accept connections for now: {problem.strerror}")
                self._loop.remove_reader(listening)
                self._loop.call_later(PAUSE, self._resume, listening)
                return
            has_room = self._connections.has_room()
            is_making_room = not has_room and self._end_oldest_handshake()
            if not has_room and not is_making_room:
                accepted.close()
                self._log("limit", f"all {self._connections.limit} connections are in use; closing new ones")
                continue
            accepted.setblocking(False)
            self._connections.handshaking += 1
            task = self._loop.create_task(self._begin(accepted))
            self._handshakes[task] = accepted
            task.add_done_callback(self._handshakes.pop)
            if is_making_room:
                return  # the place is free in the next turn of the loop

    def _end_oldest_handshake(self) -> bool:
        """Free a place: a connection that has not begun TLS is closed before one that has just come."""
        oldest = next((task for task in self._handshakes if not task.cancelling()), None)
        if oldest is None:
            return False
        with contextlib.suppress(OSError):
            self._handshakes[oldest].shutdown(socket.SHUT_RDWR)
        oldest.cancel()
        return True

    def _resume(self, listening: socket.socket) -> None:
        if not self._is_closed:
            self._loop.add_reader(listening, self._accept, listening)

    async def _begin(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._make_protocol,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT if self._tls is not None else None,
                ssl_shutdown_timeout=SHUTDOWN_TIMEOUT if self._tls is not None else None,
            )
        except (TimeoutError, OSError, ssl.SSLError) as problem:
            log.debug("a connection did not come about: %s", problem)
            accepted.close()
        except BaseException:
            accepted.close()
            raise
        finally:
            self._connections.handshaking -= 1

    def _log(self, what: str, text: str) -> None:
        now = self._loop.time()
        if now >= self._logged.get(what, 0.0):
            self._logged[what] = now + SAY_AGAIN
            log.warning("%s", text)
