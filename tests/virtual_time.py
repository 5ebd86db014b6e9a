"""Virtual time for tests: waiting costs none.

Theory of operation: with the fixture `virtual_time`, the clock of the running event loop jumps to the next timer
whenever the loop would only wait for it. So sleeps, retries and time limits take their places in the order of time, a
test that shows that something does *not* happen within a second takes a millisecond, and a busy machine changes nothing.
While a thread of the loop's executor is at work the loop waits for real: its result must not come after the time limit.

Not for tests with sockets or processes: the clock would run ahead of them. `time.monotonic` and the wall clock stay as they are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

_LOOK_AGAIN = 0.005  # seconds between two looks at threads


class _Clock:
    """Stands in for the selector's wait and the clock of one loop."""

    def __init__(self, loop: Any) -> None:
        self._wait, self._run = loop._selector.select, loop.run_in_executor
        self._skipped = 0.0
        self._n_threads = 0
        loop._selector.select, loop.time, loop.run_in_executor = self._select, self._time, self._in_thread

    def _time(self) -> float:
        return time.monotonic() + self._skipped

    def _select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            return self._wait(None)
        if self._n_threads:
            return self._wait(min(timeout, _LOOK_AGAIN))
        ready = self._wait(0)
        if not ready:
            self._skipped += max(timeout, 0.0)
        return ready

    def _in_thread(self, *args: Any) -> Any:
        self._n_threads += 1
        future = self._run(*args)
        future.add_done_callback(self._thread_is_done)
        return future

    def _thread_is_done(self, _: object) -> None:
        self._n_threads -= 1


@pytest.fixture
async def virtual_time() -> AsyncIterator[None]:
    """Let the clock of this test's event loop jump over waiting."""
    loop: Any = asyncio.get_running_loop()
    wait = loop._selector.select
    _Clock(loop)
    yield
    loop._selector.select = wait
    del loop.time, loop.run_in_executor
