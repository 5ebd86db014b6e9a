"""How long a decision may hold the event loop, and where the rest of its work is done.

A claim decides how long its decision takes: expressions at the cost limit, hundreds of kilobytes of them to compile, a search
that has no end. The loop answers watches and renews its lease meanwhile, and other pods wait. So a decision gets a budget
(see `dray.allocator.expressions`): what needs more raises PendingWork, whose work is done in a thread while other pods are
decided; then the pod is decided again and finds the results.

Two clocks. The budget of searches on the loop is processor time of the loop's thread, so that a busy machine does not
send easy searches away. The limit of a whole attempt (`filter_timeout`) is time as it passes, summed over the searches
in the thread: a pod whose searches have used it up is told that the scheduler gave up, and waits.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from dray.allocator import Allocator, PendingSearch, PendingWork

_INLINE_COST = 50_000  # of expressions in one decision, in units of CEL: some milliseconds
_INLINE_SECONDS = 0.02  # of searches in one decision, of the loop's processor time


class _Deadline(threading.local):
    at = float("inf")  # when the searches of this thread are late


class Pace:
    """The budget of decisions on the event loop, and the thread for what exceeds it."""

    def __init__(self, timeout: float | None) -> None:
        """Start without a budget; `timeout` are the seconds that the searches of one attempt may take, None: any time."""
        self._timeout = float("inf") if timeout is None else timeout
        self._deadline = _Deadline()
        self._searched: dict[
            str, float
        ] = {}  # pod key -> seconds of searches in the thread, of the attempt under way
        # One thread: expressions compete with the event loop for the interpreter.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="expressions")

    def is_late(self) -> bool:
        """Return whether the search of the current thread has taken too long."""
        return time.monotonic() > self._deadline.at

    @contextmanager
    def limited(self, allocator: Allocator) -> Iterator[None]:
        """Limit how long the queries inside hold the loop; they raise PendingWork."""
        end = time.thread_time() + _INLINE_SECONDS
        with allocator.evaluation_budget.limited(_INLINE_COST, lambda: time.thread_time() > end):
            yield

    @contextmanager
    def deciding(self, key: str, allocator: Allocator) -> Iterator[None]:
        """Limit a decision about a pod; one that ends without PendingWork ends the attempt."""
        self._deadline.at = time.monotonic() + self._timeout - self._searched.get(key, 0.0)
        with self.limited(allocator):
            yield
        self.forget(key)

    async def finish(self, key: str, pending: PendingWork) -> None:
        """Do what a decision waits for, in the thread."""
        started = time.monotonic()
        seconds_left = self._timeout - self._searched.get(key, 0.0)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._work, pending.work, seconds_left)
        if isinstance(pending, PendingSearch):
            self._searched[key] = self._searched.get(key, 0.0) + time.monotonic() - started

    def _work(self, work: Callable[[], object], seconds_left: float) -> None:
        self._deadline.at = time.monotonic() + seconds_left
        work()

    def forget(self, key: str) -> None:
        """Forget a pod that was decided or left."""
        self._searched.pop(key, None)

    def close(self) -> None:
        """Abandon the thread; nothing waits for its result any more."""
        self._thread.shutdown(wait=False, cancel_futures=True)
