"""Which of several nodes that fit is the better one.

The defaults follow kube-scheduler: prefer nodes with more left (least allocated), with
cpu and memory used in balance, without soft taints, with preferred labels, near wanted
pods, spread evenly; and, for claims with alternatives, nodes that can give the earlier one.
Each part is a number from 0 to 100 with kube-scheduler's weight. Preferences are scaled over the
nodes that are compared, as there: the best gets 100, however small the weights.
"""

from __future__ import annotations

from collections.abc import Sequence

from dray.api.core import NodeAffinity, Pod, PreferredSchedulingTerm
from dray.api.resource import AllocationResult, ResourceClaim
from dray.api.tolerations import PREFER_NO_SCHEDULE, tolerates
from dray.scheduler.amounts import CPU, MEMORY
from dray.scheduler.selecting import matches_term
from dray.scheduler.shape import PodShape
from dray.scheduler.state import NodeState

WEIGHT_TAINTS = 3.0
WEIGHT_AFFINITY = 2.0
WEIGHT_INTER_POD_AFFINITY = 2.0
WEIGHT_SPREAD = 2.0
WEIGHT_DEVICES = 2.0
MAX_ALTERNATIVES = 8  # entries of firstAvailable


def resource_score(shape: PodShape, node: NodeState) -> float:
    """Least allocated plus balance, from 0 to 200."""
    cpu_total, memory_total = node.allocatable.get(CPU, 0), node.allocatable.get(MEMORY, 0)
    if not cpu_total or not memory_total:
        return 0.0
    cpu = min((node.nominal[0] + shape.nominal[0]) / cpu_total, 1.0)
    memory = min((node.nominal[1] + shape.nominal[1]) / memory_total, 1.0)
    return (2.0 - cpu - memory) * 50.0 + (1.0 - abs(cpu - memory) / 2.0) * 100.0


def taint_scores(pod: Pod, nodes: Sequence[NodeState]) -> list[float]:
    """Score nodes from 0 to 100: the fewer soft taints that the pod does not tolerate, the better."""
    disliked = [
        sum(
            taint.effect == PREFER_NO_SCHEDULE
            and not any(tolerates(each, taint) for each in pod.spec.tolerations)
            for taint in node.node.spec.taints
        )
        for node in nodes
    ]
    most = max(disliked)
    return [100.0 - 100.0 * each / most if most else 100.0 for each in disliked]


def affinity_scores(terms: Sequence[PreferredSchedulingTerm], nodes: Sequence[NodeState]) -> list[float]:
    """Score nodes from 0 to 100 by the weights of preferred node affinity terms that hold, relative to the best."""
    totals = [
        sum(each.weight for each in terms if matches_term(each.preference, node.name, node.labels))
        for node in nodes
    ]
    most = max(totals)
    return [100.0 * each / most if most else 0.0 for each in totals]


def preferred_terms(pod: Pod, added: NodeAffinity | None) -> list[PreferredSchedulingTerm]:
    """Return the preferred node affinity of the pod, and of the profile."""
    own = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    return [
        term
        for each in (added, own)
        if each is not None
        for term in each.preferred_during_scheduling_ignored_during_execution
    ]


def has_alternatives(claims: Sequence[ResourceClaim]) -> bool:
    """Return whether some request has alternatives."""
    return any(request.first_available for claim in claims for request in claim.spec.devices.requests)


def alternatives_score(claims: Sequence[ResourceClaim], allocations: Sequence[AllocationResult]) -> float:
    """Sum 8 - index over the chosen alternatives; then scaled to 0..100 by the number of choices."""
    total = choices = 0
    for claim, allocation in zip(claims, allocations, strict=True):
        chosen = {result.request for result in allocation.devices.results}
        for request in claim.spec.devices.requests:
            if not request.first_available:
                continue
            choices += 1
            for index, alternative in enumerate(request.first_available):
                if f"{request.name}/{alternative.name}" in chosen:
                    total += MAX_ALTERNATIVES - index
                    break
    return 100.0 * total / (choices * MAX_ALTERNATIVES) if choices else 0.0
