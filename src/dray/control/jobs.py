"""Small controllers for Job and DaemonSet, and the status of disruption budgets."""

from __future__ import annotations

import asyncio
import math
from datetime import timedelta
from typing import Any

from dray.api.core import Node, Pod, PodDisruptionBudget, Taint, Toleration
from dray.api.meta import Condition, LabelSelector, NodeSelectorTerm, ObjectMeta, View
from dray.client import key_of
from dray.client.resources import DAEMON_SETS, DISRUPTION_BUDGETS, JOBS, NODES, PODS
from dray.control.nodes import tolerates
from dray.control.pods import (
    Expectations,
    Object,
    PodsByOwner,
    delete_pod,
    is_active,
    is_ready,
    pod_from_template,
    selects,
    template_hash,
)
from dray.control.reconciling import (
    Caches,
    Clock,
    Controller,
    ignoring_absence,
    parse_rfc3339,
    rfc3339,
    utc_now,
)

FIRST_RETRY = 10.0  # seconds; doubles with every failure
LONGEST_RETRY = 360.0


class JobSpec(View, frozen=True):
    """What to run to the end, how often, how many at a time."""

    parallelism: int = 1
    completions: int | None = None
    backoff_limit: int = 6
    active_deadline_seconds: int | None = None
    ttl_seconds_after_finished: int | None = None
    completion_mode: str = "NonIndexed"
    suspend: bool = False
    template: dict[str, Any] = {}


class JobStatus(View, frozen=True):
    """How far it is."""

    active: int = 0
    succeeded: int = 0
    failed: int = 0
    ready: int | None = None
    start_time: str | None = None
    completion_time: str | None = None
    conditions: list[Condition] = []


class Job(View, frozen=True):
    """batch/v1 Job."""

    metadata: ObjectMeta = ObjectMeta()
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


def finished_as(job: Job) -> str | None:
    """Return Complete or Failed when the job is over."""
    for condition in job.status.conditions:
        if condition.type in ("Complete", "Failed") and condition.status == "True":
            return condition.type
    return None


def next_index(pods: list[Pod], completions: int) -> int | None:
    """Return the lowest completion index that no active or successful pod has."""
    taken = {
        int((pod.metadata.annotations or {}).get("batch.kubernetes.io/job-completion-index", "-1"))
        for pod in pods
        if is_active(pod) or pod.status.phase == "Succeeded"
    }
    return next((index for index in range(completions) if index not in taken), None)


