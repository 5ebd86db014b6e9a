"""The file of the durable store: its format, its checksums, and opening it without trusting it.

Format 2: a table `log` with one row for each write, and a table `about` with a few
numbers. Each row of `log` carries a CRC over everything in it: revision, key, the revision at
which the key came to be, and the value. `about` carries one over its numbers. SQLite finds
pages that make no sense; the checksums find bits that changed and still make sense, such as
another letter in a key. A file that is not what was written is refused and left as it is.

Format 1 had a CRC over the value only. Such a file is checked as far as that goes and
then becomes format 2, in one transaction.

What is refused with a way out, and what is only said:
  * an empty file where there must be a cluster (`expects_content`): something emptied it, and starting would
    make an empty cluster under the old certificates;
  * a file that ends too early, is not a database, or cannot be read or written; a `-wal` whose file is missing,
    which SQLite would delete;
  * a file that was in use and has no `-wal` beside it is opened with a warning: it is a copy made while the
    server ran, complete if SQLite made it, without the latest writes if it was copied by hand.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sqlite3
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dray.server.store.store_interface import Event, Record, StoreDamaged, StoreUnavailable

FORMAT = 2
FIRST_FORMAT = 1  # its checksums cover values only
_LEAST_BYTES = 512  # SQLite's smallest page; a shorter file counts as a new database there
_WAY_OUT = "it was left as it is: restore a copy, or move it away to start empty"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS log (
    revision INTEGER PRIMARY KEY,
    key TEXT NOT NULL,
    created INTEGER NOT NULL,
    crc INTEGER NOT NULL,
    value BLOB  -- NULL: the key was deleted
);
"""

log = logging.getLogger("dray.server")

Row = tuple[int, str, int, int, bytes | None]  # revision, key, created, crc, value


def checksum(revision: int, key: str, created: int, value: bytes | None) -> int:
    """Return the CRC over everything that a row says."""
    head = f"{revision} {created} {'-' if value is None else '+'} {key}\0"
    return zlib.crc32(value or b"", zlib.crc32(head.encode("utf-8", "surrogatepass")))


def row_of(event: Event) -> Row:
    """Return the row of an event."""
    record = event.record
    value = record.value if record is not None else None
    created = record.created if record is not None else 0
    return event.revision, event.key, created, checksum(event.revision, event.key, created, value), value


@dataclass(slots=True)
class Contents:
    """What a file holds."""

    revision: int
    compacted: int
    records: dict[str, Record] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    history_bytes: int = 0


