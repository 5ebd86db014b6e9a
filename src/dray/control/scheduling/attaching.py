"""Claims that were added to running pods: decide, reserve, commit (docs/adr/0023-devices-after-pod-start.md).

A pod is looked at when it changes, and as long as a claim is missing again and again, with growing pauses: devices that
others give back, a claim that is created later and a commit that failed all need nothing else. Nothing is remembered
beyond the list of these pods: after a restart the informers bring every pod once, and what an earlier process has
written (an allocation, a reservation) is found in the claims.

`decide_attachment` decides, in one turn with `reserve_claims`, as for pods that are placed; so no device is given away
twice by the two.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from dray.allocator import PendingWork
from dray.api.core import Pod, PodResourceClaim
from dray.client import EventRecorder, key_of
from dray.client import resources as kinds
from dray.control.scheduling.committing import CommitFailed, Committer
from dray.control.scheduling.informers import Informers
from dray.control.scheduling.pacing import Pace
from dray.scheduler import Placed, QueueingHint, decide_attachment, may_lack_claims

log = logging.getLogger("dray.scheduler")

_FIRST_PAUSE = 0.1  # seconds
_LONGEST_PAUSE = 5.0
_REASON = "FailedAttachClaim"


@dataclass(slots=True)
class _Waiting:
    uid: str
    wanted: tuple[PodResourceClaim, ...]
    due: float  # loop time
    is_committing: bool = False
    failures: int = 0
    said: tuple[str, ...] = ()


class ClaimAttacher:
    """Gives running pods the claims that were added to them."""

    def __init__(
        self,
        informers: Informers,
        committer: Committer,
        pace: Pace,
        recorder: EventRecorder,
        on_freed: Callable[[], None],  # devices were reserved in vain
    ) -> None:
        self._informers = informers
        self._committer = committer
        self._pace = pace
        self._recorder = recorder
        self._on_freed = on_freed
        self._waiting: dict[str, _Waiting] = {}  # by pod key
        self._changed = asyncio.Event()

    def see(self, pod: Pod) -> None:
        """A bound pod of ours is new or has changed."""
        key = key_of(pod.metadata)
        if not may_lack_claims(pod):
            self._waiting.pop(key, None)
            return
        known = self._waiting.get(key)
        wanted = tuple(pod.spec.resource_claims)
        if known is None or known.uid != pod.metadata.uid:
            self._waiting[key] = _Waiting(pod.metadata.uid, wanted, 0.0)
        elif known.wanted != wanted:
            known.wanted, known.due, known.failures, known.said = wanted, 0.0, 0, ()
        else:
            return
        self._changed.set()

    async def run(self) -> None:
        """Attach claims until cancelled."""
        clock = asyncio.get_running_loop().time
        async with asyncio.TaskGroup() as commits:
            while True:
                due = [key for key, each in self._waiting.items() if each.due <= clock()]
                for key in due:
                    await self._try(key, clock(), commits)
                self._changed.clear()
                ready = [each.due for each in self._waiting.values() if not each.is_committing]
                pause = max(0.0, min(ready) - clock()) if ready else None
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._changed.wait()

    async def _try(self, key: str, now: float, commits: asyncio.TaskGroup) -> None:
        """Attach one claim of a pod, or find out that it has all or must wait."""
        waiting, pod = self._waiting.get(key), self._informers.pods.get(key)
        if waiting is None or waiting.is_committing:
            return
        if pod is None or pod.metadata.uid != waiting.uid or not may_lack_claims(pod):
            self._waiting.pop(key, None)
            return
        snapshot = self._informers.snapshot
        try:
            with self._pace.deciding(f"attach:{key}", snapshot.devices.allocator):
                decision = decide_attachment(pod, snapshot)
        except PendingWork as pending:
            await self._pace.finish(f"attach:{key}", pending)
            return
        if decision.is_settled:
            self._waiting.pop(key, None)
        elif decision.placed is not None:
            waiting.is_committing = True
            snapshot.reserve_claims(pod, decision.placed.placement)
            commits.create_task(self._commit(decision.placed, waiting))
        else:
            if decision.refusals != waiting.said:
                waiting.said = decision.refusals
                for text in decision.refusals:
                    self._recorder.record(kinds.PODS, pod.metadata, "Warning", _REASON, text)
            _back_off(waiting, now)

    async def _commit(self, placed: Placed, waiting: _Waiting) -> None:
        snapshot, pod = self._informers.snapshot, placed.pod
        names = ", ".join(claim.metadata.name for claim in placed.claims.all)
        try:
            await self._committer.attach(placed)
        except CommitFailed as error:
            snapshot.unreserve(placed.placement.claims)
            self._informers.wake(QueueingHint.DEVICES)
            self._on_freed()
            log.info("claim %s is not attached to pod %s: %s", names, key_of(pod.metadata), error)
            if not error.is_conflict:
                self._recorder.record(kinds.PODS, pod.metadata, "Warning", _REASON, f"claim {names}: {error}")
            _back_off(waiting, asyncio.get_running_loop().time())
        else:
            waiting.failures, waiting.due = 0, 0.0
            message = f"claim {names} is allocated on {placed.placement.node} and reserved for the pod"
            self._recorder.record(kinds.PODS, pod.metadata, "Normal", "ClaimReserved", message)
        finally:
            waiting.is_committing = False
            self._changed.set()


def _back_off(waiting: _Waiting, now: float) -> None:
    waiting.due = now + min(_FIRST_PAUSE * 2 ** min(waiting.failures, 10), _LONGEST_PAUSE)
    waiting.failures += 1
