"""The status of a pod, computed from its state machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from dray.api.meta import Condition
from dray.api.times import format_time
from dray.api.well_known import CLAIMS_PREPARED
from dray.node.machine import DOWN, STARTING, UP, ContainerState, Ended, PodMachine, Stage

HealthOf = Callable[[str], Sequence[dict[str, Any]]]  # container name -> allocatedResourcesStatus


def pod_status(
    machine: PodMachine,
    now: float,
    node_ip: str,
    *,
    runtime: str,
    known_conditions: Sequence[Condition],
    health_of: HealthOf,
) -> dict[str, Any]:
    """Return the fields of the status that the node owns.

    Conditions that others own are kept; times of conditions that did not change are kept too.
    """
    pod = machine.pod
    status: dict[str, Any] = {
        "phase": machine.phase,
        "hostIP": node_ip,
        "hostIPs": [{"ip": node_ip}],
        "startTime": pod.status.start_time or format_time(now),
        "conditions": _conditions(machine, now, known_conditions),
        "containerStatuses": [_container(machine, state, runtime, health_of) for state in machine.main],
    }
    if machine.observed_generation > 1:
        status["observedGeneration"] = machine.observed_generation
    if machine.init:
        status["initContainerStatuses"] = [
            _container(machine, state, runtime, lambda _: ()) for state in machine.init
        ]
    if any(state.started_at for state in machine.containers):
        status["podIP"] = node_ip
        status["podIPs"] = [{"ip": node_ip}]
    if machine.failed_reason:
        status["reason"] = machine.failed_reason
    if machine.failed_message:
        status["message"] = machine.failed_message
    return status


def _conditions(machine: PodMachine, now: float, known: Sequence[Condition]) -> list[dict[str, Any]]:
    before = {condition.type: condition for condition in known}
    unready = [state.spec.name for state in machine.main if not state.is_ready]
    is_initialized = machine.stage in (
        Stage.RUNNING,
        Stage.STOPPING,
        Stage.RELEASING,
        Stage.FINISHED,
    ) and all(state.is_sidecar or state.stage == DOWN for state in machine.init)
    is_completed = machine.stage == Stage.FINISHED and machine.phase == "Succeeded"
    reason = "PodCompleted" if is_completed else "ContainersNotReady"
    message = "" if is_completed else f"containers with unready status: [{' '.join(unready)}]"
    is_ready = not unready and machine.stage == Stage.RUNNING
    wanted = [
        ("PodReadyToStartContainers", machine.stage not in (Stage.PREPARING, Stage.FINISHED), "", ""),
        ("Initialized", is_initialized, "" if is_initialized else "ContainersNotInitialized", ""),
        ("Ready", is_ready, "" if is_ready else reason, "" if is_ready else message),
        ("ContainersReady", is_ready, "" if is_ready else reason, "" if is_ready else message),
    ]
    if machine.claims_problem is not None:
        problem = machine.claims_problem
        wanted.append((CLAIMS_PREPARED, not problem, "ClaimsNotPrepared" if problem else "", problem))
    made: dict[str, dict[str, Any]] = {condition.type: msgspec.to_builtins(condition) for condition in known}
    for kind, is_true, why, text in wanted:
        value = "True" if is_true else "False"
        old = before.get(kind)
        is_same = old is not None and old.status == value and old.last_transition_time
        entry = {
            "type": kind,
            "status": value,
            "lastProbeTime": None,
            "lastTransitionTime": old.last_transition_time if is_same and old else format_time(now),
        }
        if why:
            entry["reason"] = why
        if text:
            entry["message"] = text
        made[kind] = entry
    return list(made.values())


def _container(
    machine: PodMachine, state: ContainerState, runtime: str, health_of: HealthOf
) -> dict[str, Any]:
    status: dict[str, Any] = {
        "name": state.spec.name,
        "image": state.spec.image,
        "imageID": "",
        "ready": state.is_ready or (state.is_init and state.ended is not None and state.ended.exit_code == 0),
        "started": state.stage == UP and state.has_started,
        "restartCount": state.attempt,
        "state": _current(machine, state, runtime),
    }
    if state.started_at:
        status["containerID"] = _container_id(machine, state.spec.name, state.attempt, runtime)
    last = state.last_ended
    if state.stage == DOWN and state.waiting_reason and state.ended is not None:
        last = state.ended
    if last is not None:
        status["lastState"] = {"terminated": _terminated(machine, state, last, runtime)}
    health = list(health_of(state.spec.name))
    if health:
        status["allocatedResourcesStatus"] = health
    return status


def _container_id(machine: PodMachine, name: str, attempt: int, runtime: str) -> str:
    return f"{runtime}://{machine.pod.metadata.uid}-{name}-{attempt}"


def _current(machine: PodMachine, state: ContainerState, runtime: str) -> dict[str, Any]:
    if state.stage == UP:
        return {"running": {"startedAt": format_time(state.started_at)}}
    if state.stage == DOWN and state.ended is not None and not state.waiting_reason:
        return {"terminated": _terminated(machine, state, state.ended, runtime)}
    waiting: dict[str, Any] = {"reason": state.waiting_reason or _why_waiting(machine, state)}
    if state.waiting_message:
        waiting["message"] = state.waiting_message
    return {"waiting": waiting}


def _why_waiting(machine: PodMachine, state: ContainerState) -> str:
    if state.stage == STARTING or machine.stage == Stage.PREPARING or state.is_init:
        return "ContainerCreating" if not machine.init or state.is_init else "PodInitializing"
    return "PodInitializing" if machine.init else "ContainerCreating"


def _terminated(machine: PodMachine, state: ContainerState, ended: Ended, runtime: str) -> dict[str, Any]:
    entry = {
        "exitCode": ended.exit_code,
        "reason": ended.reason,
        "startedAt": format_time(ended.started_at),
        "finishedAt": format_time(ended.finished_at),
        "containerID": _container_id(machine, state.spec.name, ended.attempt, runtime),
    }
    if ended.exit_code > 128:
        entry["signal"] = ended.exit_code - 128
    if ended.message:
        entry["message"] = ended.message
    return entry
