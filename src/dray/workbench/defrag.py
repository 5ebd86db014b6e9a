"""Defragmentation: which pods to move so that a waiting pod fits, or so that whole nodes have all their devices free.

`plan_defrag_for` and `plan_free_nodes` are pure: they try moves on an offline cluster and return them in the order in which they can be
made. A move is possible when the scheduler's `decide` finds another node for the pod while its own is cordoned; the proof of a plan is its
replay: after all moves, `decide` places the waiting pod. Fewest moves first, then the least important pods.

Never moved (`evictions`): bare pods, parts of gangs, users of shared claims, pods whose disruption budget allows no eviction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

from msgspec.structs import replace

from dray.allocator import AllocationError, Policy
from dray.api.core import Pod
from dray.api.resource import ResourceClaim
from dray.client import key_of
from dray.scheduler import NodeState
from dray.scheduler.policies import NodePolicy
from dray.sim.cluster import OfflineCluster, Placed
from dray.sim.snapshot import Snapshot
from dray.workbench.evictions import Budgets, immovable

MOST_MOVES: Final = 8
_MOST_TRIALS: Final = 3_000  # sets of pods that are tried


class DefragError(ValueError):
    """A question that cannot be answered; the message says why."""


@dataclass(frozen=True, slots=True)
class Move:
    """One pod that goes to another node."""

    pod: str
    source: str
    target: str
    devices: tuple[str, ...]  # that it would get there
    frees: tuple[str, ...]  # devices that it gives up
    budgets: tuple[str, ...]  # disruption budgets that its eviction counts against
    priority: int
    reason: str


@dataclass(frozen=True, slots=True)
class DefragPlan:
    """Moves in order, and what they achieve."""

    goal: str
    moves: tuple[Move, ...] = ()
    result: tuple[Placed, ...] = ()  # the waiting pod in its place, as replayed
    freed_nodes: tuple[str, ...] = ()
    is_reached: bool = False
    note: str = ""  # why there is nothing to do, or no plan
    tried: int = 0


@dataclass(slots=True)
class _Moves:
    """Moves made on the offline cluster, and how to take them back."""

    cluster: OfflineCluster
    pods: list[Pod] = field(default_factory=list)  # as they were
    claims: dict[str, ResourceClaim] = field(default_factory=dict)  # as they were

    def move(self, key: str) -> Placed | None:
        """Move a pod to another node; None (and no change of that pod) when it fits on none."""
        pod = self.cluster.pods[key]
        source = self.cluster.state.nodes[pod.spec.node_name].node
        self._remember(pod)
        self.cluster.add_node(replace(source, spec=replace(source.spec, unschedulable=True)))
        self.cluster.evict(pod)
        try:
            outcome = self.cluster.place([self.cluster.pods[key]], explains=False)
        except AllocationError:
            return None
        finally:
            self.cluster.add_node(source)
        found = next((each for each in outcome.placed if each.pod == key), None)
        # A pod may tolerate the taint of a cordoned node.
        return found if found is not None and found.node != source.metadata.name else None

    def _remember(self, pod: Pod) -> None:
        self.pods.append(pod)
        for claim in self.cluster.scheduling.claims_reserved_for(pod.metadata.uid):
            self.claims.setdefault(key_of(claim.metadata), claim)

    def undo(self) -> None:
        """Put every pod back to where it was, with its devices."""
        for pod in self.pods:
            self.cluster.evict(self.cluster.pods[key_of(pod.metadata)])
        for claim in self.claims.values():
            self.cluster.set_claim(claim)
        for pod in self.pods:
            self.cluster.pods[key_of(pod.metadata)] = pod
            self.cluster.scheduling.set_bound_pod(pod)


def plan_defrag_for(
    snapshot: Snapshot, pod: str, max_moves: int = 2, policy: Policy | NodePolicy | None = None
) -> DefragPlan:
    """Return the fewest moves after which a waiting pod fits; `policy` is that of the scheduler. Raises DefragError."""
    cluster = OfflineCluster(snapshot, policy)
    goal = f"room for {pod}"
    waiting = cluster.pods.get(pod)
    if waiting is None:
        raise DefragError(f"there is no pod {pod}")
    if waiting.spec.node_name:
        raise DefragError(f"pod {pod} runs on {waiting.spec.node_name} already")
    if _decides(cluster, waiting):
        return DefragPlan(goal, is_reached=True, note="it fits without moving anything")
    movable = _movable(cluster, Budgets(snapshot.budgets))
    tried = 0
    for size in range(1, min(max_moves, MOST_MOVES) + 1):
        for node, chosen in _choices(cluster, movable, size):
            if tried >= _MOST_TRIALS:
                return DefragPlan(goal, note=f"no plan was found in {tried} trials", tried=tried)
            if not _may_suffice(cluster, waiting, node, chosen):
                continue
            tried += 1
            found = _try(cluster, snapshot, waiting, chosen)
            if found is not None:
                moves, result = found
                return DefragPlan(goal, moves, result, is_reached=True, tried=tried)
    return DefragPlan(goal, note=f"no {max_moves} moves or fewer make room", tried=tried)


def _decides(cluster: OfflineCluster, pod: Pod) -> bool:
    try:
        return isinstance(cluster.decide_pod(cluster.pods[key_of(pod.metadata)]), list)
    except AllocationError as error:
        raise DefragError(f"pod {key_of(pod.metadata)} cannot be placed on any node: {error}") from error


def _movable(cluster: OfflineCluster, budgets: Budgets) -> dict[str, list[str]]:
    """Return node -> pods that may move, the least important first."""
    found: dict[str, list[str]] = {}
    for known in cluster.state.nodes.values():
        pods = [
            use
            for use in known.pods.values()
            if use.key in cluster.pods
            and immovable(cluster.pods[use.key], cluster.scheduling) is None
            and budgets.refusal(cluster.pods[use.key]) is None
        ]
        found[known.name] = [use.key for use in sorted(pods, key=lambda use: (use.priority, use.key))]
    return found


def _choices(
    cluster: OfflineCluster, movable: dict[str, list[str]], size: int
) -> Iterator[tuple[NodeState, tuple[str, ...]]]:
    """Yield sets of pods on one node, nodes with the fewest pods first."""
    for node in sorted(cluster.state.nodes.values(), key=lambda each: (len(each.pods), each.name)):
        for chosen in combinations(movable[node.name][:16], size):
            yield node, chosen


def _may_suffice(cluster: OfflineCluster, waiting: Pod, node: NodeState, chosen: Sequence[str]) -> bool:
    """Return whether the waiting pod would fit if these pods simply went away; changes nothing."""
    trial = _Moves(cluster)
    for key in chosen:
        trial._remember(cluster.pods[key])
        cluster.evict(cluster.pods[key])
    fits = _decides(cluster, waiting)
    trial.undo()
    return fits


def _try(
    cluster: OfflineCluster, snapshot: Snapshot, waiting: Pod, chosen: Sequence[str]
) -> tuple[tuple[Move, ...], tuple[Placed, ...]] | None:
    """Make the moves one by one and place the waiting pod; the cluster is as before afterwards."""
    trial = _Moves(cluster)
    budgets = Budgets(snapshot.budgets)
    moves: list[Move] = []
    key = key_of(waiting.metadata)
    try:
        for each in chosen:
            made = _move(trial, budgets, each, f"gives up devices or room that {key} needs")
            if made is None:
                return None
            moves.append(made)
        trial._remember(cluster.pods[key])
        outcome = cluster.place([cluster.pods[key]], explains=False)
        result = tuple(outcome.placed)
        return (tuple(moves), result) if any(each.pod == key for each in result) else None
    finally:
        trial.undo()


def _move(trial: _Moves, budgets: Budgets, key: str, reason: str) -> Move | None:
    cluster = trial.cluster
    pod = cluster.pods[key]
    if budgets.refusal(pod) is not None:
        return None
    frees = tuple(
        f"{result.driver}/{result.pool}/{result.device}"
        for claim in cluster.scheduling.claims_reserved_for(pod.metadata.uid)
        if claim.status.allocation is not None
        for result in claim.status.allocation.devices.results
    )
    placed = trial.move(key)
    if placed is None:
        return None
    budgets.spend(pod)
    return Move(
        key,
        pod.spec.node_name,
        placed.node,
        tuple(device for devices in placed.devices.values() for device in devices),
        frees,
        tuple(each.metadata.name for each in budgets.of(pod)),
        pod.spec.priority or 0,
        reason,
    )


def plan_free_nodes(
    snapshot: Snapshot, wanted: int, max_moves: int = 2, policy: Policy | NodePolicy | None = None
) -> DefragPlan:
    """Return moves after which `wanted` nodes with devices have all of them free."""
    cluster = OfflineCluster(snapshot, policy)
    goal = f"{wanted} nodes with all devices free"
    allocator = cluster.allocator
    with_devices = [name for name in cluster.state.nodes if allocator.free_devices(name)]
    if len(with_devices) < wanted:
        raise DefragError(f"only {len(with_devices)} nodes have devices of their own")
    free = [name for name in with_devices if all(each == 1000 for each in allocator.free_devices(name))]
    if len(free) >= wanted:
        return DefragPlan(
            goal, freed_nodes=tuple(sorted(free)), is_reached=True, note="there are as many already"
        )
    budgets = Budgets(snapshot.budgets)
    moves: list[Move] = []
    freed: list[str] = []
    tried = 0
    for name in sorted(set(with_devices) - set(free), key=lambda each: (len(_holders(cluster, each)), each)):
        if len(free) + len(freed) >= wanted:
            break
        holders = _holders(cluster, name)
        movable = all(immovable(cluster.pods[key], cluster.scheduling) is None for key in holders)
        if not movable or len(moves) + len(holders) > max_moves:
            continue
        tried += 1
        trial = _Moves(cluster)
        made = [_move(trial, budgets, key, f"is on {name}, which is to be free") for key in holders]
        if any(each is None or each.target in (*free, *freed) for each in made):
            trial.undo()
            continue
        moves += [each for each in made if each is not None]
        freed.append(name)
    reached = len(free) + len(freed) >= wanted
    note = "" if reached else f"only {len(free) + len(freed)} can be free with {max_moves} moves or fewer"
    return DefragPlan(goal, tuple(moves), (), tuple(sorted([*free, *freed])), reached, note, tried)


def _holders(cluster: OfflineCluster, node: str) -> list[str]:
    """Return the pods of a node that hold devices."""
    uses = cluster.state.nodes[node].pods.values()
    return sorted(use.key for use in uses if cluster.scheduling.claims_reserved_for(use.uid))
