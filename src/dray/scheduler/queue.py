"""The pods that wait to be placed: in which order, and what can help those that could not be.

Theory of operation. A waiting pod is *active* (may be tried now), *delayed* (may be
tried after a time, because something failed), or *parked* (was refused, and nothing
has happened since that could change the answer). Active pods are taken by priority,
then age.

Pods of the same `kind` (equal shape, equal claims, equal priority) get equal answers, so
parked pods are held in groups by kind. An event names what it may help with; in every
group that waits for it only the *first* pod is woken. If that one is placed, the next is
woken; if it is refused again the group goes on sleeping. One freed device thus costs one
attempt per kind, not one per pod; and a pod that arrives while its kind is parked joins
the group without being tried at all.

Time comes in as an argument. Invariant: every pod that was added and not removed is in
exactly one of the three places, or was handed out by `pop` and not yet settled.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

T = TypeVar("T")


class Help(StrEnum):
    """What an event can help with, and what a refused pod waits for."""

    NODES = "nodes"  # a node came, or its labels, taints or allocatable changed
    ROOM = "room"  # a pod left a node
    DEVICES = "devices"  # devices were published, freed, or lost a taint; a class changed
    NEIGHBOURS = "neighbours"  # a pod that affinity rules look at came or went
    GROUP = "group"  # members of a pod group arrived


Wish = Help | str  # a Help, or "claim:<key>" for one claim

INITIAL_BACKOFF = 1.0  # seconds, doubled with every failure
MAX_BACKOFF = 10.0
PARKED_FOR_LONGEST = 300.0  # a safety net for events that nobody thought of


@dataclass(slots=True, eq=False)
class Entry(Generic[T]):
    """One waiting pod."""

    key: str
    item: T
    kind: bytes = b""  # equal kinds get equal answers
    priority: int = 0
    sequence: int = 0  # age: lower is older
    failures: int = 0
    ready_at: float = 0.0
    parked_at: float = 0.0
    place: str = ""  # active, delayed, parked, out

    def rank(self) -> tuple[int, int]:
        """Order of trying: high priority first, then old first."""
        return (-self.priority, self.sequence)


@dataclass(slots=True, eq=False)
class _Group(Generic[T]):
    wishes: frozenset[Wish]
    message: str
    heap: list[tuple[tuple[int, int], int, Entry[T]]] = field(default_factory=list)
    is_trying: bool = False  # its first pod is active or out


class SchedulingQueue(Generic[T]):
    """See the module docstring."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry[T]] = {}
        self._active: list[tuple[tuple[int, int], int, Entry[T]]] = []
        self._delayed: list[tuple[float, int, Entry[T]]] = []
        self._groups: dict[bytes, _Group[T]] = {}
        self._groups_by_wish: dict[Wish, set[bytes]] = {}
        self._ticket = 0  # makes heap entries comparable

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def get(self, key: str) -> Entry[T] | None:
        """Return the entry of a pod, wherever it waits."""
        return self._entries.get(key)

    def counts(self) -> dict[str, int]:
        """Return how many pods wait in which place."""
        found = {"active": 0, "delayed": 0, "parked": 0, "out": 0}
        for entry in self._entries.values():
            found[entry.place] += 1
        return found

    # --- coming and going -----------------------------------------------------

    def add(self, key: str, item: T, *, kind: bytes, priority: int, sequence: int) -> str | None:
        """Let a pod wait. Returns the standing refusal when its kind is parked, else None (it is active)."""
        known = self._entries.get(key)
        if known is not None:
            self._discard(known)
        entry = Entry(key, item, kind, priority, sequence)
        self._entries[key] = entry
        group = self._groups.get(kind)
        if group is not None and not group.is_trying and group.heap:
            self._join(group, entry)
            return group.message
        self._activate(entry)
        return None

    def update(self, key: str, item: T) -> None:
        """Replace what is stored of a waiting pod, without moving it."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.item = item

    def remove(self, key: str) -> None:
        """Forget a pod."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._discard(entry)

    def _discard(self, entry: Entry[T]) -> None:
        """Take an entry out of play; heaps drop it lazily when they meet it."""
        was_trying = entry.place in ("active", "out")
        entry.place = "gone"
        if was_trying:
            self._wake_next(entry.kind)

    # --- trying ---------------------------------------------------------------

    def pop(self, now: float) -> Entry[T] | None:
        """Hand out the pod to try next, or None. Settle it with `done`, `park` or `delay`."""
        while self._delayed and self._delayed[0][0] <= now:
            _, _, entry = heapq.heappop(self._delayed)
            if entry.place == "delayed":
                self._activate(entry)
        while self._active:
            _, _, entry = heapq.heappop(self._active)
            if entry.place == "active":
                entry.place = "out"
                return entry
        return None

    def next_time(self) -> float | None:
        """Return when the next delayed pod becomes active, if any."""
        while self._delayed and self._delayed[0][2].place != "delayed":
            heapq.heappop(self._delayed)
        return self._delayed[0][0] if self._delayed else None

    def rekind(self, entry: Entry[T], kind: bytes) -> None:
        """The pod handed out turned out to be of another kind; the old kind's next pod may try."""
        if kind != entry.kind:
            before, entry.kind = entry.kind, kind
            self._wake_next(before)

    def done(self, entry: Entry[T]) -> None:
        """The pod was placed; the next of its kind may try."""
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]
        entry.place = "gone"
        self._wake_next(entry.kind)

    def park(self, entry: Entry[T], wishes: frozenset[Wish], message: str, now: float) -> None:
        """The pod was refused; it sleeps until an event grants one of the wishes."""
        if self._entries.get(entry.key) is not entry:
            return
        entry.parked_at = now
        group = self._groups.get(entry.kind)
        if group is None:
            group = self._groups[entry.kind] = _Group(wishes, message)
        else:
            self._unlist(entry.kind, group)
            group.wishes, group.message = wishes, message
        for wish in wishes:
            self._groups_by_wish.setdefault(wish, set()).add(entry.kind)
        group.is_trying = False
        self._join(group, entry)

    def park_waiting(self, key: str, wishes: frozenset[Wish], message: str, now: float) -> None:
        """Let an active pod share the refusal of another one, untried."""
        entry = self._entries.get(key)
        if entry is not None and entry.place == "active":
            self.park(entry, wishes, message, now)

    def delay(self, entry: Entry[T], now: float, seconds: float | None = None) -> None:
        """Something failed; try again after a while (longer with every failure)."""
        if self._entries.get(entry.key) is not entry:
            return
        entry.failures += 1
        pause = (
            seconds if seconds is not None else min(INITIAL_BACKOFF * 2 ** (entry.failures - 1), MAX_BACKOFF)
        )
        entry.place, entry.ready_at = "delayed", now + pause
        self._ticket += 1
        heapq.heappush(self._delayed, (entry.ready_at, self._ticket, entry))
        self._wake_next(entry.kind)

    def restore(self, entry: Entry[T], now: float, seconds: float) -> None:
        """Bring back a pod that was `done` but whose commit failed."""
        if entry.key in self._entries:
            return
        self._entries[entry.key] = entry
        self.delay(entry, now, seconds)

    # --- waking ---------------------------------------------------------------

    def wake(self, wish: Wish) -> int:
        """An event may help: wake the first pod of each group that waits for this; return how many."""
        kinds = self._groups_by_wish.get(wish)
        return sum(self._wake_next(kind) for kind in list(kinds)) if kinds else 0

    def wake_pod(self, key: str) -> None:
        """The pod itself changed: try it again, parked or not."""
        entry = self._entries.get(key)
        if entry is not None and entry.place == "parked":
            self._activate(entry)

    def wake_overdue(self, now: float) -> int:
        """Wake the first pod of every group that has slept for very long."""
        kinds = [
            kind
            for kind, group in self._groups.items()
            if group.heap and now - group.heap[0][2].parked_at >= PARKED_FOR_LONGEST
        ]
        return sum(self._wake_next(kind) for kind in kinds)

    def _wake_next(self, kind: bytes) -> bool:
        group = self._groups.get(kind)
        if group is None:
            return False
        while group.heap and group.heap[0][2].place != "parked":
            heapq.heappop(group.heap)
        if not group.heap:
            self._unlist(kind, group)
            del self._groups[kind]
            return False
        _, _, entry = heapq.heappop(group.heap)
        group.is_trying = True
        self._activate(entry)
        return True

    def _unlist(self, kind: bytes, group: _Group[T]) -> None:
        for wish in group.wishes:
            kinds = self._groups_by_wish.get(wish)
            if kinds is not None:
                kinds.discard(kind)
                if not kinds:
                    del self._groups_by_wish[wish]

    def _join(self, group: _Group[T], entry: Entry[T]) -> None:
        entry.place = "parked"
        self._ticket += 1
        heapq.heappush(group.heap, (entry.rank(), self._ticket, entry))

    def _activate(self, entry: Entry[T]) -> None:
        entry.place = "active"
        self._ticket += 1
        heapq.heappush(self._active, (entry.rank(), self._ticket, entry))
