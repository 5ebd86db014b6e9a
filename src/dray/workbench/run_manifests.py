"""A claim and a pod from a few words: `--device gpu.nvidia.com --min memory=40Gi --count 2`.

Pure: flags in, manifests out. The claim belongs to the pod (owner reference), so that
deleting the pod deletes both, whoever deletes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dray.api.conditions import is_true_in
from dray.api.json_types import JsonObject
from dray.api.user_names import PRIVATE_TMP_ANNOTATION, TELL_EDITS_ANNOTATION
from dray.api.well_known import (
    AFTER_ANNOTATION,
    AFTER_GATE,
    HIGH_PRIORITY_CLASS,
    LOW_PRIORITY_CLASS,
    MANAGED_BY_LABEL,
    RUN_MANAGER,
)

CONTAINER = "main"
GRACE_SECONDS = 10  # from SIGTERM to SIGKILL
PRIORITIES = {"low": LOW_PRIORITY_CLASS, "normal": "", "high": HIGH_PRIORITY_CLASS}  # -> priority class
STANDARD_ATTRIBUTES = ("pcieRoot", "pciBusID", "numaNode")
_DRIVER = re.compile(r"""device\.driver\s*==\s*["']([^"']+)["']""")


@dataclass(slots=True)
class DeviceFlags:
    """What is wanted of one device class."""

    class_name: str
    count: int = 1  # 0 means: all
    minimums: list[tuple[str, str]] = field(default_factory=list)  # capacity name, amount
    wheres: list[str] = field(default_factory=list)
    capacity: dict[str, str] = field(default_factory=dict)


def driver_of(device_class: JsonObject) -> str:
    """Return the driver that a class selects, or its own name, which is usually the same."""
    for selector in (device_class.get("spec") or {}).get("selectors") or []:
        found = _DRIVER.search(((selector.get("cel") or {}).get("expression")) or "")
        if found:
            return found[1]
    return str((device_class.get("metadata") or {}).get("name") or "")


def minimum_expression(driver: str, name: str, amount: str) -> str:
    """Return the selector for "at least this much": devices that lack the capacity do not match.

    >>> minimum_expression("gpu.nvidia.com", "memory", "40Gi").partition(" && ")[0]
    'has(device.capacity["gpu.nvidia.com"].memory)'
    """
    domain, slash, identifier = name.partition("/")
    if not slash:
        domain, identifier = driver, name
    operand = f"device.capacity[{json.dumps(domain)}].{identifier}"
    return f"has({operand}) && {operand}.compareTo(quantity({json.dumps(amount)})) >= 0"


def full_attribute(name: str, driver: str) -> str:
    """Return an attribute with its domain: the standard one for standard names, else the driver's."""
    if "/" in name:
        return name
    return f"resource.kubernetes.io/{name}" if name in STANDARD_ATTRIBUTES else f"{driver}/{name}"


def claim_spec(devices: Sequence[DeviceFlags], drivers: Sequence[str], same: Sequence[str]) -> JsonObject:
    """Return the spec of a claim with one request for each device."""
    requests = []
    for number, (device, driver) in enumerate(zip(devices, drivers, strict=True)):
        exactly: JsonObject = {"deviceClassName": device.class_name}
        expressions = [minimum_expression(driver, name, amount) for name, amount in device.minimums]
        expressions += device.wheres
        if expressions:
            exactly["selectors"] = [{"cel": {"expression": text}} for text in expressions]
        if device.count == 0:
            exactly["allocationMode"] = "All"
        elif device.count != 1:
            exactly["count"] = device.count
        if device.capacity:
            exactly["capacity"] = {"requests": dict(device.capacity)}
        requests.append({"name": f"device-{number}" if len(devices) > 1 else "device", "exactly": exactly})
    spec: JsonObject = {"requests": requests}
    if same:
        spec["constraints"] = [{"matchAttribute": full_attribute(name, drivers[0])} for name in same]
    return {"devices": spec}


@dataclass(frozen=True, slots=True)
class Job:
    """What `dray run` starts: one container of one pod."""

    name: str
    namespace: str
    image: str
    command: Sequence[str] = ()  # empty means: as the image says
    environment: Mapping[str, str] = field(default_factory=dict)
    working_directory: str = ""  # empty means: as the image says
    resources: Mapping[str, str] = field(default_factory=dict)  # cpu and memory: requested, and the limit
    seconds: int | None = None  # longest time; None means: no limit of its own
    priority: str = "normal"
    after: str = ""  # the job that must have ended first
    has_devices: bool = True
    has_private_tmp: bool = False
    wants_edits: bool = False  # the command gets what CDI says of its devices, see EDITS_VARIABLE


