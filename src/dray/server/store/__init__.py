"""Where objects live: a revisioned log with compare-and-swap, in memory or in SQLite."""

from dray.server.store.contract import (
    ABSENT,
    Compacted,
    Event,
    FutureRevision,
    Page,
    Record,
    Store,
    StoreDamaged,
    StoreError,
    StoreLocked,
    StoreUnavailable,
    Watch,
    WatchLagged,
    WriteConflict,
)
from dray.server.store.memory import MemoryStore
from dray.server.store.sqlite import SqliteStore

__all__ = [
    "ABSENT",
    "Compacted",
    "Event",
    "FutureRevision",
    "MemoryStore",
    "Page",
    "Record",
    "SqliteStore",
    "Store",
    "StoreDamaged",
    "StoreError",
    "StoreLocked",
    "StoreUnavailable",
    "Watch",
    "WatchLagged",
    "WriteConflict",
]
