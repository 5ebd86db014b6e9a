"""Carry out a defragmentation: one pod at a time, checked before and after, and safe to kill at any moment.

The plan is `defrag`'s; this module only follows it. For each move:

    cordon the pod's node  →  evict the pod (API, within its budgets)  →  wait until its replacement is bound  →  plan again

A node is cordoned in one write with an annotation that says for which goal, and which pod is evicted. So the replacement goes where the plan tried it (the plan was made with that node cordoned, too), and
the freed devices are there for the waiting pod: nobody else gets them while the node is cordoned. The devices that
a replacement will get cannot be held for it, since it does not exist yet: they are checked directly before the
eviction, and a replacement that went elsewhere is drift.

Theory of operation: the annotations are the whole state. Each round copies the cluster as it is, uncordons the
cordoned nodes in that copy, and asks for a plan. If the plan is no longer the one that was shown, that is reported,
and the new one is followed within the moves that are left. A run that was killed is continued by the same command: it
finds the cordoned nodes, waits for the replacement of a pod that was evicted, and plans again. At the end, and after the
first failure, all nodes that were cordoned for this goal are uncordoned.

Invariants (tests/unit/workbench/test_defrag_execution.py, killed at every write):
  * no pod is evicted that the plan of that moment does not move;
  * never two pods are on their way at the same time;
  * when it ends, no node stays cordoned that was not before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from dray.api.core import Node, Pod
from dray.api.parsing import ParseError, load_json
from dray.api.resource import ResourceClaim
from dray.api.well_known import TERMINAL_PHASES, UNSCHEDULABLE_KEY
from dray.client import Client, ClientError, Conflict, NotFound, TooManyRequests, key_of
from dray.client.resources import CLAIMS, NODES, PODS
from dray.scheduler.policies import NodePolicy, policy_named
from dray.sim.snapshot import Snapshot, capture
from dray.workbench.defrag import DefragError, DefragPlan, Move, plan_defrag_for, plan_free_nodes

MARK = "dray.dev/defrag"  # annotation of a node that was cordoned
PAUSE = 0.5  # seconds between two looks
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Goal:
    """What is to be reached."""

    pod: str = ""  # room for this pod
    free_nodes: int = 0  # or so many nodes with all devices free
    policy: str | NodePolicy = ""  # of the scheduler that will place the replacements

    @property
    def name(self) -> str:
        """Return the goal as the annotation and messages have it."""
        return f"room for {self.pod}" if self.pod else f"{self.free_nodes} nodes with all devices free"

    def plan(self, snapshot: Snapshot, max_moves: int) -> DefragPlan:
        """Return the moves that reach it. Raises DefragError."""
        policy = (
            policy_named(self.policy) if isinstance(self.policy, str) and self.policy else self.policy or None
        )
        assert not isinstance(policy, str)
        if self.pod:
            return plan_defrag_for(snapshot, self.pod, max_moves, policy)
        return plan_free_nodes(snapshot, self.free_nodes, max_moves, policy)


class Mark(msgspec.Struct, frozen=True, rename="camel"):
    """What the annotation of a cordoned node says."""

    goal: str
    pod: str  # that leaves the node
    uid: str
    owner: str  # uid of the controller that makes it again
    bound: int  # pods of that controller that had a node, this one included
    max_moves: int = 0  # of the whole defragmentation
    done: int = 0  # moves before this one


@dataclass(frozen=True, slots=True)
class Moved:
    """A move that was made."""

    move: Move
    replacement: str  # namespace/name; empty when it could not be told from others of its controller
    node: str

    @property
    def is_as_planned(self) -> bool:
        """Return whether the replacement went where the plan said."""
        return self.node == self.move.target


@dataclass(slots=True)
class Execution:
    """How it ended."""

    goal: str
    preview: DefragPlan | None = None
    moved: list[Moved] = field(default_factory=list)
    is_reached: bool = False
    node: str = ""  # of the pod that room was made for
    reason: str = ""  # why it stopped before the goal

    @property
    def is_as_previewed(self) -> bool:
        """Return whether exactly the moves of the first plan were made."""
        planned = self.preview.moves if self.preview is not None else ()
        return [each.move for each in self.moved] == list(planned) and all(
            each.is_as_planned for each in self.moved
        )


class Stopped(Exception):
    """A move could not be made; the message says why."""


class Unfinished(Exception):
    """Nodes are cordoned for another goal, which must be finished or stopped first."""


def marks_of(snapshot: Snapshot) -> dict[str, Mark]:
    """Return what the annotations of cordoned nodes say; one that cannot be read counts as of no goal."""
    found = {}
    for node in snapshot.nodes:
        text = (node.metadata.annotations or {}).get(MARK)
        if text is not None:
            found[node.metadata.name] = _mark(text)
    return found


def _mark(text: str) -> Mark:
    try:
        mark: Mark = load_json(text.encode(), Mark)
    except (ParseError, msgspec.MsgspecError):
        return Mark("unknown", "", "", "", 0)
    return mark


def uncordoned(snapshot: Snapshot) -> Snapshot:
    """Return the cluster as if the nodes that were cordoned here were not; the snapshot itself is changed."""
    cordoned = marks_of(snapshot)
    # A node that was uncordoned keeps the taint of cordoned ones for a moment.
    snapshot.nodes = [
        _uncordon(node) if node.metadata.name in cordoned or not node.spec.unschedulable else node
        for node in snapshot.nodes
    ]
    return snapshot


def _uncordon(node: Node) -> Node:
    # The node lifecycle controller adds a taint to cordoned nodes, and removes it when they are uncordoned.
    taints = [taint for taint in node.spec.taints if taint.key != UNSCHEDULABLE_KEY]
    return replace(node, spec=replace(node.spec, unschedulable=False, taints=taints))


class Executor:
    """Follows plans to one goal."""

    def __init__(
        self,
        client: Client,
        goal: Goal,
        max_moves: int,
        *,
        seconds: float,
        report: Report = lambda text: None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._goal = goal
        self._max_moves = max_moves
        self._seconds = seconds  # the longest wait for one eviction, and for one replacement
        self._report = report
        self._pause = pause
        self._clock = clock

    async def run(self, on_preview: Callable[[DefragPlan], None] = lambda plan: None) -> Execution:
        """Plan and carry out. Raises DefragError and Unfinished before anything changes."""
        result = Execution(self._goal.name)
        snapshot = await capture(self._client)
        marks = marks_of(snapshot)
        self._refuse_others(marks)
        done = max((mark.done for mark in marks.values()), default=0)
        if marks:
            self._report(f"continuing: {', '.join(sorted(marks))} cordoned by an earlier run")
        try:
            for mark in marks.values():
                if await self._is_gone(mark):
                    done = max(done, mark.done + 1)
                    await self._wait_for_replacement(mark)
            plan = result.preview = await self._plan(done, is_begun=bool(marks))
            on_preview(plan)
            await self._follow(plan, done, result)
        except (Stopped, ClientError) as error:
            result.reason = str(error)
        except asyncio.CancelledError:
            await self.uncordon_nodes()
            raise
        await self.uncordon_nodes()
        if result.is_reached and self._goal.pod:
            result.node = await self._wait_for_waiting_pod()
        return result

    async def _plan(self, done: int, *, is_begun: bool = True) -> DefragPlan:
        """Return what is left to do; once begun, what cannot be planned stops the run instead of failing it."""
        snapshot = uncordoned(await capture(self._client))
        try:
            return self._goal.plan(snapshot, max(1, self._max_moves - done))
        except DefragError as error:
            if not is_begun:
                raise
            is_placed = any(
                key_of(each.metadata) == self._goal.pod and each.spec.node_name for each in snapshot.pods
            )
            if is_placed:
                return DefragPlan(self._goal.name, is_reached=True, note="it has found a node meanwhile")
            raise Stopped(str(error)) from error

    async def _wait_for_waiting_pod(self) -> str:
        """Return the node that the waiting pod got; empty when it got none in time."""
        namespace, _, name = self._goal.pod.partition("/")
        deadline = self._clock() + self._seconds
        while True:
            pod = await self._pod(namespace, name)
            if pod is None or pod.spec.node_name or self._clock() >= deadline:
                return pod.spec.node_name if pod is not None else ""
            await self._pause(PAUSE)

    async def _follow(self, plan: DefragPlan, done: int, result: Execution) -> None:
        while plan.moves:
            if done >= self._max_moves:
                raise Stopped(f"{self._max_moves} moves were made, and {self._goal.name} needs more")
            if not plan.is_reached:
                break
            result.moved.append(await self._make(plan.moves[0], done))
            done += 1
            expected = plan.moves[1:]
            plan = await self._plan(done)
            if plan.moves != expected:
                self._report(f"the cluster changed: {len(plan.moves)} moves are left, not {len(expected)}")
        if not plan.is_reached:
            raise Stopped(plan.note or f"no moves reach {self._goal.name}")
        result.is_reached = True

    def _refuse_others(self, marks: dict[str, Mark]) -> None:
        for node, mark in marks.items():
            if mark.goal != self._goal.name:
                raise Unfinished(f"node {node} is cordoned by an unfinished defragmentation ({mark.goal})")

    # --- one move -----------------------------------------------------------------

    async def _make(self, move: Move, done: int) -> Moved:
        """Cordon the node, evict the pod, wait for its replacement."""
        namespace, _, name = move.pod.partition("/")
        pod = await self._pod(namespace, name)
        if pod is None or pod.spec.node_name != move.source:
            raise Stopped(f"pod {move.pod} is not on node {move.source} any more")
        owner = next(each.uid for each in pod.metadata.owner_references if each.controller)
        siblings = [each for each in await self._pods(namespace, owner) if each.spec.node_name]
        mark = Mark(self._goal.name, move.pod, pod.metadata.uid, owner, len(siblings), self._max_moves, done)
        await self._cordon(move.source, mark)
        self._report(f"{move.pod}: evicting it from {move.source}; expected on {move.target}")
        await self._evict(pod)
        before = {each.metadata.uid for each in siblings}
        new = [each for each in await self._wait_for_replacement(mark) if each.metadata.uid not in before]
        if len(new) != 1:
            return Moved(move, "", "")
        moved = Moved(move, key_of(new[0].metadata), new[0].spec.node_name)
        where = "as planned" if moved.is_as_planned else f"not on {move.target}"
        self._report(f"{move.pod}: {moved.replacement} is on {moved.node}, {where}")
        return moved

    async def _cordon(self, node: str, mark: Mark) -> None:
        """Cordon a node, and say why: one write."""
        found = await self._client.get(NODES, node)
        annotations = found["metadata"].get("annotations") or {}
        if found.get("spec", {}).get("unschedulable") and MARK not in annotations:
            raise Stopped(f"node {node} was cordoned by somebody else")
        text = msgspec.json.encode(mark).decode()
        patch = {
            "metadata": {
                "resourceVersion": found["metadata"]["resourceVersion"],
                "annotations": {MARK: text},
            },
            "spec": {"unschedulable": True},
        }
        try:
            await self._client.patch(NODES, node, patch)
        except Conflict:
            await self._cordon(node, mark)  # somebody changed the node meanwhile: look again

    async def _evict(self, pod: Pod) -> None:
        """Evict a pod as soon as its budgets allow it."""
        meta = pod.metadata
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": meta.name, "namespace": meta.namespace},
            "deleteOptions": {"preconditions": {"uid": meta.uid}},
        }
        deadline, was_told = self._clock() + self._seconds, False
        while True:
            try:
                await self._client.create(PODS, body, meta.namespace, name=meta.name, subresource="eviction")
                return
            except TooManyRequests as error:
                if not was_told:
                    self._report(f"{key_of(meta)}: {error}; waiting")
                was_told = True
                if self._clock() >= deadline:
                    raise Stopped(
                        f"pod {key_of(meta)} may not be evicted: {error} (waited {self._seconds:.0f} s)"
                    ) from error
            except NotFound:
                return  # it went by itself; its replacement is waited for all the same
            await self._pause(PAUSE)

    async def _wait_for_replacement(self, mark: Mark) -> list[Pod]:
        """Wait until the controller has as many pods with a node as before; return them."""
        namespace = mark.pod.partition("/")[0]
        deadline = self._clock() + self._seconds
        while True:
            pods = await self._pods(namespace, mark.owner)
            bound = [each for each in pods if each.spec.node_name and each.metadata.uid != mark.uid]
            is_gone = not await self._holds_devices(namespace, mark.uid)
            if is_gone and len(bound) >= mark.bound:
                return bound
            if self._clock() >= deadline:
                raise Stopped(
                    f"the replacement of pod {mark.pod} has no node after {self._seconds:.0f} s"
                    if is_gone
                    else f"pod {mark.pod} has not ended after {self._seconds:.0f} s"
                )
            await self._pause(PAUSE)

    # --- looking --------------------------------------------------------------------

    async def _pods(self, namespace: str, owner: str) -> list[Pod]:
        """Return the pods of a controller that are not over."""
        found = await self._client.list(PODS, namespace, view=Pod)
        return [
            pod
            for pod in found.items
            if any(each.uid == owner and each.controller for each in pod.metadata.owner_references)
            and pod.status.phase not in TERMINAL_PHASES
        ]

    async def _holds_devices(self, namespace: str, uid: str) -> bool:
        """Return whether a pod is still there, or its claims are: they are released a moment after it has ended."""
        pods = await self._client.list(PODS, namespace, view=Pod)
        if any(each.metadata.uid == uid for each in pods.items):
            return True
        claims = await self._client.list(CLAIMS, namespace, view=ResourceClaim)
        return any(
            claim.status.allocation is not None
            and uid
            in (
                *(user.uid for user in claim.status.reserved_for),
                *(owner.uid for owner in claim.metadata.owner_references),
            )
            for claim in claims.items
        )

    async def _pod(self, namespace: str, name: str) -> Pod | None:
        try:
            return await self._client.get(PODS, name, namespace, view=Pod)
        except NotFound:
            return None

    async def _is_gone(self, mark: Mark) -> bool:
        """Return whether the pod of a mark was evicted: it ends, has ended, or another has its name."""
        namespace, _, name = mark.pod.partition("/")
        pod = await self._pod(namespace, name)
        return pod is None or pod.metadata.uid != mark.uid or pod.metadata.deletion_timestamp is not None

    # --- the end --------------------------------------------------------------------

    async def uncordon_nodes(self) -> list[str]:
        """Uncordon the nodes that were cordoned for this goal; returns them."""
        return await uncordon_nodes(self._client, self._goal.name)


async def uncordon_nodes(client: Client, goal: str | None = None) -> list[str]:
    """Uncordon the nodes that a defragmentation cordoned, of one goal or of all; returns their names."""
    found = await client.list(NODES, view=Node)
    marks = {}
    for node in found.items:
        text = (node.metadata.annotations or {}).get(MARK)
        if text is not None and (goal is None or _mark(text).goal == goal):
            marks[node.metadata.name] = text
    for name in marks:
        patch = {"metadata": {"annotations": {MARK: None}}, "spec": {"unschedulable": None}}
        try:
            await client.patch(NODES, name, patch)
        except NotFound:
            continue
    return sorted(marks)
