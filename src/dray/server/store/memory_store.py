"""The store in memory: current state, remembered history, watchers.

It is a store by itself for tests, simulations and `--in-memory`, and the reading
half of the durable store, which only puts a log under it.

Theory of operation: `records_by_key` is the present, `_keys` the same keys in
order, `_events` the remembered past. The state at an earlier revision is the
present with the later events undone; so history costs nothing until somebody
asks for it. A committed event is appended, applied and handed to the watchers
in one step without awaiting, which is why a reader can never see half of it.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from heapq import merge
from itertools import islice

from dray.server.store.store_interface import (
    ABSENT,
    Compacted,
    Event,
    FutureRevision,
    Observer,
    Page,
    Record,
    StoreUnavailable,
    ValueAt,
    WatchLagged,
    WriteConflict,
)

# Events a watcher may lie behind. A watcher that reads at all drains its buffer
# whole, so this is reached only when its client stopped reading.
WATCH_BUFFER = 10_000

WOKEN_AT_ONCE = 64  # watchers that get to work in one turn of the event loop
COMPACTED_AT_ONCE = 2_000  # events; more would keep the event loop from everybody else

# Above every character that a key may hold, so prefix + this ends the prefix's range.
_LAST = "\U0010ffff"


class BufferedWatch:
    """A bounded queue of events between the committer and one reader."""

    def __init__(self, owner: MemoryStore, prefix: str, backlog: Iterable[Event]) -> None:
        self.prefix = prefix
        self._owner = owner
        self._buffer: deque[Event] = deque(backlog)
        self._waiter: asyncio.Future[None] | None = None
        self._lagged = False
        self._closed = False

    async def next(self) -> list[Event]:
        """Return all buffered events, waiting for the first one; [] after close."""
        while not self._buffer:
            if self._lagged:
                raise WatchLagged(f"the watch of {self.prefix} fell behind and was cut off")
            if self._closed:
                return []
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        batch = list(self._buffer)
        self._buffer.clear()
        return batch

    def pending(self) -> bool:
        """Return whether `next` would return at once."""
        return bool(self._buffer) or self._lagged or self._closed

    def close(self) -> None:
        """End the subscription."""
        if not self._closed:
            self._closed = True
            self._owner.forget(self)
            self.wake()

    def offer(self, event: Event) -> None:
        """Buffer an event, or give up on a reader that does not read."""
        if len(self._buffer) >= self._owner.watch_buffer:
            self._buffer.clear()
            self._lagged = True
            self._owner.forget(self)
        else:
            self._buffer.append(event)
        if self._waiter is not None:
            self._owner.wake_soon(self, self._waiter.get_loop())

    def wake(self) -> None:
        """Let whoever waits for events look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class MemoryStore:
    """A revisioned store that lives as long as its process."""

    def __init__(self, *, watch_buffer: int = WATCH_BUFFER) -> None:
        self.watch_buffer = watch_buffer
        self._records: dict[str, Record] = {}
        self._keys: list[str] = []
        self._events: deque[Event] = deque()
        self._history_bytes = 0
        self._revision = 1
        self._compacted = 1
        self._watches_by_prefix: dict[str, set[BufferedWatch]] = {}
        self._observers: list[Observer] = []
        self._to_wake: OrderedDict[BufferedWatch, None] = OrderedDict()
        self._n_woken = 0  # in this turn of the loop
        self._is_waking = False
        self._closed = False

    @property
    def revision(self) -> int:
        """The newest durable revision."""
        return self._revision

    @property
    def compacted(self) -> int:
        """The oldest revision whose state is still known."""
        return self._compacted

    def get(self, key: str) -> Record | None:
        """Return the current value of a key."""
        return self._records.get(key)

    def list(self, prefix: str, *, revision: int | None = None, after: str = "", limit: int = 0) -> Page:
        """Return the records below a prefix at a revision, in order of keys."""
        if revision is None or revision == self._revision:
            first, last = self._span(prefix)
            if after:
                first = max(first, bisect_right(self._keys, after))
            end = min(last, first + limit) if limit else last
            records = self._records
            return Page([records[key] for key in self._keys[first:end]], self._revision, max(0, last - end))
        return self._past(prefix, revision, after, limit)

    def count(self, prefix: str) -> int:
        """Return how many keys lie below a prefix now."""
        first, last = self._span(prefix)
        return last - first

    async def put(self, key: str, value: ValueAt, expected: int | None = None) -> Record:
        """Write a value and tell the watchers."""
        self._require_open()
        current = self._records.get(key)
        check_expectation(key, current, expected)
        event = written(key, current, self._revision + 1, value)
        self.commit([event])
        assert event.record is not None
        return event.record

    async def delete(self, key: str, expected: int | None = None) -> Event | None:
        """Remove a key and tell the watchers."""
        self._require_open()
        current = self._records.get(key)
        check_expectation(key, current, expected)
        if current is None:
            return None
        event = Event(self._revision + 1, key, None, current)
        self.commit([event])
        return event

    def watch(self, prefix: str, after: int) -> BufferedWatch:
        """Subscribe to the events with a revision greater than `after`."""
        if after < self._compacted:
            raise Compacted(after, self._compacted)
        backlog: list[Event] = []
        for event in reversed(self._events):
            if event.revision <= after:
                break
            if event.key.startswith(prefix):
                backlog.append(event)
        backlog.reverse()
        watch = BufferedWatch(self, prefix, backlog)
        self._watches_by_prefix.setdefault(prefix, set()).add(watch)
        return watch

    async def compact(self, revision: int) -> None:
        """Forget how the state at `revision` came about, some of it at a time."""
        while True:
            self._trim(revision, COMPACTED_AT_ONCE)
            if self._compacted >= min(revision, self._revision):
                return
            await asyncio.sleep(0)

    def observe(self, observer: Observer) -> None:
        """Call a function for every event as it becomes visible."""
        self._observers.append(observer)

    def history(self) -> tuple[int, int]:
        """Return how many events are remembered, and about how many bytes they hold."""
        return len(self._events), self._history_bytes

    def trouble(self) -> str:
        """Return why writes fail at present; memory never refuses."""
        return ""

    def close(self) -> None:
        """End all watches and refuse further writes."""
        self._closed = True
        for watches in list(self._watches_by_prefix.values()):
            for watch in list(watches):
                watch.close()

    # --- for the durable store and the watches -------------------------------

    def commit(self, events: Iterable[Event]) -> None:
        """Make events visible: to reads, to history and to watches, in this order."""
        for event in events:
            if event.record is None:
                del self._records[event.key]
                del self._keys[bisect_left(self._keys, event.key)]
            else:
                if event.previous is None:
                    insort(self._keys, event.key)
                self._records[event.key] = event.record
            self._revision = event.revision
            self._events.append(event)
            self._history_bytes += len(event.record.value) if event.record else 0
            for observer in self._observers:
                observer(event)
            for prefix, watches in self._watches_by_prefix.items():
                if event.key.startswith(prefix):
                    for watch in tuple(watches):
                        watch.offer(event)

    def wake_soon(self, watch: BufferedWatch, loop: asyncio.AbstractEventLoop) -> None:
        """Wake a watcher: the first ones at once, thousands in groups between which the loop serves others."""
        if self._n_woken < WOKEN_AT_ONCE:
            self._n_woken += 1
            watch.wake()
        else:
            self._to_wake[watch] = None
        if not self._is_waking:
            self._is_waking = True
            loop.call_soon(self._wake_more, loop)

    def _wake_more(self, loop: asyncio.AbstractEventLoop) -> None:
        self._n_woken = min(WOKEN_AT_ONCE, len(self._to_wake))
        for _ in range(self._n_woken):
            self._to_wake.popitem(last=False)[0].wake()
        self._is_waking = bool(self._n_woken)
        if self._is_waking:
            loop.call_soon(self._wake_more, loop)

    def forget(self, watch: BufferedWatch) -> None:
        """Stop delivering to a watch."""
        watches = self._watches_by_prefix.get(watch.prefix)
        if watches is not None:
            watches.discard(watch)
            if not watches:
                # A new dict, because `commit` may be iterating over this one.
                self._watches_by_prefix = {k: v for k, v in self._watches_by_prefix.items() if v}

    def _trim(self, revision: int, most: int) -> Sequence[Event]:
        """Drop the oldest events from memory, up to a revision and a number, and return them."""
        revision = min(revision, self._revision)
        dropped: list[Event] = []
        while self._events and self._events[0].revision <= revision:
            if len(dropped) == most:
                revision = dropped[-1].revision
                break
            event = self._events.popleft()
            self._history_bytes -= len(event.record.value) if event.record else 0
            dropped.append(event)
        self._compacted = max(self._compacted, revision)
        return dropped

    def _span(self, prefix: str) -> tuple[int, int]:
        return bisect_left(self._keys, prefix), bisect_left(self._keys, prefix + _LAST)

    def _past(self, prefix: str, revision: int, after: str, limit: int) -> Page:
        """Return the records at an earlier revision; a page costs its length and what has changed since, not the rest."""
        if revision < self._compacted:
            raise Compacted(revision, self._compacted)
        if revision > self._revision:
            raise FutureRevision(revision, self._revision)
        before: dict[str, Record | None] = {}  # written since: what it was, None for what was not there
        for event in reversed(self._events):
            if event.revision <= revision:
                break
            if event.key.startswith(prefix) and event.key > after:
                before[event.key] = event.previous
        records = self._records
        deleted = sorted(key for key, old in before.items() if old is not None and key not in records)
        n_created = sum(old is None and key in records for key, old in before.items())
        first, last = self._span(prefix)
        if after:
            first = max(first, bisect_right(self._keys, after))
        total = max(0, last - first) + len(deleted) - n_created
        present = map(self._keys.__getitem__, range(first, last))
        found = (before[key] if key in before else records[key] for key in merge(present, deleted))
        page = list(islice((record for record in found if record is not None), limit or None))
        return Page(page, revision, total - len(page))

    def _require_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed")


def check_expectation(key: str, current: Record | None, expected: int | None) -> None:
    """Raise WriteConflict unless the key is at the expected revision."""
    found = current.revision if current is not None else ABSENT
    if expected is not None and found != expected:
        raise WriteConflict(key, current)


def written(key: str, current: Record | None, revision: int, value: ValueAt) -> Event:
    """Return the event that gives a key a new value."""
    created = current.created if current is not None else revision
    return Event(revision, key, Record(key, value(revision), revision, created), current)