class JobController(Controller):
    """Runs pods until enough of them succeeded."""

    name = "jobs"

    def __init__(self, caches: Caches, clock: Clock = utc_now) -> None:
        super().__init__(caches, clock)
        self.jobs = caches.of(JOBS, Job)
        self.pods = caches.of(PODS, Pod)
        self.owned = PodsByOwner(self.pods)
        self.expectations = Expectations()

    def watch(self) -> None:
        """Look at jobs when they or their pods change."""
        self.jobs.add_handler(lambda _old, new: self.enqueue(key_of(new.metadata)) if new else None)
        self.owned.attach(self, "Job")

    async def reconcile(self, key: str) -> float | None:
        """Start what is missing, stop what is too much, notice the end."""
        job = self.jobs.get(key)
        if job is None or job.metadata.deletion_timestamp is not None:
            return None
        if finished_as(job):
            return await self._expire(job)
        pods = list(self.owned.of(job.metadata.uid))
        active = [pod for pod in pods if is_active(pod)]
        succeeded = sum(pod.status.phase == "Succeeded" for pod in pods)
        failed = sum(pod.status.phase == "Failed" for pod in pods)
        now = self.clock()
        completions = job.spec.completions if job.spec.completions is not None else None
        verdict: tuple[str, str, str] | None = None
        if failed > job.spec.backoff_limit:
            verdict = ("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
        elif job.spec.active_deadline_seconds is not None and job.status.start_time:
            if now - parse_rfc3339(job.status.start_time) >= timedelta(
                seconds=job.spec.active_deadline_seconds
            ):
                verdict = ("Failed", "DeadlineExceeded", "Job was active longer than specified deadline")
        if verdict is None and (
            succeeded >= completions if completions is not None else succeeded > 0 and not active
        ):
            verdict = ("Complete", "CompletionsReached", "Reached expected number of succeeded pods")
        delay: float | None = None
        if verdict is not None or job.spec.suspend:
            await asyncio.gather(*(delete_pod(self, pod) for pod in active))
            active = []
        elif self.expectations.settle(job.metadata.uid, {pod.metadata.name: is_active(pod) for pod in pods}):
            delay = await self._start(job, pods, active, succeeded, failed)
        await self._report(job, active, succeeded, failed, verdict)
        if job.spec.active_deadline_seconds is not None and verdict is None:
            delay = min(delay or 1e9, float(job.spec.active_deadline_seconds))
        return delay

    async def _start(
        self, job: Job, pods: list[Pod], active: list[Pod], succeeded: int, failed: int
    ) -> float | None:
        wanted = job.spec.parallelism
        if job.spec.completions is not None:
            wanted = min(wanted, job.spec.completions - succeeded)
        elif succeeded:
            wanted = 0
        if len(active) > wanted:
            for pod in active[wanted:]:
                self.expectations.expect(job.metadata.uid, f"gone:{pod.metadata.name}")
                await delete_pod(self, pod)
            return None
        if len(active) == wanted:
            return None
        if failed:
            # The youngest failure decides how long to wait before the next try.
            pause = min(FIRST_RETRY * 2.0 ** (failed - 1), LONGEST_RETRY)
            ends = [pod.metadata.creation_timestamp for pod in pods if pod.status.phase == "Failed"]
            latest = max(parse_rfc3339(end) for end in ends if end)
            left = pause - (self.clock() - latest).total_seconds()
            if left > 0:
                return left
        running = list(pods)
        for _ in range(wanted - len(active)):
            body = pod_from_template(job.spec.template, JOBS, job.metadata)
            labels = body["metadata"].setdefault("labels", {})
            labels |= {
                "batch.kubernetes.io/job-name": job.metadata.name,
                "batch.kubernetes.io/controller-uid": job.metadata.uid,
                "job-name": job.metadata.name,
                "controller-uid": job.metadata.uid,
            }
            if job.spec.completion_mode == "Indexed" and job.spec.completions is not None:
                index = next_index(running, job.spec.completions)
                if index is None:
                    break
                self._give_index(body, job, index)
            made = await self.client.create(PODS, body, job.metadata.namespace, view=Pod)
            running.append(made)
            self.expectations.expect(job.metadata.uid, f"made:{made.metadata.name}")
        return None

    @staticmethod
    def _give_index(body: Object, job: Job, index: int) -> None:
        body["metadata"]["generateName"] = f"{job.metadata.name}-{index}-"
        body["metadata"].setdefault("annotations", {})["batch.kubernetes.io/job-completion-index"] = str(
            index
        )
        body["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] = str(index)
        spec = body["spec"] = dict(body["spec"])
        spec.setdefault("hostname", f"{job.metadata.name}-{index}"[:63])
        for field in ("containers", "initContainers"):
            if spec.get(field):
                spec[field] = [
                    {
                        **container,
                        "env": [
                            *container.get("env", []),
                            {"name": "JOB_COMPLETION_INDEX", "value": str(index)},
                        ],
                    }
                    for container in spec[field]
                ]

    async def _report(
        self, job: Job, active: list[Pod], succeeded: int, failed: int, verdict: tuple[str, str, str] | None
    ) -> None:
        now = rfc3339(self.clock())
        status: Object = {
            "active": len(active),
            "succeeded": succeeded,
            "failed": failed,
            "ready": sum(map(is_ready, active)),
        }
        if job.status.start_time is None:
            status["startTime"] = now
        if verdict is not None:
            kind, reason, message = verdict
            times = {"lastProbeTime": now, "lastTransitionTime": now}
            # Kubernetes wants the criteria condition before the final one.
            criteria = "SuccessCriteriaMet" if kind == "Complete" else "FailureTarget"
            status["conditions"] = [
                {"type": criteria, "status": "True", "reason": reason, "message": message, **times},
                {"type": kind, "status": "True", "reason": reason, "message": message, **times},
            ]
            if kind == "Complete":
                status["completionTime"] = now
        have = job.status
        same = (have.active, have.succeeded, have.failed, have.ready or 0) == (
            len(active),
            succeeded,
            failed,
            status["ready"],
        )
        if same and verdict is None and job.status.start_time is not None:
            return
        await ignoring_absence(
            self.client.patch(
                JOBS, job.metadata.name, {"status": status}, job.metadata.namespace, subresource="status"
            )
        )

    async def _expire(self, job: Job) -> float | None:
        keep = job.spec.ttl_seconds_after_finished
        if keep is None:
            return None
        ended = max(
            parse_rfc3339(c.last_transition_time) for c in job.status.conditions if c.last_transition_time
        )
        left = keep - (self.clock() - ended).total_seconds()
        if left > 0:
            return left
        await ignoring_absence(
            self.client.delete(
                JOBS,
                job.metadata.name,
                job.metadata.namespace,
                uid=job.metadata.uid,
                propagation="Foreground",
            )
        )
        return None


# --- DaemonSet ------------------------------------------------------------------


class DaemonSetSpec(View, frozen=True):
    """One pod of the template on every fitting node."""

    selector: LabelSelector | None = None
    template: dict[str, Any] = {}


class DaemonSetStatus(View, frozen=True):
    """How many nodes have it."""

    current_number_scheduled: int = 0
    desired_number_scheduled: int = 0
    number_ready: int = 0
    observed_generation: int = 0


class DaemonSet(View, frozen=True):
    """apps/v1 DaemonSet."""

    metadata: ObjectMeta = ObjectMeta()
    spec: DaemonSetSpec = DaemonSetSpec()
    status: DaemonSetStatus = DaemonSetStatus()


# Daemons stay on nodes that are in trouble.
DAEMON_TOLERATIONS: list[Object] = [
    {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": effect}
    for key, effect in (
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    )
]


def daemon_fits(template: Object, node: Node) -> bool:
    """Say whether a daemon of the template should run on the node (node selector and taints)."""
    spec = template.get("spec") or {}
    labels = node.metadata.labels or {}
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    given = [*(spec.get("tolerations") or []), *DAEMON_TOLERATIONS]
    tolerations = [
        Toleration(
            key=t.get("key", ""),
            operator=t.get("operator", ""),
            value=t.get("value", ""),
            effect=t.get("effect", ""),
        )
        for t in given
    ]

    def blocks(taint: Taint) -> bool:
        if taint.effect not in ("NoSchedule", "NoExecute"):
            return False
        return not any(tolerates(toleration, taint) for toleration in tolerations)

    return not any(blocks(taint) for taint in node.spec.taints)


class DaemonSetController(Controller):
    """Keeps one pod on every fitting node; changed templates replace pods one node at a time."""

    name = "daemonsets"

    def __init__(self, caches: Caches, clock: Clock = utc_now) -> None:
        super().__init__(caches, clock)
        self.sets = caches.of(DAEMON_SETS, DaemonSet)
        self.nodes = caches.of(NODES, Node)
        self.pods = caches.of(PODS, Pod)
        self.owned = PodsByOwner(self.pods)
        self.expectations = Expectations()

    def watch(self) -> None:
        """Look at sets when they, their pods or the nodes change."""
        self.sets.add_handler(lambda _old, new: self.enqueue(key_of(new.metadata)) if new else None)
        self.owned.attach(self, "DaemonSet")

        def node_changed(old: Node | None, new: Node | None) -> None:
            if (
                old is None
                or new is None
                or (old.spec, old.metadata.labels) != (new.spec, new.metadata.labels)
            ):
                for key in self.sets.items:
                    self.enqueue(key)

        self.nodes.add_handler(node_changed)

    async def reconcile(self, key: str) -> float | None:
        """Make and remove daemons."""
        found = self.sets.get(key)
        if found is None or found.metadata.deletion_timestamp is not None:
            return None
        digest = template_hash(found.spec.template)
        pods = list(self.owned.of(found.metadata.uid))
        wanted = {name for name, node in self.nodes.items.items() if daemon_fits(found.spec.template, node)}
        by_node: dict[str, list[Pod]] = {}
        for pod in pods:
            if is_active(pod):
                by_node.setdefault(_target_node(pod), []).append(pod)
        if self.expectations.settle(found.metadata.uid, {pod.metadata.name: is_active(pod) for pod in pods}):
            for name in sorted(wanted - set(by_node)):
                made = await self.client.create(
                    PODS, self._daemon(found, name, digest), found.metadata.namespace, view=Pod
                )
                self.expectations.expect(found.metadata.uid, f"made:{made.metadata.name}")
            surplus = [
                pod for name, group in by_node.items() for pod in (group[1:] if name in wanted else group)
            ]
            outdated = [
                pod
                for pod in pods
                if is_active(pod) and (pod.metadata.labels or {}).get("controller-revision-hash") != digest
            ]
            healthy = all(is_ready(pod) for group in by_node.values() for pod in group)
            # One at a time, and only from a healthy set: a bad template must not take all nodes down.
            surplus += outdated[:1] if healthy and not (wanted - set(by_node)) else []
            failed = [
                pod
                for pod in pods
                if pod.status.phase == "Failed" and pod.metadata.deletion_timestamp is None
            ]
            for pod in [*surplus, *failed]:
                self.expectations.expect(found.metadata.uid, f"gone:{pod.metadata.name}")
                await delete_pod(self, pod)
        await self._report(found, wanted, by_node, digest)
        return None

    @staticmethod
    def _daemon(found: DaemonSet, node: str, digest: str) -> Object:
        body = pod_from_template(found.spec.template, DAEMON_SETS, found.metadata)
        body["metadata"].setdefault("labels", {})["controller-revision-hash"] = digest
        spec = body["spec"] = dict(body["spec"])
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        affinity = dict(spec.get("affinity") or {})
        affinity["nodeAffinity"] = {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}
        }
        spec["affinity"] = affinity
        spec["tolerations"] = [*(spec.get("tolerations") or []), *DAEMON_TOLERATIONS]
        return body

    async def _report(
        self, found: DaemonSet, wanted: set[str], by_node: dict[str, list[Pod]], digest: str
    ) -> None:
        current = [group[0] for name, group in by_node.items() if name in wanted]
        ready = sum(map(is_ready, current))
        updated = sum(
            (pod.metadata.labels or {}).get("controller-revision-hash") == digest for pod in current
        )
        status = {
            "currentNumberScheduled": len(current),
            "desiredNumberScheduled": len(wanted),
            "numberMisscheduled": sum(name not in wanted for name in by_node),
            "numberReady": ready,
            "updatedNumberScheduled": updated,
            "numberAvailable": ready,
            "numberUnavailable": len(wanted) - ready,
            "observedGeneration": found.metadata.generation,
        }
        have = found.status
        if (
            have.current_number_scheduled,
            have.desired_number_scheduled,
            have.number_ready,
            have.observed_generation,
        ) == (
            len(current),
            len(wanted),
            ready,
            found.metadata.generation,
        ):
            return
        meta = found.metadata
        await ignoring_absence(
            self.client.patch(
                DAEMON_SETS, meta.name, {"status": status}, meta.namespace, subresource="status"
            )
        )


def _target_node(pod: Pod) -> str:
    """Return the node a daemon runs on or is meant for."""
    if pod.spec.node_name:
        return pod.spec.node_name
    affinity = pod.spec.affinity and pod.spec.affinity.node_affinity
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    terms: list[NodeSelectorTerm] = required.node_selector_terms if required else []
    for term in terms:
        for field in term.match_fields:
            if field.key == "metadata.name" and field.values:
                return field.values[0]
    return ""


# --- PodDisruptionBudget ----------------------------------------------------------


class BudgetController(Controller):
    """Keeps `status.disruptionsAllowed` of disruption budgets true."""

    name = "disruption-budgets"

    def __init__(self, caches: Caches, clock: Clock = utc_now) -> None:
        super().__init__(caches, clock)
        self.budgets = caches.of(DISRUPTION_BUDGETS, PodDisruptionBudget)
        self.pods = caches.of(PODS, Pod)

    def watch(self) -> None:
        """Look at budgets when they or pods of their namespace change."""
        self.budgets.add_handler(lambda _old, new: self.enqueue(key_of(new.metadata)) if new else None)

        def pod_changed(old: Pod | None, new: Pod | None) -> None:
            changed = new or old
            assert changed is not None
            for key, budget in self.budgets.items.items():
                if budget.metadata.namespace == changed.metadata.namespace and selects(
                    budget.spec.selector, changed.metadata.labels
                ):
                    self.enqueue(key)

        self.pods.add_handler(pod_changed)

    async def reconcile(self, key: str) -> float | None:
        """Count the healthy pods and say how many may go."""
        budget = self.budgets.get(key)
        if budget is None:
            return None
        pods = [
            pod
            for pod in self.pods.items.values()
            if pod.metadata.namespace == budget.metadata.namespace
            and selects(budget.spec.selector, pod.metadata.labels)
            and pod.status.phase not in ("Succeeded", "Failed")
        ]
        healthy = sum(is_ready(pod) and pod.metadata.deletion_timestamp is None for pod in pods)
        expected = len(pods)
        needed = 0
        if budget.spec.max_unavailable is not None:
            needed = expected - _count(budget.spec.max_unavailable, expected)
        elif budget.spec.min_available is not None:
            needed = _count(budget.spec.min_available, expected)
        allowed = max(0, healthy - max(0, needed)) if expected else 0
        status = {
            "currentHealthy": healthy,
            "desiredHealthy": max(0, needed),
            "expectedPods": expected,
            "disruptionsAllowed": allowed,
            "observedGeneration": budget.metadata.generation,
        }
        await ignoring_absence(
            self.client.patch(
                DISRUPTION_BUDGETS,
                budget.metadata.name,
                {"status": status},
                budget.metadata.namespace,
                subresource="status",
            )
        )
        return None


def _count(amount: str | int, total: int) -> int:
    return amount if isinstance(amount, int) else math.ceil(int(amount.rstrip("%")) * total / 100)
