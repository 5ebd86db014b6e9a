"""Whose turn it is where users share: fair share, limits, a reservation for the head of the queue, and a report.

The rules are pure (`scheduler.fair_share`, `limits`, `queue_head`); here they meet the loop. Before a pod is decided,
its user's limits are judged by what it asks for; when it was placed, by what it would get, and whether it would delay
the head. A pod that is held back waits for `limit:USER` or `reservation`: the first is woken when the user
holds less or the limits change, the second when the head or its moment changes.

Limits are read from the ConfigMap kube-system/dray-user-limits; a user is a namespace, by the account to which it belongs.
The report for people is kept in kube-system/dray-queue from the start, empty or not: a user's tools need it to know what others
hold. Without permission for them everything else works.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf

from dray.api.core import Namespace, Pod
from dray.api.quantity import parse_quantity
from dray.api.resource import AllocationResult, ResourceClaim
from dray.api.times import format_time
from dray.api.user_names import UNIX_GROUP_PREFIX, USER_ANNOTATION
from dray.client import Client, ClientError, Forbidden, NotFound
from dray.client.resources import CONFIG_MAPS
from dray.control.scheduling.holding_records import HoldingRecords
from dray.control.scheduling.sharing import TICK_SECONDS, FairShare
from dray.host.accounts import account_of_name
from dray.scheduler import ClusterSnapshot, Entry, Hint, NotReady, Placed, SchedulingQueue
from dray.scheduler import queue_report as reports
from dray.scheduler.limits import Ask, Holding, Limits, Refusal, check_start
from dray.scheduler.queue_head import QueueHead, ends_at, expected_starts, precedence
from dray.scheduler.user_limits import NAME, NAMESPACE, UserLimits, effective_limits, parse_user_limits

log = logging.getLogger("dray.scheduler")

RESERVATION: Hint = "reservation"  # the head of the queue, or its moment, changed
_LOOK_EVERY = 5  # ticks between two looks at limits, overdue pods and the report
_MOST_FORECAST = 50  # pods whose start is foreseen
_MEMORY = "memory"  # name of the capacity that limits of device memory count


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Why a pod does not start although it might fit."""

    message: str
    cause: str
    hint: Hint  # what to wait for


