"""Which pods to evict so that a more important one fits: the cheapest minimal set.

For each node that could take the pod if it were emptier, all less important pods are taken
away on paper, together with the devices that only they hold. If the pod fits then, pods
are put back one by one, the most important first, as long as it still fits; what stays
away are the victims of that node. Over the nodes the cheapest set wins: fewest broken
disruption budgets, then the lowest of the highest priorities, then the fewest pods.

Devices that hang on the network may be held by pods of other nodes: those count as
candidates too, where their claim is usable on the node in question.

Everything is done on the live state and undone before returning; nothing leaks out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dray.api.core import Pod, PodDisruptionBudget
from dray.api.label_selectors import matches_labels
from dray.api.resource import ResourceClaim
from dray.scheduler.claims import PodClaims
from dray.scheduler.placing import Placement, Placer
from dray.scheduler.shape import PodShape
from dray.scheduler.state import NodeState, PodUse

MAX_NODES = 64  # nodes looked at; a larger search costs more than it gains

ClaimsOf = Callable[[str], Iterable[ResourceClaim]]  # pod uid -> claims reserved for it


@dataclass(frozen=True, slots=True)
class Preemption:
    """Evict these pods and the node will take the preemptor."""

    node: str
    victims: tuple[PodUse, ...]
    broken_budgets: int  # disruption budgets that this exceeds


@dataclass(frozen=True, slots=True)
class _Context:
    placer: Placer
    pod: Pod
    shape: PodShape
    claims: PodClaims
    claims_of: ClaimsOf
    budgets: Sequence[PodDisruptionBudget]


def may_preempt(pod: Pod) -> bool:
    """Whether the pod is allowed to push others aside."""
    return pod.spec.preemption_policy != "Never"


def plan_preemption(
    placer: Placer,
    pod: Pod,
    shape: PodShape,
    claims: PodClaims,
    claims_of: ClaimsOf,
    budgets: Sequence[PodDisruptionBudget] = (),
) -> Preemption | None:
    """Return the cheapest minimal eviction that makes room, None when none does."""
    if not may_preempt(pod) or not placer.state.has_less_important(pod.spec.priority or 0):
        return None
    context = _Context(placer, pod, shape, claims, claims_of, budgets)
    priority = pod.spec.priority or 0
    everywhere = [
        use for use in placer.state.pods.values() if use.priority < priority and not use.is_terminating
    ]
    roaming = [use for use in everywhere if _holds_roaming(use, claims_of)] if claims.pending else []
    best: tuple[tuple[int, int, int, int], Preemption] | None = None
    for node, candidates in _promising(placer, pod, shape, everywhere, roaming):
        found = _minimal(context, node, candidates)
        if found is None:
            continue
        highest = max(use.priority for use in found.victims)
        cost = (found.broken_budgets, highest, sum(use.priority for use in found.victims), len(found.victims))
        if best is None or cost < best[0]:
            best = (cost, found)
    return best[1] if best else None


def _holds_roaming(use: PodUse, claims_of: ClaimsOf) -> bool:
    """Whether a pod holds devices that pods on other nodes could use."""
    return any(
        claim.status.allocation is not None
        and (
            claim.status.allocation.node_selector is None
            or not any(
                term.match_fields for term in claim.status.allocation.node_selector.node_selector_terms
            )
        )
        for claim in claims_of(use.uid)
    )


def _promising(
    placer: Placer, pod: Pod, shape: PodShape, less_important: Sequence[PodUse], roaming: Sequence[PodUse]
) -> Iterable[tuple[NodeState, list[PodUse]]]:
    """Yield nodes that pass the static rules and hold less important pods, cheapest first."""
    state = placer.state
    by_node: dict[str, list[PodUse]] = {}
    for use in less_important:
        by_node.setdefault(use.node, []).append(use)
    allowed = state.passing_static(pod, shape.static_key)
    names = list(by_node) if not roaming else list(state.nodes)
    nodes = [state.nodes[name] for name in names if name in state.nodes and state.nodes[name].bit & allowed]
    nodes.sort(key=lambda node: max((use.priority for use in by_node.get(node.name, ())), default=-(2**31)))
    for node in nodes[:MAX_NODES]:
        here = by_node.get(node.name, [])
        yield node, here + [use for use in roaming if use.node != node.name]


def _minimal(context: _Context, node: NodeState, candidates: list[PodUse]) -> Preemption | None:
    """Take all candidates away, then put back as many as possible."""
    away: dict[str, _Removed] = {}
    try:
        for use in candidates:
            away[use.uid] = _remove(context, use)
        if not _fits(context, node):
            return None
        exceeded = _exceeded_budgets(candidates, context.budgets)
        # Pods that a budget protects are put back first, then the more important ones.
        order = sorted(candidates, key=lambda use: (use.uid not in exceeded, -use.priority, use.key))
        for use in order:
            away.pop(use.uid).undo()
            if not _fits(context, node):
                away[use.uid] = _remove(context, use)
        victims = tuple(use for use in order if use.uid in away)
        if not victims:
            return None
        return Preemption(node.name, victims, sum(use.uid in exceeded for use in victims))
    finally:
        for removed in away.values():
            removed.undo()


def _fits(context: _Context, node: NodeState) -> bool:
    answer = context.placer.place(context.pod, context.shape, context.claims, within=node.bit)
    return isinstance(answer, Placement)


class _Removed:
    """A pod taken away on paper, with the devices that it alone holds."""

    def __init__(self, context: _Context, use: PodUse, claims: list[ResourceClaim]) -> None:
        self._context, self._use, self._claims = context, use, claims

    def undo(self) -> None:
        use, placer = self._use, self._context.placer
        placer.state.assume(use.pod, use.node, use.shape, use.extra)
        for claim in self._claims:
            placer.devices.world.set_claim(claim)
            # Refusals found while it was away may be too optimistic the other way round: none is
            # recorded for fits, and a refusal with less in use is one with more in use, too.


def _remove(context: _Context, use: PodUse) -> _Removed:
    placer = context.placer
    placer.state.forget(use.uid)
    released = [
        claim
        for claim in context.claims_of(use.uid)
        if claim.status.allocation is not None
        and all(each.uid == use.uid for each in claim.status.reserved_for)
    ]
    for claim in released:
        placer.devices.world.delete_claim(claim.metadata.uid)
        allocation = claim.status.allocation
        if allocation is not None:
            placer.devices.freed(allocation)
    return _Removed(context, use, released)


def _exceeded_budgets(candidates: Sequence[PodUse], budgets: Sequence[PodDisruptionBudget]) -> set[str]:
    """Return the pods whose eviction, in order of importance, would exceed a disruption budget."""
    left = {id(budget): budget.status.disruptions_allowed for budget in budgets}
    exceeded: set[str] = set()
    for use in sorted(candidates, key=lambda each: -each.priority):
        for budget in budgets:
            if budget.metadata.namespace != use.namespace or not matches_labels(
                budget.spec.selector, use.labels
            ):
                continue
            if use.pod.metadata.name in (budget.status.disrupted_pods or {}):
                continue
            left[id(budget)] -= 1
            if left[id(budget)] < 0:
                exceeded.add(use.uid)
    return exceeded
