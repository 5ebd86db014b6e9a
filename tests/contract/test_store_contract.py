"""One suite for every store: what the API server may rely on."""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dray.server.store import (
    ABSENT,
    Compacted,
    FutureRevision,
    MemoryStore,
    Record,
    SqliteStore,
    Store,
    StoreUnavailable,
    WatchLagged,
    WriteConflict,
    memory_store,
    sqlite_store,
)


@pytest.fixture(params=["memory", "sqlite"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Store]]:
    opened: list[Store] = []

    def make(**options: int) -> Store:
        store = (
            MemoryStore(**options) if request.param == "memory" else SqliteStore(tmp_path / "data", **options)
        )
        opened.append(store)
        return store

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def store(make_store: Callable[..., Store]) -> Store:
    return make_store()


def text(value: str):
    return lambda revision: f"{value}@{revision}".encode()


async def test_a_write_is_visible_to_the_next_read(store: Store) -> None:
    record = await store.put("/a/x", text("one"))
    assert store.get("/a/x") == record
    assert record.value == f"one@{record.revision}".encode()
    assert store.revision == record.revision


async def test_every_write_takes_the_next_revision(store: Store) -> None:
    start = store.revision
    records = [await store.put(f"/a/{number}", text("v")) for number in range(3)]
    assert [record.revision for record in records] == [start + 1, start + 2, start + 3]


async def test_creation_revision_stays_while_the_value_changes(store: Store) -> None:
    first = await store.put("/a/x", text("one"))
    second = await store.put("/a/x", text("two"))
    assert (second.created, second.revision) == (first.revision, first.revision + 1)


async def test_creating_a_key_that_exists_is_refused_with_what_is_there(store: Store) -> None:
    record = await store.put("/a/x", text("one"), ABSENT)
    with pytest.raises(WriteConflict) as refused:
        await store.put("/a/x", text("two"), ABSENT)
    assert refused.value.current == record
    assert store.revision == record.revision, "a refused write leaves no gap"


async def test_a_write_at_a_wrong_revision_is_refused(store: Store) -> None:
    record = await store.put("/a/x", text("one"))
    with pytest.raises(WriteConflict):
        await store.put("/a/x", text("two"), record.revision - 1)
    with pytest.raises(WriteConflict):
        await store.delete("/a/x", record.revision + 1)
    assert store.get("/a/x") == record


async def test_of_concurrent_writes_at_one_revision_exactly_one_wins(store: Store) -> None:
    record = await store.put("/a/x", text("start"))
    outcomes = await asyncio.gather(
        *(store.put("/a/x", text(str(number)), record.revision) for number in range(10)),
        return_exceptions=True,
    )
    refused = [outcome for outcome in outcomes if isinstance(outcome, WriteConflict)]
    assert len(refused) == 9
    # The loser is told about the winner, so that a retry can succeed.
    assert all(refusal.current == store.get("/a/x") for refusal in refused)


async def test_deleting_what_is_not_there_is_no_event(store: Store) -> None:
    before = store.revision
    assert await store.delete("/a/x") is None
    assert store.revision == before


async def test_a_list_is_sorted_and_stays_inside_its_prefix(store: Store) -> None:
    for key in ("/a/ns/c", "/a/ns/a", "/ab/ns/x", "/a/ns-2/a", "/a/ns/b"):
        await store.put(key, text("v"))
    assert [record.key for record in store.list("/a/").records] == [
        "/a/ns-2/a",
        "/a/ns/a",
        "/a/ns/b",
        "/a/ns/c",
    ]
    assert [record.key for record in store.list("/a/ns/").records] == ["/a/ns/a", "/a/ns/b", "/a/ns/c"]
    assert store.count("/a/") == 4


async def test_pages_of_a_list_tell_how_much_remains(store: Store) -> None:
    for number in range(5):
        await store.put(f"/a/{number}", text("v"))
    first = store.list("/a/", limit=2)
    assert ([record.key for record in first.records], first.remaining) == (["/a/0", "/a/1"], 3)
    await store.put("/a/00", text("late"))
    await store.delete("/a/3")
    rest = store.list("/a/", revision=first.revision, after="/a/1", limit=2)
    assert ([record.key for record in rest.records], rest.remaining) == (["/a/2", "/a/3"], 1)


async def test_pages_of_an_earlier_revision_joined_are_its_state(store: Store) -> None:
    for number in range(6):
        await store.put(f"/a/{number}", text("old"))
    wanted = store.list("/a/")
    for key in ("/a/00", "/a/11", "/a/9", "/b/1"):
        await store.put(key, text("made later"))
    for key in ("/a/1", "/a/5", "/a/9"):
        await store.delete(key)
    await store.put("/a/5", text("made again"))
    await store.put("/a/2", text("changed"))
    for limit in range(1, 8):
        found: list[Record] = []
        after, remaining = "", 1
        while remaining:
            page = store.list("/a/", revision=wanted.revision, after=after, limit=limit)
            found += page.records
            remaining, after = page.remaining, found[-1].key
            assert len(found) + remaining == 6
        assert found == wanted.records


