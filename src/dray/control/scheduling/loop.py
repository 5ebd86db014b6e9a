"""The scheduling loop: take a pod, place it, book it, commit in the background.

One task decides, one pod after the other, on the caches as they are: decisions are
cheap and must see each other's bookings. Commits are slow (several writes) and run side
by side, at most `max_commits` of them; while they run, what they will take is booked, so
no later decision can take it again. A failed commit gives its bookings back and the pod
returns to the queue.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from dray.allocator import Policy, policy_named
from dray.api.core import Pod
from dray.api.features import Features
from dray.client import Client, key_of
from dray.control.scheduling.caches import Caches
from dray.control.scheduling.committing import CommitFailed, Committer
from dray.control.scheduling.reporting import Reporter
from dray.scheduler import (
    Entry,
    Help,
    NotReady,
    Placement,
    Placer,
    PodClaims,
    PodShape,
    Unplaceable,
    gather_claims,
    kind_of,
    shape_of,
)

log = logging.getLogger("dray.scheduler")

_TURN = 16  # decisions before other tasks get their turn
_RETRY_AFTER_CONFLICT = 0.05  # seconds


@dataclass(slots=True)
class SchedulerOptions:
    """How the scheduler behaves; the defaults are those of the command."""

    name: str = "dray"
    policy: str = ""  # empty means: kube-scheduler's way; else pack, spread, frag, …
    features: Features = field(default_factory=Features.default)
    max_commits: int = 16
    binding_timeout: float = 600.0


@dataclass(slots=True)
class Statistics:
    """Counters for /metrics and tests."""

    placed: int = 0
    bound: int = 0
    refused: int = 0
    conflicts: int = 0
    failures: int = 0


def _utc_now() -> datetime:
    return datetime.now(UTC)


def _new_uuid() -> str:
    return str(uuid.uuid4())


class SchedulingLoop:
    """Schedules the pods that name it, until cancelled."""

    def __init__(
        self,
        client: Client,
        options: SchedulerOptions | None = None,
        *,
        now: Callable[[], datetime] = _utc_now,
        new_uid: Callable[[], str] = _new_uuid,
    ) -> None:
        self.options = options or SchedulerOptions()
        self.client = client
        self.statistics = Statistics()
        self.caches = Caches(client, self.options.name, self.options.features, new_uid)
        policy: Policy | None = policy_named(self.options.policy) if self.options.policy else None
        self.placer = Placer(self.caches.state, self.caches.devices, self.caches.neighbours, policy=policy)
        self.committer = Committer(
            client, self.caches, self.options.features, now, self.options.binding_timeout
        )
        self.reporter = Reporter(client, self.options.name, now, new_uid)
        self.is_ready = asyncio.Event()
        self._shapes: dict[str, PodShape] = {}  # pod key -> shape, while it waits
        self._changed = asyncio.Event()
        self._commits: set[asyncio.Task[None]] = set()
        self._free_commit = asyncio.Event()
        self._sequence = 0
        self.caches.on_pod = self._pod_waits
        self.caches.on_pod_gone = self._pod_left
        self.caches.on_wake = self._changed.set

    async def run(self) -> None:
        """Follow the cluster and schedule; returns only by cancellation."""
        async with asyncio.TaskGroup() as tasks:
            await self.caches.start(tasks)
            tasks.create_task(self.reporter.run(), name="reporter")
            tasks.create_task(self._wake_overdue(), name="overdue")
            self.is_ready.set()
            await self._decide_forever(tasks)

    # --- the queue ------------------------------------------------------------

    def _pod_waits(self, pod: Pod) -> None:
        """A pod of ours is unbound and new or changed: queue it, if its claims are there."""
        key = key_of(pod.metadata)
        if pod.metadata.uid in self.caches.assumed:
            return
        if pod.spec.scheduling_gates or pod.metadata.deletion_timestamp is not None:
            self._pod_left(pod)
            return
        queue = self.caches.queue
        waiting = queue.get(key)
        if waiting is not None and waiting.item.metadata.uid == pod.metadata.uid and waiting.place != "gone":
            before = waiting.item
            waiting.item = pod
            if (
                before.spec != pod.spec
                or before.status.resource_claim_statuses != pod.status.resource_claim_statuses
            ):
                self._shapes.pop(key, None)
                queue.wake_pod(key)
                self._changed.set()
            return
        claims = self._claims_of(pod)
        if isinstance(claims, NotReady):
            for claim_key in claims.waits_for:
                self.caches.waiting_for_claim[claim_key].add(key)
            self.reporter.not_ready(pod, claims.message)
            return
        shape = shape_of(pod)
        self._shapes[key] = shape
        self._sequence += 1
        refusal = queue.add(
            key,
            pod,
            kind=self._kind(pod, shape, claims),
            priority=pod.spec.priority or 0,
            sequence=self._sequence,
        )
        if refusal is not None:
            self.statistics.refused += 1
            self.reporter.refused(pod, refusal)
        self._changed.set()

    def _pod_left(self, pod: Pod) -> None:
        """A pod of ours was bound, ended or deleted: it waits no longer."""
        key = key_of(pod.metadata)
        self.caches.queue.remove(key)
        self._shapes.pop(key, None)
        self.reporter.forget(pod.metadata.uid)
        self._changed.set()

    def _claims_of(self, pod: Pod) -> PodClaims | NotReady:
        if not pod.spec.resource_claims:
            return _NO_CLAIMS
        return gather_claims(pod, self.caches.claims.get, in_flight=self.caches.bookings)

    def _kind(self, pod: Pod, shape: PodShape, claims: PodClaims) -> bytes:
        """Pods of equal kind get equal answers; see the queue."""
        parts = [shape.key, str(pod.spec.priority or 0).encode()]
        if claims.pending:
            parts.append(kind_of(claims.pending))
        parts += [claim.metadata.uid.encode() for claim in claims.allocated]
        if self.caches.neighbours.objects():
            parts.append(repr((pod.metadata.namespace, sorted((pod.metadata.labels or {}).items()))).encode())
        return b"\x00".join(parts)

    async def _wake_overdue(self) -> None:
        while True:
            await asyncio.sleep(30)
            self.caches.queue.wake_overdue(asyncio.get_running_loop().time())
            self._changed.set()

    # --- deciding -------------------------------------------------------------

    async def _decide_forever(self, tasks: asyncio.TaskGroup) -> None:
        clock = asyncio.get_running_loop().time
        queue = self.caches.queue
        decided = 0
        while True:
            while len(self._commits) >= self.options.max_commits:
                self._free_commit.clear()
                await self._free_commit.wait()
            entry = queue.pop(clock())
            if entry is None:
                self._changed.clear()
                entry = queue.pop(clock())
            if entry is None:
                await self._sleep_until(queue.next_time(), clock())
                continue
            self._decide(entry, tasks, clock())
            decided += 1
            if decided % _TURN == 0:
                await asyncio.sleep(0)

    async def _sleep_until(self, moment: float | None, now: float) -> None:
        try:
            async with asyncio.timeout(None if moment is None else max(0.0, moment - now)):
                await self._changed.wait()
        except TimeoutError:
            return

    def _decide(self, entry: Entry[Pod], tasks: asyncio.TaskGroup, now: float) -> None:
        pod, queue = entry.item, self.caches.queue
        claims = self._claims_of(pod)
        if isinstance(claims, NotReady):
            queue.remove(entry.key)
            for claim_key in claims.waits_for:
                self.caches.waiting_for_claim[claim_key].add(entry.key)
            self.reporter.not_ready(pod, claims.message)
            return
        shape = self._shapes.get(entry.key)
        if shape is None:
            shape = self._shapes[entry.key] = shape_of(pod)
        queue.rekind(entry, self._kind(pod, shape, claims))
        answer = self.placer.place(pod, shape, claims)
        if isinstance(answer, Unplaceable):
            self._refuse(entry, answer, now)
            return
        self._book(pod, shape, answer)
        queue.done(entry)
        self.statistics.placed += 1
        task = tasks.create_task(self._commit(entry, claims, answer), name=f"commit {entry.key}")
        self._commits.add(task)

    def _refuse(self, entry: Entry[Pod], answer: Unplaceable, now: float) -> None:
        self.statistics.refused += 1
        message = self.reporter.refused(entry.item, answer.explain)
        self.caches.queue.park(entry, answer.wishes, message, now)

    def _book(self, pod: Pod, shape: PodShape, placement: Placement) -> None:
        """Let later decisions see what this one takes."""
        self.caches.assumed[pod.metadata.uid] = placement.node
        self.caches.committing.add(pod.metadata.uid)
        self.caches.state.assume(pod, placement.node, shape, placement.extra)
        for claim, allocation in zip(placement.claims, placement.allocations, strict=True):
            self.caches.bookings[claim.metadata.uid] = self.caches.devices.take(
                claim.metadata.uid, allocation
            )

    # --- committing -----------------------------------------------------------

    async def _commit(self, entry: Entry[Pod], claims: PodClaims, placement: Placement) -> None:
        pod = entry.item
        try:
            await self.committer.commit(pod, claims, placement, None)
        except CommitFailed as error:
            self._commit_failed(entry, placement, error)
        else:
            self.statistics.bound += 1
            self.caches.settle(pod, is_bound=True)
            self.reporter.scheduled(pod, placement.node)
        finally:
            task = asyncio.current_task()
            assert task is not None
            self._commits.discard(task)
            self._free_commit.set()

    def _commit_failed(self, entry: Entry[Pod], placement: Placement, error: CommitFailed) -> None:
        pod, caches = entry.item, self.caches
        log.info("pod %s on %s: %s", entry.key, placement.node, error)
        self.statistics.conflicts += error.is_conflict
        self.statistics.failures += not error.is_conflict
        for claim in placement.claims:
            # Still there only if the claim has not come back allocated meanwhile.
            booking = caches.bookings.pop(claim.metadata.uid, None)
            if booking is not None:
                booking.cancel()
                caches.wake(f"claim:{key_of(claim.metadata)}")
        caches.settle(pod, is_bound=False)
        caches.wake(Help.DEVICES)
        current = caches.pods.get(entry.key)
        if current is None or current.metadata.uid != pod.metadata.uid or current.spec.node_name:
            self._changed.set()
            return
        entry.item = current
        if not error.is_conflict:
            self.reporter.failed(pod, str(error))
        caches.queue.restore(
            entry,
            asyncio.get_running_loop().time(),
            _RETRY_AFTER_CONFLICT * (entry.failures + 1)
            if error.is_conflict
            else min(2.0**entry.failures, 10.0),
        )
        self._changed.set()


_NO_CLAIMS = PodClaims()
