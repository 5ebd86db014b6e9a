"""What only the durable store promises: reopening, locking, damage."""

import asyncio
import contextlib
import shutil
import sqlite3
import threading
import time
import zlib
from pathlib import Path

import pytest

from dray.server.store import SqliteStore, StoreDamaged, StoreLocked, StoreUnavailable, sqlite_store


def value(revision: int) -> bytes:
    return b"v%d" % revision


async def test_a_reopened_store_has_the_same_present_history_and_counter(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    first = await store.put("/a/x", value)
    second = await store.put("/a/x", value)
    await store.put("/a/y", value)
    await store.delete("/a/y")
    revision = store.revision
    store.close()
    again = SqliteStore(tmp_path)
    assert again.revision == revision
    assert again.list("/a/").records == [second]
    assert again.list("/a/", revision=first.revision).records == [first]
    events = await again.watch("/a/", first.revision).next()
    assert [event.revision for event in events] == [second.revision, revision - 1, revision]
    again.close()


async def test_compaction_survives_reopening_and_numbers_are_not_used_again(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    kept = await store.put("/a/kept", value)
    await store.put("/a/x", value)
    deletion = await store.delete("/a/x")
    assert deletion is not None
    await store.compact(deletion.revision)
    store.close()
    again = SqliteStore(tmp_path)
    assert (again.compacted, again.revision) == (deletion.revision, deletion.revision)
    assert again.list("/a/").records == [kept]
    assert (await again.put("/a/x", value)).revision == deletion.revision + 1
    again.close()
    with sqlite3.connect(tmp_path / "store.db") as database:
        assert database.execute("SELECT count(*) FROM log").fetchone() == (2,)


async def test_concurrent_writes_share_commits(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    commits = 0
    real = store._write_transaction

    def counted(batch):
        nonlocal commits
        commits += 1
        real(batch)

    store._write_transaction = counted
    await asyncio.gather(*(store.put(f"/a/{number}", value) for number in range(200)))
    store.close()
    assert commits < 100


async def test_a_slow_disk_is_left_to_the_thread(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    real, writers = store._write_transaction, []

    def slow(batch):
        writers.append(threading.current_thread().name)
        time.sleep(0.02)
        real(batch)

    store._write_transaction = slow
    for number in range(4):
        await store.put(f"/a/{number}", value)
    assert writers == ["MainThread", "store-writer", "store-writer", "store-writer"]
    store._detour = 0  # some time later
    await store.put("/a/later", value)
    assert writers[-1] == "MainThread"
    store.close()


async def test_what_would_take_long_is_left_to_the_thread(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    real, writers = store._write_transaction, []

    def noted(batch):
        writers.append(threading.current_thread().name)
        real(batch)

    store._write_transaction = noted
    await store.put("/a/large", lambda _: b"x" * (1 << 20))
    await asyncio.gather(*(store.put(f"/a/{number}", value) for number in range(100)))
    await store.compact(store.revision)
    assert set(writers) == {"store-writer"}
    store.close()


async def test_the_log_ahead_does_not_grow_without_end(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sqlite_store, "CHECKPOINT_BYTES", 1 << 20)
    store = SqliteStore(tmp_path)
    for number in range(1_000):
        await store.put(f"/a/{number % 10}", lambda _: b"x" * 8_000)
    assert (tmp_path / "store.db-wal").stat().st_size < 4 << 20
    assert (tmp_path / "store.db").stat().st_size > 6_000_000
    expected = store.list("/a/").records
    store.close()
    again = SqliteStore(tmp_path)
    assert again.list("/a/").records == expected
    again.close()


async def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    with pytest.raises(StoreLocked, match="in use"):
        SqliteStore(tmp_path)
    store.close()


async def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(b"not a database" * 100)
    with pytest.raises(StoreDamaged, match="damaged"):
        SqliteStore(tmp_path)
    assert (tmp_path / "store.db").read_bytes().startswith(b"not a database")


async def test_a_changed_value_is_found_by_its_checksum(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    await store.put("/a/x", value)
    store.close()
    with sqlite3.connect(tmp_path / "store.db") as database:
        database.execute("UPDATE log SET value = X'00'")
    with pytest.raises(StoreDamaged, match="checksum"):
        SqliteStore(tmp_path)


async def test_a_failing_disk_fails_everything_queued_and_the_store_goes_on(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    kept = await store.put("/a/x", value)
    real = store._write_transaction

    def refuse(batch):
        raise sqlite3.OperationalError("database or disk is full")

    store._write_transaction = refuse
    outcomes = await asyncio.gather(*(store.put("/a/x", value) for _ in range(5)), return_exceptions=True)
    assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes)
    assert store.get("/a/x") == kept
    store._write_transaction = real
    assert (await store.put("/a/x", value, kept.revision)).revision == kept.revision + 1
    store.close()


def changed(path: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(path / "store.db", isolation_level=None)) as database:
        database.execute(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE log SET key = '/a/y'",
        "UPDATE log SET revision = revision + 1",
        "UPDATE log SET created = created + 1",
        "UPDATE log SET value = NULL",
        "UPDATE log SET value = X''",
        "UPDATE about SET value = value + 1 WHERE name = 'compacted'",
        "UPDATE about SET value = value + 1 WHERE name = 'revision'",
        "DELETE FROM about WHERE name = 'crc'",
    ],
)
async def test_whatever_changed_in_a_file_is_found_by_a_checksum(tmp_path: Path, statement: str) -> None:
    store = SqliteStore(tmp_path)
    await store.put("/a/x", value)
    await store.compact(1)
    store.close()
    changed(tmp_path, statement)
    before = (tmp_path / "store.db").read_bytes()
    with pytest.raises(StoreDamaged, match="checksum"):
        SqliteStore(tmp_path)
    assert (tmp_path / "store.db").read_bytes() == before


async def test_a_flipped_bit_anywhere_in_a_file_is_never_read_as_something_else(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    for number in range(30):
        await store.put(f"/a/{number}", value)
    expected = store.list("/a/").records
    store.close()
    path = tmp_path / "store.db"
    whole = path.read_bytes()
    n_refused = 0
    for place in range(0, len(whole), 61):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        try:
            again = SqliteStore(tmp_path)
        except (StoreDamaged, StoreUnavailable):
            n_refused += 1
            continue
        assert again.list("/a/").records == expected, f"byte {place}"
        again.close()
    assert n_refused > 10


async def test_a_file_of_the_first_format_is_checked_and_gets_new_checksums(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    first = await store.put("/a/x", value)
    second = await store.put("/a/y", value)
    await store.delete("/a/y")
    store.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as database:
        database.create_function("crc", 1, lambda data: zlib.crc32(data or b""))
        database.execute("UPDATE log SET crc = crc(value)")
        database.execute("DELETE FROM about WHERE name IN ('crc', 'open')")
        database.execute("UPDATE about SET value = 1 WHERE name = 'format'")
    for _ in range(2):
        store = SqliteStore(tmp_path)
        assert store.list("/a/").records == [first]
        assert store.list("/a/", revision=second.revision).records == [first, second]
        store.close()
    changed(tmp_path, "UPDATE log SET key = '/a/z' WHERE revision = 2")
    with pytest.raises(StoreDamaged, match="checksum"):
        SqliteStore(tmp_path)


async def test_a_file_of_a_later_format_is_left_to_a_later_dray(tmp_path: Path) -> None:
    SqliteStore(tmp_path).close()
    changed(tmp_path, "UPDATE about SET value = 9 WHERE name = 'format'")
    with pytest.raises(StoreUnavailable, match="format 9"):
        SqliteStore(tmp_path)


async def test_an_emptied_file_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "store.db").touch()
    with pytest.raises(StoreDamaged, match=r"is empty, but a cluster was here before .* delete .*store\.db"):
        SqliteStore(tmp_path, expects_content=True)
    assert (tmp_path / "store.db").stat().st_size == 0
    SqliteStore(tmp_path).close()  # nothing was here: a crash while it was made


@pytest.mark.parametrize("length", [1, 99, 511])
async def test_a_file_too_short_for_a_database_is_not_taken_for_a_new_one(
    tmp_path: Path, length: int
) -> None:
    (tmp_path / "store.db").write_bytes(b"x" * length)
    with pytest.raises(StoreDamaged, match=f"{length} bytes, and no database is so short"):
        SqliteStore(tmp_path)
    assert (tmp_path / "store.db").stat().st_size == length


async def test_the_latest_writes_are_kept_when_the_file_beside_them_is_gone(tmp_path: Path) -> None:
    (tmp_path / "store.db-wal").write_bytes(b"x" * 5_000)
    with pytest.raises(StoreDamaged, match=r"store\.db is missing, but its latest writes are here"):
        SqliteStore(tmp_path)
    assert (tmp_path / "store.db-wal").stat().st_size == 5_000  # SQLite would have deleted it
    assert not (tmp_path / "store.db").exists()
    (tmp_path / "store.db-wal").unlink()
    SqliteStore(tmp_path).close()


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
async def test_a_file_that_ends_too_early_is_refused(tmp_path: Path, share: float) -> None:
    store = SqliteStore(tmp_path)
    for number in range(200):
        await store.put(f"/a/{number}", lambda _: b"x" * 1_000)
    store.close()
    path = tmp_path / "store.db"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises((StoreDamaged, StoreUnavailable)):
        SqliteStore(tmp_path)


async def test_a_file_that_may_not_be_written_is_refused_with_its_owner(tmp_path: Path, monkeypatch) -> None:
    SqliteStore(tmp_path).close()
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(StoreUnavailable, match="its owner is user"):
        SqliteStore(tmp_path)


async def test_a_copy_that_may_lack_the_latest_writes_is_opened_with_a_warning(
    tmp_path: Path, caplog
) -> None:
    store = SqliteStore(tmp_path / "live")
    await store.put("/a/x", value)
    (tmp_path / "copy").mkdir()
    shutil.copy(tmp_path / "live/store.db", tmp_path / "copy")
    store.close()
    SqliteStore(tmp_path / "live").close()
    assert "latest writes are missing" not in caplog.text
    copy = SqliteStore(tmp_path / "copy")
    assert copy.list("/a/").records == []
    assert "latest writes are missing" in caplog.text
    copy.close()


async def test_a_full_disk_is_trouble_until_it_takes_a_large_write_again(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sqlite_store, "PROBE_EVERY", 0.01)
    store = SqliteStore(tmp_path)
    real, is_full, n_probes = store._write_transaction, True, 0

    def write(batch):
        if is_full:
            raise sqlite3.OperationalError("database or disk is full")
        real(batch)

    def fill(path):
        nonlocal n_probes
        n_probes += 1
        if n_probes < 3:
            raise OSError(28, "No space left on device")

    store._write_transaction = write
    monkeypatch.setattr(sqlite_store, "_fill_and_remove", fill)
    assert store.trouble() == ""
    with pytest.raises(StoreUnavailable):
        await store.put("/a/x", value)
    assert store.trouble() == "database or disk is full"
    async with asyncio.timeout(30):
        while n_probes < 4:
            await asyncio.sleep(0.01)
        assert store.trouble() != "", "the file system has room, the store still fails"
        is_full = False
        while store.trouble():
            await asyncio.sleep(0.01)
    assert (await store.put("/a/x", value)).revision == store.revision
    store.close()
