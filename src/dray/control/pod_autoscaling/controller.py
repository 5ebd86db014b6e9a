"""The controller of HorizontalPodAutoscalers: every fifteen seconds one decision for each, and what follows from it.

It reads the target (a Deployment or a ReplicaSet), its pods and the reported values (`reported_metrics`), asks
`scaling_decision.decide`, and writes the target's scale, the autoscaler's status and events. What a decision remembers is kept here,
by the autoscaler's uid. The scale is written with the target's resourceVersion: when somebody else changed it, the decision is
made anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from dray.api.core import Namespace, Pod
from dray.api.json_types import JsonObject
from dray.api.kinds import kind_of, split_api_version
from dray.api.label_selectors import matches_labels
from dray.api.pod_autoscalers import HorizontalPodAutoscaler, MetricSpec, ObjectReference
from dray.api.pod_resources import is_sidecar
from dray.api.quantity import parse_quantity
from dray.api.times import format_time, parse_time
from dray.api.workloads import Deployment, ReplicaSet
from dray.client import ApiError, EventRecorder, key_of
from dray.client.resources import (
    DEPLOYMENTS,
    HORIZONTAL_POD_AUTOSCALERS,
    NAMESPACES,
    PODS,
    REPLICA_SETS,
    Resource,
    resource_of,
)
from dray.control.pod_autoscaling import reported_metrics
from dray.control.pod_autoscaling.replica_counts import MetricUnavailableError, ObservedPod
from dray.control.pod_autoscaling.scaling_decision import (
    ABLE,
    ACTIVE,
    Condition,
    Decision,
    History,
    Reading,
    Target,
    decide,
)
from dray.control.pod_templates import is_ready
from dray.control.reconcile_loop import Caches, Clock, Controller, ignoring_absence, steady_now
from dray.host.clock import utc_now

PERIOD = 15.0  # seconds between two decisions
CPU_START = timedelta(minutes=5)  # in which values of pods that are not ready say nothing
FIRST_READINESS = timedelta(seconds=30)  # a pod that has not been ready since then has never been

Workload = Deployment | ReplicaSet


class PodAutoscalerController(Controller):
    """Scales workloads by what their autoscalers say."""

    name = "pod-autoscalers"

    def __init__(self, caches: Caches, clock: Clock = utc_now) -> None:
        super().__init__(caches, clock)
        self.autoscalers = caches.of(HORIZONTAL_POD_AUTOSCALERS, HorizontalPodAutoscaler)
        self.pods = caches.of(PODS, Pod)
        self.namespaces = caches.of(NAMESPACES, Namespace)
        self.deployments = caches.of(DEPLOYMENTS, Deployment)
        self.sets = caches.of(REPLICA_SETS, ReplicaSet)
        self.events = EventRecorder(caches.client, "horizontal-pod-autoscaler", clock)
        self._histories: dict[str, tuple[str, History]] = {}  # key -> uid, what is remembered

    def watch(self) -> None:
        """Look at new and changed autoscalers at once; afterwards every period."""

        def changed(old: HorizontalPodAutoscaler | None, new: HorizontalPodAutoscaler | None) -> None:
            if new is not None and (old is None or old.metadata.generation != new.metadata.generation):
                self.enqueue(key_of(new.metadata))
            if new is None and old is not None:
                self._histories.pop(key_of(old.metadata), None)

        self.autoscalers.add_handler(changed)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.events.run())
            group.create_task(super().run())

    async def reconcile(self, key: str) -> float | None:
        """Decide once, and do it."""
        autoscaler = self.autoscalers.get(key)
        if autoscaler is None or autoscaler.metadata.deletion_timestamp is not None:
            return None
        try:
            resource, workload = self._workload(autoscaler)
            pods = self._pods(autoscaler, workload)
        except _TargetError as error:
            await self._report_failure(autoscaler, error)
            return PERIOD
        readings = [await self._reading(autoscaler, spec, pods) for spec in autoscaler.spec.metrics]
        target = Target(
            workload.spec.replicas,
            workload.status.replicas,
            [[self._observed(pod, spec) for pod in pods] for spec in autoscaler.spec.metrics],
        )
        decision = decide(autoscaler, target, readings, self._history(autoscaler), steady_now())
        for reason, message in decision.warnings:
            self.events.record(HORIZONTAL_POD_AUTOSCALERS, autoscaler.metadata, "Warning", reason, message)
        if decision.replicas != target.wanted:
            await self._scale(autoscaler, decision, resource, workload)
        self._histories[key] = autoscaler.metadata.uid, decision.history
        await self._write_status(autoscaler, decision, target.wanted)
        return PERIOD

    def _history(self, autoscaler: HorizontalPodAutoscaler) -> History:
        uid, history = self._histories.get(key_of(autoscaler.metadata), ("", History()))
        return history if uid == autoscaler.metadata.uid else History()

    # --- what is there ------------------------------------------------------------------

    def _workload(self, autoscaler: HorizontalPodAutoscaler) -> tuple[Resource, Workload]:
        reference = autoscaler.spec.scale_target_ref
        group, _ = split_api_version(reference.api_version)
        key = f"{autoscaler.metadata.namespace}/{reference.name}"
        found: Workload | None
        match group, reference.kind:
            case "apps", "Deployment":
                resource, found = DEPLOYMENTS, self.deployments.get(key)
            case "apps", "ReplicaSet":
                resource, found = REPLICA_SETS, self.sets.get(key)
            case _:
                what = f'no matches for kind "{reference.kind}" in group "{group}"'
                raise _TargetError(ABLE, "FailedGetScale", what)
        if found is None:
            what = f'{resource.plural}.{resource.group} "{reference.name}" not found'
            raise _TargetError(ABLE, "FailedGetScale", what)
        return resource, found

    def _pods(self, autoscaler: HorizontalPodAutoscaler, workload: Workload) -> list[Pod]:
        """Return the pods of the target. Raises _TargetError when another autoscaler has them, too."""
        namespace, selector = autoscaler.metadata.namespace, workload.spec.selector
        if selector is None:
            message = "the HPA target's scale is missing a selector"
            raise _TargetError(ACTIVE, "InvalidSelector", message)
        pods = [
            pod
            for pod in self.pods.items.values()
            if pod.metadata.namespace == namespace and matches_labels(selector, pod.metadata.labels)
        ]
        for other in self.autoscalers.items.values():
            if other.metadata.namespace != namespace or other.metadata.uid == autoscaler.metadata.uid:
                continue
            try:
                _, theirs = self._workload(other)
            except _TargetError:
                continue
            if any(matches_labels(theirs.spec.selector, pod.metadata.labels) for pod in pods):
                names = ", ".join(sorted((autoscaler.metadata.name, other.metadata.name)))
                message = f"pods of {workload.metadata.name} are controlled by more than one HPA: {names}"
                raise _TargetError(ACTIVE, "AmbiguousSelector", message)
        return pods

    def _observed(self, pod: Pod, spec: MetricSpec) -> ObservedPod:
        is_running = pod.status.phase == "Running"
        resource = spec.source.name
        return ObservedPod(
            pod.metadata.name,
            is_ready=is_running and is_ready(pod),
            is_pending=pod.status.phase in ("", "Pending"),
            is_ending=pod.metadata.deletion_timestamp is not None or pod.status.phase == "Failed",
            is_starting=resource == "cpu" and self._is_starting(pod),
            request=_request(pod, resource, spec.source.container) if resource else None,
        )

    def _is_starting(self, pod: Pod) -> bool:
        condition = next((each for each in pod.status.conditions if each.type == "Ready"), None)
        if condition is None or pod.status.start_time is None:
            return True
        started = parse_time(pod.status.start_time)
        is_unready = condition.status == "False"
        if started + CPU_START > self.clock() or condition.last_transition_time is None:
            return is_unready
        return is_unready and started + FIRST_READINESS > parse_time(condition.last_transition_time)

    async def _reading(
        self, autoscaler: HorizontalPodAutoscaler, spec: MetricSpec, pods: Sequence[Pod]
    ) -> Reading:
        namespace = autoscaler.metadata.namespace
        try:
            if spec.type == "External":
                found = self.namespaces.get(namespace)
                annotations = found.metadata.annotations if found is not None else None
                return reported_metrics.of_object(spec, annotations, f"namespace {namespace}")
            if spec.type == "Object":
                described = spec.source.described_object
                annotations = await self._annotations(described, namespace)
                return reported_metrics.of_object(spec, annotations, f"{described.kind} {described.name}")
            return reported_metrics.of_pods(spec, pods)
        except MetricUnavailableError as error:
            return error

    async def _annotations(self, described: ObjectReference, namespace: str) -> dict[str, str] | None:
        group, _ = split_api_version(described.api_version)
        kind = kind_of(group, described.kind)
        if kind is None or not kind.is_stored:
            raise MetricUnavailableError(f'no matches for kind "{described.kind}" in group "{group}"')
        inside = namespace if kind.namespaced else None
        # Listed, not got: listing everything is what a controller manager may.
        selector = f"metadata.name={described.name}"
        try:
            found = await self.client.list(resource_of(kind.group, kind.kind), inside, fieldSelector=selector)
        except ApiError as error:
            raise MetricUnavailableError(
                f"unable to read {described.kind} {described.name}: {error}"
            ) from error
        if not found.items:
            raise MetricUnavailableError(f"there is no {described.kind} {described.name}")
        annotations: dict[str, str] | None = found.items[0]["metadata"].get("annotations")
        return annotations

    # --- what follows ---------------------------------------------------------------------

    async def _scale(
        self,
        autoscaler: HorizontalPodAutoscaler,
        decision: Decision,
        resource: Resource,
        workload: Workload,
    ) -> None:
        meta = workload.metadata
        scale: JsonObject = {
            "apiVersion": "autoscaling/v1",
            "kind": "Scale",
            "metadata": {
                "name": meta.name,
                "namespace": meta.namespace,
                "uid": meta.uid,
                "resourceVersion": meta.resource_version,
            },
            "spec": {"replicas": decision.replicas},
        }
        what = f"New size: {decision.replicas}; reason: {decision.reason}"
        await self.client.update(resource, meta.name, scale, meta.namespace, subresource="scale")
        decision.say(
            ABLE,
            "True",
            "SucceededRescale",
            f"the HPA controller was able to update the target scale to {decision.replicas}",
        )
        self.events.record(
            HORIZONTAL_POD_AUTOSCALERS, autoscaler.metadata, "Normal", "SuccessfulRescale", what
        )

    async def _report_failure(self, autoscaler: HorizontalPodAutoscaler, error: _TargetError) -> None:
        status = autoscaler.status
        decision = Decision(status.current_replicas, is_failure=True)
        if error.condition == ABLE:
            message = f"the HPA controller was unable to get the target's current scale: {error}"
        else:
            message = str(error)
        decision.say(error.condition, "False", error.reason, message)
        self.events.record(
            HORIZONTAL_POD_AUTOSCALERS, autoscaler.metadata, "Warning", error.reason, str(error)
        )
        await self._write_status(autoscaler, decision, status.current_replicas)

    async def _write_status(
        self, autoscaler: HorizontalPodAutoscaler, decision: Decision, current: int
    ) -> None:
        before = autoscaler.status
        now = format_time(self.clock())
        is_change = not decision.is_failure and decision.replicas != current
        status: dict[str, Any] = {
            "observedGeneration": autoscaler.metadata.generation,
            "currentReplicas": current,
            "desiredReplicas": before.desired_replicas if decision.is_failure else decision.replicas,
            "currentMetrics": decision.metrics or None,
            "conditions": _conditions(autoscaler, decision.conditions, now),
        }
        since = now if is_change else before.last_scale_time
        if since is not None:
            status["lastScaleTime"] = since
        if _is_same(autoscaler, status):
            return
        meta = autoscaler.metadata
        body: JsonObject = {
            "apiVersion": HORIZONTAL_POD_AUTOSCALERS.api_version,
            "kind": HORIZONTAL_POD_AUTOSCALERS.kind,
            "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
            "status": status,
        }
        await ignoring_absence(
            self.client.update(
                HORIZONTAL_POD_AUTOSCALERS, meta.name, body, meta.namespace, subresource="status"
            )
        )


class _TargetError(Exception):
    """A target that cannot be scaled: the condition that says so, and its reason."""

    def __init__(self, condition: str, reason: str, message: str) -> None:
        super().__init__(message)
        self.condition = condition
        self.reason = reason


def _request(pod: Pod, resource: str, container: str) -> int | None:
    """Return what a pod (or one container) requests of a resource, in thousandths; None when it names nothing."""
    of_pod = pod.spec.resources
    if not container and of_pod is not None and resource in (of_pod.requests or {}):
        return parse_quantity((of_pod.requests or {})[resource]).milli_value()
    total = 0
    members = [*pod.spec.containers, *(each for each in pod.spec.init_containers if is_sidecar(each))]
    for each in members:
        if container and each.name != container:
            continue
        amount = (each.resources.requests or {}).get(resource)
        if amount is None:
            return None
        total += parse_quantity(amount).milli_value()
    return total or None


def _conditions(
    autoscaler: HorizontalPodAutoscaler, wanted: Sequence[Condition], now: str
) -> list[JsonObject]:
    """Return the conditions with those of before that were not spoken of; a time changes with the status."""
    before = {each.type: each for each in autoscaler.status.conditions}
    said = {each.type: each for each in wanted}
    result: list[JsonObject] = []
    for kind in dict.fromkeys((*before, *said)):
        each = said.get(kind) or before[kind]
        old = before.get(kind)
        since = old.last_transition_time if old is not None and old.status == each.status else now
        result.append(
            {
                "type": kind,
                "status": each.status,
                "reason": each.reason,
                "message": each.message,
                "lastTransitionTime": since,
            }
        )
    return result


def _is_same(autoscaler: HorizontalPodAutoscaler, status: JsonObject) -> bool:
    before = autoscaler.status
    had: dict[str, Any] = {
        "observedGeneration": before.observed_generation,
        "currentReplicas": before.current_replicas,
        "desiredReplicas": before.desired_replicas,
        "currentMetrics": before.current_metrics or None,
        "conditions": [
            {
                "type": each.type,
                "status": each.status,
                "reason": each.reason,
                "message": each.message,
                "lastTransitionTime": each.last_transition_time,
            }
            for each in before.conditions
        ],
    }
    if before.last_scale_time is not None:
        had["lastScaleTime"] = before.last_scale_time
    return had == status
