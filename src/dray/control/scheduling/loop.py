"""The scheduling loop: take a pod, decide, reserve, commit in the background.

One task decides, one pod (or gang) after the other, on the snapshot as it is: decisions
are cheap and must see each other's reservations. Commits are slow (several writes) and run side
by side, at most `max_commits` of them; while they run, what they will take is reserved, so
no later decision can take it again. A failed commit unreserves it, and the pod
returns to the queue.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import uuid
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from dray.allocator import PendingWork
from dray.api.core import Pod, PodSpec, Toleration
from dray.client import Client, ClientError, EventRecorder, LeaderElection, key_of
from dray.control.scheduling.attaching import ClaimAttacher
from dray.control.scheduling.committing import CommitFailed, Committer
from dray.control.scheduling.evicting import evict
from dray.control.scheduling.group_status import GroupReporter
from dray.control.scheduling.informers import Informers, is_finished
from dray.control.scheduling.nominating import Nominator
from dray.control.scheduling.options import SchedulerOptions
from dray.control.scheduling.other_schedulers import OtherSchedulers
from dray.control.scheduling.pacing import Pace
from dray.control.scheduling.releasing import ClaimReleaser, InUseError
from dray.control.scheduling.reporting import Reporter
from dray.control.scheduling.statistics import Statistics, reason_of
from dray.control.scheduling.turns import HeldBack, Turns
from dray.control.scheduling.volume_binding import VolumeBinder
from dray.control.scheduling.waiting import BindingWaits
from dray.host.clock import utc_now
from dray.scheduler import (
    Decision,
    Entry,
    NotReady,
    Placed,
    PodClaims,
    PodShape,
    Preemption,
    QueueingHint,
    ReleaseFirst,
    Unplaceable,
    decide,
    group_key,
    is_being_preempted_for,
    shape_of,
)

log = logging.getLogger("dray.scheduler")

_TURN = 16  # decisions before other tasks get their turn
_RETRY_AFTER_CONFLICT = 0.05  # seconds
_RETRY_AFTER_FAILURE = 1.0
_LONGEST_RETRY = 10.0
_FIRST_PAUSE_AFTER_GIVING_UP = 10.0
_CONFLICTS_TO_TELL = 5  # one conflict is nothing to talk about, a row of them is
_RELEASING = "a claim is released first"  # cause of a refusal
_WARM_AT_ONCE = 20  # nodes; a few milliseconds
# A pod that wants nothing of a node but devices; the tolerations are added by API servers to every pod.
_PLAIN_POD = Pod(
    spec=PodSpec(
        tolerations=[
            Toleration(f"node.kubernetes.io/{state}", "Exists", effect="NoExecute", toleration_seconds=300)
            for state in ("not-ready", "unreachable")
        ]
    )
)


def _new_uuid() -> str:
    return str(uuid.uuid4())


class SchedulingLoop:
    """Schedules the pods that name it, until cancelled."""

    def __init__(
        self,
        client: Client,
        options: SchedulerOptions | None = None,
        *,
        now: Callable[[], datetime] = utc_now,
        new_uid: Callable[[], str] = _new_uuid,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.options = options or SchedulerOptions()
        self.client = client
        self.statistics = Statistics()
        self.is_synced = asyncio.Event()  # the informers know the cluster
        self.is_ready = asyncio.Event()  # and pods are being scheduled: this process leads
        waits = BindingWaits(now, lambda: asyncio.get_running_loop().time(), self.options.binding_timeout)
        has_timeout = self.options.filter_timeout > 0 and "DRASchedulerFilterTimeout" in self.options.features
        self._pace = Pace(self.options.filter_timeout if has_timeout else None)
        self.informers = Informers(
            client, self.options.name, self.options.profile(), new_uid, waits, self._pace.is_late
        )
        self.snapshot = self.informers.snapshot
        self.decide: Callable[..., Decision] = decide  # tests listen in
        self.releaser = ClaimReleaser(client, self.informers)
        binder = VolumeBinder(client, self.informers.storage, self.options.binding_timeout, self._pausing)
        self.committer = Committer(client, self.informers, self.options.features, now, self.releaser, binder)
        self.recorder = EventRecorder(client, self.options.name, now)
        self.reporter = Reporter(client, self.recorder, now, tells_bound=self.options.records_bindings)
        self.group_reporter = GroupReporter(client, now)
        self.nominator = Nominator(client, self.snapshot.nominated, self.informers.wake)
        self._now = now
        self._chance = chance
        self._shapes: dict[str, PodShape] = {}  # pod key -> shape, while it waits
        self._waiting_of_group: dict[str, set[str]] = defaultdict(set)  # group key -> keys of waiting pods
        self._changed = asyncio.Event()
        self._commits = 0
        self._commit_ended = asyncio.Event()
        self._background: set[asyncio.Task[None]] = set()
        self._tasks: asyncio.TaskGroup | None = None
        self._sequence = 0
        self.turns: Turns | None = None
        if self.options.shares_fairly:
            self.turns = Turns(
                client,
                self.snapshot,
                self.informers.queue,
                self.informers.namespaces.items,
                now,
                lambda: self._pace.limited(self.snapshot.devices.allocator),
                self.informers.wake,
            )
        self.attacher = ClaimAttacher(
            self.informers, self.committer, self._pace, self.recorder, self._changed.set
        )
        self.informers.on_bound = self.attacher.see
        self.informers.on_pod = self.informers.storage.on_pod = self._pod_waits
        self.informers.on_pod_gone = self._pod_left
        self.informers.on_group_gone = self._group_left
        self.informers.on_wake = self._changed.set
        if not self.options.is_guarded:
            others = OtherSchedulers(
                self.options.name, self.recorder, self.snapshot.claims.get, self.informers.classes.get
            )
            self.informers.on_any_pod = others.see

    async def run(self, election: LeaderElection | None = None) -> None:
        """Follow the cluster, and schedule while leading; returns when the lease is lost, else only by cancellation.

        Informers are filled before the election, so a standby that is elected can decide at once.
        """
        try:
            self.reporter.is_active = election is None
            async with asyncio.TaskGroup() as tasks:
                await self.informers.start(tasks)
                self.is_synced.set()
                if election is None:
                    await self._schedule()
                else:
                    await election.run(self._schedule)
                raise _LeaseLost
        except* _LeaseLost:
            log.warning("not leading any more: scheduling ends")
        finally:
            self._pace.close()

    async def _schedule(self) -> None:
        """Decide and commit; returns only by cancellation."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self.reporter.run(), name="reporter")
            tasks.create_task(self.recorder.run(), name="recorder")
            tasks.create_task(self._wake_overdue(), name="overdue")
            tasks.create_task(self._warm_up(), name="warm-up")
            tasks.create_task(self.attacher.run(), name="attacher")
            if self.turns is not None:
                await self.turns.start()
                tasks.create_task(self.turns.run(), name="fair share")
            self.is_ready.set()
            self.reporter.is_active = True
            # While standing by, nothing was reported of pods that wait for claims or groups.
            for pod in list(self.informers.pods.items.values()):
                if (
                    pod.spec.scheduler_name == self.options.name
                    and not pod.spec.node_name
                    and not is_finished(pod)
                ):
                    self._pod_waits(pod)
            await self._decide_forever()

    # --- the queue ------------------------------------------------------------

    def _pod_waits(self, pod: Pod) -> None:
        """A pod of ours is unbound and new or changed: queue it, if its claims are there."""
        key = key_of(pod.metadata)
        if pod.metadata.uid in self.informers.assumed:
            return
        if pod.spec.scheduling_gates or pod.metadata.deletion_timestamp is not None:
            self._pod_left(pod)
            return
        self.nominator.see(pod)
        if self._is_waiting(key, pod) or not self.informers.storage.is_ready_for(pod):
            return
        group = group_key(pod)
        if group and self.snapshot.group_of(pod) is None:
            self.informers.waiting_for_group[group].add(key)
            self.reporter.not_ready(pod, _missing_group(group))
            return
        claims = self.snapshot.claims_of(pod)
        if isinstance(claims, NotReady):
            self._wait_for_claims(key, pod, claims)
            return
        self._enqueue(key, pod, claims)
        if group:
            self._waiting_of_group[group].add(key)
            self.informers.wake(f"group:{group}")
        self._changed.set()

    def _is_waiting(self, key: str, pod: Pod) -> bool:
        """Return whether the pod is in the queue already; takes note of its change."""
        waiting = self.informers.queue.get(key)
        if waiting is None or waiting.item.metadata.uid != pod.metadata.uid:
            return False
        before, waiting.item = waiting.item, pod
        if (
            before.spec != pod.spec
            or before.metadata.labels != pod.metadata.labels
            or before.status.resource_claim_statuses != pod.status.resource_claim_statuses
        ):
            self._shapes.pop(key, None)
            self.informers.queue.wake_pod(key)
            self._changed.set()
        return True

    def _enqueue(self, key: str, pod: Pod, claims: PodClaims) -> None:
        shape = self._shapes[key] = shape_of(pod)
        self._sequence += 1
        self.statistics.queued(pod.metadata.uid, asyncio.get_running_loop().time())
        refusal = self.informers.queue.add(
            key,
            pod,
            equivalence_key=self._equivalence_key(pod, shape, claims),
            priority=pod.spec.priority or 0,
            sequence=self._sequence,
        )
        # The standing refusal of a gang was true before this pod came; the gang is tried anew, and all are told.
        if refusal is not None and self.snapshot.gang_of(pod) is None:
            self.statistics.refusals["equal_pod"] += 1
            self.reporter.refused(pod, refusal)

    def _equivalence_key(self, pod: Pod, shape: PodShape, claims: PodClaims) -> bytes:
        key = self.snapshot.equivalence_key(pod, shape, claims)
        return key if self.turns is None else self.turns.equivalence_key(pod, key)

    def _wait_for_claims(self, key: str, pod: Pod, not_ready: NotReady) -> None:
        for claim_key in not_ready.waits_for:
            self.informers.waiting_for_claim[claim_key].add(key)
        self.reporter.not_ready(pod, not_ready.message)

    def _pod_left(self, pod: Pod) -> None:
        """A pod of ours was bound, ended or deleted: it waits no longer."""
        key = key_of(pod.metadata)
        self.informers.queue.remove(key)
        self.informers.storage.forget(key)
        self._no_longer_waits(key, pod)
        group = group_key(pod)
        if group in self._waiting_of_group and pod.metadata.uid not in self.snapshot.state.pods:
            self.informers.wake(f"group:{group}")  # the others wait for one more now, or fit without it
        self.nominator.end(pod)
        self.reporter.forget(pod.metadata.uid)
        if pod.metadata.uid not in self.informers.committing:
            self.statistics.left(pod.metadata.uid)
        self._changed.set()

    def _group_left(self, group: str) -> None:
        """A PodGroup was deleted: its pods must not start without it, and wait for it to be created again."""
        for key in sorted(self._waiting_of_group.get(group, ())):
            entry = self.informers.queue.get(key)
            if entry is not None:
                self.informers.queue.remove(key)
                self._no_longer_waits(key, entry.item)
                self._pod_waits(entry.item)
                message = _missing_group(group)
                self.reporter.refused(entry.item, message, message)  # another reason than it was told before

    def _no_longer_waits(self, key: str, pod: Pod) -> None:
        self._shapes.pop(key, None)
        if self.turns is not None:
            self.turns.left(key, pod)
        self._pace.forget(key)
        group = group_key(pod)
        if not group:
            return
        waiting = self._waiting_of_group[group]
        waiting.discard(key)
        if not waiting:
            del self._waiting_of_group[group]

    async def _warm_up(self) -> None:
        """While nothing is to do, take in all devices, a few nodes at a time, and judge nodes for plain pods."""
        names = list(self.snapshot.state.nodes)
        classes = [each.metadata.name for each in self.informers.classes.items.values()]
        for start in range(0, len(names), _WARM_AT_ONCE):
            while len(self.informers.queue) or self._commits:
                await asyncio.sleep(0.1)
            with self._pace.limited(self.snapshot.devices.allocator):
                self.snapshot.devices.warm(names[start : start + _WARM_AT_ONCE], classes)
            await asyncio.sleep(0)
        shape = shape_of(_PLAIN_POD)
        self.snapshot.state.passing_static(_PLAIN_POD, shape.static_key)
        self.snapshot.state.with_free_resources(shape.requests)

    async def _wake_overdue(self) -> None:
        while True:
            await asyncio.sleep(30)
            if self.informers.queue.wake_overdue(asyncio.get_running_loop().time()):
                self._changed.set()

    # --- deciding -------------------------------------------------------------

    async def _decide_forever(self) -> None:
        clock = asyncio.get_running_loop().time
        queue = self.informers.queue
        decided = 0
        while True:
            while self._commits >= self.options.max_commits:
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

    async def _sleep_until(self, moment: float | None, now: float) -> None:
        try:
            async with asyncio.timeout(None if moment is None else max(0.0, moment - now)):
                await self._changed.wait()
        except TimeoutError:
            return

    def _decide(self, entry: Entry[Pod], now: float) -> None:
        pod, queue = entry.item, self.informers.queue
        shape = self._shapes.get(entry.key)
        if shape is None:
            shape = self._shapes[entry.key] = shape_of(pod)
        members = self._waiting_members(entry)
        held_back = self.turns.before_deciding(pod) if self.turns is not None else None
        if held_back is not None:
            self._hold_back(entry, held_back, members, now)
            return
        try:
            with self._pace.deciding(entry.key, self.snapshot.devices.allocator):
                decision = self.decide(pod, self.snapshot, members, shape=shape)
        except PendingWork as pending:
            self._start(self._evaluate(entry, pending))
            return
        self.statistics.decided(decision, asyncio.get_running_loop().time() - now)
        if isinstance(decision, list):
            held_back = self.turns.before_starting(entry, decision) if self.turns is not None else None
            if held_back is not None:
                self._hold_back(entry, held_back, members, now)
            else:
                self._act(entry, decision)
        elif isinstance(decision, NotReady):
            queue.remove(entry.key)
            self._wait_for_claims(entry.key, pod, decision)
        elif isinstance(decision, ReleaseFirst):
            self._clear(entry, decision, now)
        else:
            self._refuse(entry, shape, decision, members, now)

    async def _evaluate(self, entry: Entry[Pod], pending: PendingWork) -> None:
        """Do what a decision waits for in a thread, while other pods are decided; then try the pod again."""
        await self._pace.finish(entry.key, pending)
        self.informers.queue.put_back(entry)
        self._changed.set()

    def _explained(self, refusal: Unplaceable) -> str:
        """Return why a pod was refused, in fewer words if the whole answer would take long."""
        try:
            with self._pace.limited(self.snapshot.devices.allocator):
                return refusal.explain()
        except PendingWork:
            return f"no node has devices that fit ({refusal.cause})"

    def _waiting_members(self, entry: Entry[Pod]) -> list[Pod]:
        """Return the pods that a gang would start with: this one and those that wait, oldest first."""
        group = group_key(entry.item)
        is_basic = (
            self.snapshot.group_of(entry.item) is not None and self.snapshot.gang_of(entry.item) is None
        )
        if not group or is_basic:  # what one pod of a basic group is refused for is nothing to the others
            return [entry.item]
        keys = self._waiting_of_group.get(group, set()) | {entry.key}
        entries = [self.informers.queue.get(key) for key in keys]
        waiting = [each for each in entries if each is not None]
        return [each.item for each in sorted(waiting, key=lambda each: each.sequence)]

    def _act(self, entry: Entry[Pod], decision: list[Placed]) -> None:
        entries = []
        for placed in decision:
            key = key_of(placed.pod.metadata)
            member = entry if key == entry.key else self.informers.queue.get(key)
            assert member is not None
            self._reserve(placed)
            self.informers.queue.done(member)
            self._no_longer_waits(key, placed.pod)
            self.reporter.placed(placed.pod)
            entries.append(member)
        if entry not in entries:
            self.informers.queue.put_back(entry)  # its gang starts without it
        self.statistics.placed += len(decision)
        self._commits += 1
        self._start(self._commit(entries, decision))

    def _refuse(
        self, entry: Entry[Pod], shape: PodShape, refusal: Unplaceable, members: list[Pod], now: float
    ) -> None:
        queue, pod = self.informers.queue, entry.item
        self.statistics.refusals[reason_of(refusal)] += 1
        claims = self.snapshot.claims_of(pod)
        if not isinstance(claims, NotReady):
            queue.change_equivalence_key(entry, self._equivalence_key(pod, shape, claims))
        self._preempt(pod, members, refusal.preemption)
        is_gang = self.snapshot.gang_of(pod) is not None
        explain = functools.cache(functools.partial(self._explained, refusal))  # once for all members
        message = self.reporter.refused(pod, explain, refusal.cause, may_settle=is_gang)
        self._report_group(pod, refusal.cause, is_scheduled=False, explain=explain)
        if refusal.gave_up:
            # Every freed device would start another search that ends the same way, and all others would wait.
            pause = _FIRST_PAUSE_AFTER_GIVING_UP * 2 ** min(entry.failures, 5)
            queue.back_off(entry, asyncio.get_running_loop().time(), pause)
            return
        queue.mark_unschedulable(entry, refusal.hints, message, now)
        if self.turns is not None:
            self.turns.refused(entry, members)
        for member in members:
            if member is not pod:
                self.reporter.refused(member, explain, refusal.cause, may_settle=is_gang)
                queue.mark_waiting_unschedulable(key_of(member.metadata), refusal.hints, message, now)

    def _report_group(
        self, pod: Pod, cause: str, *, is_scheduled: bool, explain: Callable[[], str] = str
    ) -> None:
        """Tell on the pod's group what became of it."""
        group = self.snapshot.group_of(pod)
        if group is not None and self.group_reporter.is_new(group, is_scheduled=is_scheduled, cause=cause):
            self._start(self.group_reporter.write(group, explain(), is_scheduled=is_scheduled))

    def _hold_back(self, entry: Entry[Pod], held: HeldBack, members: list[Pod], now: float) -> None:
        """Let a pod wait that a limit or the head of the queue keeps from starting, and those that start with it."""
        for member in members:
            self.reporter.refused(member, held.message, held.cause)
        self.informers.queue.mark_unschedulable(entry, frozenset({held.hint}), held.message, now)
        for key in (key_of(member.metadata) for member in members if member is not entry.item):
            self.informers.queue.mark_waiting_unschedulable(key, frozenset({held.hint}), held.message, now)

    def _clear(self, entry: Entry[Pod], decision: ReleaseFirst, now: float) -> None:
        """Release a claim that is in the way, and try the pod again when it has changed."""
        key = key_of(decision.claim.metadata)
        message = self.reporter.refused(entry.item, decision.message, _RELEASING)
        self.informers.queue.mark_unschedulable(
            entry, frozenset({f"claim:{key}", QueueingHint.DEVICES}), message, now
        )
        self._start(self._clear_claim(decision, entry.key))

    async def _clear_claim(self, decision: ReleaseFirst, pod_key: str) -> None:
        claim = decision.claim
        try:
            if decision.action == "delete":
                await self.releaser.delete(claim)
            else:
                await self.releaser.deallocate(claim)
        except (ClientError, InUseError) as error:
            log.info("claim %s cannot be released: %s", key_of(claim.metadata), error)
            await self._try_again(pod_key)

    def _preempt(self, pod: Pod, members: list[Pod], plan: Preemption | None) -> None:
        """Evict less important pods if that was decided; then wait for them to go."""
        if plan is None:
            if not any(is_being_preempted_for(self.snapshot, each) for each in members):
                self._withdraw([each for each in members if self.nominator.end(each)])
            return
        self.statistics.preemptions += 1
        self._withdraw(self.nominator.begin(plan))
        for victim in plan.victims:
            self.snapshot.state.set_terminating(victim, is_terminating=True)
        self._start(self._evict(pod, plan))

    def _withdraw(self, pods: list[Pod]) -> None:
        """Clear the status of pods for which no node is kept any more."""
        if pods:
            self._start(self.nominator.tell([(each, None) for each in pods]))

    async def _evict(self, pod: Pod, plan: Preemption) -> None:
        """Evict the victims; who stays because a request got lost counts as a pod like any other again."""
        await self.nominator.tell(plan.nominations)
        left = await evict(self.client, self.recorder, pod, plan, self.options.name, self._now)
        for victim in left:
            self.snapshot.state.set_terminating(victim, is_terminating=False)
        if left:
            self._withdraw([each for each, _ in plan.nominations if self.nominator.end(each)])
            await self._try_again(key_of(pod.metadata))

    async def _try_again(self, key: str) -> None:
        """Wake a pod for which an eviction or a release failed: no event will tell of what did not happen."""
        await asyncio.sleep(_RETRY_AFTER_FAILURE)
        self.informers.queue.wake_pod(key)
        self._changed.set()

    def _reserve(self, placed: Placed) -> None:
        """Let later decisions see what this one takes."""
        uid = placed.pod.metadata.uid
        self.informers.assumed.add(uid)
        self.informers.committing.add(uid)
        self.snapshot.reserve(placed.pod, placed.shape, placed.placement)
        if self.turns is not None:
            self.turns.share.placed(placed.placement)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._tasks is not None
        task = self._tasks.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # --- committing -----------------------------------------------------------

    @contextmanager
    def _pausing(self) -> Iterator[None]:
        """A commit only waits: provisioning a volume takes minutes, and others may be committed meanwhile."""
        self._commits -= 1
        self._commit_ended.set()
        try:
            yield
        finally:
            self._commits += 1

    async def _commit(self, entries: list[Entry[Pod]], decision: list[Placed]) -> None:
        try:
            await self.committer.commit(decision)
        except CommitFailed as error:
            for entry, placed in zip(entries, decision, strict=True):
                if placed.pod.metadata.uid in error.bound:
                    self._committed(placed)
                else:
                    self._commit_failed(entry, placed, error)
        else:
            for placed in decision:
                self._committed(placed)
            self._report_group(decision[0].pod, "", is_scheduled=True)
        finally:
            self._commits -= 1
            self._commit_ended.set()

    def _committed(self, placed: Placed) -> None:
        now, has_claims = asyncio.get_running_loop().time(), bool(placed.placement.claims)
        self.statistics.was_bound(placed.pod.metadata.uid, now, has_claims=has_claims)
        self.informers.settle(placed.pod, is_bound=True)
        self.reporter.bound(placed.pod, placed.placement.node)

    def _commit_failed(self, entry: Entry[Pod], placed: Placed, error: CommitFailed) -> None:
        pod, informers = entry.item, self.informers
        log.info("pod %s on %s: %s", entry.key, placed.placement.node, error)
        self.statistics.conflicts += error.is_conflict
        self.statistics.failures += not error.is_conflict
        for claim in self.snapshot.unreserve(placed.placement.claims):
            informers.wake(f"claim:{key_of(claim.metadata)}")
        informers.settle(pod, is_bound=False)
        informers.wake(QueueingHint.DEVICES)
        current = informers.pods.get(entry.key)
        if current is not None and current.metadata.uid == pod.metadata.uid and not current.spec.node_name:
            entry.item = current
            group = group_key(current)
            if group:
                self._waiting_of_group[group].add(entry.key)
            if not error.is_conflict or entry.failures >= _CONFLICTS_TO_TELL:
                self.reporter.failed(pod, str(error))
            pause = _RETRY_AFTER_CONFLICT if error.is_conflict else _RETRY_AFTER_FAILURE
            # By chance, so that schedulers that met over a device do not meet again and again.
            pause *= 0.5 + self._chance()
            pause = min(pause * 2 ** min(entry.failures, 10), _LONGEST_RETRY)
            informers.queue.restore(entry, asyncio.get_running_loop().time(), pause)
        else:
            self.statistics.left(pod.metadata.uid)
        self._changed.set()


def _missing_group(key: str) -> str:
    return f"waiting for pod group {key} to be created"


class _LeaseLost(Exception):  # not an error: it ends the tasks of a loop that leads no more
    """Another process may lead now."""
