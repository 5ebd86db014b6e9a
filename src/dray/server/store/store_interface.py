"""What a store is: one counter, one log, compare-and-swap.

Every write gets the next number of one counter, the *revision*. A key's current
value, the state of a prefix at an earlier revision, and the stream of changes
after a revision are three views of the same log. Values are bytes: a store does
not know what it keeps.

    StoreError
      WriteConflict      the key is not at the expected revision
      Compacted          the asked-for history is forgotten: start over from a list
      FutureRevision     nobody wrote that revision yet
      WatchLagged        this watcher did not keep up; its buffer was given up
      StoreUnavailable   a write could not be made durable (disk full, closed)
      StoreDamaged       the file is not what was written; it was left untouched
      StoreLocked        another process has the store open

Invariants (tests/contract/test_store_contract.py runs them on every store):
  * an acknowledged write is visible to the next read and to every watch;
  * nothing is visible before it is durable;
  * a watch sees each event of its prefix once, in the order of revisions;
  * a refused write leaves no trace, not even a gap in the revisions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

# The value may mention its own revision (an object's resourceVersion), which is
# known only when its turn in the log has come.
ValueAt = Callable[[int], bytes]

ABSENT = 0  # "expected revision" of a key that must not exist


class StoreError(Exception):
    """Root of everything that a store refuses."""


class WriteConflict(StoreError):
    """The key is not at the expected revision; `current` is what is there."""

    def __init__(self, key: str, current: Record | None) -> None:
        super().__init__(f"{key} is at revision {current.revision if current else ABSENT}")
        self.key = key
        self.current = current


class Compacted(StoreError):
    """History before `oldest` is forgotten."""

    def __init__(self, asked: int, oldest: int) -> None:
        super().__init__(f"revision {asked} is compacted; the oldest known is {oldest}")
        self.asked = asked
        self.oldest = oldest


class FutureRevision(StoreError):
    """The revision is larger than the current one."""

    def __init__(self, asked: int, current: int) -> None:
        super().__init__(f"revision {asked} is in the future; the current one is {current}")
        self.asked = asked
        self.current = current


class WatchLagged(StoreError):
    """The watcher fell too far behind and was cut off."""


class StoreUnavailable(StoreError):
    """A write could not be made durable; nothing of it is kept."""


class StoreDamaged(StoreError):
    """The file does not hold what was written to it."""


class StoreLocked(StoreError):
    """Another process uses the data directory."""


class Record(NamedTuple):
    """The value of a key at some revision."""

    key: str
    value: bytes
    revision: int  # of this value
    created: int  # revision at which the key came to be


class Event(NamedTuple):
    """One entry of the log: a key got a value, or lost it."""

    revision: int
    key: str
    record: Record | None  # None: the key was deleted
    previous: Record | None  # None: the key was created


class Page(NamedTuple):
    """Part of a prefix at one revision."""

    records: list[Record]
    revision: int
    remaining: int  # records after this page


Observer = Callable[[Event], None]


class Watch(Protocol):
    """A subscription to the changes below a prefix."""

    async def next(self) -> list[Event]:
        """Wait for the next events; raise WatchLagged once too far behind."""

    def pending(self) -> bool:
        """Return whether `next` would return at once."""

    def close(self) -> None:
        """End the subscription; idempotent."""


class Store(Protocol):
    """A revisioned key-value store. Reads never wait; writes wait until durable."""

    @property
    def revision(self) -> int:
        """The newest durable revision."""

    @property
    def compacted(self) -> int:
        """The oldest revision whose state is still known."""

    def get(self, key: str) -> Record | None:
        """Return the current value of a key."""

    def list(self, prefix: str, *, revision: int | None = None, after: str = "", limit: int = 0) -> Page:
        """Return the records below a prefix, sorted by key, starting behind the key `after`.

        Raises Compacted or FutureRevision when that revision cannot be told.
        """

    def count(self, prefix: str) -> int:
        """Return how many keys lie below a prefix now."""

    async def put(self, key: str, value: ValueAt, expected: int | None = None) -> Record:
        """Write a value; `expected` None: whatever is there, ABSENT: only if there is nothing."""

    async def delete(self, key: str, expected: int | None = None) -> Event | None:
        """Remove a key; None when there was nothing and nothing was expected."""

    def watch(self, prefix: str, after: int) -> Watch:
        """Subscribe to the events with a revision greater than `after`; may raise Compacted."""

    async def compact(self, revision: int) -> None:
        """Forget how the state at `revision` came about."""

    def observe(self, observer: Observer) -> None:
        """Call a function for every event as it becomes visible, before the write is acknowledged."""

    def history(self) -> tuple[int, int]:
        """Return how many events are remembered, and about how many bytes they hold."""

    def trouble(self) -> str:
        """Return why writes fail at present, in words for anybody; "" when they work."""

    def close(self) -> None:
        """Finish pending writes and release the files; idempotent."""
