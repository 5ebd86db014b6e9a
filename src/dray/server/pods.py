"""What only pods have: phases, quality of service, gates, binding, dying with grace.

Functions here decide; `writing` and `subresources` act.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dray.api.json_types import JsonObject
from dray.api.quantity import parse_quantity
from dray.api.validation.equality import is_same

_COMPUTE = ("cpu", "memory")
# Lists that an old client may drop from a status because it does not know them.
_KEPT_IF_ABSENT = (
    "resourceClaimStatuses",
    "extendedResourceClaimStatus",
    "nodeAllocatableResourceClaimStatuses",
)
GATED_MESSAGE = "Scheduling is blocked due to non-empty scheduling gates"
_ZERO = parse_quantity(0)


def prepare(new: JsonObject, old: JsonObject | None, now: str) -> None:
    """Give a new pod its first status; a changed one keeps its own."""
    if old is not None:
        return
    status: JsonObject = {"phase": "Pending"}
    if (new.get("spec") or {}).get("schedulingGates"):
        status["conditions"] = [
            {
                "type": "PodScheduled",
                "status": "False",
                "lastProbeTime": None,
                "lastTransitionTime": now,
                "reason": "SchedulingGated",
                "message": GATED_MESSAGE,
            }
        ]
    status["qosClass"] = quality_of_service(new.get("spec") or {})
    new["status"] = status


def prepare_status(new: JsonObject, old: JsonObject | None, now: str) -> None:
    """Keep parts of a status that a client left out without knowing them."""
    before = (old or {}).get("status") or {}
    status = dict(new.get("status") or {})
    if not status.get("qosClass") and before.get("qosClass"):
        status["qosClass"] = before["qosClass"]
    for part in _KEPT_IF_ABSENT:
        if status.get(part) is None and before.get(part):
            status[part] = before[part]
    if not status.get("observedGeneration") and before.get("observedGeneration"):
        status["observedGeneration"] = before["observedGeneration"]
    new["status"] = status


def quality_of_service(spec: Mapping[str, Any]) -> str:
    """Return Guaranteed, Burstable or BestEffort."""
    requests: dict[str, bool] = {}
    limited = True  # every container limits cpu and memory to what it requests
    if _amounts(spec, "requests") or _amounts(spec, "limits"):
        return _of_pod_level(spec)
    for container in _containers(spec):
        asked, allowed = _amounts(container, "requests"), _amounts(container, "limits")
        requests |= dict.fromkeys([*asked, *allowed], True)
        limited = limited and all(
            name in allowed and is_same(asked.get(name, allowed[name]), allowed[name]) for name in _COMPUTE
        )
    if not requests:
        return "BestEffort"
    return "Guaranteed" if limited else "Burstable"


def _of_pod_level(spec: Mapping[str, Any]) -> str:
    asked, allowed = _amounts(spec, "requests"), _amounts(spec, "limits")
    exact = all(name in allowed and asked.get(name, allowed[name]) == allowed[name] for name in _COMPUTE)
    return "Guaranteed" if exact else "Burstable"


def _containers(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from spec.get("containers") or ()
    yield from spec.get("initContainers") or ()


def _amounts(holder: Mapping[str, Any], part: str) -> dict[str, Any]:
    """Return the cpu and memory amounts above zero."""
    amounts = (holder.get("resources") or {}).get(part) or {}
    found = {name: parse_quantity(amounts[name]) for name in _COMPUTE if name in amounts}
    return {name: amount for name, amount in found.items() if amount > _ZERO}


def grace_period(pod: JsonObject, wanted: int | None) -> int:
    """Return how long a pod may take to die: nothing for one that runs nowhere or is done."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in ("Failed", "Succeeded"):
        return 0
    period = wanted if wanted is not None else spec.get("terminationGracePeriodSeconds") or 0
    return 1 if period < 0 else int(period)


def why_not_bindable(pod: JsonObject) -> str:
    """Return why a pod cannot be bound to a node now; "" when it can."""
    metadata, spec = pod["metadata"], pod.get("spec") or {}
    if metadata.get("deletionTimestamp"):
        return f"pod {metadata['name']} is being deleted, cannot be assigned to a host"
    if spec.get("nodeName"):
        return f'pod {metadata["name"]} is already assigned to node "{spec["nodeName"]}"'
    if spec.get("schedulingGates"):
        return f"pod {metadata['name']} has non-empty .spec.schedulingGates"
    return ""


def bound(
    pod: JsonObject, node: str, annotations: Mapping[str, str], labels: Mapping[str, str], now: str
) -> JsonObject:
    """Return the pod bound to a node."""
    metadata = dict(pod["metadata"])
    for part, more in (("annotations", annotations), ("labels", labels)):
        merged = {**(metadata.get(part) or {}), **more}
        if merged:
            metadata[part] = merged
    status = dict(pod.get("status") or {})
    status.pop("nominatedNodeName", None)
    status = with_condition(status, {"type": "PodScheduled", "status": "True"}, now)
    return {**pod, "metadata": metadata, "spec": {**pod["spec"], "nodeName": node}, "status": status}


def with_condition(status: JsonObject, condition: JsonObject, now: str) -> JsonObject:
    """Return a pod status with a condition set; its time moves only with its status."""
    conditions = list(status.get("conditions") or ())
    complete = {"lastProbeTime": None, "lastTransitionTime": now, **condition}
    for position, existing in enumerate(conditions):
        if existing.get("type") == condition["type"]:
            if existing.get("status") == condition["status"]:
                complete["lastTransitionTime"] = existing.get("lastTransitionTime")
            conditions[position] = complete
            break
    else:
        conditions.append(complete)
    return {**status, "conditions": conditions}
