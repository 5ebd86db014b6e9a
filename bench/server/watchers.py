"""Many watches in a process of its own: a thousand cost their reader more than the writer needs."""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from collections.abc import Awaitable, Callable

import uvloop

from bench.server.load import prepared
from bench.stacks import unverified


class _Watcher(asyncio.Protocol):
    """Counts the events of a watch by their line ends, and reads nothing more."""

    def __init__(self, request: bytes, opened: Callable[[], None], counted: Callable[[int], None]) -> None:
        self._request, self._opened, self._counted = request, opened, counted
        self._in_body = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        if not self._in_body:  # both servers send the head of a watch before its first event
            if not data.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"the watch was refused: {data[:300]!r}")
            self._in_body = True
            self._opened()
            data = data.partition(b"\r\n\r\n")[2]
        lines = data.count(b'{"type":"')
        if lines:
            self._counted(lines)


async def _watch(port: int, path: str, n_watchers: int, n_events: int) -> None:
    loop = asyncio.get_running_loop()
    all_open, all_seen = asyncio.Event(), asyncio.Event()
    n_open = n_seen = 0

    def opened() -> None:
        nonlocal n_open
        n_open += 1
        if n_open == n_watchers:
            all_open.set()

    def counted(lines: int) -> None:
        nonlocal n_seen
        n_seen += lines
        if n_seen >= n_watchers * n_events:
            all_seen.set()

    context = unverified()
    for first in range(0, n_watchers, 50):  # a storm of handshakes is not what is measured
        openings: list[Awaitable[object]] = [
            loop.create_connection(
                lambda: _Watcher(prepared("GET", path), opened, counted), "127.0.0.1", port, ssl=context
            )
            for _ in range(first, min(first + 50, n_watchers))
        ]
        await asyncio.gather(*openings)
    await asyncio.wait_for(all_open.wait(), 60)
    before = resource.getrusage(resource.RUSAGE_SELF)
    sys.stdout.write("open\n")
    sys.stdout.flush()
    try:
        await asyncio.wait_for(all_seen.wait(), 120)
    except TimeoutError:
        sys.stdout.write(f"late {n_seen}\n")
        return
    done = time.clock_gettime(time.CLOCK_MONOTONIC)
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    sys.stdout.write(f"seen {done} {cpu}\n")


def main() -> None:
    """Be the process of watchers: PORT PATH WATCHERS EVENTS; says "open", then "seen TIME CPU"."""
    port, path, n_watchers, n_events = sys.argv[1:]
    uvloop.run(_watch(int(port), path, int(n_watchers), int(n_events)))


if __name__ == "__main__":
    main()
