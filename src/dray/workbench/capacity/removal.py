"""Which nodes can go: those whose pods all fit elsewhere, shown by the scheduler's own decisions.

Nodes are tried one after the other, the most expensive first, the emptiest of equals first; each that can go is gone for the
next ones, so the whole list holds together. A drain evicts one pod at a time, so a budget must allow one eviction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dray.api.core import Node, Pod
from dray.client import key_of
from dray.scheduler import NodeState
from dray.sim.cluster import OfflineCluster, Placed
from dray.sim.snapshot import Snapshot
from dray.workbench.capacity.catalogue import INSTANCE_TYPE_LABEL, Catalogue
from dray.workbench.capacity.moving import Trial
from dray.workbench.evictions import Budgets, immovable, is_daemon

CONTROL_PLANE: Final = "node-role.kubernetes.io/control-plane"
_MOST_TRIED: Final = 500


@dataclass(frozen=True, slots=True)
class Removal:
    """A node that can go, and where its pods would be."""

    node: str
    node_type: str
    price: float | None  # None: not in the catalogue
    moved: tuple[Placed, ...]


@dataclass(frozen=True, slots=True)
class Kept:
    """A node that must stay, and why."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class RemovalPlan:
    """Which nodes can go."""

    removals: tuple[Removal, ...]
    kept: tuple[Kept, ...]

    @property
    def saved(self) -> float:
        """Return the price of the nodes that can go, as far as it is known."""
        return sum(each.price or 0.0 for each in self.removals)


def plan_removal(snapshot: Snapshot, catalogue: Catalogue | None = None) -> RemovalPlan:
    """Return the nodes that can go together, with the new places of their pods. Pending pods are not considered."""
    cluster = OfflineCluster(snapshot)
    prices = {each.name: each.price for each in catalogue.types} if catalogue is not None else {}
    budgets = Budgets(snapshot.budgets)
    removals: list[Removal] = []
    kept: list[Kept] = []
    gone: set[str] = set()
    order = sorted(cluster.state.nodes.values(), key=lambda node: _order(node, prices))
    for known in order[:_MOST_TRIED]:
        reason = _obstacle(known, cluster, budgets)
        moved = None
        if reason is None:
            daemons = frozenset(use.key for use in known.pods.values() if is_daemon(use.pod))
            trial = Trial(cluster, known.name, daemons)
            moved = trial.run()
            reason = "its pods do not all fit elsewhere" if moved is None else None
        if moved is None:
            kept.append(Kept(known.name, reason or ""))
            continue
        trial.accept()
        gone.add(known.name)
        node_type = _type_of(known.node)
        removals.append(Removal(known.name, node_type, prices.get(node_type), tuple(moved)))
    kept += [Kept(known.name, "not tried") for known in order[_MOST_TRIED:]]
    return RemovalPlan(_settled(removals, cluster), tuple(kept))


def _settled(removals: list[Removal], cluster: OfflineCluster) -> tuple[Removal, ...]:
    """Say of every pod where it is in the end: one may have moved twice."""
    seen: set[str] = set()
    result = []
    for each in removals:
        own = [placed for placed in each.moved if placed.pod not in seen]
        seen |= {placed.pod for placed in own}
        final = tuple(
            Placed(placed.pod, cluster.pods[placed.pod].spec.node_name, placed.devices) for placed in own
        )
        result.append(Removal(each.node, each.node_type, each.price, final))
    return tuple(result)


def _type_of(node: Node) -> str:
    return (node.metadata.labels or {}).get(INSTANCE_TYPE_LABEL, "")


def _order(node: NodeState, prices: Mapping[str, float]) -> tuple[float, int, str]:
    return (-prices.get(_type_of(node.node), 0.0), len(node.pods), node.name)


def _obstacle(node: NodeState, cluster: OfflineCluster, budgets: Budgets) -> str | None:
    if CONTROL_PLANE in node.labels:
        return "it is part of the control plane"
    for use in node.pods.values():
        pod: Pod = cluster.pods[use.key]
        if is_daemon(pod):
            continue
        reason = immovable(pod, cluster.scheduling) or budgets.refusal(pod)
        if reason is not None:
            return f"pod {key_of(pod.metadata)}: {reason}"
    return None