class Turns:
    """Answers for the loop; used from one event loop."""

    def __init__(
        self,
        client: Client,
        snapshot: ClusterSnapshot,
        queue: SchedulingQueue[Pod],
        namespaces: Mapping[str, Namespace],
        now: Callable[[], datetime],
        paced: Callable[[], AbstractContextManager[None]],
        wake: Callable[[Hint], None],
    ) -> None:
        self.share = FairShare(client, snapshot, namespaces, now)
        self.head = QueueHead(snapshot)
        self._records = HoldingRecords(client, now)
        self._client, self._snapshot, self._queue, self._namespaces = client, snapshot, queue, namespaces
        self._now, self._paced, self._wake = now, paced, wake
        self._stored = UserLimits()
        self._groups: dict[str, tuple[str, ...]] = {}  # user name -> groups as the API names them
        self._running: Counter[str] = Counter()  # pods on nodes, by namespace, at the last tick
        self._held_back: dict[str, HeldBack] = {}  # by pod uid, while it waits
        self._problems: tuple[str, ...] = ()
        self._published: dict[str, str] | None = None
        self._may_publish = True
        queue.ratio = self.share.ratio

    # --- for the loop -----------------------------------------------------------

    def equivalence_key(self, pod: Pod, key: bytes) -> bytes:
        """Return a key that is equal for pods which get equal answers here, too."""
        return key + f"\x00{pod.metadata.namespace}\x00{pod.spec.active_deadline_seconds}".encode()

    def before_deciding(self, pod: Pod) -> HeldBack | None:
        """Judge a pod by what it asks for."""
        claims = self._snapshot.claims_of(pod)
        if isinstance(claims, NotReady):
            return None
        return self._note(pod, self._limited(pod, Ask(sum(map(_asked, claims.pending)))))

    def before_starting(self, entry: Entry[Pod], placed: Sequence[Placed]) -> HeldBack | None:
        """Judge pods by what they would get, and whether that delays the head of the queue."""
        pod = entry.item
        allocations = [allocation for each in placed for allocation in each.placement.allocations]
        ask = Ask(sum(map(_devices, allocations)), sum(map(self._memory, allocations)))
        held_back = self._limited(pod, ask)
        if held_back is None:
            with self._paced():
                if self.head.delays_head(entry, placed, self._moment()):
                    held_back = self._behind_head()
        return self._note(pod, held_back)

    def refused(self, entry: Entry[Pod], members: Sequence[Pod]) -> None:
        """Take note that a pod does not fit."""
        self._held_back.pop(entry.item.metadata.uid, None)
        with self._paced():
            if self.head.refused(entry, members, self._moment()):
                self._wake(RESERVATION)

    def left(self, key: str, pod: Pod) -> None:
        """Take note that a pod waits no longer."""
        self._held_back.pop(pod.metadata.uid, None)
        if self.head.left(key):
            self._wake(RESERVATION)

    def _note(self, pod: Pod, held_back: HeldBack | None) -> HeldBack | None:
        if held_back is None:
            self._held_back.pop(pod.metadata.uid, None)
        else:
            self._held_back[pod.metadata.uid] = held_back
        return held_back

    def _behind_head(self) -> HeldBack:
        head = self.head.head
        starts = head.reservation.starts if head is not None else inf
        message = "it would delay the job at the head of the queue"
        if starts < inf:
            moment = format_time(datetime.fromtimestamp(starts, UTC))
            message += (
                f", which can start at {moment}; a job whose time (--time) is over by then may go first"
            )
        return HeldBack(message, "behind the head of the queue", RESERVATION)

    def _moment(self) -> float:
        return self._now().timestamp()

    # --- limits -----------------------------------------------------------------

    def _limited(self, pod: Pod, ask: Ask) -> HeldBack | None:
        user = pod.metadata.namespace
        limits = self.limits_of(user)
        if limits == Limits():
            return None
        refusal: Refusal | None = check_start(limits, self.holding_of(user, limits), ask)
        if refusal is None:
            return None
        return HeldBack(f"limit: {refusal.message}", f"limit of {refusal.limit}", f"limit:{user}")

    def limits_of(self, namespace: str) -> Limits:
        """Return the limits of the user to whom a namespace belongs."""
        if not self._stored.entries:
            return Limits()
        name = self._name(namespace)
        return effective_limits(self._stored, name, self._groups.get(name, ()))

    def holding_of(self, namespace: str, limits: Limits) -> Holding:
        """Return what a user holds; memory and jobs are counted only where they are limited."""
        memory = running = 0
        if limits.device_memory is not None:
            claims = (each for each in self._snapshot.claims.values() if each.metadata.namespace == namespace)
            memory = sum(self._memory(each.status.allocation) for each in claims if each.status.allocation)
            memory += sum(
                self._memory(self._snapshot.reserved[uid].allocation)
                for uid in self.share.claims_of(namespace)
                if uid in self._snapshot.reserved
            )
        if limits.running is not None:
            running = sum(use.namespace == namespace for use in self._snapshot.state.pods.values())
        return Holding(int(self.share.held_by_user().get(namespace, 0)), memory, running)

    def _memory(self, allocation: AllocationResult) -> int:
        """Return the memory of allocated devices, or the part of it that was taken."""
        found = 0
        for result in allocation.devices.results:
            if result.admin_access:
                continue
            device = self._snapshot.verifier.device_of(result)
            capacity = {name: each.value for name, each in ((device and device.capacity) or {}).items()}
            for name, value in (capacity | (result.consumed_capacity or {})).items():
                if name.rpartition("/")[2] == _MEMORY:
                    found += parse_quantity(value).ceil_value()
        return found

    def _name(self, namespace: str) -> str:
        known = self._namespaces.get(namespace)
        notes = (known.metadata.annotations if known is not None else None) or {}
        return notes.get(USER_ANNOTATION, namespace)

    async def _read_limits(self) -> bool:
        """Read the limits and the groups of those who wait or run; return whether anything changed."""
        try:
            found = await self._client.get(CONFIG_MAPS, NAME, NAMESPACE)
        except NotFound:
            found = {}
        except ClientError as error:
            self._log_problems((f"limits of users are not known: {error}",))
            return False
        stored = parse_user_limits(found.get("data") or {})
        self._log_problems(stored.problems)
        groups: dict[str, tuple[str, ...]] = {}
        if any(key.startswith("group.") for key in stored.entries):
            names = {self._name(each.metadata.namespace) for each in self._queue.items()}
            groups = await asyncio.to_thread(_unix_groups, names)
        is_new = (stored, groups) != (self._stored, self._groups)
        self._stored, self._groups = stored, groups
        return is_new

    def _log_problems(self, problems: tuple[str, ...]) -> None:
        if problems != self._problems:
            self._problems = problems
            for problem in problems:
                log.warning("%s", problem)

    # --- as time passes -----------------------------------------------------------

    async def start(self) -> None:
        """Learn what was used and what is limited, before the first decision."""
        await self.share.restore()
        await self._records.restore()
        await self._read_limits()
        self.share.tick()

    async def run(self) -> None:
        """Charge device time, wake who may start now, and keep the report; until cancelled."""
        ticks = 0
        await self._publish()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            ticks += 1
            if ticks % _LOOK_EVERY == 0 and await self._read_limits():
                self._wake_limited()
            self._tick()
            await self.share.save_sometimes(ticks)
            if ticks % _LOOK_EVERY == 0:
                self._choose_overdue()
                await self._publish()
                await self._records.look(self.held())

    def _tick(self) -> None:
        running = Counter(use.namespace for use in self._snapshot.state.pods.values())
        has_changed = self.share.tick()
        if has_changed or running != self._running:
            self._running = running
            self._queue.reorder()
            self._wake_limited()
            with self._paced():
                if self.head.renew(self._moment()):
                    self._wake(RESERVATION)

    def _wake_limited(self) -> None:
        for hint in {each.hint for each in self._held_back.values()} - {RESERVATION}:
            self._wake(hint)

    def _choose_overdue(self) -> None:
        """Make the pod that has waited too long the head, whether it is tried or not."""
        now = self._moment()
        entries = [entry for entry in self._queue.entries() if entry.item.metadata.uid not in self._held_back]
        first = min(entries, key=lambda entry: precedence(entry, now), default=None)
        if first is not None and not precedence(first, now)[0] and self._snapshot.gang_of(first.item) is None:
            self.refused(first, (first.item,))

    async def _publish(self) -> None:
        if not self._may_publish:
            return
        data = self.report().to_data()
        if data == self._published:
            return
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": reports.NAME, "namespace": reports.NAMESPACE},
            "data": data,
        }
        try:
            await self._client.apply(
                CONFIG_MAPS, reports.NAME, body, reports.NAMESPACE, manager="dray-scheduler", force=True
            )
            self._published = data
        except Forbidden as error:
            self._may_publish = False
            log.warning("places in the queue are not published: %s", error)
        except ClientError as error:
            log.info("places in the queue could not be published: %s", error)

    def report(self) -> reports.QueueReport:
        """Return what people may know."""
        now = self._moment()
        entries = sorted(self._queue.entries(), key=lambda entry: precedence(entry, now))
        held_back, head = self._held_back, self.head.head
        free = [
            entry.item
            for entry in entries
            if (held := held_back.get(entry.item.metadata.uid)) is None or held.hint == RESERVATION
        ]
        with self._paced():
            starts = expected_starts(self._snapshot, free[:_MOST_FORECAST], now)
        jobs = {}
        for number, entry in enumerate(entries, 1):
            uid = entry.item.metadata.uid
            held = held_back.get(uid)
            is_head = head is not None and head.entry is entry
            moment = head.reservation.starts if is_head and head is not None else starts.get(uid)
            jobs[uid] = reports.JobReport(
                number, len(entries), None if moment == inf else moment, is_head, held.message if held else ""
            )
        standing = self.share.standing()
        users = {
            user: reports.UserReport(
                standing.used_by_user.get(user, 0.0),
                share,
                self.holding_of(user, self.limits_of(user)),
                self.limits_of(user),
            )
            for user, share in standing.share_by_user.items()
        }
        return reports.QueueReport(jobs, users, self.held())

    def held(self) -> list[reports.HeldDevices]:
        """Return which devices are held, by whom and until when; without those of administrators' looks."""
        now = self._moment()
        ends = {use.uid: ends_at(use, now) for use in self._snapshot.state.pods.values()}
        found = []
        for key, claim in sorted(self._snapshot.claims.items()):
            if claim.status.allocation is None:
                continue
            results = claim.status.allocation.devices.results
            devices = tuple(each for each in results if not each.admin_access)
            until = max((ends.get(user.uid, inf) for user in claim.status.reserved_for), default=inf)
            if devices:
                user = key.partition("/")[0]
                found.append(reports.HeldDevices(user, None if until == inf else until, devices))
        return found


def _unix_groups(names: set[str]) -> dict[str, tuple[str, ...]]:
    found = {}
    for name in names:
        account = account_of_name(name)
        if account is not None:
            found[name] = tuple(UNIX_GROUP_PREFIX + group for _, group in account.groups)
    return found


def _asked(claim: ResourceClaim) -> int:
    """Return how many devices a claim asks for at least."""
    found = 0
    for request in claim.spec.devices.requests:
        if request.exactly is not None:
            if not request.exactly.admin_access:
                found += request.exactly.count or 1
        elif request.first_available:
            found += min(each.count or 1 for each in request.first_available)
    return found


def _devices(allocation: AllocationResult) -> int:
    return sum(not result.admin_access for result in allocation.devices.results)
