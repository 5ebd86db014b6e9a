"""How much history is kept: five minutes, unless it grows too large.

Kubernetes forgets history after five minutes. A watcher that was away for longer
starts over with a list. Under heavy writing, five minutes may be more than memory
should hold; then the oldest half goes early.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from dray.server.store.store_interface import Store, StoreUnavailable

KEPT_SECONDS = 300.0
LOOK_EVERY = 10.0
MOST_EVENTS = 200_000
MOST_BYTES = 64 * 1024 * 1024


async def keep_history_bounded(store: Store) -> None:
    """Compact the store for as long as it is open."""
    loop = asyncio.get_running_loop()
    marks: deque[tuple[float, int]] = deque()  # (when, revision at that time)
    while True:
        marks.append((loop.time(), store.revision))
        n_events, n_bytes = store.history()
        target = 0
        if n_events > MOST_EVENTS or n_bytes > MOST_BYTES:
            target = store.revision - n_events // 2
        while marks and marks[0][0] <= loop.time() - KEPT_SECONDS:
            target = max(target, marks.popleft()[1])
        if target > store.compacted:
            # Memory is trimmed in any case; what the file keeps too long is forgotten another time.
            with contextlib.suppress(StoreUnavailable):
                await store.compact(target)
        await asyncio.sleep(LOOK_EVERY)
