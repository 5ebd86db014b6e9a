"""Who holds the event loop of a server: a server started by this module writes a line for every step that took long.

`python -m attack fuzz --holds` starts the server under attack this way. A step of the loop (one callback, or a task up to
its next await) that takes more than 50 ms of processor time is written with its request and with the places in which
a watching thread saw it. A line of the sort `interpreter` says that no thread could run for so long: one C call kept the
interpreter, in whatever thread. Times are processor time of the thread or of the process, so a busy machine adds little.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

LIMIT = 0.05  # seconds of processor time
_GLANCE = 0.01  # seconds between two looks of the watching thread
_request: contextvars.ContextVar[str] = contextvars.ContextVar("request", default="")
_MOST_SAMPLES = 20


def places_of(frame: FrameType | None, most: int = 4) -> str:
    """Return the functions of dray (or else of anybody) that a frame is in, innermost first."""
    own, others = [], []
    while frame is not None:
        code = frame.f_code
        _, found, path = code.co_filename.rpartition("/dray/")
        (own if found else others).append(
            f"{path if found else Path(code.co_filename).name}:{code.co_qualname}"
        )
        frame = frame.f_back
    return " < ".join((own or others)[:most])


class Holds:
    """Watches the loop of this process, and writes to a file."""

    def __init__(self, target: Path) -> None:
        self._target = target.open("a", buffering=1)
        self._began = 0.0  # of the step under way, 0 between two steps; time as it passes
        self._samples: dict[str, int] = defaultdict(int)
        self._collecting = 0.0
        self._ended = threading.Event()
        self._loop_thread = threading.get_ident()

    def write(self, sort: str, seconds: float, what: str, places: dict[str, int]) -> None:
        """Write a line."""
        best = sorted(places.items(), key=lambda each: -each[1])[:4]
        line = {
            "sort": sort,
            "ms": round(seconds * 1000),
            "request": _request.get(),
            "what": what,
            "places": best,
        }
        self._target.write(json.dumps(line) + "\n")

    def install(self) -> None:
        """Watch from now on."""
        run = asyncio.events.Handle._run

        def timed(handle: asyncio.Handle) -> None:
            self._samples.clear()
            self._began = time.monotonic()
            before = time.thread_time()
            try:
                run(handle)
            finally:
                took = time.thread_time() - before
                self._began = 0.0
                if took > LIMIT:
                    context: contextvars.Context = handle._context  # type: ignore[attr-defined]
                    context.run(self.write, "loop", took, repr(handle)[:300], dict(self._samples))

        gc.callbacks.append(self._collected)
        asyncio.events.Handle._run = timed  # type: ignore[method-assign]
        threading.Thread(target=self._look, daemon=True, name="holds").start()

    def stop(self) -> None:
        """Look no more."""
        self._ended.set()

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        """Blame the garbage collector for what it took, in whatever step."""
        if phase == "start":
            self._collecting = time.thread_time()
        elif time.thread_time() - self._collecting > LIMIT / 2:
            place = f"garbage collection of generation {info['generation']}"
            self._samples[place] += 1_000
            self.write("garbage", time.thread_time() - self._collecting, "", {place: 1})

    def _look(self) -> None:
        while not self._ended.is_set():
            wall, process, own = time.monotonic(), time.process_time(), time.thread_time()
            time.sleep(_GLANCE)
            held = min(time.monotonic() - wall, time.process_time() - process - (time.thread_time() - own))
            frames = sys._current_frames()
            began = self._began
            if began and time.monotonic() - began > LIMIT / 2 and len(self._samples) < _MOST_SAMPLES:
                self._samples[places_of(frames.get(self._loop_thread))] += 1
            if held > LIMIT:
                names = {each.ident: each.name for each in threading.enumerate()}
                others = {
                    f"{names.get(ident, '?')}: {places_of(frame)}": 1
                    for ident, frame in frames.items()
                    if ident != threading.get_ident()
                }
                self.write("interpreter", held, "", others)


def _remember_requests() -> None:
    """Let every task know the request that it answers."""
    from dray.server.http.fast_http import FastConnection, Head

    answer: Callable[..., Any] = FastConnection._answer

    async def noted(connection: FastConnection, head: Head, raw: bytes, body: bytes) -> None:
        kind = head.headers.get("content-type", "")
        _request.set(f"{head.method} {head.target[:200]} {kind} {head.length} bytes")
        await answer(connection, head, raw, body)

    FastConnection._answer = noted  # type: ignore[method-assign]


def summary(target: Path, most: int = 12) -> list[str]:
    """Return the longest holds of each place, as lines for people."""
    worst: dict[tuple[str, str], tuple[int, int, dict[str, Any]]] = {}
    for line in target.read_text().splitlines():
        held = json.loads(line)
        place = held["places"][0][0] if held["places"] else held["what"][:120]
        count, ms, example = worst.get((held["sort"], place), (0, 0, held))
        worst[held["sort"], place] = (
            count + 1, max(ms, held["ms"]), held if held["ms"] > ms else example,
        )  # fmt: skip
    rows = sorted(worst.items(), key=lambda each: -each[1][1])[:most]
    return [
        f"{ms:5} ms {count:5}x {sort}: {place}\n            {example['request']} {[p for p, _ in example['places'][1:]] if sort == 'interpreter' else ''}"
        for (sort, place), (count, ms, example) in rows
    ]


def main() -> int:
    """Run `dray` with the arguments after the first, which is the file to write to."""
    import uvloop

    from dray.cli import main as dray

    # The steps of uvloop's loop cannot be watched from Python; those of asyncio's do the same work of ours.
    uvloop.new_event_loop = asyncio.new_event_loop  # type: ignore[assignment]
    holds = Holds(Path(sys.argv.pop(1)))
    _remember_requests()
    holds.install()
    return dray()


if __name__ == "__main__":
    raise SystemExit(main())
