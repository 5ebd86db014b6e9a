"""`plan_scaling(snapshot, states, catalogue, …) -> ScalingPlan`: which node groups grow, and which nodes go.

A pure function: it reads its arguments and knows no clock. `dray.workbench.capacity` answers which nodes to buy;
here is what an autoscaler needs around that question:

  1. A machine that was asked for and has not published its devices yet counts as if it had: the node in the planned
     cluster is the one that its group promises. So nothing is bought twice while nodes start.
  2. Machines that failed, or have not joined in time, are removed; their group does not grow for a while.
  3. Groups grow to their least size, then by what `plan_capacity` wants for the pods that wait.
  4. A node goes when nothing has used it for `idle_seconds`: no pod but those of DaemonSets, no claim that has
     devices of its pools, no waiting pod that the plan puts there. Groups keep their least size.

Nodes outside of the groups are never touched. Nothing is evicted: a node that is in use stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from dray.api.conditions import is_true
from dray.api.core import Node, Pod
from dray.api.resource import ResourceSlice
from dray.api.well_known import TERMINAL_PHASES
from dray.client import key_of
from dray.sim.machines import CREATING, DELETING, FAILED, Instance
from dray.sim.snapshot import Snapshot
from dray.workbench.autoscaling.node_groups import GroupState
from dray.workbench.capacity import CapacityPlan, Catalogue, Unserved, plan_capacity
from dray.workbench.evictions import is_daemon

KEEP_ANNOTATION: Final = "cluster-autoscaler.kubernetes.io/scale-down-disabled"


@dataclass(frozen=True, slots=True)
class ScalingOptions:
    """How patient the controller is, in seconds."""

    idle_seconds: float = 600.0  # a node that nobody uses stays this long
    provision_seconds: float = 300.0  # a machine that has not joined by then is removed
    pause_seconds: float = 300.0  # a group whose machine failed does not grow for this long


@dataclass(frozen=True, slots=True)
class Increase:
    """Nodes to add to a group."""

    group: str
    delta: int
    size: int  # before
    most: int
    pods: tuple[str, ...] = ()  # for which; empty: the group is below its least size


@dataclass(frozen=True, slots=True)
class Removal:
    """A node that goes."""

    node: str
    group: str
    reason: str
    is_failure: bool = False


@dataclass(frozen=True, slots=True)
class ScalingPlan:
    """What to do now, and what to remember until the next look."""

    increases: tuple[Increase, ...] = ()
    removals: tuple[Removal, ...] = ()
    unserved: tuple[Unserved, ...] = ()
    idle_since: Mapping[str, float] = field(default_factory=dict)  # node -> since when nobody uses it


def waiting_pods(snapshot: Snapshot) -> list[Pod]:
    """Return the pods that want a node now."""
    return [
        pod
        for pod in snapshot.pods
        if not pod.spec.node_name
        and pod.status.phase not in TERMINAL_PHASES
        and pod.metadata.deletion_timestamp is None
        and not pod.spec.scheduling_gates
    ]


def plan_scaling(
    snapshot: Snapshot,
    states: Sequence[GroupState],
    catalogue: Catalogue,
    *,
    now: float,
    idle_since: Mapping[str, float] | None = None,
    paused: Collection[str] = (),  # groups that must not grow
    options: ScalingOptions | None = None,
) -> ScalingPlan:
    """Return which groups grow and which nodes go. Raises CapacityError when more pods wait than can be planned."""
    options = options or ScalingOptions()
    failed = [
        removal
        for state in states
        for each in state.instances
        if (removal := _failure(each, now, options)) is not None
    ]
    lost = {each.node for each in failed}
    states = [
        replace(state, instances=tuple(each for each in state.instances if each.name not in lost))
        for state in states
    ]
    paused = {*paused, *(each.group for each in failed)}
    minimum = [
        Increase(state.group.name, missing, state.size, state.group.most)
        for state in states
        if (missing := state.group.least - state.size) > 0 and state.group.name not in paused
    ]
    planned = _with_coming(snapshot, states, minimum, lost)
    pending = waiting_pods(snapshot)
    plan = (
        plan_capacity(planned, pending, _limited(catalogue, states, minimum, paused))
        if pending
        else CapacityPlan((), (), (), ())
    )
    increases = [*minimum, *_increases(plan, states, minimum)]
    wanted = {each.node for each in plan.fitting}
    idle = {
        each.name: (idle_since or {}).get(each.name, now)
        for state in states
        for each in state.instances
        if each.state not in (CREATING, DELETING) and each.name not in wanted
    }
    idle = _unused(snapshot, idle)
    grows = {each.group for each in increases}
    removals = [*failed, *_idle_removals(states, idle, grows, now, options)]
    return ScalingPlan(tuple(increases), tuple(removals), plan.unserved, idle)


def _failure(each: Instance, now: float, options: ScalingOptions) -> Removal | None:
    if each.state == FAILED:
        return Removal(each.name, each.group, each.message or "it failed", is_failure=True)
    if each.state == CREATING and now - each.since > options.provision_seconds:
        reason = f"it has not joined within {options.provision_seconds:.0f} s"
        return Removal(each.name, each.group, reason, is_failure=True)
    return None


# --- the planned cluster ----------------------------------------------------------


def _with_coming(
    snapshot: Snapshot, states: Iterable[GroupState], minimum: Iterable[Increase], lost: Collection[str]
) -> Snapshot:
    """Return the cluster as it will be when every machine that was asked for has joined, without those that go."""
    coming: dict[str, tuple[Node, list[ResourceSlice]]] = {}
    leaving = set(lost)
    by_name = {state.group.name: state.group for state in states}
    known = {node.metadata.name: node for node in snapshot.nodes}
    pools = {(each.spec.driver, each.spec.pool.name) for each in snapshot.slices}
    for state in states:
        for each in state.instances:
            if each.state == DELETING:
                leaving.add(each.name)
                continue
            node, slices = state.group.instance(each.name)
            found = known.get(each.name)
            published = all((one.spec.driver, one.spec.pool.name) in pools for one in slices)
            if found is None or not is_true(found.status.conditions, "Ready") or not published:
                coming[each.name] = node, slices
    for increase in minimum:
        for number in range(increase.delta):
            name = f"coming-{increase.group.replace('.', '-')}-{number}"
            coming[name] = by_name[increase.group].instance(name)
    gone = leaving | set(coming)
    return replace(
        snapshot,
        nodes=[each for each in snapshot.nodes if each.metadata.name not in gone]
        + [node for node, _ in coming.values()],
        slices=[each for each in snapshot.slices if each.spec.node_name not in gone]
        + [each for _, slices in coming.values() for each in slices],
    )


def _limited(
    catalogue: Catalogue, states: Iterable[GroupState], minimum: Iterable[Increase], paused: Collection[str]
) -> Catalogue:
    """Return the catalogue with as many nodes of each type as may still be added."""
    used: dict[str, int] = {}
    for state in states:
        name = state.group.node_type.name
        used[name] = used.get(name, 0) + state.size
        used[name] += sum(each.delta for each in minimum if each.group == state.group.name)
    stopped = {state.group.node_type.name for state in states if state.group.name in paused}
    types = tuple(
        replace(each, most=0 if each.name in stopped else max(0, each.most - used.get(each.name, 0)))
        for each in catalogue.types
    )
    return replace(catalogue, types=types)


def _increases(
    plan: CapacityPlan, states: Sequence[GroupState], minimum: Iterable[Increase]
) -> list[Increase]:
    by_key = {(state.group.node_type.name, state.group.compute_class): state for state in states}
    begun = {each.group: each.delta for each in minimum}
    found = []
    for addition in plan.additions:
        state = by_key[addition.node_type, addition.compute_class]
        name = state.group.name
        pods = tuple(pod for node in addition.nodes for pod in node.pods)
        size = state.size + begun.get(name, 0)
        found.append(Increase(name, len(addition.nodes), size, state.group.most, pods))
    return found


# --- nodes that go ----------------------------------------------------------------


def _unused(snapshot: Snapshot, candidates: Mapping[str, float]) -> dict[str, float]:
    """Return those candidates that exist and that nobody uses."""
    busy = {
        pod.spec.node_name
        for pod in snapshot.pods
        # The agent of the node has to end a pod that is being deleted, also one whose containers have ended.
        if (pod.status.phase not in TERMINAL_PHASES or pod.metadata.deletion_timestamp is not None)
        and not is_daemon(pod)
    }
    node_of = {
        (each.spec.driver, each.spec.pool.name): each.spec.node_name
        for each in snapshot.slices
        if each.spec.node_name
    }
    for claim in snapshot.claims:
        results = claim.status.allocation.devices.results if claim.status.allocation is not None else ()
        busy |= {node_of.get((each.driver, each.pool), "") for each in results}
    kept = {
        node.metadata.name
        for node in snapshot.nodes
        if (node.metadata.annotations or {}).get(KEEP_ANNOTATION) != "true"
    }
    return {name: since for name, since in candidates.items() if name in kept and name not in busy}


def _idle_removals(
    states: Iterable[GroupState],
    idle: Mapping[str, float],
    grows: Collection[str],
    now: float,
    options: ScalingOptions,
) -> list[Removal]:
    removals = []
    for state in states:
        if state.group.name in grows:
            continue
        spare = state.size - state.group.least
        due = [
            each.name
            for each in state.instances
            if each.name in idle and now - idle[each.name] >= options.idle_seconds
        ]
        reason = f"nobody has used it for {options.idle_seconds:.0f} s"
        for name in sorted(due, key=lambda each: (idle[each], each))[: max(0, spare)]:
            removals.append(Removal(name, state.group.name, reason))
    return removals


def pods_by_key(snapshot: Snapshot) -> dict[str, Pod]:
    """Return the pods of a snapshot by namespace/name."""
    return {key_of(pod.metadata): pod for pod in snapshot.pods}