def literal(text: str) -> str:
    """Return text that a container gets as it is: Kubernetes replaces `$(NAME)` and `$$` in commands and variables.

    >>> literal("echo $HOME"), literal("echo $(date)"), literal("echo $$")
    ('echo $HOME', 'echo $$(date)', 'echo $$$$')
    """
    return text.replace("$", "$$") if "$(" in text or "$$" in text else text


def pod_manifest(job: Job) -> JsonObject:
    """Return a pod that runs a command once, with the devices of the claim of its name."""
    resources: JsonObject = {}
    if job.resources:
        resources = {"requests": dict(job.resources), "limits": dict(job.resources)}
    spec: JsonObject = {"restartPolicy": "Never", "terminationGracePeriodSeconds": GRACE_SECONDS}
    if job.has_devices:
        resources["claims"] = [{"name": "devices"}]
        spec["resourceClaims"] = [{"name": "devices", "resourceClaimName": job.name}]
    container: JsonObject = {"name": CONTAINER, "image": job.image}
    if resources:
        container["resources"] = resources
    if job.command:
        container["command"] = [literal(word) for word in job.command]
    if job.environment:
        container["env"] = [{"name": key, "value": literal(value)} for key, value in job.environment.items()]
    if job.working_directory:
        container["workingDir"] = job.working_directory
    if job.seconds is not None:
        spec["activeDeadlineSeconds"] = job.seconds
    if PRIORITIES[job.priority]:
        spec["priorityClassName"] = PRIORITIES[job.priority]
    metadata: JsonObject = {
        "name": job.name,
        "namespace": job.namespace,
        "labels": {MANAGED_BY_LABEL: RUN_MANAGER},
    }
    wanted = {
        PRIVATE_TMP_ANNOTATION: "true" if job.has_private_tmp else "",
        TELL_EDITS_ANNOTATION: "true" if job.wants_edits else "",
        AFTER_ANNOTATION: job.after,
    }
    annotations = {name: value for name, value in wanted.items() if value}
    if annotations:
        metadata["annotations"] = annotations
    if job.after:
        spec["schedulingGates"] = [{"name": AFTER_GATE}]
    spec["containers"] = [container]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def claim_manifest(name: str, namespace: str, spec: JsonObject, pod_uid: str = "") -> JsonObject:
    """Return the claim; with the pod's uid it belongs to the pod."""
    metadata: JsonObject = {"name": name, "namespace": namespace}
    if pod_uid:
        owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod_uid, "controller": False}
        metadata["ownerReferences"] = [owner]
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": spec}


def exit_code_of(pod: JsonObject) -> int | None:
    """Return the exit code of the pod's container; None while it has not ended."""
    status = pod.get("status") or {}
    for container in status.get("containerStatuses") or []:
        ended = (container.get("state") or {}).get("terminated")
        if ended is not None:
            return int(ended.get("exitCode") or 0)
    if status.get("phase") == "Failed":
        return 1
    return 0 if status.get("phase") == "Succeeded" else None


def eviction_of(pod: JsonObject) -> str:
    """Return that and why a job was evicted for another one; "" when it was not."""
    status = pod.get("status") or {}
    reasons = [
        each.get("reason")
        for each in status.get("conditions") or []
        if each.get("type") == "DisruptionTarget"
    ]
    if "PreemptionByScheduler" in reasons and is_true_in(status, "DisruptionTarget"):
        return "evicted: a job of higher priority needed its devices"
    return ""


def is_started(pod: JsonObject) -> bool:
    """Return whether the container has begun to run (or has even ended), so that it has a log."""
    for container in (pod.get("status") or {}).get("containerStatuses") or []:
        state = container.get("state") or {}
        if state.get("running") is not None or state.get("terminated") is not None:
            return True
    return False


def trouble_of(pod: JsonObject) -> str:
    """Return what keeps a placed pod's container from starting, or an empty text."""
    for container in (pod.get("status") or {}).get("containerStatuses") or []:
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason") or ""
        if reason and reason not in ("ContainerCreating", "PodInitializing"):
            return f"{reason}: {waiting.get('message') or ''}".rstrip(": ")
    return ""
