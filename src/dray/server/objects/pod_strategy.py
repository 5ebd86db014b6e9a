"""What only pods have: phases, quality of service, gates, binding, dying with grace.

Functions here decide; `create_and_update` and `subresources` act.
"""

from __future__ import annotations

from collections.abc import Mapping

from dray.api.json_types import JsonObject
from dray.api.validation.pod_quality import quality_of_service
from dray.api.well_known import TERMINAL_PHASES

# Lists that an old client may drop from a status because it does not know them.
_KEPT_IF_ABSENT = (
    "resourceClaimStatuses",
    "extendedResourceClaimStatus",
    "nodeAllocatableResourceClaimStatuses",
)
GATED_MESSAGE = "Scheduling is blocked due to non-empty scheduling gates"


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


def prepare_resize(new: JsonObject, old: JsonObject) -> None:
    """Keep everything of a pod but the resources of its containers; what cannot be kept is judged later."""
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    lists = ("containers", "initContainers")
    if any(len(spec.get(name) or ()) != len(before.get(name) or ()) for name in lists):
        return
    kept = dict(before)
    for name in lists:
        if spec.get(name):
            kept[name] = _resized(spec[name], before[name])
    if spec.get("resources") is not None:
        kept["resources"] = spec["resources"]
    new["spec"] = kept
    _keep_all_but_spec(new, old)


def prepare_claims(new: JsonObject, old: JsonObject) -> None:
    """Keep everything of a pod but its list of claims."""
    spec = dict(old.get("spec") or {})
    claims = (new.get("spec") or {}).get("resourceClaims")
    spec.pop("resourceClaims", None)
    new["spec"] = {**spec, "resourceClaims": claims} if claims else spec
    _keep_all_but_spec(new, old)


def _keep_all_but_spec(new: JsonObject, old: JsonObject) -> None:
    if "status" in old:
        new["status"] = old["status"]
    for part in ("labels", "annotations", "finalizers", "ownerReferences"):
        if part in old["metadata"]:
            new["metadata"][part] = old["metadata"][part]
        else:
            new["metadata"].pop(part, None)


def _resized(new: list[JsonObject], old: list[JsonObject]) -> list[JsonObject]:
    if any(one.get("name") != other.get("name") for one, other in zip(new, old, strict=True)):
        return new
    merged: list[JsonObject] = []
    for one, other in zip(new, old, strict=True):
        kept = {name: part for name, part in other.items() if name not in ("resources", "resizePolicy")}
        merged.append({**kept, **{n: one[n] for n in ("resources", "resizePolicy") if n in one}})
    return merged


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


def grace_period(pod: JsonObject, wanted: int | None) -> int:
    """Return how long a pod may take to end: no time for one that runs nowhere or has ended."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in TERMINAL_PHASES:
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
