"""Small controllers for ReplicaSet and Deployment, so that services are scaled, updated and repaired."""

from __future__ import annotations

import asyncio
import math

from dray.api.core import Pod
from dray.api.json_types import JsonObject
from dray.api.label_selectors import matches_labels
from dray.api.meta import LabelSelector
from dray.api.times import format_time
from dray.api.workloads import Deployment, DeploymentStrategy, ReplicaSet
from dray.client import AlreadyExists, NotFound, key_of
from dray.client.resources import DEPLOYMENTS, PODS, REPLICA_SETS
from dray.control.pod_templates import (
    Expectations,
    PodsByOwner,
    controller_of,
    delete_pod,
    is_active,
    is_ready,
    owner_reference,
    pod_from_template,
    removal_order,
    template_hash,
)
from dray.control.reconcile_loop import (
    Caches,
    Clock,
    Controller,
    ignoring_absence,
    steady_now,
)
from dray.host.clock import utc_now

HASH_LABEL = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
BURST = 100  # pods made or removed in one step


def resolve_amount(amount: str | int, total: int, *, round_up: bool) -> int:
    """Turn a count or a percentage into a count.

    >>> resolve_amount("25%", 10, round_up=True), resolve_amount("25%", 10, round_up=False)
    (3, 2)
    """
    if isinstance(amount, int):
        return amount
    share = int(amount.rstrip("%")) * total / 100
    return math.ceil(share) if round_up else math.floor(share)


def plan_rollout(
    wanted: int, new: ReplicaSet, old: list[ReplicaSet], strategy: DeploymentStrategy
) -> dict[str, int]:
    """Return the next replica counts by ReplicaSet name: one safe step from old to new.

    Never more than wanted + surge pods in all, never fewer than wanted - unavailable
    that are available.
    """
    sizes = {found.metadata.name: found.spec.replicas for found in (new, *old)}
    if strategy.type == "Recreate":
        steps = {found.metadata.name: 0 for found in old}
        if not any(found.spec.replicas or found.status.replicas for found in old):
            steps[new.metadata.name] = wanted
        return {name: count for name, count in steps.items() if sizes[name] != count}
    surge = resolve_amount(strategy.rolling_update.max_surge, wanted, round_up=True)
    unavailable = resolve_amount(strategy.rolling_update.max_unavailable, wanted, round_up=False)
    if surge == 0 and unavailable == 0:
        unavailable = 1
    steps = {}
    if new.spec.replicas > wanted:
        steps[new.metadata.name] = wanted
    elif new.spec.replicas < wanted:
        room = wanted + surge - sum(sizes.values())
        if room > 0:
            steps[new.metadata.name] = min(wanted, new.spec.replicas + room)
    new_size = steps.get(new.metadata.name, new.spec.replicas)
    # A set that was just made smaller still reports pods that are about to go: count no more than wanted.
    available = sum(min(found.status.available_replicas, found.spec.replicas) for found in (new, *old))
    # Pods of the new set that are not available yet must not be counted on.
    spare = available - (wanted - unavailable)
    # Broken old pods can go at any time.
    for found in sorted(old, key=lambda found: found.metadata.creation_timestamp or ""):
        broken = max(0, found.spec.replicas - found.status.available_replicas)
        removable = min(found.spec.replicas, broken + max(0, spare))
        if removable and found.spec.replicas and (new_size or wanted == 0):
            steps[found.metadata.name] = found.spec.replicas - removable
            spare -= max(0, removable - broken)
    return {name: count for name, count in steps.items() if sizes[name] != count}


def _revision(found: ReplicaSet) -> int:
    return int((found.metadata.annotations or {}).get(REVISION, "0"))


