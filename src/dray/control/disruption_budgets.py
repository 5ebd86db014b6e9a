"""Disruption budgets: how many of the selected pods may go just now.

What a budget protects is the number of pods that *should* run, so with a percentage or
`maxUnavailable` the count starts from what the pods' owners want, not from the pods that
happen to exist: otherwise every pod that is missing would make room for another to go.

A pod whose eviction the server has granted is noted in `status.disruptedPods` before it is
deleted. Until its deletion shows (or two minutes have passed) it counts as gone, so that a
burst of evictions cannot spend one allowance twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from dray.api.core import Pod, PodDisruptionBudget
from dray.api.label_selectors import matches_labels
from dray.api.times import parse_time
from dray.api.well_known import TERMINAL_PHASES
from dray.api.workloads import Deployment, ReplicaSet
from dray.client import key_of
from dray.client.resources import DEPLOYMENTS, DISRUPTION_BUDGETS, PODS, REPLICA_SETS
from dray.control.pod_templates import controller_of, is_ready
from dray.control.reconcile_loop import (
    Caches,
    Clock,
    Controller,
    ignoring_absence,
)
from dray.host.clock import utc_now

EVICTION_PATIENCE = timedelta(minutes=2)


def count_of(amount: str | int, total: int) -> int:
    """Turn a count or a percentage (rounded up) into a count.

    >>> count_of("50%", 3), count_of(2, 3)
    (2, 2)
    """
    return amount if isinstance(amount, int) else math.ceil(int(amount.rstrip("%")) * total / 100)


DesiredPods = tuple[str, int]  # uid of who decides, how many pods it wants


def expected_pods(pods: Iterable[Pod], desired_by_owner: Mapping[str, DesiredPods]) -> int:
    """Return how many pods there should be: what each decider wants, and the pods without a known owner."""
    desired: dict[str, int] = {}
    alone = 0
    for pod in pods:
        owner = controller_of(pod.metadata) or ""
        if owner in desired_by_owner:
            decider, count = desired_by_owner[owner]
            desired[decider] = count
        else:
            alone += 1
    return alone + sum(desired.values())


def still_leaving(
    disrupted: Mapping[str, Any] | None, pods: Iterable[Pod], now: datetime
) -> dict[str, str | None]:
    """Return the granted evictions whose deletion does not show yet; None marks entries to be dropped."""
    present = {pod.metadata.name for pod in pods if pod.metadata.deletion_timestamp is None}
    return {
        name: when if name in present and now - parse_time(when) < EVICTION_PATIENCE else None
        for name, when in (disrupted or {}).items()
    }


def budget_status(
    budget: PodDisruptionBudget, pods: list[Pod], desired_by_owner: Mapping[str, DesiredPods], now: datetime
) -> dict[str, Any]:
    """Count one budget."""
    leaving = still_leaving(budget.status.disrupted_pods, pods, now)
    healthy = sum(
        is_ready(pod) and pod.metadata.deletion_timestamp is None and leaving.get(pod.metadata.name) is None
        for pod in pods
    )
    expected, needed = len(pods), 0
    if budget.spec.max_unavailable is not None:
        expected = expected_pods(pods, desired_by_owner)
        needed = max(0, expected - count_of(budget.spec.max_unavailable, expected))
    elif isinstance(budget.spec.min_available, str):
        expected = expected_pods(pods, desired_by_owner)
        needed = count_of(budget.spec.min_available, expected)
    elif budget.spec.min_available is not None:
        needed = budget.spec.min_available
    return {
        "currentHealthy": healthy,
        "desiredHealthy": needed,
        "expectedPods": expected,
        "disruptionsAllowed": max(0, healthy - needed) if expected else 0,
        "observedGeneration": budget.metadata.generation,
        **({"disruptedPods": leaving} if leaving else {}),
    }


class BudgetController(Controller):
    """Keeps `status.disruptionsAllowed` of disruption budgets true."""

    name = "disruption-budgets"

    def __init__(self, caches: Caches, clock: Clock = utc_now) -> None:
        super().__init__(caches, clock)
        self.budgets = caches.of(DISRUPTION_BUDGETS, PodDisruptionBudget)
        self.pods = caches.of(PODS, Pod)
        self.sets = caches.of(REPLICA_SETS, ReplicaSet)
        self.deployments = caches.of(DEPLOYMENTS, Deployment)

    def watch(self) -> None:
        """Look at budgets when they, pods they select, or the owners of such pods change."""
        self.budgets.add_handler(lambda _old, new: self.enqueue(key_of(new.metadata)) if new else None)

        def pod_changed(old: Pod | None, new: Pod | None) -> None:
            changed = new or old
            assert changed is not None
            for key, budget in self.budgets.items.items():
                if budget.metadata.namespace == changed.metadata.namespace and matches_labels(
                    budget.spec.selector, changed.metadata.labels
                ):
                    self.enqueue(key)

        def owner_changed(old: Any, new: Any) -> None:
            if old is not None and new is not None and old.spec.replicas == new.spec.replicas:
                return
            for key, budget in self.budgets.items.items():
                if budget.metadata.namespace == (new or old).metadata.namespace:
                    self.enqueue(key)

        self.pods.add_handler(pod_changed)
        self.sets.add_handler(owner_changed)
        self.deployments.add_handler(owner_changed)

    def _desired(self, namespace: str) -> dict[str, DesiredPods]:
        """Return what each ReplicaSet stands for: its Deployment's number, if it has one."""
        by_deployment = {
            found.metadata.uid: found.spec.replicas
            for found in self.deployments.items.values()
            if found.metadata.namespace == namespace
        }
        desired: dict[str, DesiredPods] = {}
        for found in self.sets.items.values():
            if found.metadata.namespace == namespace:
                owner = controller_of(found.metadata) or ""
                desired[found.metadata.uid] = (
                    (owner, by_deployment[owner])
                    if owner in by_deployment
                    else (found.metadata.uid, found.spec.replicas)
                )
        return desired

    async def reconcile(self, key: str) -> float | None:
        """Count the healthy pods and say how many may go."""
        budget = self.budgets.get(key)
        if budget is None:
            return None
        namespace = budget.metadata.namespace
        pods = [
            pod
            for pod in self.pods.items.values()
            if pod.metadata.namespace == namespace
            and matches_labels(budget.spec.selector, pod.metadata.labels)
            and pod.status.phase not in TERMINAL_PHASES
        ]
        status = budget_status(budget, pods, self._desired(namespace), self.clock())
        # With the revision: an eviction granted meanwhile must not be overwritten.
        meta = budget.metadata
        patch = {"metadata": {"resourceVersion": meta.resource_version}, "status": status}
        await ignoring_absence(
            self.client.patch(DISRUPTION_BUDGETS, meta.name, patch, namespace, subresource="status")
        )
        return 30.0 if any(status.get("disruptedPods", {}).values()) else None
