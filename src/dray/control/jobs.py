"""Small controllers for Job and DaemonSet: run to completion, and one on every node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import timedelta

import msgspec

from dray.api.core import Node, Pod, PodSpec, Toleration
from dray.api.json_types import JsonObject
from dray.api.meta import NodeSelectorTerm
from dray.api.number_ranges import format_ranges, parse_ranges
from dray.api.times import format_time, parse_time
from dray.api.tolerations import NO_EXECUTE, NO_SCHEDULE, first_untolerated
from dray.api.well_known import JOB_CONTROLLER_UID_LABEL, JOB_NAME_LABEL
from dray.api.workloads import DaemonSet, Job
from dray.client import key_of
from dray.client.resources import DAEMON_SETS, JOBS, NODES, PODS
from dray.control.pod_templates import (
    Expectations,
    PodsByOwner,
    delete_pod,
    is_active,
    is_ready,
    pod_from_template,
    template_hash,
)
from dray.control.reconcile_loop import (
    LONGEST_WAIT,
    Caches,
    Clock,
    Controller,
    ignoring_absence,
    steady_now,
    wait_until,
)
from dray.host.clock import utc_now
from dray.scheduler import matches_node

INDEX = "batch.kubernetes.io/job-completion-index"
FIRST_RETRY = 10.0  # seconds; doubles with every failure
LONGEST_RETRY = 360.0


def finished_as(job: Job) -> str | None:
    """Return Complete or Failed when the job is over."""
    for condition in job.status.conditions:
        if condition.type in ("Complete", "Failed") and condition.status == "True":
            return condition.type
    return None


def index_of(pod: Pod) -> int:
    """Return the completion index of a pod, -1 when it has none."""
    return int((pod.metadata.annotations or {}).get(INDEX, "-1"))


def next_index(pods: list[Pod], completions: int, completed: Iterable[int] = ()) -> int | None:
    """Return the lowest completion index that no active or successful pod has."""
    taken = {index_of(pod) for pod in pods if is_active(pod) or pod.status.phase == "Succeeded"}
    taken |= set(completed)
    return next((index for index in range(completions) if index not in taken), None)


def successes(job: Job, pods: Iterable[Pod]) -> set[int] | set[str]:
    """Return what succeeded: indexes of an indexed job, counted ones included; else uids of pods."""
    done = [pod for pod in pods if pod.status.phase == "Succeeded"]
    if job.spec.completion_mode != "Indexed":
        return {pod.metadata.uid for pod in done}
    limit = job.spec.completions or 0
    found = {index_of(pod) for pod in done} | set(parse_ranges(job.status.completed_indexes))
    return {index for index in found if 0 <= index < limit}


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
        # Pods that were counted may be deleted since; what was counted stays counted.
        succeeded = max(len(successes(job, pods)), job.status.succeeded)
        failed = max(sum(pod.status.phase == "Failed" for pod in pods), job.status.failed)
        now = self.clock()
        completions = job.spec.completions if job.spec.completions is not None else None
        verdict: tuple[str, str, str] | None = None
        if failed > job.spec.backoff_limit:
            verdict = ("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
        elif job.spec.active_deadline_seconds is not None and job.status.start_time:
            if now - parse_time(job.status.start_time) >= timedelta(seconds=job.spec.active_deadline_seconds):
                verdict = ("Failed", "DeadlineExceeded", "Job was active longer than specified deadline")
        if verdict is None and (
            succeeded >= completions if completions is not None else succeeded > 0 and not active
        ):
            verdict = ("Complete", "CompletionsReached", "Reached expected number of succeeded pods")
        delay: float | None = None
        if verdict is not None or job.spec.suspend:
            await asyncio.gather(*(delete_pod(self, pod) for pod in active))
            active = []
        else:
            visible = {pod.metadata.name: is_active(pod) for pod in pods}
            delay = self.expectations.settle(job.metadata.uid, visible, steady_now())
            if delay is None:
                delay = await self._start(job, pods, active, succeeded, failed)
        await self._report(job, pods, active, succeeded, failed, verdict)
        if job.spec.active_deadline_seconds is not None and verdict is None:
            began = parse_time(job.status.start_time) if job.status.start_time else now
            end = began + timedelta(seconds=job.spec.active_deadline_seconds)
            delay = min(delay if delay is not None else 1e9, max(0.1, wait_until(end, now)))
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
                await delete_pod(self, pod)
                self.expectations.expect(job.metadata.uid, f"gone:{pod.metadata.name}", steady_now())
            return None
        if len(active) == wanted:
            return None
        if failed:
            # The youngest failure decides how long to wait before the next try.
            pause = min(FIRST_RETRY * 2.0 ** (failed - 1), LONGEST_RETRY)
            ends = [pod.metadata.creation_timestamp for pod in pods if pod.status.phase == "Failed"]
            latest = max((parse_time(end) for end in ends if end), default=None)
            left = pause - (self.clock() - latest).total_seconds() if latest is not None else 0.0
            if left > 0:
                return min(left, pause)
        running = list(pods)
        for _ in range(wanted - len(active)):
            body = pod_from_template(job.spec.template, JOBS, job.metadata)
            labels = body["metadata"].setdefault("labels", {})
            labels |= {
                JOB_NAME_LABEL: job.metadata.name,
                JOB_CONTROLLER_UID_LABEL: job.metadata.uid,
                "job-name": job.metadata.name,
                "controller-uid": job.metadata.uid,
            }
            if job.spec.completion_mode == "Indexed" and job.spec.completions is not None:
                index = next_index(running, job.spec.completions, parse_ranges(job.status.completed_indexes))
                if index is None:
                    break
                self._give_index(body, job, index)
            made = await self.client.create(PODS, body, job.metadata.namespace, view=Pod)
            running.append(made)
            self.expectations.expect(job.metadata.uid, f"made:{made.metadata.name}", steady_now())
        return None

    @staticmethod
    def _give_index(body: JsonObject, job: Job, index: int) -> None:
        body["metadata"]["generateName"] = f"{job.metadata.name}-{index}-"
        body["metadata"].setdefault("annotations", {})[INDEX] = str(index)
        body["metadata"]["labels"][INDEX] = str(index)
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
        self,
        job: Job,
        pods: list[Pod],
        active: list[Pod],
        succeeded: int,
        failed: int,
        verdict: tuple[str, str, str] | None,
    ) -> None:
        now = format_time(self.clock())
        status: JsonObject = {
            "active": len(active),
            "succeeded": succeeded,
            "failed": failed,
            "ready": sum(map(is_ready, active)),
        }
        if job.spec.completion_mode == "Indexed":
            status["completedIndexes"] = format_ranges(map(int, successes(job, pods)))
        if job.status.start_time is None and not job.spec.suspend:
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
        if same and verdict is None and "startTime" not in status:
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
            parse_time(c.last_transition_time) for c in job.status.conditions if c.last_transition_time
        )
        left = keep - (self.clock() - ended).total_seconds()
        if left > 0:
            return min(left, LONGEST_WAIT)
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


# Daemons stay on nodes that are in trouble.
DAEMON_TOLERATIONS: list[JsonObject] = [
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


def daemon_fits(template: JsonObject, node: Node) -> tuple[bool, bool]:
    """Return whether the node should get a daemon of the template, and whether one that runs there stays.

    As for all pods, a taint NoSchedule keeps new ones away and leaves running ones alone; only NoExecute and a node
    that is not selected end them.
    """
    spec = msgspec.convert(template.get("spec") or {}, PodSpec)
    labels = node.metadata.labels or {}
    affinity = spec.affinity and spec.affinity.node_affinity
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    if any(labels.get(key) != value for key, value in (spec.node_selector or {}).items()):
        return False, False
    if not matches_node(required, node.metadata.name, labels):
        return False, False
    tolerations = [*(spec.tolerations or ()), *msgspec.convert(DAEMON_TOLERATIONS, list[Toleration])]
    stays = first_untolerated(node.spec.taints, tolerations, (NO_EXECUTE,)) is None
    return stays and first_untolerated(node.spec.taints, tolerations, (NO_SCHEDULE,)) is None, stays


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
        fits = {name: daemon_fits(found.spec.template, node) for name, node in self.nodes.items.items()}
        wanted = {name for name, (should_run, _) in fits.items() if should_run}
        staying = {name for name, (_, stays) in fits.items() if stays}
        by_node: dict[str, list[Pod]] = {}
        for pod in pods:
            if is_active(pod):
                by_node.setdefault(_target_node(pod), []).append(pod)
        visible = {pod.metadata.name: is_active(pod) for pod in pods}
        wait = self.expectations.settle(found.metadata.uid, visible, steady_now())
        if wait is None:
            for name in sorted(wanted - set(by_node)):
                made = await self.client.create(
                    PODS, self._daemon(found, name, digest), found.metadata.namespace, view=Pod
                )
                self.expectations.expect(found.metadata.uid, f"made:{made.metadata.name}", steady_now())
            surplus = [
                pod for name, group in by_node.items() for pod in (group[1:] if name in staying else group)
            ]
            outdated = [
                pod
                for pod in pods
                if is_active(pod) and (pod.metadata.labels or {}).get("controller-revision-hash") != digest
            ]
            healthy = all(is_ready(pod) for group in by_node.values() for pod in group)
            # One at a time, and only from a healthy set: a bad template must not take all nodes down.
            if found.spec.update_strategy.type != "OnDelete" and healthy and not (wanted - set(by_node)):
                surplus += outdated[:1]
            failed = [
                pod
                for pod in pods
                if pod.status.phase == "Failed" and pod.metadata.deletion_timestamp is None
            ]
            for pod in [*surplus, *failed]:
                await delete_pod(self, pod)
                self.expectations.expect(found.metadata.uid, f"gone:{pod.metadata.name}", steady_now())
        await self._report(found, wanted, by_node, digest)
        return wait

    @staticmethod
    def _daemon(found: DaemonSet, node: str, digest: str) -> JsonObject:
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
            have.updated_number_scheduled,
            have.observed_generation,
        ) == (
            len(current),
            len(wanted),
            ready,
            updated,
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
