"""Eviction asks the disruption budgets first.

A pod that is done, or not yet running, disrupts nobody. Otherwise its budget, if
it has one, must allow one more disruption, which is written down in the budget
before the pod is deleted, so that two evictions cannot share one allowance.
"""

from __future__ import annotations

from dataclasses import dataclass

from dray.api.conditions import is_true_in
from dray.api.json_types import JsonObject
from dray.api.kinds import Kind, kind_of
from dray.api.label_selectors import matches_label_object
from dray.server.objects.create_and_update import MOST_ATTEMPTS
from dray.server.objects.pod_strategy import with_condition
from dray.server.objects.stored_objects import Objects, key_of
from dray.server.requests import Environment, copy_json, errors
from dray.server.store import WriteConflict


@dataclass(slots=True)
class DisruptionBudgets:
    """Spends the allowance of disruption budgets."""

    objects: Objects
    environment: Environment

    async def allow(self, pod: JsonObject, *, dry_run: bool) -> None:
        """Raise 429 unless the pod may be disrupted now."""
        status = pod.get("status") or {}
        if status.get("phase") in ("Succeeded", "Failed", "Pending") or pod["metadata"].get(
            "deletionTimestamp"
        ):
            return
        budgets = self._budgets_of(pod)
        if not budgets:
            return
        if len(budgets) > 1:
            raise errors.plain_failure(
                500,
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
            )
        if not is_true_in(status, "Ready") and _spares_unready(budgets[0]):
            return
        await self._spend(budgets[0], pod["metadata"]["name"], dry_run=dry_run)

    async def mark(self, kind: Kind, pod: JsonObject) -> None:
        """Write into a pod's status why it is about to go."""
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        key = key_of(kind, namespace, name)
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
        }
        for _ in range(MOST_ATTEMPTS):
            record = self.objects.store.get(key)
            if record is None:
                return
            current = self.objects.decoded(kind, record)
            status = with_condition(current.get("status") or {}, condition, self.environment.timestamp())
            try:
                await self.objects.put(kind, key, {**current, "status": status}, record.revision)
                return
            except WriteConflict:
                continue

    def _budgets_of(self, pod: JsonObject) -> list[JsonObject]:
        labels = pod["metadata"].get("labels") or {}
        namespace = pod["metadata"]["namespace"]
        budgets = self.objects.list("policy", "poddisruptionbudgets", namespace)
        return [
            budget
            for budget in budgets
            if matches_label_object((budget.get("spec") or {}).get("selector"), labels)
        ]

    async def _spend(self, budget: JsonObject, pod_name: str, *, dry_run: bool) -> None:
        kind = kind_of("policy", "PodDisruptionBudget")
        assert kind is not None
        name, namespace = budget["metadata"]["name"], budget["metadata"]["namespace"]
        key = key_of(kind, namespace, name)
        for _ in range(MOST_ATTEMPTS):
            record = self.objects.store.get(key)
            if record is None:
                return
            current = self.objects.decoded(kind, record)
            status = current.get("status") or {}
            if (status.get("observedGeneration") or 0) < (current["metadata"].get("generation") or 0):
                raise _refused(
                    f"The disruption budget {name} is still being processed by the server.", 10, name
                )
            if (status.get("disruptionsAllowed") or 0) < 1:
                raise _refused(
                    f"The disruption budget {name} needs {status.get('desiredHealthy', 0)} healthy pods and has "
                    f"{status.get('currentHealthy', 0)} currently",
                    0,
                    name,
                )
            if dry_run:
                return
            new = copy_json(current)
            new["status"]["disruptionsAllowed"] -= 1
            new["status"].setdefault("disruptedPods", {})[pod_name] = self.environment.timestamp()
            if not new["status"]["disruptionsAllowed"]:
                _forbid(new["status"], self.environment.timestamp())
            try:
                await self.objects.put(kind, key, new, record.revision)
                return
            except WriteConflict:
                continue


def _forbid(status: JsonObject, now: str) -> None:
    """Say in a budget's conditions that nothing more may go."""
    condition = {
        "type": "DisruptionAllowed",
        "status": "False",
        "observedGeneration": status.get("observedGeneration", 0),
        "lastTransitionTime": now,
        "reason": "InsufficientPods",
        "message": "",
    }
    others = [found for found in status.get("conditions") or () if found["type"] != "DisruptionAllowed"]
    status["conditions"] = [*others, condition]


def _spares_unready(budget: JsonObject) -> bool:
    """Return whether a pod that is not ready may go without spending the budget."""
    status = budget.get("status") or {}
    if (budget.get("spec") or {}).get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    desired = status.get("desiredHealthy") or 0
    return bool(desired > 0 and (status.get("currentHealthy") or 0) >= desired)


def _refused(detail: str, retry_after: int, name: str) -> errors.ApiError:
    message = "Cannot evict pod as it would violate the pod's disruption budget."
    error = errors.too_many_requests(message, retry_after)
    error.details = {"causes": [{"reason": "DisruptionBudget", "message": detail}]}
    if retry_after:
        error.details["retryAfterSeconds"] = retry_after
    else:
        error.headers = []
    return error
