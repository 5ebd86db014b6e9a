"""Which pods may be evicted by a tool that moves them elsewhere, and how often.

A pod may move only when somebody makes it again (a controller owns it), when it does not hold what others use (shared
claims), when it is not part of a gang (the others would lose it), and when its disruption budgets allow it.
`dray capacity --remove` and `dray defrag` ask here.
"""

from __future__ import annotations

from collections.abc import Iterable

from dray.api.core import Pod, PodDisruptionBudget
from dray.api.label_selectors import matches_labels
from dray.api.well_known import MIRROR_POD_ANNOTATION
from dray.scheduler import ClusterSnapshot, group_key

SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"


def controller_kind(pod: Pod) -> str:
    """Return the kind of the pod's controller; empty for a bare pod."""
    return next((owner.kind for owner in pod.metadata.owner_references if owner.controller), "")


def is_daemon(pod: Pod) -> bool:
    """Return whether the pod belongs to its node: one of a DaemonSet, or a static pod."""
    return controller_kind(pod) == "DaemonSet" or MIRROR_POD_ANNOTATION in (pod.metadata.annotations or {})


def immovable(pod: Pod, snapshot: ClusterSnapshot) -> str | None:
    """Return why a pod must not be moved, budgets aside; None when it may."""
    if pod.metadata.deletion_timestamp is not None:
        return "it is being deleted"
    if is_daemon(pod):
        return "it belongs to its node"
    if not controller_kind(pod):
        return "no controller would make it again"
    if (pod.metadata.annotations or {}).get(SAFE_TO_EVICT) == "false":
        return f"its annotation {SAFE_TO_EVICT} is false"
    if group_key(pod):
        return f"it is part of the group {group_key(pod)}"
    for claim in snapshot.claims_reserved_for(pod.metadata.uid):
        if len(claim.status.reserved_for) > 1:
            return f"its claim {claim.metadata.name} is shared with other pods"
        if not any(owner.uid == pod.metadata.uid for owner in claim.metadata.owner_references):
            return f"its claim {claim.metadata.name} was not made for it alone: the devices would stay"
    return None


class Budgets:
    """How many evictions the disruption budgets allow still."""

    def __init__(self, budgets: Iterable[PodDisruptionBudget]) -> None:
        self._budgets = list(budgets)
        self._left = {id(each): each.status.disruptions_allowed for each in self._budgets}

    def of(self, pod: Pod) -> list[PodDisruptionBudget]:
        """Return the budgets that protect a pod."""
        return [
            each
            for each in self._budgets
            if each.metadata.namespace == pod.metadata.namespace
            and matches_labels(each.spec.selector, pod.metadata.labels or {})
        ]

    def refusal(self, pod: Pod) -> str | None:
        """Return which budget forbids the eviction now; None when none does."""
        for each in self.of(pod):
            if self._left[id(each)] < 1:
                return f"the disruption budget {each.metadata.name} allows no eviction now"
        return None

    def spend(self, pod: Pod) -> None:
        """Count an eviction."""
        for each in self.of(pod):
            self._left[id(each)] -= 1
