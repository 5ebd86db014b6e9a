"""Whom an eviction would hit: single pods, or all pods of a group that is disrupted as a whole.

A PodGroup with `disruptionMode: all` loses all its pods or none; its pods are one victim, wherever they run. The pods of other groups
are victims one by one. What a pod matters is the priority of its group, if it has one.

The order is that of kube-scheduler: priority, then groups before single pods, then the larger, then those that started earlier. A
victim exceeds a disruption budget if any of its pods does, counted in that order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dray.api.core import PodDisruptionBudget, PodGroup
from dray.api.label_selectors import matches_labels
from dray.scheduler.group_keys import group_key
from dray.scheduler.state import ClusterState, PodUse
from dray.scheduler.tentative import ClaimsOf

_NOT_STARTED = "~"  # sorts behind every time: a pod that has not started is the youngest
LOWEST_PRIORITY = -(2**31)


@dataclass(frozen=True, slots=True, eq=False)
class Victim:
    """Pods that are evicted together or not at all."""

    uses: tuple[PodUse, ...]
    priority: int
    is_of_group: bool = False

    @property
    def started(self) -> str:
        """When the first of the pods started."""
        return min(use.pod.status.start_time or _NOT_STARTED for use in self.uses)

    @property
    def importance(self) -> tuple[int, bool, int, str, str]:
        """Sorts the most important victim first."""
        return (-self.priority, not self.is_of_group, -len(self.uses), self.started, self.uses[0].key)


def victims_below(state: ClusterState, groups: Mapping[str, PodGroup], priority: int) -> list[Victim]:
    """Return all victims that matter less than this, without pods that are ending already."""
    found: list[Victim] = []
    together: dict[str, list[PodUse]] = {}
    for use in state.pods.values():
        if use.is_terminating:
            continue
        group = groups.get(group_key(use.pod)) if groups else None
        if group is None:
            if use.priority < priority:
                found.append(Victim((use,), use.priority))
        elif group_priority(group) < priority:
            if group.spec.disruption_mode is not None and group.spec.disruption_mode.all is not None:
                together.setdefault(group_key(use.pod), []).append(use)
            else:
                found.append(Victim((use,), group_priority(group), is_of_group=True))
    found += [
        Victim(tuple(uses), group_priority(groups[key]), is_of_group=True) for key, uses in together.items()
    ]
    return found


def leaving_below(state: ClusterState, priority: int) -> dict[str, list[Victim]]:
    """Return, by node, the less important pods that are ending already."""
    found: dict[str, list[Victim]] = {}
    for use in state.pods.values():
        if use.is_terminating and use.priority < priority:
            found.setdefault(use.node, []).append(Victim((use,), use.priority))
    return found


def group_priority(group: PodGroup) -> int:
    """Return the priority of a group."""
    return group.spec.priority or 0


def exceeded_budgets(victims: Sequence[Victim], budgets: Sequence[PodDisruptionBudget]) -> dict[Victim, int]:
    """Return victims whose eviction would exceed budgets, with the number of their pods that do."""
    left = {id(budget): budget.status.disruptions_allowed for budget in budgets}
    exceeded: dict[Victim, int] = {}
    for victim in sorted(victims, key=lambda each: each.importance):
        count = sum([_exceeds(use, budgets, left) for use in victim.uses])
        if count:
            exceeded[victim] = count
    return exceeded


def _exceeds(use: PodUse, budgets: Sequence[PodDisruptionBudget], left: dict[int, int]) -> bool:
    for budget in budgets:
        selector = budget.spec.selector
        if (
            budget.metadata.namespace != use.namespace
            or selector is None
            or not (selector.match_labels or selector.match_expressions)
            or not matches_labels(selector, use.labels)
            or use.pod.metadata.name in (budget.status.disrupted_pods or {})
        ):
            continue
        left[id(budget)] -= 1
        if left[id(budget)] < 0:
            return True
    return False


def holds_roaming(victim: Victim, claims_of: ClaimsOf) -> bool:
    """Return whether pods on other nodes could use devices that the victim holds."""
    return any(
        claim.status.allocation is not None
        and (
            claim.status.allocation.node_selector is None
            or not any(
                term.match_fields for term in claim.status.allocation.node_selector.node_selector_terms
            )
        )
        for use in victim.uses
        for claim in claims_of(use.uid)
    )