async def test_a_page_of_an_earlier_revision_reads_no_more_than_it_returns() -> None:
    """With thousands of objects every page would otherwise cost as much as the whole list."""
    n_read = 0

    class Counting(dict[str, Record]):
        def __getitem__(self, key: str) -> Record:
            nonlocal n_read
            n_read += 1
            return super().__getitem__(key)

    store = MemoryStore()
    for number in range(1000):
        await store.put(f"/a/{number:04}", text("v"))
    revision = store.revision
    await store.put("/a/0500", text("changed"))
    store._records = Counting(store._records)
    page = store.list("/a/", revision=revision, after="/a/0009", limit=10)
    assert (len(page.records), page.remaining) == (10, 980)
    assert n_read <= 10


async def test_a_list_at_an_earlier_revision_shows_that_state(store: Store) -> None:
    first = await store.put("/a/x", text("one"))
    await store.put("/a/x", text("two"))
    await store.put("/a/y", text("other"))
    await store.delete("/a/x")
    assert store.list("/a/", revision=first.revision).records == [first]


async def test_a_list_in_the_future_is_refused(store: Store) -> None:
    with pytest.raises(FutureRevision):
        store.list("/a/", revision=store.revision + 1)


async def test_a_watch_replays_history_and_goes_on(store: Store) -> None:
    first = await store.put("/a/x", text("one"))
    second = await store.put("/a/x", text("two"))
    await store.put("/b/x", text("elsewhere"))
    watch = store.watch("/a/", first.revision)
    events = await watch.next()
    assert [(event.record, event.previous) for event in events] == [(second, first)]
    await store.delete("/a/x")
    (deletion,) = await watch.next()
    assert (deletion.record, deletion.previous) == (None, second)
    watch.close()
    assert await watch.next() == []


async def test_a_watcher_that_does_not_read_is_cut_off_and_others_are_not(
    make_store: Callable[..., Store],
) -> None:
    store = make_store(watch_buffer=5)
    slow, quick = store.watch("/a/", store.revision), store.watch("/a/", store.revision)
    seen = 0
    for number in range(12):
        await store.put(f"/a/{number}", text("v"))
        seen += len(await quick.next())
    assert seen == 12
    with pytest.raises(WatchLagged):
        await slow.next()


async def test_compacted_history_is_refused_and_the_present_stays(store: Store) -> None:
    old = await store.put("/a/x", text("one"))
    await store.put("/a/gone", text("v"))
    await store.delete("/a/gone")
    new = await store.put("/a/x", text("two"))
    await store.compact(new.revision)
    with pytest.raises(Compacted):
        store.list("/a/", revision=old.revision)
    with pytest.raises(Compacted):
        store.watch("/a/", old.revision)
    assert store.list("/a/", revision=new.revision).records == [new]
    assert store.history()[0] == 0
    watch = store.watch("/a/", new.revision)
    await store.put("/a/z", text("v"))
    assert len(await watch.next()) == 1


async def test_a_closed_store_refuses_writes(store: Store) -> None:
    store.close()
    with pytest.raises(StoreUnavailable):
        await store.put("/a/x", text("v"))


async def test_much_history_is_forgotten_in_steps_between_which_others_run(store, monkeypatch):

    monkeypatch.setattr(memory_store, "COMPACTED_AT_ONCE", 10)
    monkeypatch.setattr(sqlite_store, "COMPACTED_AT_ONCE", 10)
    for number in range(95):
        await store.put(f"/a/{number % 3}", lambda revision: b"%d" % revision)
    steps = set()
    compacting = asyncio.create_task(store.compact(store.revision))
    while not compacting.done():
        steps.add(store.compacted)
        assert len(store.list("/a/").records) == 3
        await asyncio.sleep(0)
    await compacting
    assert len(steps) >= 8
    assert (store.compacted, store.history()[0]) == (store.revision, 0)


async def test_thousands_of_watchers_are_woken_in_groups_and_each_is_woken(store):
    watches = [store.watch("/a/", store.revision) for _ in range(1_000)]
    waiting = [asyncio.create_task(watch.next()) for watch in watches]
    await asyncio.sleep(0)
    await store.put("/a/x", lambda _: b"v")
    done = []
    while not all(task.done() for task in waiting):
        done.append(sum(task.done() for task in waiting))
        await asyncio.sleep(0)
    assert max(after - before for before, after in itertools.pairwise([0, *done])) <= 200
    assert {event.key for task in waiting for event in task.result()} == {"/a/x"}
    await store.put("/a/y", lambda _: b"v")
    assert [len(await watch.next()) for watch in watches] == [1] * 1_000
