"""Many watches in a process of its own: a thousand cost their reader more than the writer needs."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable

import uvloop

from bench.server.load import prepared
from bench.stacks import unverified

MARK = b'{"type":"'  # how an event begins


class _Watcher(asyncio.Protocol):
    """Counts the events of a watch, and reads nothing more of them."""

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self._in_body = False
        self._tail = b""  # a mark may arrive in two pieces
        self.n_seen = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(self._crowd.request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        if not self._in_body:  # both servers send the head of a watch before its first event
            if not data.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"the watch was refused: {data[:300]!r}")
            self._in_body = True
            self._crowd.opened()
            data = data.partition(b"\r\n\r\n")[2]
        n_new = (self._tail + data).count(MARK)
        self._tail = (
            data[-len(MARK) + 1 :] if len(data) >= len(MARK) else (self._tail + data)[-len(MARK) + 1 :]
        )
        if n_new:
            self.n_seen += n_new
            self._crowd.counted(self.n_seen, n_new)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.n_seen < self._crowd.n_events:
            self._crowd.cut_off(self)


class Crowd:
    """All watchers: who is there, and what they have seen together."""

    def __init__(self, request: bytes, n_watchers: int, n_events: int) -> None:
        self.request, self.n_watchers, self.n_events = request, n_watchers, n_events
        self.all_open, self.all_done = asyncio.Event(), asyncio.Event()
        self.n_open = self.n_done = self.n_cut = self.n_seen = 0

    def opened(self) -> None:
        self.n_open += 1
        if self.n_open == self.n_watchers:
            self.all_open.set()

    def counted(self, seen_by_one: int, n_new: int) -> None:
        self.n_seen += n_new
        if seen_by_one >= self.n_events:
            self._done()

    def cut_off(self, watcher: _Watcher) -> None:
        """Note a watcher that the server dropped; the others still count."""
        self.n_cut += 1
        self._done()

    def _done(self) -> None:
        self.n_done += 1
        if self.n_done >= self.n_watchers:
            self.all_done.set()


async def _watch(port: int, path: str, n_watchers: int, n_events: int) -> None:
    loop = asyncio.get_running_loop()
    crowd = Crowd(prepared("GET", path), n_watchers, n_events)
    context = unverified()
    for first in range(0, n_watchers, 50):  # a storm of handshakes is not what is measured
        openings: list[Awaitable[object]] = [
            loop.create_connection(lambda: _Watcher(crowd), "127.0.0.1", port, ssl=context)
            for _ in range(first, min(first + 50, n_watchers))
        ]
        await asyncio.gather(*openings)
    await asyncio.wait_for(crowd.all_open.wait(), 60)
    before = time.process_time()
    sys.stdout.write("open\n")
    sys.stdout.flush()
    try:
        await asyncio.wait_for(crowd.all_done.wait(), 120)
    except TimeoutError:
        sys.stdout.write(f"late {crowd.n_seen}\n")
        return
    done = time.clock_gettime(time.CLOCK_MONOTONIC)
    cpu = time.process_time() - before
    sys.stdout.write(f"seen {done} {cpu} {crowd.n_seen} {crowd.n_cut}\n")


def main() -> None:
    """Be the process of watchers: PORT PATH WATCHERS EVENTS; says "open", then "seen TIME CPU EVENTS CUT"."""
    port, path, n_watchers, n_events = sys.argv[1:]
    uvloop.run(_watch(int(port), path, int(n_watchers), int(n_events)))


if __name__ == "__main__":
    main()
