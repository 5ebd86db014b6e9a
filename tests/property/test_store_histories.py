"""Random histories against a model: a dict that remembers every state it ever had."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from dray.server.store import (
    ABSENT,
    Compacted,
    FutureRevision,
    MemoryStore,
    SqliteStore,
    Store,
    WriteConflict,
)

KEYS = st.sampled_from(["/a/n/x", "/a/n/y", "/a/m/x", "/b/x"])
EXPECTATIONS = st.sampled_from(["any", "absent", "right", "wrong"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, EXPECTATIONS),
        st.tuples(st.just("delete"), KEYS, EXPECTATIONS),
        st.tuples(st.just("compact"), st.integers(0, 5), st.none()),
    ),
    max_size=30,
)


class Model:
    """A dict per revision: slow, and obviously right."""

    def __init__(self, revision: int) -> None:
        self.revision = revision
        self.compacted = revision
        self.states: dict[int, dict[str, tuple[bytes, int]]] = {revision: {}}  # key -> value, its revision
        self.events: list[tuple[int, str, bytes | None]] = []

    @property
    def now(self) -> dict[str, tuple[bytes, int]]:
        return self.states[self.revision]

    def write(self, key: str, value: bytes | None) -> None:
        state = dict(self.now)
        self.revision += 1
        if value is None:
            del state[key]
        else:
            state[key] = (value, self.revision)
        self.states[self.revision] = state
        self.events.append((self.revision, key, value))


def expected_revision(model: Model, key: str, expectation: str) -> int | None:
    found = model.now.get(key)
    right = found[1] if found else ABSENT
    return {"any": None, "absent": ABSENT, "right": right, "wrong": right + 7}[expectation]


async def step(store: Store, model: Model, action: str, target: object, expectation: object) -> None:
    if action == "compact":
        revision = max(model.compacted, model.revision - int(str(target)))
        await store.compact(revision)
        model.compacted = revision
        return
    key, expected = str(target), expected_revision(model, str(target), str(expectation))
    found = model.now.get(key)
    fits = expected is None or expected == (found[1] if found else ABSENT)
    try:
        if action == "put":
            record = await store.put(key, lambda revision: b"v%d" % revision, expected)
            assert fits
            model.write(key, record.value)
            assert record.revision == model.revision
        else:
            event = await store.delete(key, expected)
            assert fits
            assert (event is None) == (found is None)
            if found is not None:
                model.write(key, None)
    except WriteConflict as conflict:
        refused = conflict
    else:
        return
    assert not fits
    assert (refused.current.revision if refused.current else None) == (found[1] if found else None)


async def agree(store: Store, model: Model) -> None:
    assert store.revision == model.revision
    for prefix in ("/a/", "/a/n/", "/b/", "/c/"):
        for revision in range(model.compacted - 1, model.revision + 2):
            try:
                page = store.list(prefix, revision=revision)
            except Compacted:
                assert revision < model.compacted
                continue
            except FutureRevision:
                assert revision > model.revision
                continue
            state = {key: entry for key, entry in model.states[revision].items() if key.startswith(prefix)}
            assert {record.key: (record.value, record.revision) for record in page.records} == state
            assert [record.key for record in page.records] == sorted(state)
        for after in range(model.compacted, model.revision + 1):
            wanted = [event for event in model.events if event[0] > after and event[1].startswith(prefix)]
            watch = store.watch(prefix, after)
            seen = await watch.next() if watch.pending() else []
            watch.close()
            assert [(e.revision, e.key, e.record.value if e.record else None) for e in seen] == wanted


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_the_store_in_memory_agrees_with_a_dict_with_history(steps) -> None:
    async def run() -> None:
        store = MemoryStore()
        model = Model(store.revision)
        for action, target, expectation in steps:
            await step(store, model, action, target, expectation)
        await agree(store, model)

    asyncio.run(run())


@settings(max_examples=25, deadline=None)
@given(STEPS, st.integers(0, 30))
def test_the_durable_store_agrees_too_even_when_reopened_in_between(steps, reopen_at) -> None:
    async def run() -> None:
        with TemporaryDirectory(prefix="server-store-") as folder:
            store = SqliteStore(Path(folder))
            model = Model(store.revision)
            for number, (action, target, expectation) in enumerate(steps):
                if number == reopen_at:
                    store.close()
                    store = SqliteStore(Path(folder))
                await step(store, model, action, target, expectation)
            await agree(store, model)
            store.close()
            store = SqliteStore(Path(folder))
            await agree(store, model)
            store.close()

    asyncio.run(run())
