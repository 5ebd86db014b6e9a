"""Which pods to evict so that a whole gang fits: victims for all its members, or for none.

As in kube-scheduler the domain is the cluster: all less important victims are removed tentatively, and the gang is placed. If that works,
the members stay at their places and victims are put back, those that a disruption budget protects first, then the most important ones,
as long as every member still fits where it is. What is not put back is evicted, and every member is nominated for its node.

Putting back is cheap for victims that cannot matter: those on other nodes than the members', unless they hold devices of the network,
or rules about other pods are in play.

Everything is done on the live state and undone before returning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dray.api.core import PodDisruptionBudget, PodGroup
from dray.scheduler.gangs import GangPlacement, Member, start_gang, still_fits
from dray.scheduler.outcomes import Preemption, Unplaceable
from dray.scheduler.placing import Placer
from dray.scheduler.preemption import may_preempt
from dray.scheduler.tentative import ClaimsOf, Undo, without_pods
from dray.scheduler.victims import (
    Victim,
    exceeded_budgets,
    group_priority,
    holds_roaming,
    victims_below,
)

MAX_VICTIMS = 2_000  # the least important ones; a larger search would hold up all other decisions
MAX_TRIALS = 2_000  # placements of members tried while victims are put back; what is left then is evicted


def plan_gang_preemption(
    placer: Placer,
    group: PodGroup,
    members: Sequence[Member],
    needed: int,
    claims_of: ClaimsOf,
    budgets: Sequence[PodDisruptionBudget] = (),
    groups: Mapping[str, PodGroup] | None = None,
) -> Preemption | None:
    """Return the evictions that let the gang start, None when none would."""
    if not all(may_preempt(each.pod) for each in members) or group.spec.preemption_policy == "Never":
        return None
    candidates = victims_below(placer.state, groups or {}, group_priority(group))
    candidates = sorted(candidates, key=lambda each: each.importance)[-MAX_VICTIMS:]
    if not candidates:
        return None
    away: dict[Victim, Undo] = {}
    try:
        for victim in candidates:
            away[victim] = without_pods(placer, victim.uses, claims_of)
        found = start_gang(placer, members, needed, group)
        if isinstance(found, Unplaceable):
            return None
        exceeded = exceeded_budgets(candidates, budgets)
        _put_back(placer, found, candidates, exceeded, away, claims_of)
        evicted = sorted(away, key=lambda each: each.importance)
        uses = tuple(use for victim in evicted for use in victim.uses)
        if not uses:
            return None
        nominations = tuple(
            (member.pod, placement.node)
            for member, placement in zip(found.members, found.placements, strict=True)
        )
        broken = sum(exceeded.get(victim, 0) for victim in evicted)
        return Preemption(nominations[0][1], uses, broken, nominations)
    finally:
        for put_back in reversed(away.values()):
            put_back()


def _put_back(
    placer: Placer,
    found: GangPlacement,
    candidates: Sequence[Victim],
    exceeded: Mapping[Victim, int],
    away: dict[Victim, Undo],
    claims_of: ClaimsOf,
) -> None:
    """Put back every victim beside which the members still fit where they are."""
    nodes = {placement.node for placement in found.placements}
    looks_at_pods = placer.affinity.objects() or any(
        alternative.shape.affinity or alternative.shape.anti_affinity or alternative.shape.spread
        for alternative in found.alternatives
    )
    n_trials = 0
    for victim in sorted(candidates, key=lambda each: (each not in exceeded, each.importance)):
        matters = (
            looks_at_pods
            or any(use.node in nodes or use.shape.anti_affinity for use in victim.uses)
            or holds_roaming(victim, claims_of)
        )
        if matters and n_trials > MAX_TRIALS:
            continue
        away.pop(victim)()
        if not matters:
            continue
        n_trials += len(found.members)
        if not still_fits(placer, found):
            away[victim] = without_pods(placer, victim.uses, claims_of)
