"""Jobs as people see them: who runs what on which devices, until when, and who waits in which order.

A job is a pod; its user is its namespace (on a shared machine every user has one). Pure: pods and claims come in
as plain JSON, the time as an argument. `ps`, `queue`, `run` while it waits, and `wait` use the same values.

The order of the queue is that of the scheduler: priority, then (where it shares fairly) the user's standing, then age.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from dray.api.json_types import JsonObject
from dray.api.times import parse_time
from dray.api.well_known import AFTER_ANNOTATION, AFTER_GATE, TERMINAL_PHASES
from dray.api.wording import join_names

OVER = frozenset({"finished", "failed"})
_COMMAND_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class JobState:
    """One job at one moment; times are seconds since 1970, None means: not yet."""

    namespace: str
    name: str
    state: str  # waiting, after, starting, running, stopping, finished, failed
    created: float
    started: float | None = None
    ended: float | None = None
    ends: float | None = None  # at the latest; None: no time limit, or not started
    seconds: int | None = None  # its time limit
    exit_code: int | None = None
    priority: int = 0
    node: str = ""
    devices: tuple[str, ...] = ()  # held: driver/pool/device
    wanted: tuple[str, ...] = ()  # requested: `2 gpu.nvidia.com`
    command: str = ""
    message: str = ""  # why it waits or how it failed
    after: str = ""
    uid: str = ""

    @property
    def key(self) -> str:
        """`namespace/name`; the namespace alone for a job whose name the caller may not know."""
        return f"{self.namespace}/{self.name}" if self.name else self.namespace

    def to_json(self) -> JsonObject:
        """Return the job for `--output json`."""
        return {
            "namespace": self.namespace,
            "name": self.name,
            "state": self.state,
            "created": self.created,
            "started": self.started,
            "ended": self.ended,
            "ends": self.ends,
            "timeLimitSeconds": self.seconds,
            "exitCode": self.exit_code,
            "priority": self.priority,
            "node": self.node,
            "devices": list(self.devices),
            "wanted": list(self.wanted),
            "command": self.command,
            "message": self.message,
        }


def job_states(pods: Iterable[JsonObject], claims: Iterable[JsonObject]) -> list[JobState]:
    """Return the jobs, oldest first."""
    claims_by_key = {_key(claim): claim for claim in claims}
    found = [_job(pod, claims_by_key) for pod in pods]
    return sorted(found, key=lambda job: (job.created, job.key))


def queue_order(jobs: Iterable[JobState], place_by_uid: Mapping[str, int] | None = None) -> list[JobState]:
    """Return the jobs that wait for a place, next first; `place_by_uid` is the scheduler's own order where it tells."""
    places = place_by_uid or {}
    waiting = [job for job in jobs if job.state == "waiting"]
    return sorted(waiting, key=lambda job: (places.get(job.uid, inf), -job.priority, job.created, job.key))


def moment_text(moment: float) -> str:
    """Return a moment in local time: `Thu 14:05`."""
    return time.strftime("%a %H:%M", time.localtime(moment))


def holders(jobs: Iterable[JobState], most: int = 5) -> list[str]:
    """Return who holds devices and until when, next to end first, at most `most` lines."""
    holding = sorted(
        (job for job in jobs if job.devices and job.state not in OVER), key=lambda job: job.ends or inf
    )
    lines = [f"{job.key} holds {join_names(job.devices, 4)}, {end_text(job)}" for job in holding[:most]]
    if len(holding) > most:
        lines.append(f"and {len(holding) - most} more jobs hold devices")
    return lines


def end_text(job: JobState) -> str:
    """Return until when a job runs, in words and in local time."""
    if job.ends is None:
        return "without a time limit"
    return f"until {moment_text(job.ends)} at the latest"


def position_text(queue: Sequence[JobState], key: str) -> str:
    """Return the place of a job in the queue.

    >>> position_text([JobState("a", "x", "waiting", 0.0), JobState("a", "y", "waiting", 1.0)], "a/y")
    'number 2 of 2 that wait'
    """
    for number, job in enumerate(queue, 1):
        if job.key == key:
            return f"number {number} of {len(queue)} that wait"
    return ""