class ReplicaSetController(Controller):
    """Keeps the wanted number of pods."""

    name = "replicasets"

    def __init__(self, caches: Caches, clock: Clock = utc_now) -> None:
        super().__init__(caches, clock)
        self.sets = caches.of(REPLICA_SETS, ReplicaSet)
        self.pods = caches.of(PODS, Pod)
        self.owned = PodsByOwner(self.pods)
        self.expectations = Expectations()

    def watch(self) -> None:
        """Look at sets when they or their pods change."""
        self.sets.add_handler(lambda _old, new: self.enqueue(key_of(new.metadata)) if new else None)
        self.owned.attach(self, "ReplicaSet")

    async def reconcile(self, key: str) -> float | None:
        """Make or remove pods, then say how many there are."""
        found = self.sets.get(key)
        if found is None or found.metadata.deletion_timestamp is not None:
            return None
        pods = list(self.owned.of(found.metadata.uid))
        visible = {pod.metadata.name: is_active(pod) for pod in pods}
        wait = self.expectations.settle(found.metadata.uid, visible, steady_now())
        if wait is None:
            await self._scale(found, [pod for pod in pods if is_active(pod)])
        await self._report(found, [pod for pod in pods if is_active(pod)])
        return wait

    async def _scale(self, found: ReplicaSet, active: list[Pod]) -> None:
        missing = found.spec.replicas - len(active)
        if missing > 0:
            body = pod_from_template(found.spec.template, REPLICA_SETS, found.metadata)
            made = await asyncio.gather(
                *(
                    self.client.create(PODS, body, found.metadata.namespace, view=Pod)
                    for _ in range(min(missing, BURST))
                ),
                return_exceptions=True,
            )
            for pod in made:
                if isinstance(pod, Pod):
                    self.expectations.expect(found.metadata.uid, f"made:{pod.metadata.name}", steady_now())
            for failure in made:
                if isinstance(failure, BaseException):
                    raise failure
        elif missing < 0:
            for pod in removal_order(active)[: min(-missing, BURST)]:
                await delete_pod(self, pod)
                self.expectations.expect(found.metadata.uid, f"gone:{pod.metadata.name}", steady_now())

    async def _report(self, found: ReplicaSet, active: list[Pod]) -> None:
        ready = sum(map(is_ready, active))
        status = {
            "replicas": len(active),
            "fullyLabeledReplicas": len(active),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "observedGeneration": found.metadata.generation,
        }
        have = found.status
        if (have.replicas, have.ready_replicas, have.observed_generation) == (
            len(active),
            ready,
            found.metadata.generation,
        ):
            return
        await ignoring_absence(
            self.client.patch(
                REPLICA_SETS,
                found.metadata.name,
                {"status": status},
                found.metadata.namespace,
                subresource="status",
            )
        )


