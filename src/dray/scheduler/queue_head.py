"""The head of the queue: the first pod that does not fit, and the moment that is reserved for it.

`backfill` has the rules, with jobs as names and `Fits` as the only question; here they are applied to pods of a
snapshot. A running pod ends at the latest when its time (`activeDeadlineSeconds`) is over; a pod that is placed now
may start before the head only if it does not delay it.

Theory of operation. The head is whoever goes before all others that were refused: by the queue's order, except that
a pod that has waited for longer than `OVERDUE` goes before everybody (the oldest first, but not pods of a priority below
zero, which are evicted anyway). A pod that would not fit on the empty cluster is never the head. Without time
limits nobody knows when the head can start: others pass it for `PATIENCE`, from then on nothing may start that takes
what it needs. Gangs are judged like pods, and may be the head.

Everything is tried on the live snapshot and undone before returning. Pure: time is an argument, in seconds since 1970.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from dray.allocator import PendingWork
from dray.api.core import Pod
from dray.api.times import parse_time
from dray.scheduler.backfill import CandidateJob, Reservation, RunningJob, is_harmless, reserve
from dray.scheduler.cluster_snapshot import ClusterSnapshot
from dray.scheduler.deciding import Placed, decide
from dray.scheduler.outcomes import Placement
from dray.scheduler.preemption import may_preempt
from dray.scheduler.queue import Entry
from dray.scheduler.shape import PodShape
from dray.scheduler.state import PodUse
from dray.scheduler.tentative import Undo, without_pod

OVERDUE = 24 * 3600.0  # seconds of waiting after which a pod goes before everybody
PATIENCE = 3600.0  # seconds for which a head is passed whose start is not foreseeable
MOST_RUNNING = 2000  # pods whose end is looked at
_SAME = 60.0  # seconds; a reservation that moves by less is the same

Precedence = tuple[bool, float, tuple[int, float, int]]


@dataclass(slots=True)
class Head:
    """The pod at the head, the pods that start with it, and its reservation."""

    entry: Entry[Pod]
    members: Sequence[Pod]
    reservation: Reservation


@dataclass(slots=True)
class QueueHead:
    """Keeps the head of the queue; see the module docstring."""

    snapshot: ClusterSnapshot
    head: Head | None = field(default=None, init=False)

    def refused(self, entry: Entry[Pod], members: Sequence[Pod], now: float) -> bool:
        """Take note that a pod does not fit; return whether who is the head, or its moment, is another now."""
        head = self.head
        if (
            head is not None
            and head.entry is not entry
            and precedence(head.entry, now) < precedence(entry, now)
        ):
            return False
        try:
            reservation = self._reserve(entry.item, members, now)
        except PendingWork:
            return False  # it takes too long to know: what was known holds
        before = head.reservation if head is not None else None
        if reservation is None:
            if head is None or head.entry is not entry:
                return False
            self.head = None
            return True
        self.head = Head(entry, members, reservation)
        return before is None or not _is_same(before, reservation)

    def left(self, key: str) -> bool:
        """Take note that a pod waits no longer; return whether it was the head."""
        if self.head is None or self.head.entry.key != key:
            return False
        self.head = None
        return True

    def renew(self, now: float) -> bool:
        """Look anew when the head can start; return whether that changed."""
        return self.head is not None and self.refused(self.head.entry, self.head.members, now)

    def delays_head(self, entry: Entry[Pod], placed: Sequence[Placed], now: float) -> bool:
        """Return whether pods that start now would delay a head that goes before them."""
        head = self.head
        if head is None or head.entry is entry or precedence(entry, now) < precedence(head.entry, now):
            return False
        pod = head.entry.item
        if any(each.pod.metadata.uid == pod.metadata.uid for each in placed):
            return False
        seconds = max((seconds_of(each.pod) for each in placed), default=inf)
        is_evictable = may_preempt(pod) and all(
            (each.pod.spec.priority or 0) < (pod.spec.priority or 0) for each in placed
        )
        fits = _Fits(self.snapshot, {pod.metadata.uid: head.members}, {"candidate": placed})
        candidate = CandidateJob("candidate", seconds, is_evictable)
        try:
            return not is_harmless(candidate, head.reservation, now, fits)
        except PendingWork:
            return False  # it takes too long to know: nobody is held back without a reason

    def _reserve(self, pod: Pod, members: Sequence[Pod], now: float) -> Reservation | None:
        """Return when a pod can start; None when that is not to be reserved."""
        uid = pod.metadata.uid
        fits = _Fits(self.snapshot, {uid: members}, {})
        running = running_jobs(self.snapshot.state.pods.values(), now)
        found = reserve(uid, running, now, fits)
        if found.starts < inf:
            return found
        everybody = tuple(job.name for job in running)
        is_patient = now - created(pod, now) < PATIENCE
        if is_patient or not fits(uid, ended=everybody):
            return None
        return replace(found, ended=everybody)


def expected_starts(
    snapshot: ClusterSnapshot, waiting: Sequence[Pod], now: float, most_tries: int = 200
) -> dict[str, float]:
    """Return when waiting pods start at the latest, by uid, if they start in this order and nobody goes before them.

    Pods whose start is not foreseeable are left out, and all behind them; so are those that are too far behind.
    """
    starts: dict[str, float] = {}
    undo: list[Undo] = []  # of running pods that have ended
    ends = [(job.ends, job.name) for job in running_jobs(snapshot.state.pods.values(), now) if job.ends < inf]
    heapq.heapify(ends)
    placed: dict[str, Undo] = {}  # waiting pods that have started, by uid
    moment, queue = now, deque(waiting)
    try:
        for _ in range(most_tries):
            if not queue:
                break
            pod = queue[0]
            decision = decide(pod, snapshot, is_alone=True, plans_preemption=False)
            if isinstance(decision, list):
                uid = queue.popleft().metadata.uid
                starts[uid] = moment
                placed[uid] = _with_pod(snapshot, pod, decision[0].shape, decision[0].placement)
                heapq.heappush(ends, (moment + seconds_of(pod), uid))
                continue
            if not ends or ends[0][0] == inf:
                break
            end, uid = heapq.heappop(ends)
            moment = max(moment, end)
            if uid in placed:
                placed.pop(uid)()
            else:
                undo.append(
                    without_pod(snapshot.placer, snapshot.state.pods[uid], snapshot.claims_reserved_for)
                )
    except PendingWork:
        return starts  # it takes too long to know
    finally:
        for release in reversed(placed.values()):
            release()
        while undo:
            undo.pop()()
    return starts


@dataclass(slots=True)
class _Fits:
    """Answers `backfill` on a snapshot: running pods by uid, candidates by what was decided for them."""

    snapshot: ClusterSnapshot
    members_by_uid: Mapping[str, Sequence[Pod]]
    placed_by_name: Mapping[str, Sequence[Placed]]

    def __call__(self, job: str, *, ended: Sequence[str] = (), beside: Sequence[str] = ()) -> bool:
        """Return whether the pod (with its gang) fits once some pods have ended, beside others that start now."""
        snapshot, members = self.snapshot, self.members_by_uid[job]
        undo: list[Undo] = []
        try:
            for uid in ended:
                use = snapshot.state.pods.get(uid)
                if use is not None:
                    undo.append(without_pod(snapshot.placer, use, snapshot.claims_reserved_for))
            for placed in (each for name in beside for each in self.placed_by_name[name]):
                undo.append(_with_pod(snapshot, placed.pod, placed.shape, placed.placement))
            pod = next(each for each in members if each.metadata.uid == job)
            return isinstance(decide(pod, snapshot, members, plans_preemption=False), list)
        finally:
            while undo:
                undo.pop()()


def _with_pod(snapshot: ClusterSnapshot, pod: Pod, shape: PodShape, placement: Placement) -> Undo:
    """Let a pod take what was decided; return what gives it back."""
    start = snapshot.placer.start
    snapshot.reserve(pod, shape, placement)

    def release() -> None:
        snapshot.unreserve(placement.claims)
        snapshot.volumes.release(pod.metadata.uid)
        snapshot.state.forget(pod.metadata.uid)
        snapshot.placer.start = start

    return release


def running_jobs(pods: Iterable[PodUse], now: float) -> list[RunningJob]:
    """Return when pods end at the latest; at most `MOST_RUNNING`, those that end first."""
    found = [RunningJob(use.uid, ends_at(use, now)) for use in pods]
    return sorted(found, key=lambda job: (job.ends, job.name))[:MOST_RUNNING]


def seconds_of(pod: Pod) -> float:
    """Return how long a pod may run; infinite without a limit."""
    limit = pod.spec.active_deadline_seconds
    return inf if limit is None else float(limit) + _grace(pod)


def precedence(entry: Entry[Pod], now: float) -> Precedence:
    """Return who goes first, the lowest: pods that have waited too long by age, the others as the queue has them."""
    since = created(entry.item, now)
    is_overdue = entry.priority >= 0 and now - since > OVERDUE
    return (not is_overdue, since if is_overdue else 0.0, entry.rank())


def created(pod: Pod, now: float) -> float:
    """Return when a pod was made."""
    text = pod.metadata.creation_timestamp
    return parse_time(text).timestamp() if text else now


def ends_at(use: PodUse, now: float) -> float:
    """Return when a running pod ends at the latest; infinite without a time limit."""
    if use.is_terminating:
        return now + _grace(use.pod)
    started = use.pod.status.start_time
    return (parse_time(started).timestamp() if started else now) + seconds_of(use.pod)


def _grace(pod: Pod) -> float:
    seconds = pod.spec.termination_grace_period_seconds
    return 30.0 if seconds is None else float(seconds)


def _is_same(one: Reservation, other: Reservation) -> bool:
    if one.job != other.job or (one.starts == inf) != (other.starts == inf):
        return False
    return one.starts == inf or abs(one.starts - other.starts) < _SAME
