"""A claim and a pod from a few words: `--device gpu.nvidia.com --min memory=40Gi --count 2`.

Pure: flags in, manifests out. The claim belongs to the pod (owner reference), so that
deleting the pod deletes both, whoever deletes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from dray.api.json_types import JsonObject

STANDARD_ATTRIBUTES = ("pcieRoot", "pciBusID", "numaNode")
_DRIVER = re.compile(r"""device\.driver\s*==\s*["']([^"']+)["']""")


@dataclass(slots=True)
class DeviceWish:
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


def claim_spec(wishes: Sequence[DeviceWish], drivers: Sequence[str], same: Sequence[str]) -> JsonObject:
    """Return the spec of a claim with one request for each wish."""
    requests = []
    for number, (wish, driver) in enumerate(zip(wishes, drivers, strict=True)):
        exactly: JsonObject = {"deviceClassName": wish.class_name}
        expressions = [minimum_expression(driver, name, amount) for name, amount in wish.minimums]
        expressions += wish.wheres
        if expressions:
            exactly["selectors"] = [{"cel": {"expression": text}} for text in expressions]
        if wish.count == 0:
            exactly["allocationMode"] = "All"
        elif wish.count != 1:
            exactly["count"] = wish.count
        if wish.capacity:
            exactly["capacity"] = {"requests": dict(wish.capacity)}
        requests.append({"name": f"device-{number}" if len(wishes) > 1 else "device", "exactly": exactly})
    devices: JsonObject = {"requests": requests}
    if same:
        devices["constraints"] = [{"matchAttribute": full_attribute(name, drivers[0])} for name in same]
    return {"devices": devices}


def pod_manifest(
    name: str, namespace: str, image: str, command: Sequence[str], environment: JsonObject
) -> JsonObject:
    """Return a pod that runs a command once, with the devices of the claim of its name."""
    container: JsonObject = {
        "name": "main",
        "image": image,
        "resources": {"claims": [{"name": "devices"}]},
    }
    if command:
        container["command"] = list(command)
    if environment:
        container["env"] = [{"name": key, "value": value} for key, value in environment.items()]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"app.kubernetes.io/managed-by": "dray-run"},
        },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 2,
            "resourceClaims": [{"name": "devices", "resourceClaimName": name}],
            "containers": [container],
        },
    }


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


def is_started(pod: JsonObject) -> bool:
    """Say whether the container has begun to run (or has even ended), so that it has a log."""
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
