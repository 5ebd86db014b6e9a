"""The scheduling loop: take a pod, place it, book it, commit in the background.

One task decides, one pod (or gang) after the other, on the caches as they are: decisions
are cheap and must see each other's bookings. Commits are slow (several writes) and run side
by side, at most `max_commits` of them; while they run, what they will take is booked, so
no later decision can take it again. A failed commit gives its bookings back and the pod
returns to the queue.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import uuid
from collections import defaultdict
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from dray.allocator import POLICIES, PendingWork, Policy, policy_named
from dray.api.core import Pod, PodSpec, Toleration
from dray.api.features import Features
from dray.api.resource import ResourceClaim
from dray.client import Client, ClientError, EventRecorder, key_of
from dray.client import resources as kinds
from dray.control.scheduling.caches import COMPANY_FOR, Caches
from dray.control.scheduling.committing import CommitFailed, Committer
from dray.control.scheduling.deciding import ClearFirst, Decider, Later, Placed
from dray.control.scheduling.evicting import evict
from dray.control.scheduling.reporting import Reporter
from dray.control.scheduling.waiting import BindingWaits
from dray.control.scheduling.withdrawing import InUseError, Withdrawer
from dray.scheduler import (
    Entry,
    Help,
    NotReady,
    Placer,
    PodClaims,
    PodShape,
    Preemption,
    Unplaceable,
    plan_preemption,
    shape_of,
)

log = logging.getLogger("dray.scheduler")

TOPOLOGY = "topology"  # the policy that keeps the devices of a claim close together
_TURN = 16  # decisions before other tasks get their turn
_RETRY_AFTER_CONFLICT = 0.05  # seconds
_RETRY_AFTER_FAILURE = 1.0
_LONGEST_RETRY = 10.0
_FIRST_PAUSE_AFTER_GIVING_UP = 10.0
_CONFLICTS_TO_TELL = 5  # one conflict is nothing to talk about, a row of them is
_COMPANY_FACTOR = 16
_LONGEST_COURTESY = 15.0
_CLEARING = "something is cleared out of the way"  # cause of a refusal
_WARM_AT_ONCE = 20  # nodes; a few milliseconds
_INLINE_COST = 50_000  # of expressions in one decision, in units of CEL: some milliseconds
# A pod that wants nothing of a node but devices; the tolerations are added by API servers to every pod.
_PLAIN_POD = Pod(
    spec=PodSpec(
        tolerations=[
            Toleration(f"node.kubernetes.io/{state}", "Exists", effect="NoExecute", toleration_seconds=300)
            for state in ("not-ready", "unreachable")
        ]
    )
)


@dataclass(slots=True)
class SchedulerOptions:
    """How the scheduler behaves; the defaults are those of the command."""

    name: str = "dray"
    policy: str = ""  # empty means: kube-scheduler's way; else TOPOLOGY or one of dray.allocator.POLICIES
    features: Features = field(default_factory=Features.default)
    max_commits: int = 16
    binding_timeout: float = 600.0
    filter_timeout: float = 5.0  # seconds for one decision's searches (kube-scheduler: 10 for each node)
    may_preempt: bool = True
    is_guarded: bool = False  # a guard refuses what would be given twice: no waiting for other schedulers
    records_bindings: bool = False  # an event for every bound pod, at the cost of a write


@dataclass(slots=True)
class Statistics:
    """Counters for /metrics and tests."""

    placed: int = 0
    bound: int = 0
    refused: int = 0
    conflicts: int = 0
    failures: int = 0
    preemptions: int = 0
    late_rivals: int = 0  # devices that another scheduler gave away a second time


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
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.options = options or SchedulerOptions()
        self.client = client
        self.statistics = Statistics()
        self.is_ready = asyncio.Event()
        features = self.options.features
        waits = BindingWaits(now, lambda: asyncio.get_running_loop().time(), self.options.binding_timeout)
        self._late_at = float("inf")  # loop time at which the decision being made has taken too long
        self.caches = Caches(client, self.options.name, features, new_uid, waits, self._limit())
        self.caches.is_guarded = self.options.is_guarded
        name = self.options.policy
        # Closeness is a wish added to the claims; the allocator may have an order of devices for it, too.
        policy: Policy | None = (
            policy_named(name) if name and (name != TOPOLOGY or name in POLICIES) else None
        )
        self.placer = Placer(
            self.caches.state,
            self.caches.devices,
            self.caches.neighbours,
            policy=policy,
            prefers_closeness=name == TOPOLOGY,
        )
        self.decider = Decider(self.caches, self.placer, features)
        self.withdrawer = Withdrawer(client, self.caches)
        self.committer = Committer(client, self.caches, features, now, self.withdrawer)
        self.recorder = EventRecorder(client, self.options.name, now)
        self.reporter = Reporter(client, self.recorder, now, tells_bound=self.options.records_bindings)
        self._now = now
        self._chance = chance
        self._shapes: dict[str, PodShape] = {}  # pod key -> shape, while it waits
        self._waiting_of_group: dict[str, set[str]] = defaultdict(set)  # group key -> keys of waiting pods
        self._changed = asyncio.Event()
        self._commits = 0
        self._commit_ended = asyncio.Event()
        self._background: set[asyncio.Task[None]] = set()
        self._tasks: asyncio.TaskGroup | None = None
        self._pace = self.caches.devices.world.pace
        # One thread: expressions compete with the event loop for the interpreter.
        self._evaluator = ThreadPoolExecutor(max_workers=1, thread_name_prefix="expressions")
        self._sequence = 0
        self.caches.on_pod = self._pod_waits
        self.caches.on_pod_gone = self._pod_left
        self.caches.on_wake = self._changed.set
        self.caches.on_late_rival = self._late_rival

    async def run(self) -> None:
        """Follow the cluster and schedule; returns only by cancellation."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                await self.caches.start(tasks)
                tasks.create_task(self.reporter.run(), name="reporter")
                tasks.create_task(self.recorder.run(), name="recorder")
                tasks.create_task(self._wake_overdue(), name="overdue")
                tasks.create_task(self._warm_up(), name="warm-up")
                self.is_ready.set()
                await self._decide_forever()
        finally:
            self._evaluator.shutdown(wait=False, cancel_futures=True)

    def _limit(self) -> Callable[[], bool] | None:
        """Return what tells the allocator to stop searching, if anything does."""
        if self.options.filter_timeout <= 0 or "DRASchedulerFilterTimeout" not in self.options.features:
            return None
        return lambda: asyncio.get_running_loop().time() > self._late_at

    # --- the queue ------------------------------------------------------------

    def _pod_waits(self, pod: Pod) -> None:
        """A pod of ours is unbound and new or changed: queue it, if its claims are there."""
        key = key_of(pod.metadata)
        if pod.metadata.uid in self.caches.assumed:
            return
        if pod.spec.scheduling_gates or pod.metadata.deletion_timestamp is not None:
            self._pod_left(pod)
            return
        if self._is_waiting(key, pod):
            return
        group_key = _group_key(pod)
        if group_key is not None and self.decider.group_of(pod) is None:
            self.caches.waiting_for_group[group_key].add(key)
            self.reporter.not_ready(pod, f"waiting for pod group {group_key} to be created")
            return
        claims = self.decider.claims_of(pod)
        if isinstance(claims, NotReady):
            self._wait_for_claims(key, pod, claims)
            return
        self._enqueue(key, pod, claims)
        if group_key is not None:
            self._waiting_of_group[group_key].add(key)
            self.caches.wake(f"group:{group_key}")
        self._changed.set()

    def _is_waiting(self, key: str, pod: Pod) -> bool:
        """Whether the pod is in the queue already; takes note of its change."""
        waiting = self.caches.queue.get(key)
        if waiting is None or waiting.item.metadata.uid != pod.metadata.uid:
            return False
        before, waiting.item = waiting.item, pod
        if (
            before.spec != pod.spec
            or before.status.resource_claim_statuses != pod.status.resource_claim_statuses
        ):
            self._shapes.pop(key, None)
            self.caches.queue.wake_pod(key)
            self._changed.set()
        return True

    def _enqueue(self, key: str, pod: Pod, claims: PodClaims) -> None:
        shape = self._shapes[key] = shape_of(pod)
        self._sequence += 1
        refusal = self.caches.queue.add(
            key,
            pod,
            kind=self.decider.kind_of(pod, shape, claims),
            priority=pod.spec.priority or 0,
            sequence=self._sequence,
        )
        # The standing refusal of a gang was true before this pod came; the gang is tried anew, and all are told.
        if refusal is not None and self.decider.gang_of(pod) is None:
            self.statistics.refused += 1
            self.reporter.refused(pod, refusal)

    def _wait_for_claims(self, key: str, pod: Pod, not_ready: NotReady) -> None:
        for claim_key in not_ready.waits_for:
            self.caches.waiting_for_claim[claim_key].add(key)
        self.reporter.not_ready(pod, not_ready.message)

    def _pod_left(self, pod: Pod) -> None:
        """A pod of ours was bound, ended or deleted: it waits no longer."""
        key = key_of(pod.metadata)
        self.caches.queue.remove(key)
        self._no_longer_waits(key, pod)
        group_key = _group_key(pod)
        if group_key in self._waiting_of_group and pod.metadata.uid not in self.caches.state.pods:
            self.caches.wake(f"group:{group_key}")  # the others wait for one more now, or fit without it
        self.caches.nominated.pop(pod.metadata.uid, None)
        self.reporter.forget(pod.metadata.uid)
        self._changed.set()

    def _no_longer_waits(self, key: str, pod: Pod) -> None:
        self._shapes.pop(key, None)
        group_key = _group_key(pod)
        if group_key is None:
            return
        waiting = self._waiting_of_group[group_key]
        waiting.discard(key)
        if not waiting:
            del self._waiting_of_group[group_key]

    async def _warm_up(self) -> None:
        """While nothing is to do, take in all devices, a few nodes at a time, and judge nodes for plain pods."""
        names = list(self.caches.state.nodes)
        classes = [each.metadata.name for each in self.caches.classes.items.values()]
        for start in range(0, len(names), _WARM_AT_ONCE):
            while len(self.caches.queue) or self._commits:
                await asyncio.sleep(0.1)
            with self._pace.limited(_INLINE_COST):
                self.caches.devices.warm(names[start : start + _WARM_AT_ONCE], classes)
            await asyncio.sleep(0)
        shape = shape_of(_PLAIN_POD)
        self.caches.state.passing_static(_PLAIN_POD, shape.static_key)
        self.caches.state.with_room(shape.requests)

    async def _wake_overdue(self) -> None:
        while True:
            await asyncio.sleep(30)
            if self.caches.queue.wake_overdue(asyncio.get_running_loop().time()):
                self._changed.set()

    # --- deciding -------------------------------------------------------------

    async def _decide_forever(self) -> None:
        clock = asyncio.get_running_loop().time
        queue = self.caches.queue
        decided = 0
        while True:
            while self._commits >= self._most_commits():
                self._commit_ended.clear()
                await self._commit_ended.wait()
            entry = queue.pop(clock())
            if entry is None:
                self._changed.clear()
                entry = queue.pop(clock())
            if entry is None:
                await self._sleep_until(queue.next_time(), clock())
                continue
            self._decide(entry, clock())
            decided += 1
            if decided % _TURN == 0:
                await asyncio.sleep(0)

    def _most_commits(self) -> int:
        """Commits at a time; many more while each of them waits for other schedulers."""
        is_waiting = self.caches.seconds_alone() < COMPANY_FOR
        return self.options.max_commits * (_COMPANY_FACTOR if is_waiting else 1)

    async def _sleep_until(self, moment: float | None, now: float) -> None:
        try:
            async with asyncio.timeout(None if moment is None else max(0.0, moment - now)):
                await self._changed.wait()
        except TimeoutError:
            return

    def _decide(self, entry: Entry[Pod], now: float) -> None:
        pod, queue = entry.item, self.caches.queue
        shape = self._shapes.get(entry.key)
        if shape is None:
            shape = self._shapes[entry.key] = shape_of(pod)
        members = self._waiting_members(entry)
        self._late_at = now + self.options.filter_timeout
        try:
            with self._pace.limited(_INLINE_COST):
                decision = self.decider.decide(pod, shape, members)
        except PendingWork as pending:
            self._start(self._evaluate(entry, pending))
            return
        if isinstance(decision, list):
            self._act(entry, decision)
        elif isinstance(decision, NotReady):
            queue.remove(entry.key)
            self._wait_for_claims(entry.key, pod, decision)
        elif isinstance(decision, ClearFirst):
            self._clear(entry, decision, now)
        elif isinstance(decision, Later):
            queue.delay(entry, now, decision.seconds)
            self.reporter.not_ready(pod, decision.message)
        else:
            self._refuse(entry, shape, decision, members, now)

    async def _evaluate(self, entry: Entry[Pod], pending: PendingWork) -> None:
        """Do what a decision waits for in a thread, while other pods are decided; then try the pod again."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._evaluator, pending.work)
        entry.failures -= 1  # it was no failure
        self.caches.queue.delay(entry, loop.time(), 0.0)
        self._changed.set()

    def _explained(self, refusal: Unplaceable) -> str:
        """Return why a pod was refused, in fewer words if the whole answer would take long."""
        try:
            with self._pace.limited(_INLINE_COST):
                return refusal.explain()
        except PendingWork:
            return f"no node has devices that fit ({refusal.cause})"

    def _waiting_members(self, entry: Entry[Pod]) -> list[Pod]:
        """Return the pods that a gang would start with: this one and those that wait, oldest first."""
        group_key = _group_key(entry.item)
        if group_key is None:
            return [entry.item]
        keys = self._waiting_of_group.get(group_key, set()) | {entry.key}
        entries = [self.caches.queue.get(key) for key in keys]
        waiting = [each for each in entries if each is not None]
        return [each.item for each in sorted(waiting, key=lambda each: each.sequence)]

    def _act(self, entry: Entry[Pod], decision: list[Placed]) -> None:
        entries = []
        for placed in decision:
            key = key_of(placed.pod.metadata)
            member = entry if key == entry.key else self.caches.queue.get(key)
            assert member is not None
            self._book(placed)
            self.caches.queue.done(member)
            self._no_longer_waits(key, placed.pod)
            self.reporter.placed(placed.pod)
            entries.append(member)
        self.statistics.placed += len(decision)
        self._commits += 1
        self._start(self._commit(entries, decision))

    def _refuse(
        self, entry: Entry[Pod], shape: PodShape, refusal: Unplaceable, members: list[Pod], now: float
    ) -> None:
        queue, pod = self.caches.queue, entry.item
        self.statistics.refused += 1
        claims = self.decider.claims_of(pod)
        if not isinstance(claims, NotReady):
            queue.rekind(entry, self.decider.kind_of(pod, shape, claims))
            is_incomplete = Help.GROUP in refusal.wishes  # nobody is evicted for a gang that is not there yet
            if self.options.may_preempt and len(members) == 1 and not is_incomplete:
                self._preempt(pod, shape, claims)
        is_gang = self.decider.gang_of(pod) is not None
        explain = functools.cache(functools.partial(self._explained, refusal))  # once for all members
        message = self.reporter.refused(pod, explain, refusal.cause, may_settle=is_gang)
        if refusal.gave_up:
            # Every freed device would make us search in vain again, and all others wait meanwhile.
            pause = _FIRST_PAUSE_AFTER_GIVING_UP * 2 ** min(entry.failures, 5)
            queue.delay(entry, asyncio.get_running_loop().time(), pause)
            return
        queue.park(entry, refusal.wishes, message, now)
        for member in members:
            if member is not pod:
                self.reporter.refused(member, explain, refusal.cause, may_settle=is_gang)
                queue.park_waiting(key_of(member.metadata), refusal.wishes, message, now)

    def _clear(self, entry: Entry[Pod], decision: ClearFirst, now: float) -> None:
        """Remove what stands in the way, and try the pod again when the claim has changed."""
        key = key_of(decision.claim.metadata)
        message = self.reporter.refused(entry.item, decision.message, _CLEARING)
        self.caches.queue.park(entry, frozenset({f"claim:{key}", Help.DEVICES}), message, now)
        self._start(self._clear_claim(decision, entry.key))

    async def _clear_claim(self, decision: ClearFirst, pod_key: str) -> None:
        claim = decision.claim
        try:
            if decision.way == "delete":
                await self.withdrawer.delete(claim)
            elif decision.way == "deallocate":
                await self.withdrawer.deallocate(claim)
            else:
                await self.withdrawer.unreserve(claim, decision.consumer)
        except (ClientError, InUseError) as error:
            log.info("claim %s cannot be cleared: %s", key_of(claim.metadata), error)
            await self._try_again(pod_key)

    def _preempt(self, pod: Pod, shape: PodShape, claims: PodClaims) -> None:
        """Evict less important pods if that makes room, once; then wait for them to go."""
        caches = self.caches
        if pod.metadata.uid in caches.nominated:
            node, _ = caches.nominated[pod.metadata.uid]
            known = caches.state.nodes.get(node)
            if known is not None and any(use.is_terminating for use in known.pods.values()):
                return  # its victims are on their way out
            del caches.nominated[pod.metadata.uid]
        budgets = list(caches.budgets.items.values())
        plan = plan_preemption(self.placer, pod, shape, claims, caches.claims_reserved_for, budgets)
        if plan is None:
            return
        self.statistics.preemptions += 1
        caches.nominated[pod.metadata.uid] = (plan.node, pod.spec.priority or 0)
        for victim in plan.victims:
            victim.is_terminating = True
        self._start(self._evict(pod, plan))

    async def _evict(self, pod: Pod, plan: Preemption) -> None:
        """Evict the victims; who stays because a request got lost counts as a pod like any other again."""
        left = await evict(self.client, self.recorder, pod, plan, self.options.name, self._now)
        for victim in left:
            victim.is_terminating = False
        if left:
            self.caches.nominated.pop(pod.metadata.uid, None)
            await self._try_again(key_of(pod.metadata))

    async def _try_again(self, key: str) -> None:
        """Wake a pod for which we failed to make room: no event will tell of what did not happen."""
        await asyncio.sleep(_RETRY_AFTER_FAILURE)
        self.caches.queue.wake_pod(key)
        self._changed.set()

    def _book(self, placed: Placed) -> None:
        """Let later decisions see what this one takes."""
        caches, uid, placement = self.caches, placed.pod.metadata.uid, placed.placement
        caches.assumed[uid] = placement.node
        caches.committing.add(uid)
        caches.state.assume(placed.pod, placement.node, placed.shape, placement.extra)
        for claim, allocation in zip(placement.claims, placement.allocations, strict=True):
            caches.bookings[claim.metadata.uid] = caches.devices.take(claim.metadata.uid, allocation)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._tasks is not None
        task = self._tasks.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _late_rival(self, uid: str, rival: ResourceClaim) -> None:
        """Another scheduler gave a device of ours away after we had checked.

        A commit still under way will notice and yield. For a pod that is bound already, say so; it is
        evicted if something will make it again, because two pods on one device is worse. And wait
        longer from now on: the other one is slower than we thought.
        """
        self.committer.courtesy = min(self.committer.courtesy * 2, _LONGEST_COURTESY)
        mine = next((each for each in self.caches.claims.items.values() if each.metadata.uid == uid), None)
        if mine is None:
            return
        for consumer in mine.status.reserved_for:
            use = self.caches.state.pods.get(consumer.uid)
            if use is None or consumer.uid in self.caches.committing:
                continue
            self.statistics.late_rivals += 1
            text = f"a device of claim {key_of(mine.metadata)} was given to {key_of(rival.metadata)}, too, by another scheduler"
            log.warning("pod %s: %s", use.key, text)
            self.recorder.record(kinds.PODS, use.pod.metadata, "Warning", "DeviceAllocatedTwice", text)
            if any(owner.controller for owner in use.pod.metadata.owner_references):
                self._start(self._delete_pod(use.pod))

    async def _delete_pod(self, pod: Pod) -> None:
        try:
            await self.client.delete(
                kinds.PODS, pod.metadata.name, pod.metadata.namespace, uid=pod.metadata.uid
            )
        except ClientError as error:
            log.info("pod %s cannot be deleted: %s", pod.metadata.name, error)

    # --- committing -----------------------------------------------------------

    async def _commit(self, entries: list[Entry[Pod]], decision: list[Placed]) -> None:
        try:
            await self.committer.commit(decision)
        except CommitFailed as error:
            for entry, placed in zip(entries, decision, strict=True):
                self._commit_failed(entry, placed, error)
        else:
            for placed in decision:
                self.statistics.bound += 1
                self.caches.settle(placed.pod, is_bound=True)
                self.reporter.bound(placed.pod, placed.placement.node)
        finally:
            self._commits -= 1
            self._commit_ended.set()

    def _commit_failed(self, entry: Entry[Pod], placed: Placed, error: CommitFailed) -> None:
        pod, caches = entry.item, self.caches
        log.info("pod %s on %s: %s", entry.key, placed.placement.node, error)
        self.statistics.conflicts += error.is_conflict
        self.statistics.failures += not error.is_conflict
        for claim in placed.placement.claims:
            # Still there only if the claim has not come back allocated meanwhile.
            booking = caches.bookings.pop(claim.metadata.uid, None)
            if booking is not None:
                booking.cancel()
                caches.wake(f"claim:{key_of(claim.metadata)}")
        caches.settle(pod, is_bound=False)
        caches.wake(Help.DEVICES)
        current = caches.pods.get(entry.key)
        if current is not None and current.metadata.uid == pod.metadata.uid and not current.spec.node_name:
            entry.item = current
            group_key = _group_key(current)
            if group_key is not None:
                self._waiting_of_group[group_key].add(entry.key)
            if not error.is_conflict or entry.failures >= _CONFLICTS_TO_TELL:
                self.reporter.failed(pod, str(error))
            pause = _RETRY_AFTER_CONFLICT if error.is_conflict else _RETRY_AFTER_FAILURE
            # By chance, so that two schedulers that met over a pod do not meet again and again.
            pause *= 0.5 + self._chance()
            pause = min(pause * 2 ** min(entry.failures, 10), _LONGEST_RETRY)
            caches.queue.restore(entry, asyncio.get_running_loop().time(), pause)
        self._changed.set()


def _group_key(pod: Pod) -> str | None:
    reference = pod.spec.scheduling_group
    if reference is None or not reference.pod_group_name:
        return None
    return f"{pod.metadata.namespace}/{reference.pod_group_name}"
