"""Tell people what became of their pods: one condition, one event, not a flood.

A refused pod gets the condition PodScheduled=False with the counts per reason, and an
event with the same text; so does one whose commit failed, with the reason SchedulerError
as kube-scheduler has it. Reports wait in a line of their own, so that they never slow
down placing.

A pod is reported again when the text changed. With every freed device the counts change a little,
so those wait for half a minute; but another cause (now it is the devices, not cpu or memory; one more pod of the
gang is there) is told after a second, in which more news may come in. The last of them is reported, whether
the pod is tried again or not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dray.api.caching import BoundedMap
from dray.api.core import Pod
from dray.api.times import format_time
from dray.client import STRATEGIC_PATCH, Client, ClientError, EventRecorder, NotFound
from dray.client import resources as kinds

log = logging.getLogger("dray.scheduler")

REPEAT_AFTER = 30.0  # seconds before a text is reported again in which only counts have changed
NEWS_AFTER = 1.0  # seconds before another cause is reported; pods of a gang come in a row
NOT_READY_AFTER = 2.0  # claims from templates take a moment; say nothing until then
BUSY_FOR = 1.0  # seconds after a binding in which pods that wait for claims are taken to be next
LONGEST_SILENCE = 20.0  # seconds; however busy everybody is, then people are told
RETRY_AFTER = 1.0  # seconds before a report that got lost is repeated
MOST_SETTLED = 4096
FAILURE = "SchedulerError"  # as kube-scheduler has it
_MAX_MESSAGE = 1024


@dataclass(slots=True)
class _Report:
    pod: Pod
    message: str
    reason: str = "Unschedulable"


@dataclass(frozen=True, slots=True)
class _Reported:
    text: str
    cause: str | None
    when: float  # loop time


@dataclass(slots=True)
class _Held:
    """News that is not told yet."""

    pod: Pod
    text: str
    cause: str | None
    due: float  # loop time
    timer: asyncio.TimerHandle


class Reporter:
    """Writes conditions and events in the background."""

    def __init__(
        self,
        client: Client,
        recorder: EventRecorder,
        now: Callable[[], datetime],
        *,
        tells_bound: bool = False,
    ) -> None:
        self._tells_bound = tells_bound
        self._client = client
        self._recorder = recorder
        self._now = now
        self._line: asyncio.Queue[str] = asyncio.Queue()
        self._next: dict[str, _Report] = {}  # pod uid -> what to say; newer replaces older
        self._reported: dict[str, _Reported] = {}  # by pod uid
        self._held: dict[str, _Held] = {}  # by pod uid
        self._failed: dict[
            str, str
        ] = {}  # pod uid -> text of its last failure, until something else is reported
        self._unready: dict[str, asyncio.TimerHandle] = {}
        self._last_bound = float("-inf")  # loop time
        self.is_active = True  # a scheduler that stands by writes nothing, so nothing may pile up
        self._settled: BoundedMap[str, None] = BoundedMap(
            MOST_SETTLED
        )  # pods lately bound or gone: no late reports

    async def run(self) -> None:
        """Write reports until cancelled."""
        while True:
            uid = await self._line.get()
            report = self._next.pop(uid, None)
            if report is None:
                continue
            try:
                await self._write(report)
            except NotFound:
                continue  # nobody is left to be told
            except ClientError as error:
                # What was reported must arrive: the same text is never reported twice.
                log.debug("report of %s: %s; again in %.0f s", report.pod.metadata.name, error, RETRY_AFTER)
                asyncio.get_running_loop().call_later(RETRY_AFTER, self._retry, report)

    def _retry(self, report: _Report) -> None:
        """Repeat a report that got lost, unless there is news of the pod or it needs none any more."""
        uid = report.pod.metadata.uid
        if uid not in self._next and uid not in self._settled:
            self._send(report)

    # --- what happened --------------------------------------------------------

    def refused(
        self,
        pod: Pod,
        explain: str | Callable[[], str],
        cause: str | None = None,
        *,
        may_settle: bool = False,
    ) -> str:
        """No node takes the pod. Returns the text, which is made only when it will be reported.

        `cause` is what people must know soon when it changes; None stands for any. With `may_settle` even the
        first word waits a moment: what is missing may be on its way.
        """
        uid, clock = pod.metadata.uid, asyncio.get_running_loop().time()
        reported, held = self._reported.get(uid), self._held.get(uid)
        self._drop_unready(uid)
        if reported is not None and clock - reported.when < REPEAT_AFTER and _is_same(reported.cause, cause):
            self._drop_held(uid)  # it was something else in between
            return reported.text
        if held is not None and held.cause == cause:
            return held.text
        text = explain if isinstance(explain, str) else explain()
        if reported is not None:
            due = reported.when + NEWS_AFTER
        elif held is not None:
            due = held.due
        else:
            due = clock + NEWS_AFTER if may_settle else clock
        if due <= clock:
            self._report(pod, text, cause)
        else:
            self._hold(pod, text, cause, due)
        return text

    def _report(self, pod: Pod, text: str, cause: str | None) -> None:
        uid = pod.metadata.uid
        self._drop_held(uid)
        self._failed.pop(uid, None)
        reported = self._reported.get(uid)
        if reported is None or reported.text != text:
            self._send(_Report(pod, text))
        self._reported[uid] = _Reported(text, cause, asyncio.get_running_loop().time())

    def _hold(self, pod: Pod, text: str, cause: str | None, due: float) -> None:
        uid = pod.metadata.uid
        held = self._held.get(uid)
        if held is not None and held.due == due:
            held.pod, held.text, held.cause = pod, text, cause
            return
        self._drop_held(uid)
        timer = asyncio.get_running_loop().call_at(due, self._report_held, uid)
        self._held[uid] = _Held(pod, text, cause, due, timer)

    def _report_held(self, uid: str) -> None:
        held = self._held[uid]
        self._report(held.pod, held.text, held.cause)

    def _drop_held(self, uid: str) -> None:
        held = self._held.pop(uid, None)
        if held is not None:
            held.timer.cancel()

    def placed(self, pod: Pod) -> None:
        """There is a place for the pod: what was not reported yet need not be reported, and must not get in the way."""
        uid = pod.metadata.uid
        self._drop_held(uid)
        report = self._next.get(uid)
        if report is not None and report.reason != FAILURE:
            del self._next[uid]
            self._reported.pop(uid, None)

    def not_ready(self, pod: Pod, message: str) -> None:
        """The pod waits for its claims; reported only if that lasts.

        In a burst every pod waits until its claim is made. As long as others are bound, that is
        progress, and two writes for each would only slow it down.
        """
        uid = pod.metadata.uid
        if uid in self._unready or uid in self._reported:
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LONGEST_SILENCE
        self._unready[uid] = loop.call_later(NOT_READY_AFTER, self._report_not_ready, pod, message, deadline)

    def _report_not_ready(self, pod: Pod, message: str, deadline: float) -> None:
        loop, uid = asyncio.get_running_loop(), pod.metadata.uid
        if loop.time() - self._last_bound < BUSY_FOR and loop.time() < deadline:
            self._unready[uid] = loop.call_later(
                NOT_READY_AFTER, self._report_not_ready, pod, message, deadline
            )
            return
        self._unready.pop(uid, None)
        self._send(_Report(pod, message))

    def failed(self, pod: Pod, message: str) -> None:
        """A commit failed for a reason that people should see; the next refusal will be reported anew."""
        uid = pod.metadata.uid
        self._reported.pop(uid, None)
        self._drop_held(uid)
        self._drop_unready(uid)
        if self._failed.get(uid) == message:
            self._recorder.record(kinds.PODS, pod.metadata, "Warning", "FailedScheduling", message)
            return
        self._failed[uid] = message
        self._send(_Report(pod, message, reason=FAILURE))

    def bound(self, pod: Pod, node: str) -> None:
        """The pod has a node. An event of that costs a write per pod, so it is recorded only if wanted."""
        self._drop_unready(pod.metadata.uid)
        self._last_bound = asyncio.get_running_loop().time()
        if self._tells_bound:
            name = f"{pod.metadata.namespace}/{pod.metadata.name}"
            message = f"Successfully assigned {name} to {node}"
            self._recorder.record(kinds.PODS, pod.metadata, "Normal", "Scheduled", message)

    def forget(self, uid: str) -> None:
        """The pod is gone or bound."""
        self._settled[uid] = None
        self._reported.pop(uid, None)
        self._failed.pop(uid, None)
        self._next.pop(uid, None)
        self._drop_held(uid)
        self._drop_unready(uid)

    def _drop_unready(self, uid: str) -> None:
        timer = self._unready.pop(uid, None)
        if timer is not None:
            timer.cancel()

    def _send(self, report: _Report) -> None:
        if not self.is_active:
            return
        uid = report.pod.metadata.uid
        self._settled.pop(uid, None)
        is_waiting = uid in self._next
        self._next[uid] = report
        if not is_waiting:
            self._line.put_nowait(uid)

    # --- writing --------------------------------------------------------------

    async def _write(self, report: _Report) -> None:
        meta = report.pod.metadata
        message = report.message[:_MAX_MESSAGE]
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": report.reason,
            "message": message,
            "lastTransitionTime": format_time(self._now()),
        }
        body: dict[str, Any] = {"metadata": {"uid": meta.uid}, "status": {"conditions": [condition]}}
        path = kinds.PODS.path(meta.namespace, meta.name, "status")
        await self._client.call("PATCH", path, body, content_type=STRATEGIC_PATCH, view=None)
        self._recorder.record(kinds.PODS, meta, "Warning", "FailedScheduling", message)


def _is_same(cause: str | None, other: str | None) -> bool:
    return cause is None or other is None or cause == other