def _key(obj: JsonObject) -> str:
    metadata = obj.get("metadata") or {}
    return f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"


def _job(pod: JsonObject, claims_by_key: Mapping[str, JsonObject]) -> JobState:
    metadata, spec, status = (pod.get(part) or {} for part in ("metadata", "spec", "status"))
    ended, exit_code = _end(status)
    started = _time(status.get("startTime"))
    seconds = spec.get("activeDeadlineSeconds")
    mine = [claims_by_key[key] for key in _claim_keys(pod) if key in claims_by_key]
    state = _state(metadata, spec, status)
    containers = spec.get("containers") or [{}]
    words = [*(containers[0].get("command") or []), *(containers[0].get("args") or [])]
    return JobState(
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata.get("name", "")),
        state=state,
        created=_time(metadata.get("creationTimestamp")) or 0.0,
        started=started,
        ended=ended,
        ends=started + seconds if started is not None and seconds is not None and state not in OVER else None,
        seconds=seconds,
        exit_code=exit_code,
        priority=int(spec.get("priority") or 0),
        node=str(spec.get("nodeName") or ""),
        devices=tuple(device for claim in mine for device in _devices(claim)) if state not in OVER else (),
        wanted=tuple(text for claim in mine for text in _wanted(claim)),
        command=" ".join(words)[:_COMMAND_CHARACTERS] or str(containers[0].get("image", "")),
        message=_message(status),
        after=str((metadata.get("annotations") or {}).get(AFTER_ANNOTATION, "")),
        uid=str(metadata.get("uid", "")),
    )


def _state(metadata: JsonObject, spec: JsonObject, status: JsonObject) -> str:
    phase = status.get("phase")
    if phase in TERMINAL_PHASES:
        return "finished" if phase == "Succeeded" else "failed"
    if metadata.get("deletionTimestamp"):
        return "stopping"
    if phase == "Running":
        return "running"
    if spec.get("nodeName"):
        return "starting"
    gates = {gate.get("name") for gate in spec.get("schedulingGates") or []}
    return "after" if AFTER_GATE in gates else "waiting"


def _end(status: JsonObject) -> tuple[float | None, int | None]:
    for container in status.get("containerStatuses") or []:
        terminated = (container.get("state") or {}).get("terminated")
        if terminated is not None:
            return _time(terminated.get("finishedAt")), int(terminated.get("exitCode") or 0)
    return None, None


def _message(status: JsonObject) -> str:
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or "")
    if status.get("phase") == "Failed":
        return str(status.get("message") or status.get("reason") or "")
    return ""


def _claim_keys(pod: JsonObject) -> list[str]:
    namespace = (pod.get("metadata") or {}).get("namespace", "")
    made = {
        each.get("name"): each.get("resourceClaimName")
        for each in (pod.get("status") or {}).get("resourceClaimStatuses") or []
    }
    references = (pod.get("spec") or {}).get("resourceClaims") or []
    names = [each.get("resourceClaimName") or made.get(each.get("name")) for each in references]
    return [f"{namespace}/{name}" for name in names if name]


def _devices(claim: JsonObject) -> list[str]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results: list[dict[str, Any]] = (allocation.get("devices") or {}).get("results") or []
    return [f"{result.get('driver')}/{result.get('pool')}/{result.get('device')}" for result in results]


def _wanted(claim: JsonObject) -> list[str]:
    found = []
    for request in ((claim.get("spec") or {}).get("devices") or {}).get("requests") or []:
        exactly = request.get("exactly") or (request.get("firstAvailable") or [{}])[0]
        count = "all" if exactly.get("allocationMode") == "All" else exactly.get("count", 1)
        found.append(f"{count} {exactly.get('deviceClassName', '')}")
    return found


def _time(text: Any) -> float | None:
    return parse_time(text).timestamp() if isinstance(text, str) and text else None
