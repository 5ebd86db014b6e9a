"""The pods that wait to be placed: in which order, and which events make those worth another try that could not be.

Theory of operation. A waiting pod is *active* (may be tried now), in *backoff* (may be tried after a time, because something
failed), or *unschedulable* (was refused, and nothing has happened since that could change the answer). Active pods are
taken by priority, then age; where users share fairly, by priority, then the user's ratio (`fair_share`), then age. Ratios
change while pods wait: a pod is moved back when its ratio has grown by its turn, and `reorder` sorts all anew.

Pods with the same *equivalence key* (equal shape, equal claims, equal priority) get equal answers, so unschedulable pods are held
in groups by key. An event is a queueing hint: it names what it may help with, and in every group that waits for it only the *first* pod becomes
active. If that one is placed, the next follows; if it is refused again the group stays unschedulable. One freed device
thus costs one attempt per group, not one per pod; and a pod that arrives while its group is unschedulable joins the group without
being tried at all.

Time comes in as an argument. Invariant: every pod that was added and not removed is in exactly one of the three places, or
was handed out by `pop` and not yet settled.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

T = TypeVar("T")


class QueueingHint(StrEnum):
    """What an event can help with, and what a refused pod waits for."""

    NODES = "nodes"  # a node came, or its labels, taints or allocatable changed
    RESOURCES = "resources"  # a pod left a node
    DEVICES = "devices"  # devices were published, freed, or lost a taint; a class changed
    AFFINITY = "affinity"  # a pod that affinity rules look at came or went
    GROUP = "group"  # members of a pod group arrived


Rank = tuple[int, float, int]  # the lowest is tried first
Hint = QueueingHint | str  # a QueueingHint, or "claim:<key>" for one claim

INITIAL_BACKOFF = 1.0  # seconds, doubled with every failure
MAX_BACKOFF = 10.0
MAX_UNSCHEDULABLE = 300.0  # a safety net for events that nobody thought of


@dataclass(slots=True, eq=False)
class Entry(Generic[T]):
    """One waiting pod."""

    key: str
    item: T
    equivalence_key: bytes = b""  # equal keys get equal answers
    priority: int = 0
    sequence: int = 0  # age: lower is older
    failures: int = 0
    ready_at: float = 0.0
    unschedulable_since: float = 0.0
    place: str = ""  # active, backoff, unschedulable, in-flight
    ratio: float = 0.0  # of its user, when it was last put in order

    def rank(self) -> Rank:
        """Order of trying: high priority first, then the user with the lowest ratio, then old first."""
        return (-self.priority, self.ratio, self.sequence)


@dataclass(slots=True, eq=False)
class _Group(Generic[T]):
    hints: frozenset[Hint]
    message: str
    heap: list[tuple[Rank, int, Entry[T]]] = field(default_factory=list)
    is_trying: bool = False  # its first pod is active or in flight


class SchedulingQueue(Generic[T]):
    """See the module docstring."""

    def __init__(self) -> None:
        self.ratio: Callable[[T], float] | None = None  # of the user of a pod, where users share fairly
        self._entries: dict[str, Entry[T]] = {}
        self._active: list[tuple[Rank, int, Entry[T]]] = []
        self._backoff: list[tuple[float, int, Entry[T]]] = []
        self._groups: dict[bytes, _Group[T]] = {}
        self._groups_by_hint: dict[Hint, set[bytes]] = {}
        self._ticket = 0  # makes heap entries comparable

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def get(self, key: str) -> Entry[T] | None:
        """Return the entry of a pod, wherever it waits."""
        return self._entries.get(key)

    def entries(self) -> list[Entry[T]]:
        """Return all that wait, in no order."""
        return list(self._entries.values())

    def items(self) -> list[T]:
        """Return the pods that wait, in no order."""
        return [entry.item for entry in self._entries.values()]

    def counts(self) -> dict[str, int]:
        """Return how many pods wait in which place."""
        found = {"active": 0, "backoff": 0, "unschedulable": 0, "in-flight": 0}
        for entry in self._entries.values():
            found[entry.place] += 1
        return found

    # --- coming and going -----------------------------------------------------

    def add(self, key: str, item: T, *, equivalence_key: bytes, priority: int, sequence: int) -> str | None:
        """Let a pod wait. Returns the standing refusal when its group is unschedulable, else None (it is active)."""
        known = self._entries.get(key)
        if known is not None:
            self._discard(known)
        entry = Entry(key, item, equivalence_key, priority, sequence)
        self._entries[key] = entry
        group = self._groups.get(equivalence_key)
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
        was_trying = entry.place in ("active", "in-flight")
        entry.place = "gone"
        if was_trying:
            self._wake_next(entry.equivalence_key)

    # --- trying ---------------------------------------------------------------

    def pop(self, now: float) -> Entry[T] | None:
        """Hand out the pod to try next, or None. Settle it with `done`, `mark_unschedulable`, `back_off` or `put_back`."""
        while self._backoff and self._backoff[0][0] <= now:
            _, _, entry = heapq.heappop(self._backoff)
            if entry.place == "backoff":
                self._activate(entry)
        while self._active:
            _, _, entry = heapq.heappop(self._active)
            if entry.place == "active":
                if self.ratio is not None and self.ratio(entry.item) > entry.ratio:
                    self._activate(entry)  # its user has got something meanwhile: others may be next
                    continue
                entry.place = "in-flight"
                return entry
        return None

    def reorder(self) -> None:
        """Sort all waiting pods by the ratios of now."""
        if self.ratio is None:
            return
        for heap in (self._active, *(group.heap for group in self._groups.values())):
            heap[:] = [
                (self._rank(entry), ticket, entry)
                for _, ticket, entry in heap
                if entry.place in ("active", "unschedulable")
            ]
            heapq.heapify(heap)

    def next_time(self) -> float | None:
        """Return when the next pod in backoff becomes active, if any."""
        while self._backoff and self._backoff[0][2].place != "backoff":
            heapq.heappop(self._backoff)
        return self._backoff[0][0] if self._backoff else None

    def change_equivalence_key(self, entry: Entry[T], equivalence_key: bytes) -> None:
        """The pod handed out has another key now; the next pod with the old one may be tried."""
        if equivalence_key != entry.equivalence_key:
            before, entry.equivalence_key = entry.equivalence_key, equivalence_key
            self._wake_next(before)

    def done(self, entry: Entry[T]) -> None:
        """The pod was placed; the next with its key may be tried."""
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]
        entry.place = "gone"
        self._wake_next(entry.equivalence_key)

    def mark_unschedulable(self, entry: Entry[T], hints: frozenset[Hint], message: str, now: float) -> None:
        """The pod was refused; it waits for an event with one of these hints."""
        if self._entries.get(entry.key) is not entry:
            return
        entry.unschedulable_since = now
        group = self._groups.get(entry.equivalence_key)
        if group is None:
            group = self._groups[entry.equivalence_key] = _Group(hints, message)
        else:
            self._unlist(entry.equivalence_key, group)
            group.hints, group.message = hints, message
        for hint in hints:
            self._groups_by_hint.setdefault(hint, set()).add(entry.equivalence_key)
        group.is_trying = False
        self._join(group, entry)

    def mark_waiting_unschedulable(self, key: str, hints: frozenset[Hint], message: str, now: float) -> None:
        """Let an active pod share the refusal of another one, untried."""
        entry = self._entries.get(key)
        if entry is not None and entry.place == "active":
            self.mark_unschedulable(entry, hints, message, now)

    def back_off(self, entry: Entry[T], now: float, seconds: float | None = None) -> None:
        """Something failed; try again after a while (longer with every failure)."""
        if self._entries.get(entry.key) is not entry:
            return
        entry.failures += 1
        pause = (
            seconds if seconds is not None else min(INITIAL_BACKOFF * 2 ** (entry.failures - 1), MAX_BACKOFF)
        )
        entry.place, entry.ready_at = "backoff", now + pause
        self._ticket += 1
        heapq.heappush(self._backoff, (entry.ready_at, self._ticket, entry))
        self._wake_next(entry.equivalence_key)

    def put_back(self, entry: Entry[T]) -> None:
        """The pod that was handed out was not judged: it is to be tried again."""
        if self._entries.get(entry.key) is entry:
            self._activate(entry)

    def restore(self, entry: Entry[T], now: float, seconds: float) -> None:
        """Bring back a pod that was `done` but whose commit failed."""
        if entry.key in self._entries:
            return
        self._entries[entry.key] = entry
        self.back_off(entry, now, seconds)

    # --- waking ---------------------------------------------------------------

    def wake(self, hint: Hint, may_help: Callable[[T], bool] | None = None) -> int:
        """An event may help: wake the first pod of each group that waits for this; return how many.

        `may_help` is asked of that pod first, where the caller can tell cheaply that the event is of no use to it.
        """
        keys = self._groups_by_hint.get(hint)
        if not keys:
            return 0
        return sum(
            self._wake_next(equivalence_key)
            for equivalence_key in list(keys)
            if may_help is None or self._is_helped(equivalence_key, may_help)
        )

    def _is_helped(self, equivalence_key: bytes, may_help: Callable[[T], bool]) -> bool:
        group = self._groups.get(equivalence_key)
        return group is None or not group.heap or may_help(group.heap[0][2].item)

    def wake_pod(self, key: str) -> None:
        """The pod itself changed: try it again, whatever happened to it."""
        entry = self._entries.get(key)
        if entry is not None and entry.place == "unschedulable":
            self._activate(entry)

    def wake_overdue(self, now: float) -> int:
        """Wake the first pod of every group that has been unschedulable for very long."""
        keys = [
            equivalence_key
            for equivalence_key, group in self._groups.items()
            if group.heap and now - group.heap[0][2].unschedulable_since >= MAX_UNSCHEDULABLE
        ]
        return sum(self._wake_next(equivalence_key) for equivalence_key in keys)

    def _wake_next(self, equivalence_key: bytes) -> bool:
        group = self._groups.get(equivalence_key)
        if group is None:
            return False
        while group.heap and group.heap[0][2].place != "unschedulable":
            heapq.heappop(group.heap)
        if not group.heap:
            self._unlist(equivalence_key, group)
            del self._groups[equivalence_key]
            return False
        _, _, entry = heapq.heappop(group.heap)
        group.is_trying = True
        self._activate(entry)
        return True

    def _unlist(self, equivalence_key: bytes, group: _Group[T]) -> None:
        for hint in group.hints:
            keys = self._groups_by_hint.get(hint)
            if keys is not None:
                keys.discard(equivalence_key)
                if not keys:
                    del self._groups_by_hint[hint]

    def _join(self, group: _Group[T], entry: Entry[T]) -> None:
        entry.place = "unschedulable"
        self._ticket += 1
        heapq.heappush(group.heap, (self._rank(entry), self._ticket, entry))

    def _activate(self, entry: Entry[T]) -> None:
        entry.place = "active"
        self._ticket += 1
        heapq.heappush(self._active, (self._rank(entry), self._ticket, entry))

    def _rank(self, entry: Entry[T]) -> Rank:
        if self.ratio is not None:
            entry.ratio = self.ratio(entry.item)
        return entry.rank()
