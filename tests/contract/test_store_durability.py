"""What only the durable store promises: reopening, locking, damage."""

import asyncio
import sqlite3
import threading
import time
from pathlib import Path

import pytest

from dray.server.store import SqliteStore, StoreDamaged, StoreLocked, StoreUnavailable, sqlite


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
    monkeypatch.setattr(sqlite, "CHECKPOINT_BYTES", 1 << 20)
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
