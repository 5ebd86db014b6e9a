"""Which pods to evict so that a more important one fits: the cheapest minimal set.

For each node that could take the pod if it were emptier, all less important victims (see `victims`) are removed
tentatively, together with the devices that only they hold. If the pod fits then, they
are put back one by one, the most important first, as long as it still fits; those that
are not put back are evicted for that node. Over the nodes the cheapest set wins, as in kube-scheduler: fewest broken
disruption budgets, then the lowest of the highest priorities, then the lowest sum of priorities, the fewest pods, the youngest.

Pods that are ending already go without being evicted: a node on which they are enough is the cheapest, and the pod is nominated for it. For whom a node is
kept already (see `nominations`) counts as being there.

Devices that hang on the network may be held by pods of other nodes: those count as
candidates too, where their claim is usable on the node in question.

The nodes whose pods matter least come first, so a plan is good although the work is bounded: other decisions wait for it.

Everything is done on the live state and undone before returning; nothing leaks out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dray.api.core import Pod, PodDisruptionBudget, PodGroup
from dray.scheduler.claims import PodClaims
from dray.scheduler.nominations import Nominations, closed_for, counted
from dray.scheduler.outcomes import Placement, Preemption
from dray.scheduler.placing import Placer
from dray.scheduler.shape import PodShape
from dray.scheduler.state import NodeState, PodUse
from dray.scheduler.tentative import ClaimsOf, Undo, without_pods
from dray.scheduler.victims import (
    LOWEST_PRIORITY,
    Victim,
    exceeded_budgets,
    holds_roaming,
    leaving_below,
    victims_below,
)

MAX_NODES = 64  # nodes looked at; a larger search costs more than it gains
MAX_CANDIDATES = 300  # victims of one node, or with devices that it can use, the least important ones
MAX_TRIALS = 1_200  # placements tried, after which no other node is looked at; some tens of milliseconds
_REMOVALS_PER_TRIAL = 4  # as many pods are removed in the time that it takes to try a placement


@dataclass(frozen=True, slots=True)
class _Context:
    placer: Placer
    pod: Pod
    shape: PodShape
    claims: PodClaims
    claims_of: ClaimsOf
    budgets: Sequence[PodDisruptionBudget]
    nominated: Nominations
    leaving: Mapping[str, Sequence[Victim]]  # by node


def may_preempt(pod: Pod) -> bool:
    """Return whether the pod may evict others."""
    return pod.spec.preemption_policy != "Never"


def plan_preemption(
    placer: Placer,
    pod: Pod,
    shape: PodShape,
    claims: PodClaims,
    claims_of: ClaimsOf,
    budgets: Sequence[PodDisruptionBudget] = (),
    groups: Mapping[str, PodGroup] | None = None,
    nominated: Nominations | None = None,
) -> Preemption | None:
    """Return the cheapest minimal eviction that makes room, None when none does."""
    priority = pod.spec.priority or 0
    if not may_preempt(pod) or not (groups or placer.state.has_less_important(priority)):
        return None
    leaving = leaving_below(placer.state, priority)
    context = _Context(placer, pod, shape, claims, claims_of, budgets, nominated or {}, leaving)
    everywhere = victims_below(placer.state, groups or {}, priority)
    roaming = [each for each in everywhere if holds_roaming(each, claims_of)] if claims.pending else []
    best: tuple[tuple[int, int, int, int], str, Preemption] | None = None
    n_trials = 0
    for node, candidates in _promising(context, everywhere, roaming):
        if n_trials > MAX_TRIALS:
            break
        found = _minimal(context, node, candidates)
        n_trials += 1 + len(candidates) // _REMOVALS_PER_TRIAL + (len(candidates) if found is not None else 0)
        if found is None:
            continue
        cost, started = _cost(found), _started(found.victims)
        if best is None or cost < best[0] or (cost == best[0] and started > best[1]):
            best = (cost, started, found)
    return best[2] if best else None


def _cost(found: Preemption) -> tuple[int, int, int, int]:
    highest = max((use.priority for use in found.victims), default=LOWEST_PRIORITY)
    # Every pod counts, also one of negative priority: see LOWEST_PRIORITY.
    total = sum(use.priority - LOWEST_PRIORITY for use in found.victims)
    return found.broken_budgets, highest, total, len(found.victims)


def _started(victims: Sequence[PodUse]) -> str:
    """Return when the first of the most important victims started; later is cheaper."""
    if not victims:
        return ""
    highest = max(use.priority for use in victims)
    return Victim(tuple(use for use in victims if use.priority == highest), highest).started


def _promising(
    context: _Context, less_important: Sequence[Victim], roaming: Sequence[Victim]
) -> Iterable[tuple[NodeState, list[Victim]]]:
    """Yield nodes that pass the static rules and hold less important pods, cheapest first."""
    state = context.placer.state
    by_node: dict[str, list[Victim]] = {name: [] for name in context.leaving}
    for victim in less_important:
        for name in dict.fromkeys(use.node for use in victim.uses):
            by_node.setdefault(name, []).append(victim)
    allowed = state.passing_static(context.pod, context.shape.static_key)
    allowed &= ~closed_for(context.nominated, state, context.pod)
    names = list(by_node) if not roaming else list(state.nodes)
    nodes = [state.nodes[name] for name in names if name in state.nodes and state.nodes[name].bit & allowed]
    nodes.sort(
        key=lambda node: max((each.priority for each in by_node.get(node.name, ())), default=LOWEST_PRIORITY)
    )
    for node in nodes[:MAX_NODES]:
        here = by_node.get(node.name, [])
        found = here + [each for each in roaming if each not in here]
        if len(found) > MAX_CANDIDATES:
            found = sorted(found, key=lambda each: each.priority)[:MAX_CANDIDATES]
        yield node, found


def _minimal(context: _Context, node: NodeState, candidates: list[Victim]) -> Preemption | None:
    """Remove all candidates, then put back as many as possible."""
    away: dict[Victim, Undo] = {}
    gone = [
        without_pods(context.placer, each.uses, context.claims_of)
        for each in context.leaving.get(node.name, ())
    ]
    try:
        for victim in candidates:
            away[victim] = without_pods(context.placer, victim.uses, context.claims_of)
        if not _fits(context, node):
            return None
        exceeded = exceeded_budgets(candidates, context.budgets)
        # Pods that a budget protects are put back first, then the more important ones.
        for victim in sorted(candidates, key=lambda each: (each not in exceeded, each.importance)):
            away.pop(victim)()
            if not _fits(context, node):
                away[victim] = without_pods(context.placer, victim.uses, context.claims_of)
        evicted = sorted(away, key=lambda each: each.importance)
        if not evicted and not gone:
            return None
        uses = tuple(use for victim in evicted for use in victim.uses)
        broken = sum(exceeded.get(victim, 0) for victim in evicted)
        return Preemption(node.name, uses, broken, ((context.pod, node.name),))
    finally:
        for put_back in (*reversed(away.values()), *reversed(gone)):
            put_back()


def _fits(context: _Context, node: NodeState) -> bool:
    with counted(context.nominated, context.placer.state, context.pod, node.name):
        answer = context.placer.place(context.pod, context.shape, context.claims, within=node.bit)
    return isinstance(answer, Placement)
