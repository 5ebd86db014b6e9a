"""Where objects live: a revisioned log with compare-and-swap, in memory or in SQLite."""

from dray.server.store.history_retention import keep_history_bounded
from dray.server.store.log_file import FORMAT, LogFile, note_whole_copy
from dray.server.store.memory_store import MemoryStore
from dray.server.store.sqlite_store import FILE_NAME, SqliteStore
from dray.server.store.store_interface import (
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

# fmt: off
__all__ = [
    "ABSENT", "FILE_NAME", "FORMAT", "Compacted", "Event", "FutureRevision", "LogFile",
    "MemoryStore", "Page", "Record", "SqliteStore", "Store", "StoreDamaged", "StoreError",
    "StoreLocked", "StoreUnavailable", "Watch", "WatchLagged", "WriteConflict",
    "keep_history_bounded", "note_whole_copy",
]
# fmt: on
