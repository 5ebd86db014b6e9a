"""Rows of pods, workloads and jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dray.api.conditions import is_true_in
from dray.api.json_types import JsonObject
from dray.api.label_selectors import format_selector
from dray.api.well_known import TERMINAL_PHASES
from dray.server.tables.ages import Since, age, epoch, human_duration

NONE = "<none>"
Cells = list[Any]


def pod_cells(pod: JsonObject) -> Cells:
    """Return name, readiness, state, restarts, age and, wide, address, node and gates."""
    spec, status, metadata = pod.get("spec") or {}, pod.get("status") or {}, pod["metadata"]
    init = _InitProgress(spec, status)
    state, ready, restarts, last_restart = (
        init.state or _phase(status),
        init.ready,
        init.restarts,
        init.last_restart,
    )
    if not init.state or is_true_in(status, "Initialized"):
        restarts, last_restart = init.sidecar_restarts, init.sidecar_last_restart
        containers = _Containers(status, _phase(status) if not init.state else init.state)
        state, ready = containers.state, ready + containers.ready
        restarts, last_restart = restarts + containers.restarts, max(last_restart, containers.last_restart)
    if metadata.get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            state = "Unknown"
        elif status.get("phase") not in TERMINAL_PHASES:
            state = "Terminating"
    shown_restarts: Since | str = str(restarts)
    if restarts and last_restart:
        shown_restarts = Since(last_restart, f"{restarts} (", " ago)")
    addresses = status.get("podIPs") or [{}]
    return [
        metadata.get("name", ""),
        f"{ready}/{len(spec.get('containers') or ()) + len(init.sidecars)}",
        state,
        shown_restarts,
        age(metadata.get("creationTimestamp")),
        addresses[0].get("ip") or NONE,
        spec.get("nodeName") or NONE,
        status.get("nominatedNodeName") or NONE,
        _gates(spec, status),
    ]


def pod_conditions(pod: JsonObject) -> list[JsonObject] | None:
    """Return the row conditions by which clients grey out finished pods."""
    phase = (pod.get("status") or {}).get("phase")
    text = {"Succeeded": "The pod has completed successfully.", "Failed": "The pod failed."}.get(phase or "")
    if text is None:
        return None
    return [{"type": "Completed", "status": "True", "reason": phase, "message": text}]


def deployment_cells(thing: JsonObject) -> Cells:
    """Return the row of a Deployment."""
    spec, status = thing.get("spec") or {}, thing.get("status") or {}
    return [
        thing["metadata"].get("name", ""),
        f"{status.get('readyReplicas', 0)}/{_replicas(spec)}",
        status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0),
        age(thing["metadata"].get("creationTimestamp")),
        *_container_cells(spec),
        format_selector(spec.get("selector")),
    ]


def replica_set_cells(thing: JsonObject) -> Cells:
    """Return the row of a ReplicaSet."""
    spec, status = thing.get("spec") or {}, thing.get("status") or {}
    return [
        thing["metadata"].get("name", ""),
        _replicas(spec),
        status.get("replicas", 0),
        status.get("readyReplicas", 0),
        age(thing["metadata"].get("creationTimestamp")),
        *_container_cells(spec),
        format_selector(spec.get("selector")) or NONE,
    ]


def daemon_set_cells(thing: JsonObject) -> Cells:
    """Return the row of a DaemonSet."""
    spec, status = thing.get("spec") or {}, thing.get("status") or {}
    node_selector = ((spec.get("template") or {}).get("spec") or {}).get("nodeSelector") or {}
    counts = (
        "desiredNumberScheduled",
        "currentNumberScheduled",
        "numberReady",
        "updatedNumberScheduled",
        "numberAvailable",
    )
    return [
        thing["metadata"].get("name", ""),
        *(status.get(count, 0) for count in counts),
        ",".join(f"{key}={node_selector[key]}" for key in sorted(node_selector)) or NONE,
        age(thing["metadata"].get("creationTimestamp")),
        *_container_cells(spec),
        format_selector(spec.get("selector")) or NONE,
    ]


def job_cells(thing: JsonObject) -> Cells:
    """Return the row of a Job."""
    spec, status = thing.get("spec") or {}, thing.get("status") or {}
    succeeded, parallelism = status.get("succeeded", 0), spec.get("parallelism") or 0
    if spec.get("completions") is not None:
        completions = f"{succeeded}/{spec['completions']}"
    else:
        completions = f"{succeeded}/1 of {parallelism}" if parallelism > 1 else f"{succeeded}/1"
    start = epoch(status["startTime"]) if status.get("startTime") else None
    end = epoch(status["completionTime"]) if status.get("completionTime") else None
    return [
        thing["metadata"].get("name", ""),
        _job_state(thing, status),
        completions,
        "" if start is None else Since(start) if end is None else human_duration(end - start),
        age(thing["metadata"].get("creationTimestamp")),
        *_container_cells(spec),
        format_selector(spec.get("selector")) or NONE,
    ]


class _InitProgress:
    """How far the init containers are; `state` is empty when they are done."""

    def __init__(self, spec: JsonObject, status: JsonObject) -> None:
        containers = spec.get("initContainers") or []
        self.sidecars = {c.get("name") for c in containers if c.get("restartPolicy") == "Always"}
        self.state, self.ready, self.restarts, self.sidecar_restarts = "", 0, 0, 0
        self.last_restart = self.sidecar_last_restart = 0.0
        for position, container in enumerate(status.get("initContainerStatuses") or ()):
            is_sidecar = container.get("name") in self.sidecars
            self.restarts += container.get("restartCount", 0)
            self.last_restart = max(self.last_restart, _last_end(container))
            if is_sidecar:
                self.sidecar_restarts += container.get("restartCount", 0)
                self.sidecar_last_restart = max(self.sidecar_last_restart, _last_end(container))
            terminated, waiting = _states(container)
            if terminated is not None and not terminated.get("exitCode"):
                continue
            if is_sidecar and container.get("started"):
                self.ready += bool(container.get("ready"))
                continue
            if terminated is not None:
                self.state = "Init:" + _end_reason(terminated)
            elif waiting.get("reason") and waiting["reason"] != "PodInitializing":
                self.state = "Init:" + waiting["reason"]
            else:
                self.state = f"Init:{position}/{len(containers)}"
            break


class _Containers:
    """What the containers of a pod say about its state."""

    def __init__(self, status: JsonObject, state: str) -> None:
        self.state, self.ready, self.restarts, self.last_restart = state, 0, 0, 0.0
        running, error = False, ""
        for container in reversed(status.get("containerStatuses") or ()):
            self.restarts += container.get("restartCount", 0)
            self.last_restart = max(self.last_restart, _last_end(container))
            terminated, waiting = _states(container)
            if waiting.get("reason"):
                self.state = waiting["reason"]
            elif terminated is not None:
                self.state = _end_reason(terminated)
                if terminated.get("exitCode"):
                    error = self.state
            elif container.get("ready") and (container.get("state") or {}).get("running") is not None:
                running = True
                self.ready += 1
        if self.state == "Completed":
            # Some containers ended well; what counts is what the others do.
            if running and is_true_in(status, "Ready"):
                self.state = "Running"
            elif error:
                self.state = error
            elif running:
                self.state = "NotReady"


def _phase(status: JsonObject) -> str:
    conditions = status.get("conditions") or ()
    if any(c.get("type") == "PodScheduled" and c.get("reason") == "SchedulingGated" for c in conditions):
        return "SchedulingGated"
    return str(status.get("reason") or status.get("phase") or "")


def _states(container: JsonObject) -> tuple[JsonObject | None, JsonObject]:
    state = container.get("state") or {}
    return state.get("terminated"), state.get("waiting") or {}


def _end_reason(terminated: JsonObject) -> str:
    if terminated.get("reason"):
        return str(terminated["reason"])
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated.get('exitCode', 0)}"


def _last_end(container: JsonObject) -> float:
    finished = ((container.get("lastState") or {}).get("terminated") or {}).get("finishedAt")
    return (epoch(finished) or 0.0) if finished else 0.0


def _gates(spec: JsonObject, status: JsonObject) -> str:
    gates = spec.get("readinessGates") or ()
    if not gates:
        return NONE
    passed = sum(is_true_in(status, gate.get("conditionType", "")) for gate in gates)
    return f"{passed}/{len(gates)}"


def _replicas(spec: JsonObject) -> int:
    replicas = spec.get("replicas")
    return 1 if replicas is None else int(replicas)


def _container_cells(spec: JsonObject) -> list[str]:
    containers = ((spec.get("template") or {}).get("spec") or {}).get("containers") or ()
    return [",".join(container.get(part, "") for container in containers) for part in ("name", "image")]


def _job_state(thing: JsonObject, status: JsonObject) -> str:
    for condition, shown in (("Complete", "Complete"), ("Failed", "Failed")):
        if is_true_in(status, condition):
            return shown
    if thing["metadata"].get("deletionTimestamp"):
        return "Terminating"
    for condition in ("Suspended", "FailureTarget", "SuccessCriteriaMet"):
        if is_true_in(status, condition):
            return condition
    return "Running"


# --- HorizontalPodAutoscaler -----------------------------------------------------

_SHOWN_METRICS = 2


def pod_autoscaler_cells(autoscaler: JsonObject) -> Cells:
    """Return name, target, metrics with their values, bounds, replicas and age."""
    spec, status, metadata = (
        autoscaler.get("spec") or {},
        autoscaler.get("status") or {},
        autoscaler["metadata"],
    )
    target = spec.get("scaleTargetRef") or {}
    least = spec.get("minReplicas")
    return [
        metadata.get("name", ""),
        f"{target.get('kind', '')}/{target.get('name', '')}",
        _metrics(spec.get("metrics") or (), status.get("currentMetrics") or ()),
        "<unset>" if least is None else str(least),
        spec.get("maxReplicas") or 0,
        status.get("currentReplicas") or 0,
        age(metadata.get("creationTimestamp")),
    ]


def _metrics(specs: Sequence[JsonObject], statuses: Sequence[JsonObject]) -> str:
    if not specs:
        return NONE
    shown = [
        _metric(spec, statuses[index] if index < len(statuses) else {}) for index, spec in enumerate(specs)
    ]
    text = ", ".join(shown[:_SHOWN_METRICS])
    more = len(shown) - _SHOWN_METRICS
    return f"{text} + {more} more..." if more > 0 else text


def _metric(spec: JsonObject, status: JsonObject) -> str:
    kind = spec.get("type") or ""
    field = kind[:1].lower() + kind[1:]
    source = spec.get(field)
    if source is None:
        return "<unknown type>"
    found = status.get(field)
    target, current = source.get("target") or {}, (found or {}).get("current") or {}
    prefix = f"{source['name']}: " if field in ("resource", "containerResource") else ""
    if prefix and target.get("averageValue") is None:
        now = current.get("averageUtilization")
        wanted = target.get("averageUtilization")
        shown = "<unknown>" if now is None else f"{now}%"
        return f"{prefix}{shown}/{'<auto>' if wanted is None else f'{wanted}%'}"
    has_average = target.get("averageValue") is not None
    name = "averageValue" if has_average else "value"
    now = current.get(name)
    suffix = " (avg)" if has_average and field in ("object", "external") else ""
    return f"{prefix}{'<unknown>' if now is None else now}/{target.get(name)}{suffix}"
