"""Heartbeat and memory of a server, measured by a process of its own.

Every 50 ms the monitor asks `/livez` on a connection that it keeps. How long an answer takes
says how long the event loop was held, and nothing else, if the machine is quiet. It rarely
is, so the time that the kernel kept the monitor or any thread of the server waiting for a processor
(`schedstat`) is subtracted, as a thread that waits while it has the interpreter makes the event loop wait
as well. What the server's threads computed meanwhile is counted in any case. On a quiet machine
there is nothing to subtract.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import re
import socket
import ssl
import time
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from attack.servers import resident_bytes
from attack.wire import HOST, client_tls

PERIOD = 0.05
_ASK = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@dataclass(slots=True)
class Beats:
    """What was seen since the last report; times in milliseconds, memory in MB."""

    beats: int = 0
    worst: float = 0.0  # the longest answer, of which the server itself was the reason; see `held`
    worst_raw: float = 0.0  # the longest answer by the clock
    late: int = 0  # answers over 100 ms, corrected
    failed: int = 0  # no answer at all
    memory: float = 0.0  # at the end
    memory_peak: float = 0.0


@dataclass(frozen=True, slots=True)
class Shares:
    """Seconds that the threads of a process ran, and that they waited for a processor."""

    ran: float = 0.0
    waited: float = 0.0


def shares_of(pid: int) -> Shares:
    """Return what the kernel has counted for all threads of a process; nothing when it is gone."""
    ran = waited = 0
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError, IndexError, ValueError):
                numbers = (task / "schedstat").read_text().split()
                ran, waited = ran + int(numbers[0]), waited + int(numbers[1])
    return Shares(ran / 1e9, waited / 1e9)


def held(took: float, ran: float, waited: float) -> float:
    """Return for how many seconds of an answer's time the server itself was the reason.

    >>> held(took=0.5, ran=0.0, waited=0.0), held(took=0.5, ran=0.1, waited=0.45)
    (0.5, 0.1)
    """
    return max(min(took, ran), took - waited)


def is_whole(answer: bytes) -> bool:
    r"""Return whether an answer with a Content-Length is here as a whole, whatever it says.

    >>> is_whole(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno"), is_whole(b"HTTP/1.1 200 OK\r\n")
    (True, False)
    """
    head, end, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)^content-length: *(\d+)", head, re.M)
    return bool(end) and len(body) >= (int(length[1]) if length else 0)


class _Probe:
    """One kept connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._tls: ssl.SSLContext = client_tls()
        self._socket: ssl.SSLSocket | None = None

    def ask(self, patience: float) -> bool:
        """Ask once; False if there was no answer in time."""
        try:
            if self._socket is None:
                plain = socket.create_connection((HOST, self._port), timeout=patience)
                plain.settimeout(patience)
                self._socket = self._tls.wrap_socket(plain)
            self._socket.settimeout(patience)
            self._socket.sendall(_ASK)
            seen = b""
            while not is_whole(seen):
                piece = self._socket.recv(4096)
                if not piece:
                    raise ConnectionError("hung up")
                seen += piece
            return seen[9:12] == b"200"
        except (OSError, ValueError):
            self.close()
            return False

    def close(self) -> None:
        """Hang up."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
        self._socket = None


def _watch(port: int, pid: int, control: Connection, patience: float) -> None:
    """Send heartbeats until told to stop; a message asks for a report and begins the next one."""
    probe, own = _Probe(port), multiprocessing.current_process().pid or 0
    probe.ask(patience)  # the handshake is not part of a heartbeat
    seen = Beats()
    while True:
        server, monitor = shares_of(pid), shares_of(own)
        began = time.monotonic()
        answered = probe.ask(patience)
        took = time.monotonic() - began
        server_now, waited = shares_of(pid), shares_of(own).waited - monitor.waited
        net = held(took, server_now.ran - server.ran, server_now.waited - server.waited + waited)
        seen.beats += 1
        seen.failed += not answered
        seen.worst, seen.worst_raw = max(seen.worst, net * 1000), max(seen.worst_raw, took * 1000)
        seen.late += net > 0.1
        seen.memory = resident_bytes(pid) / 1e6
        seen.memory_peak = max(seen.memory_peak, seen.memory)
        if control.poll(max(0.0, PERIOD - took)):
            order = control.recv()
            if order is None:
                probe.close()
                return
            pid = order
            control.send(asdict(seen))
            seen = Beats()  # the next report has at least one beat, since orders are read after beats


class Monitor:
    """The monitor's process as seen by the attack."""

    def __init__(self, port: int, pid: int, patience: float = 120.0) -> None:
        self._control, far = multiprocessing.Pipe()
        self._process = multiprocessing.Process(target=_watch, args=(port, pid, far, patience), daemon=True)
        self._process.start()
        self._patience = patience

    def report(self, pid: int) -> Beats:
        """Return what was seen since the last report; `pid` is the server's from now on."""
        self._control.send(pid)
        if not self._control.poll(self._patience * 2):
            raise TimeoutError("the monitor does not answer")
        found: dict[str, Any] = self._control.recv()
        return Beats(**found)

    def stop(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            self._control.send(None)
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
