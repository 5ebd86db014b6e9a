"""The loop of `dray autoscale`: look at the cluster, plan, change the node groups, say so on the pods.

Each round captures the cluster, asks `plan_scaling` and acts through `NodeGroups`. Nothing is remembered that matters after
a restart: groups are read from the machines, and a node that was cordoned for its removal carries an annotation.

A removal has two steps, because a scheduler may bind a pod from a cache that is a moment old: the node is cordoned,
and only when a second look finds it still unused its machine goes. A node that is cordoned by us and not wanted gone
(anymore) is uncordoned, whoever cordoned it: this process or the one before it.

A plan that changed nothing is not made again until the pods, nodes or claims that it was made for are others, or a
minute has gone by: pods that no node can take cost nothing while they wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Final

from dray.api.caching import BoundedMap
from dray.api.core import Pod
from dray.api.json_types import JsonObject
from dray.api.well_known import TERMINAL_PHASES
from dray.api.wording import join_names
from dray.client import Client, ClientError, EventRecorder, NotFound
from dray.client.resources import NODES, PODS
from dray.sim.machines import DELETING, FAILED
from dray.sim.snapshot import Snapshot, SnapshotError, capture
from dray.workbench.autoscaling.decision import (
    Removal,
    ScalingOptions,
    ScalingPlan,
    plan_scaling,
    pods_by_key,
    waiting_pods,
)
from dray.workbench.autoscaling.node_groups import NodeGroupError, NodeGroups
from dray.workbench.capacity import CapacityError, Catalogue, Unserved

log = logging.getLogger("dray.autoscale")

LEAVING: Final = "dray.dev/scale-down"  # annotation of a node that is cordoned for its removal
_REPEAT_SECONDS: Final = 60.0
_MOST_RECORDED: Final = 20_000
_MOST_MESSAGE: Final = 1_000


@dataclass(slots=True)
class Autoscaler:
    """Keeps as many nodes as the pods need."""

    client: Client
    groups: NodeGroups
    catalogue: Catalogue
    options: ScalingOptions
    report: Callable[[str], None]
    settle_seconds: float = 2.0  # between the cordon of a node and the last look at it
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    recorder: EventRecorder | None = None
    _idle_since: dict[str, float] = field(default_factory=dict)
    _paused_until: dict[str, float] = field(default_factory=dict)
    _recorded: BoundedMap[tuple[str, str], None] = field(
        default_factory=lambda: BoundedMap(_MOST_RECORDED)
    )  # (uid of a pod, message), oldest first
    _fruitless: tuple[object, float] | None = None  # what was planned for in vain, and when

    async def run(self, interval: float) -> None:
        """Look every `interval` seconds, until cancelled; a server that is away is asked again."""
        while True:
            try:
                await self.step()
            except (ClientError, SnapshotError, OSError, CapacityError) as error:
                log.warning("nothing is changed now: %s", error)
            await self.pause(interval)

    async def step(self) -> ScalingPlan:
        """Look once and act."""
        snapshot = await capture(self.client)
        plan = await self._plan(snapshot)
        self._idle_since = dict(plan.idle_since)
        for removal in plan.removals:
            if removal.is_failure:
                await self._give_up(removal)
        for increase in plan.increases:
            try:
                names = await self.groups.increase(increase.group, increase.delta)
            except NodeGroupError as error:
                log.warning("%s", error)
                continue
            reason = f"for {join_names(increase.pods, 4)}" if increase.pods else "its least size"
            self.report(
                f"{increase.group}: {increase.size} -> {increase.size + increase.delta} nodes ({', '.join(names)}), {reason}"
            )
            self._record_event(
                snapshot,
                increase.pods,
                "Normal",
                "TriggeredScaleUp",
                f"pod triggered scale-up: {increase.group} {increase.size}->{increase.size + increase.delta} (max: {increase.most})",
            )
        for each in plan.unserved:
            self._record_event(snapshot, [each.pod], "Normal", "NotTriggerScaleUp", _why_not(each))
        await self._remove(snapshot, [each for each in plan.removals if not each.is_failure])
        return plan

    async def _plan(self, snapshot: Snapshot) -> ScalingPlan:
        now = self.clock()
        states = self.groups.states()
        paused = {name for name, until in self._paused_until.items() if until > now}
        # The planner may take seconds; what else this process does goes on meanwhile.
        asked = (
            frozenset(pod.metadata.uid for pod in waiting_pods(snapshot)),
            frozenset(node.metadata.name for node in snapshot.nodes),
            frozenset(each.name for state in states for each in state.instances),
            frozenset(claim.metadata.uid for claim in snapshot.claims if claim.status.allocation is not None),
            frozenset(paused),
        )
        planned = snapshot
        if (
            self._fruitless is not None
            and self._fruitless[0] == asked
            and now - self._fruitless[1] < _REPEAT_SECONDS
        ):
            planned = without_waiting(snapshot)
        plan = await asyncio.to_thread(
            plan_scaling,
            planned,
            states,
            self.catalogue,
            now=now,
            idle_since=self._idle_since,
            paused=paused,
            options=self.options,
        )
        if planned is snapshot:
            self._fruitless = (asked, now) if plan.unserved and not plan.increases else None
        return plan

    async def _give_up(self, removal: Removal) -> None:
        self._paused_until[removal.group] = self.clock() + self.options.pause_seconds
        self.report(
            f"{removal.group}: {removal.node} is given up: {removal.reason}; no new node for {self.options.pause_seconds:.0f} s"
        )
        with contextlib.suppress(NodeGroupError):
            await self.groups.delete(removal.group, [removal.node], may_go_below_least=True)

    # --- removing -----------------------------------------------------------------

    async def _remove(self, snapshot: Snapshot, removals: list[Removal]) -> None:
        names = {each.node for each in removals}
        await self._give_back(snapshot, names)
        if not removals:
            return
        for each in removals:
            await self._cordon(each.node, leaving=True)
        await self.pause(self.settle_seconds)
        second = await capture(self.client)
        used = {pod.spec.node_name for pod in second.pods if pod.status.phase not in TERMINAL_PHASES}
        plan = await asyncio.to_thread(
            plan_scaling,
            without_waiting(second),
            self.groups.states(),
            self.catalogue,
            now=self.clock(),
            idle_since=self._idle_since,
            options=self.options,
        )
        still = {each.node for each in plan.removals}
        for each in removals:
            if each.node not in still:
                why = "a pod came" if each.node in used else "it is used again"
                self.report(f"{each.group}: {each.node} stays: {why}")
                await self._cordon(each.node, leaving=False)
                continue
            try:
                await self.groups.delete(each.group, [each.node])
            except NodeGroupError as error:
                self.report(f"{each.group}: {each.node} stays: {error}")
                await self._cordon(each.node, leaving=False)
                continue
            self._idle_since.pop(each.node, None)
            self.report(f"{each.group}: {each.node} goes: {each.reason}")

    async def _give_back(self, snapshot: Snapshot, leaving: Collection[str]) -> None:
        """Uncordon nodes whose removal was begun, perhaps by a process before this one, and is not wanted now."""
        going = {
            each.name
            for state in self.groups.states()
            for each in state.instances
            if each.state in (DELETING, FAILED)
        }
        for node in snapshot.nodes:
            name = node.metadata.name
            if LEAVING in (node.metadata.annotations or {}) and name not in leaving and name not in going:
                await self._cordon(name, leaving=False)

    async def _cordon(self, node: str, *, leaving: bool) -> None:
        body: JsonObject = {
            "metadata": {"annotations": {LEAVING: "true" if leaving else None}},
            "spec": {"unschedulable": True if leaving else None},
        }
        with contextlib.suppress(NotFound):
            await self.client.patch(NODES, node, body)

    # --- events -------------------------------------------------------------------

    def _record_event(
        self, snapshot: Snapshot, pods: Collection[str], kind: str, reason: str, message: str
    ) -> None:
        """Record an event on pods, each message once for each pod."""
        if self.recorder is None or not pods:
            return
        known = pods_by_key(snapshot)
        for key in pods:
            pod: Pod | None = known.get(key)
            if pod is None or (pod.metadata.uid, message) in self._recorded:
                continue
            self._recorded[pod.metadata.uid, message] = None
            self.recorder.record(PODS, pod.metadata, kind, reason, message)


def without_waiting(snapshot: Snapshot) -> Snapshot:
    """Return the cluster without the pods that wait for a node."""
    waiting = {id(pod) for pod in waiting_pods(snapshot)}
    return replace(snapshot, pods=[pod for pod in snapshot.pods if id(pod) not in waiting])


def _why_not(each: Unserved) -> str:
    reasons = "; ".join(f"{name}: {reason}" for name, reason in each.reasons) or "no node group may grow"
    return f"pod didn't trigger scale-up: {reasons}"[:_MOST_MESSAGE]