class DeploymentController(Controller):
    """Rolls from one ReplicaSet to the next."""

    name = "deployments"

    def __init__(self, caches: Caches, clock: Clock = utc_now) -> None:
        super().__init__(caches, clock)
        self.deployments = caches.of(DEPLOYMENTS, Deployment)
        self.sets = caches.of(REPLICA_SETS, ReplicaSet)

    def watch(self) -> None:
        """Look at deployments when they or their sets change."""
        self.deployments.add_handler(lambda _old, new: self.enqueue(key_of(new.metadata)) if new else None)

        def set_changed(old: ReplicaSet | None, new: ReplicaSet | None) -> None:
            changed = new or old
            assert changed is not None
            for owner in changed.metadata.owner_references:
                if owner.controller and owner.kind == "Deployment":
                    self.enqueue(f"{changed.metadata.namespace}/{owner.name}")

        self.sets.add_handler(set_changed)

    def _owned(self, deployment: Deployment) -> list[ReplicaSet]:
        meta = deployment.metadata
        return [
            found
            for found in self.sets.items.values()
            if found.metadata.namespace == meta.namespace
            and controller_of(found.metadata) == meta.uid
            and matches_labels(deployment.spec.selector, found.metadata.labels)
        ]

    async def reconcile(self, key: str) -> float | None:
        """Take one step of the rollout."""
        deployment = self.deployments.get(key)
        if deployment is None or deployment.metadata.deletion_timestamp is not None:
            return None
        owned = self._owned(deployment)
        digest = template_hash(deployment.spec.template)
        current = next(
            (found for found in owned if (found.metadata.labels or {}).get(HASH_LABEL) == digest), None
        )
        old = [found for found in owned if found is not current]
        if current is None and not deployment.spec.paused:
            await self._make_set(deployment, digest, old)
            return None  # its arrival wakes us
        if deployment.spec.paused:
            await self._scale_paused(deployment, owned)
        elif current is not None:
            await self._mark_revision(deployment, current, old)
            steps = plan_rollout(deployment.spec.replicas, current, old, deployment.spec.strategy)
            for name, count in steps.items():
                await self.client.patch(
                    REPLICA_SETS, name, {"spec": {"replicas": count}}, deployment.metadata.namespace
                )
            if not steps:
                await self._clean_up(deployment, old)
        await self._report(deployment, current, old)
        return None

    async def _scale_paused(self, deployment: Deployment, owned: list[ReplicaSet]) -> None:
        """Follow the wanted number while the rollout rests: the newest set takes the difference."""
        running = [found for found in owned if found.spec.replicas] or owned
        if not running:
            return
        newest = max(running, key=_revision)
        total = sum(found.spec.replicas for found in running)
        least = most = deployment.spec.replicas
        if deployment.spec.strategy.type != "Recreate":
            # A rollout may have been paused in the middle, with surplus pods: that does not undo it.
            most += resolve_amount(deployment.spec.strategy.rolling_update.max_surge, least, round_up=True)
        wanted = max(0, newest.spec.replicas + min(max(total, least), most) - total)
        if newest.spec.replicas != wanted:
            meta = newest.metadata
            await self.client.patch(REPLICA_SETS, meta.name, {"spec": {"replicas": wanted}}, meta.namespace)

    async def _mark_revision(
        self, deployment: Deployment, current: ReplicaSet, old: list[ReplicaSet]
    ) -> None:
        """Make the current set the newest revision; it is not when an older template came back."""
        newest = max(map(_revision, old), default=0)
        if _revision(current) > newest:
            return
        patch = {"metadata": {"annotations": {REVISION: str(newest + 1)}}}
        meta = deployment.metadata
        await self.client.patch(REPLICA_SETS, current.metadata.name, patch, meta.namespace)
        await ignoring_absence(self.client.patch(DEPLOYMENTS, meta.name, patch, meta.namespace))

    async def _make_set(self, deployment: Deployment, digest: str, old: list[ReplicaSet]) -> None:
        template: JsonObject = dict(deployment.spec.template)
        metadata = dict(template.get("metadata") or {})
        labels = dict(metadata.get("labels") or {}) | {HASH_LABEL: digest}
        template["metadata"] = metadata | {"labels": labels}
        selector = deployment.spec.selector or LabelSelector()
        match_labels = dict(selector.match_labels or {}) | {HASH_LABEL: digest}
        body_selector: JsonObject = {"matchLabels": match_labels}
        if selector.match_expressions:
            body_selector["matchExpressions"] = [
                {"key": entry.key, "operator": entry.operator, "values": entry.values}
                for entry in selector.match_expressions
            ]
        meta = deployment.metadata
        revision = str(max(map(_revision, old), default=0) + 1)
        total = sum(found.spec.replicas for found in old)
        surge = resolve_amount(
            deployment.spec.strategy.rolling_update.max_surge, deployment.spec.replicas, round_up=True
        )
        first = (
            deployment.spec.replicas
            if not old
            else max(0, min(deployment.spec.replicas, deployment.spec.replicas + surge - total))
        )
        if deployment.spec.strategy.type == "Recreate" and total:
            first = 0
        body = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {
                "name": f"{meta.name}-{digest}",
                "namespace": meta.namespace,
                "labels": labels,
                "annotations": {REVISION: revision},
                "ownerReferences": [owner_reference(DEPLOYMENTS, meta)],
            },
            "spec": {"replicas": first, "selector": body_selector, "template": template},
        }
        try:
            await self.client.create(REPLICA_SETS, body, meta.namespace)
        except AlreadyExists:
            return
        patch = {"metadata": {"annotations": {REVISION: revision}}}
        await ignoring_absence(self.client.patch(DEPLOYMENTS, meta.name, patch, meta.namespace))

    async def _clean_up(self, deployment: Deployment, old: list[ReplicaSet]) -> None:
        idle = [found for found in old if not found.spec.replicas and not found.status.replicas]
        idle.sort(key=_revision)
        for found in idle[: max(0, len(idle) - deployment.spec.revision_history_limit)]:
            try:
                await self.client.delete(
                    REPLICA_SETS, found.metadata.name, found.metadata.namespace, uid=found.metadata.uid
                )
            except NotFound:
                pass

    async def _report(
        self, deployment: Deployment, current: ReplicaSet | None, old: list[ReplicaSet]
    ) -> None:
        everything = [*old, *([current] if current else [])]
        wanted = deployment.spec.replicas
        replicas = sum(found.status.replicas for found in everything)
        ready = sum(found.status.ready_replicas for found in everything)
        updated = current.status.replicas if current else 0
        unavailable = resolve_amount(
            deployment.spec.strategy.rolling_update.max_unavailable, wanted, round_up=False
        )
        available_enough = ready >= wanted - unavailable
        complete = updated == wanted and replicas == wanted and ready >= wanted
        now = format_time(self.clock())
        facts = [
            ("Available", "True" if available_enough else "False",
             "MinimumReplicasAvailable" if available_enough else "MinimumReplicasUnavailable"),
            ("Progressing", "True", "NewReplicaSetAvailable" if complete else "ReplicaSetUpdated"),
        ]  # fmt: skip
        previous = {condition.type: condition for condition in deployment.status.conditions}
        conditions = []
        for kind, status, reason in facts:
            before = previous.get(kind)
            since = before.last_transition_time if before and before.status == status else now
            conditions.append(
                {
                    "type": kind,
                    "status": status,
                    "reason": reason,
                    "lastTransitionTime": since,
                    "lastUpdateTime": now,
                }
            )
        same = (
            deployment.status.observed_generation == deployment.metadata.generation
            and (
                deployment.status.replicas,
                deployment.status.ready_replicas,
                deployment.status.updated_replicas,
            )
            == (replicas, ready, updated)
            and all(
                kind in previous and previous[kind].status == status and previous[kind].reason == reason
                for kind, status, reason in facts
            )
        )
        if same:
            return
        report: JsonObject = {
            "observedGeneration": deployment.metadata.generation,
            "replicas": replicas,
            "updatedReplicas": updated,
            "readyReplicas": ready,
            "availableReplicas": ready,
            "unavailableReplicas": max(0, wanted - ready),
            "conditions": conditions,
        }
        meta = deployment.metadata
        await ignoring_absence(
            self.client.patch(
                DEPLOYMENTS, meta.name, {"status": report}, meta.namespace, subresource="status"
            )
        )
