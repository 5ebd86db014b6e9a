"""The durable store: an append-only log in SQLite under the store in memory.

Theory of operation. A write is checked and numbered at once, in the event loop,
against the state *including* writes that are still on their way to disk; then
it waits for its batch. A batch is all that came in a turn of the loop, or while the one
before it was written. It is appended in one transaction (WAL, synchronous=FULL: the
commit waits for the disk), then made visible and acknowledged. Concurrent requests
therefore share a disk flush, and nobody sees what a crash could undo.

Who writes? A quick disk takes a batch in a fraction of a millisecond, less than it takes to
wake a thread that must wrest the interpreter from a busy loop several times, so the
loop does it itself. Large batches, compaction and checkpoints of the WAL go to the
writer thread, and when a write took long, so do the next ones for a while: a slow disk
delays writes, never reads.

A write that meets a newer one still on its way waits for that one before it
reports the conflict, so that a caller who reads and retries finds the winner.

When the disk refuses (full, gone), the batch and everything queued behind it
fails, since later writes were checked against earlier ones; numbering goes back
to the last durable revision. The *epoch* tells the two sides apart.

While writes fail, `trouble` says why (readiness asks it), and the disk is probed
until it takes a write again.

The file itself, its checksums and what is refused at opening: `log_file`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from dray.server.store.log_file import Contents, LogFile, row_of
from dray.server.store.memory_store import (
    COMPACTED_AT_ONCE,
    WATCH_BUFFER,
    MemoryStore,
    check_expectation,
    written,
)
from dray.server.store.store_interface import Event, Record, StoreLocked, StoreUnavailable, ValueAt

FILE_NAME = "store.db"
LOCK_NAME = "lock"
LARGEST_BATCH = 2_000
SMALL_BATCH = 64  # rows that are written with one statement
LARGE = 1 << 20  # bytes that the loop does not write itself
GATHERING = 0.002  # seconds in which a busy loop may add to a batch
LONG_WRITE = 0.005  # seconds; after one, the thread writes
DETOUR = 200  # batches that the thread writes then
CHECKPOINT_BYTES = 16 << 20  # of the WAL, roughly
PROBE_EVERY = 2.0  # seconds between two attempts to write while writes fail
PROBE_BYTES = 1 << 20
PROBE_NAME = "store.db-probe"
_PAGE = 4096

log = logging.getLogger("dray.server")


@dataclass(slots=True)
class _Append:
    """A write on its way to disk."""

    event: Event
    epoch: int
    done: asyncio.Future[None]


@dataclass(slots=True)
class _Forget:
    """A compaction on its way to disk."""

    revision: int
    rows: list[tuple[int]]  # revisions that nobody can ask for any more
    done: asyncio.Future[None]


class SqliteStore(MemoryStore):
    """A store whose acknowledged writes survive kill -9 and power loss."""

    def __init__(
        self, directory: Path, *, watch_buffer: int = WATCH_BUFFER, expects_content: bool = False
    ) -> None:
        super().__init__(watch_buffer=watch_buffer)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = directory / FILE_NAME
        self._lock = _lock_directory(directory)
        try:
            self._file = LogFile(self.path, expects_content=expects_content)
        except BaseException:
            os.close(self._lock)
            raise
        self._database = self._file.database
        self._take_over(self._file.contents)
        self._next_revision = self._revision + 1
        # key -> newest write on its way to disk (its event tells value or deletion)
        self._in_flight: dict[str, _Append] = {}
        self._epoch = 0
        self._failed_epoch = -1  # set by whoever writes: one at a time
        self._waiting: list[_Append | _Forget] = []  # for the next batch
        self._is_flushing = False  # a batch is being written, or about to be
        self._detour = 0  # batches for the thread before the loop tries the disk again
        self._unsaved = 0  # bytes since the last checkpoint
        # (batch, whether a checkpoint is due after it); None: the end
        self._queue: queue.SimpleQueue[tuple[list[_Append | _Forget], bool] | None] = queue.SimpleQueue()
        self._trouble = ""  # why writes fail; set by a write, cleared by a probe
        self._is_probing = False
        self._writer = threading.Thread(target=self._write_forever, name="store-writer", daemon=True)
        self._writer.start()

    async def put(self, key: str, value: ValueAt, expected: int | None = None) -> Record:
        """Append a value and return once it is durable."""
        self._require_open()
        current = await self._checked(key, expected)
        event = written(key, current, self._next_revision, value)
        await self._append(event)
        assert event.record is not None
        return event.record

    async def delete(self, key: str, expected: int | None = None) -> Event | None:
        """Append a deletion and return once it is durable."""
        self._require_open()
        current = await self._checked(key, expected)
        if current is None:
            return None
        event = Event(self._next_revision, key, None, current)
        await self._append(event)
        return event

    async def compact(self, revision: int) -> None:
        """Forget history, in memory and on disk, some of it at a time: reads and writes go on in between."""
        self._require_open()
        while True:
            rows: list[tuple[int]] = []
            for event in self._trim(revision, COMPACTED_AT_ONCE):
                if event.previous is not None:
                    rows.append((event.previous.revision,))
                if event.record is None:
                    rows.append((event.revision,))
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._submit(_Forget(self._compacted, rows, done))
            await done
            if self._compacted >= min(revision, self._revision):
                return
            self._require_open()

    def _take_over(self, contents: Contents) -> None:
        """Begin with what the file holds."""
        self._revision, self._compacted = contents.revision, contents.compacted
        self._records, self._keys = contents.records, sorted(contents.records)
        self._events.extend(contents.events)
        self._history_bytes = contents.history_bytes

    def close(self) -> None:
        """Finish queued writes, then release the files."""
        if self._closed:
            return
        super().close()
        if self._waiting:
            self._queue.put((self._waiting, False))  # behind the batch that the thread may be writing
            self._waiting = []
        self._queue.put(None)
        self._writer.join()
        self._file.close()
        os.close(self._lock)

    def trouble(self) -> str:
        """Return why writes fail at present."""
        return self._trouble

    # --- the event loop's side -----------------------------------------------

    async def _checked(self, key: str, expected: int | None) -> Record | None:
        flying = self._in_flight.get(key)
        current = flying.event.record if flying is not None else self._records.get(key)
        found = current.revision if current is not None else 0
        if flying is not None and expected is not None and found != expected:
            with contextlib.suppress(StoreUnavailable):
                await asyncio.shield(flying.done)
            current = self._records.get(key)
        check_expectation(key, current, expected)
        return current

    async def _append(self, event: Event) -> None:
        loop = asyncio.get_running_loop()
        append = _Append(event, self._epoch, loop.create_future())
        self._next_revision += 1
        self._in_flight[event.key] = append
        self._submit(append)
        # The write happens even if the request that asked for it goes away.
        await asyncio.shield(append.done)

    def _submit(self, item: _Append | _Forget) -> None:
        self._waiting.append(item)
        if not self._is_flushing:
            self._is_flushing = True
            self._gather_soon(item.done.get_loop())

    def _gather_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_soon(self._gather, loop, len(self._waiting), loop.time() + GATHERING)

    def _gather(self, loop: asyncio.AbstractEventLoop, seen: int, end: float) -> None:
        """Write the batch when a turn of the loop has brought nothing new, or it has become late."""
        count = len(self._waiting)
        if seen < count < SMALL_BATCH and loop.time() < end:
            loop.call_soon(self._gather, loop, count, end)
        else:
            self._flush()

    def _flush(self) -> None:
        """Write the next batch, or have it written."""
        batch, self._waiting = self._waiting[:LARGEST_BATCH], self._waiting[LARGEST_BATCH:]
        self._is_flushing = bool(batch)
        if not batch:
            return
        size = sum(_size(item) for item in batch)
        is_large = len(batch) > SMALL_BATCH or size > LARGE or any(isinstance(i, _Forget) for i in batch)
        self._unsaved += size
        is_due = self._unsaved >= CHECKPOINT_BYTES
        if is_due:
            self._unsaved = 0
        if is_large or is_due or self._detour:
            self._detour = max(self._detour - 1, 0)
            self._queue.put((batch, is_due))
            return
        begun = time.monotonic()
        problem = self._written(batch)
        if time.monotonic() - begun > LONG_WRITE:
            self._detour = DETOUR
        self._settle(batch, problem)

    def _settle(self, batch: Sequence[_Append | _Forget], problem: str | None) -> None:
        """Answer those who wait for a batch, and begin the next one if somebody waits for it."""
        if problem is None:
            self._committed(batch)
        else:
            self._refused(batch, problem)
        self._is_flushing = bool(self._waiting)
        if self._waiting:
            self._gather_soon(self._waiting[0].done.get_loop())

    def _committed(self, batch: Sequence[_Append | _Forget]) -> None:
        for item in batch:
            if isinstance(item, _Append):
                self.commit((item.event,))
                if self._in_flight.get(item.event.key) is item:
                    del self._in_flight[item.event.key]
            if not item.done.done():
                item.done.set_result(None)

    def _refused(self, batch: Sequence[_Append | _Forget], why: str) -> None:
        failed = [item for item in batch if isinstance(item, _Append)]
        if any(item.epoch == self._epoch for item in failed):
            # Later writes were checked against these; they fail too, and numbering starts anew.
            self._epoch += 1
            self._in_flight.clear()
            self._next_revision = self._revision + 1
        for item in batch:
            if not item.done.done():
                item.done.set_exception(StoreUnavailable(why))
                item.done.exception()  # a caller that went away must not make the loop complain
        self._notice_trouble(batch[0].done.get_loop(), why)

    def _notice_trouble(self, loop: asyncio.AbstractEventLoop, why: str) -> None:
        """Remember that the disk refuses, and ask it now and then whether it still does."""
        if not self._trouble:
            log.error("writes fail until this is over: %s", why)
        self._trouble = why.removeprefix(f"cannot write {self.path}: ")
        if not self._is_probing and not self._closed:
            self._is_probing = True
            loop.create_task(self._probe())

    async def _probe(self) -> None:
        """Try to write until it works. A small write may work where the next large one does not, so try a large one."""
        try:
            while not self._closed:
                await asyncio.sleep(PROBE_EVERY)
                try:
                    await asyncio.to_thread(_fill_and_remove, self.path.with_name(PROBE_NAME))
                    self._require_open()
                    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._submit(_Forget(self._compacted, [], done))
                    await done
                except (OSError, StoreUnavailable) as problem:
                    self._trouble = getattr(problem, "strerror", None) or self._trouble
                    continue
                log.warning("writes work again")
                self._trouble = ""
                return
        finally:
            self._is_probing = False

    # --- the writer thread's side --------------------------------------------

    def _write_forever(self) -> None:
        while (work := self._queue.get()) is not None:
            batch, is_checkpoint_due = work
            problem = self._written(batch)
            if is_checkpoint_due:
                # The batch is safe whether this works or not; if not, it is tried again later.
                with contextlib.suppress(sqlite3.Error):
                    self._database.execute("PRAGMA wal_checkpoint(PASSIVE)")
            # The loop is gone when the process is on its way out; then nobody waits for the answer.
            with contextlib.suppress(RuntimeError):
                batch[0].done.get_loop().call_soon_threadsafe(self._settle, batch, problem)

    # --- whoever writes -------------------------------------------------------

    def _written(self, batch: Sequence[_Append | _Forget]) -> str | None:
        """Write a batch; say why if it could not be written."""
        try:
            if any(isinstance(item, _Append) and item.epoch <= self._failed_epoch for item in batch):
                raise StoreUnavailable("an earlier write failed")
            self._write_transaction(batch)
        except (sqlite3.Error, StoreUnavailable) as problem:
            epochs = [item.epoch for item in batch if isinstance(item, _Append)]
            self._failed_epoch = max([self._failed_epoch, *epochs])
            with contextlib.suppress(sqlite3.Error):
                self._database.rollback()
            return f"cannot write {self.path}: {problem}"
        return None

    def _write_transaction(self, batch: Sequence[_Append | _Forget]) -> None:
        rows = [row_of(item.event) for item in batch if isinstance(item, _Append)]
        if len(rows) == len(batch) <= SMALL_BATCH:
            # One statement is a transaction of its own, and one call is sooner than three.
            values = [each for row in rows for each in row]
            self._database.execute(_insert(len(rows)), values)
            return
        self._database.execute("BEGIN IMMEDIATE")
        if rows:
            self._database.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?)", rows)
        for item in batch:
            if isinstance(item, _Forget):
                self._database.executemany("DELETE FROM log WHERE revision = ?", item.rows)
                # Deleting the newest row must not let its number be used again.
                self._file.set_about(compacted=item.revision, revision=item.revision)
        self._database.execute("COMMIT")


def _fill_and_remove(path: Path) -> None:
    """Write a file of some size to the disk and remove it; raises OSError when the disk is full."""
    try:
        with path.open("wb") as opened:
            opened.write(bytes(PROBE_BYTES))
            opened.flush()
            os.fsync(opened.fileno())
    finally:
        path.unlink(missing_ok=True)


def _size(item: _Append | _Forget) -> int:
    """Estimate what an entry adds to the WAL, which consists of pages."""
    if isinstance(item, _Forget):
        return _PAGE * len(item.rows)
    record = item.event.record
    return _PAGE + (len(record.value) if record is not None else 0)


@lru_cache(maxsize=SMALL_BATCH)
def _insert(n_rows: int) -> str:
    places = ", ".join(["(?, ?, ?, ?, ?)"] * n_rows)
    return f"INSERT INTO log VALUES {places}"  # noqa: S608  (nothing but question marks)


def _lock_directory(directory: Path) -> int:
    descriptor = os.open(directory / LOCK_NAME, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        os.close(descriptor)
        raise StoreLocked(
            f"{directory} is in use by another dray server; stop it or choose another --data directory"
        ) from problem
    return descriptor