class LogFile:
    """An open file; used by one thread at a time."""

    def __init__(self, path: Path, *, expects_content: bool) -> None:
        self.path = path
        self._about: dict[str, int] = {}
        was_written = _check_before_opening(path, expects_content)
        has_wal = path.with_name(f"{path.name}-wal").exists()
        try:
            self.database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        except sqlite3.Error as problem:
            raise StoreUnavailable(f"cannot open {path}: {problem}") from problem
        try:
            self._prepare()
            with _without_collector():
                self.contents = self._load()
            if was_written and not has_wal and self._about.get("open"):
                log.warning(
                    "%s was copied or killed while in use, and %s-wal is not beside it: unless SQLite made "
                    "the copy, the latest writes are missing",
                    path,
                    path.name,
                )
            self._mark_open()
        except sqlite3.DatabaseError as problem:
            self.database.close()
            if isinstance(problem, sqlite3.OperationalError) and "malformed" not in str(problem):
                raise StoreUnavailable(f"cannot open {path}: {problem}") from problem
            raise StoreDamaged(f"{path} is damaged ({problem}); {_WAY_OUT}") from problem
        except BaseException:
            self.database.close()
            raise

    def set_about(self, **numbers: int) -> None:
        """Write numbers about the file, and their checksum; the caller may have a transaction open."""
        self._about.update(numbers)
        self._about["crc"] = _sum_of(self._about)
        rows = [(name, self._about[name]) for name in (*numbers, "crc")]
        self.database.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", rows)

    def close(self) -> None:
        """Note that everything is in the file, and close it."""
        try:
            self.database.execute("BEGIN IMMEDIATE")
            self.set_about(open=0)
            self.database.execute("COMMIT")
        except sqlite3.Error:  # a full disk: then the `-wal` stays, which is as good
            pass
        self.database.close()

    # --- opening ------------------------------------------------------------------

    def _prepare(self) -> None:
        self.database.execute("PRAGMA journal_mode=WAL")
        self.database.execute("PRAGMA synchronous=FULL")
        self.database.execute("PRAGMA wal_autocheckpoint=0")  # the writer thread sees to it
        self.database.executescript(_SCHEMA)

    def _mark_open(self) -> None:
        self.database.execute("BEGIN IMMEDIATE")
        self.set_about(format=FORMAT, open=1)
        self.database.execute("COMMIT")
        # Into the file itself: the mark is there to miss the `-wal`.
        self.database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _load(self) -> Contents:
        self._about = dict(self.database.execute("SELECT name, value FROM about"))
        version = self._about.get("format", FORMAT)
        if version not in (FIRST_FORMAT, FORMAT):
            raise StoreUnavailable(
                f"{self.path} has format {version}, this dray reads format {FORMAT}: use the dray that wrote it"
            )
        if version == FORMAT and self._about and self._about.get("crc") != _sum_of(self._about):
            raise StoreDamaged(f"{self.path} is damaged (table about: wrong checksum); {_WAY_OUT}")
        compacted = self._about.get("compacted", 1)
        contents = Contents(max(compacted, self._about.get("revision", 1)), compacted)
        sums: list[tuple[int, int]] = []  # of a file of the first format: new checksum, revision
        query = "SELECT revision, key, created, crc, value FROM log ORDER BY revision"
        for revision, key, created, crc, value in self.database.execute(query):
            now = checksum(revision, key, created, value)
            if (now if version == FORMAT else zlib.crc32(value or b"")) != crc:
                raise StoreDamaged(
                    f"{self.path} is damaged (revision {revision}, {key}: wrong checksum); {_WAY_OUT}"
                )
            if version != FORMAT:
                sums.append((now, revision))
            _take(
                contents, revision, key, Record(key, value, revision, created) if value is not None else None
            )
        if version != FORMAT:
            self._upgrade(sums)
        return contents

    def _upgrade(self, sums: list[tuple[int, int]]) -> None:
        log.info("%s gets checksums over keys and revisions (format %d)", self.path, FORMAT)
        self.database.execute("BEGIN IMMEDIATE")
        self.database.executemany("UPDATE log SET crc = ? WHERE revision = ?", sums)
        self.set_about(format=FORMAT)
        self.database.execute("COMMIT")


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Let many objects be made that all stay: the collector would look through them again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _take(contents: Contents, revision: int, key: str, record: Record | None) -> None:
    """Add a row to what a file holds."""
    previous = contents.records.get(key)
    if record is None:
        contents.records.pop(key, None)
    else:
        contents.records[key] = record
    if revision > contents.compacted:
        contents.events.append(Event(revision, key, record, previous))
        contents.history_bytes += len(record.value) if record is not None else 0
    contents.revision = max(contents.revision, revision)


def note_whole_copy(path: Path) -> None:
    """Note in a copy that SQLite itself made of a store in use that nothing is missing in it. Raises sqlite3.Error."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        about: dict[str, int] = dict(database.execute("SELECT name, value FROM about"))
        if about.get("open") and about.get("format") == FORMAT and about.get("crc") == _sum_of(about):
            about["open"] = 0
            rows = [("open", 0), ("crc", _sum_of(about))]
            database.executemany("INSERT OR REPLACE INTO about (name, value) VALUES (?, ?)", rows)
            database.commit()


def _sum_of(about: dict[str, int]) -> int:
    listed = " ".join(f"{name}={about[name]}" for name in sorted(about) if name != "crc")
    return zlib.crc32(listed.encode())


def _check_before_opening(path: Path, expects_content: bool) -> bool:
    """Refuse what SQLite would take for a new database; returns whether the file was there with something in it."""
    wal = path.with_name(f"{path.name}-wal")
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        if wal.exists() and wal.stat().st_size:
            raise StoreDamaged(
                f"{path} is missing, but its latest writes are here ({wal.name}): restore a copy; or, to start an "
                f"empty cluster, delete {wal}"
            ) from None
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        return False
    if not os.access(path, os.R_OK | os.W_OK):
        raise StoreUnavailable(
            f"cannot read and write {path} as user {os.geteuid()}; its owner is user {path.stat().st_uid}: "
            "start the server as that user, or change the owner"
        )
    if size == 0 and expects_content:
        raise StoreDamaged(
            f"{path} is empty, but a cluster was here before (its certificates are in {path.parent / 'pki'}): "
            f"restore a copy; or, to start an empty cluster, delete {path}"
        )
    if 0 < size < _LEAST_BYTES:
        raise StoreDamaged(
            f"{path} is damaged (it has {size} bytes, and no database is so short); {_WAY_OUT}"
        )
    return size > 0  # an empty file: a crash between creating and filling it
