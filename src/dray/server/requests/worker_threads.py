"""Where the work for large requests is done: in threads beside the event loop.

Reading, merging and judging an object is pure computation, linear in its size, at some
microseconds per field. For nearly all requests that is far less than a millisecond and is done at
once. Three megabytes take seconds, in which nobody else would be answered; so from `LARGE` bytes on
each step of the work runs in a thread. Python's threads take turns every few milliseconds, so
the loop goes on.

Only steps that look at nothing but their arguments are done here: what looks at the store, admission
and writing stay in the loop, and a write that meets a newer object is computed again (see `create_and_update`).

Invariant (tests/unit/server/test_server_heartbeat.py): no body holds the loop for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

LARGE = 48 * 1024  # bytes of JSON; YAML counts four times, because it is read so much more slowly
N_THREADS = 2  # they share one interpreter: more of them would only slow down the loop

T = TypeVar("T")
_threads = ThreadPoolExecutor(N_THREADS, thread_name_prefix="dray-large-request")


async def compute(size: int, function: Callable[..., T], *arguments: object) -> T:
    """Call a function that needs nothing but its arguments: at once, or in a thread if the request is large."""
    if size < LARGE:
        return function(*arguments)
    return await asyncio.get_running_loop().run_in_executor(_threads, lambda: function(*arguments))
