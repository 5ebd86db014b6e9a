"""What an object costs under quota: objects by count, pods and claims as `dray.api.quota_charges` says."""

from __future__ import annotations

from collections.abc import Iterable

from dray.api.codec import to_view
from dray.api.json_types import JsonObject
from dray.api.kinds import RESOURCE
from dray.api.meta import ObjectMeta
from dray.api.pod_resources import HUGEPAGES_PREFIX
from dray.api.quota_charges import (
    COMPUTE,
    DEVICES_SUFFIX,
    ONE,
    PLAIN_COUNTS,
    Amounts,
    claim_charges,
    is_extended,
    owner_charged_first,
    pod_charges,
)
from dray.api.resource import DeviceRequest
from dray.api.well_known import DEVICE_CLASS_RESOURCE_PREFIX, TERMINAL_PHASES
from dray.server.admission.pod_amounts import amounts_of, pod_amounts
from dray.server.requests import Reader

CLAIMS = (RESOURCE, "resourceclaims")
PODS = ("", "pods")


def usage_of(group: str, resource: str, thing: JsonObject, reader: Reader) -> Amounts:
    """Return what an object is charged, by quota name."""
    count_name = f"count/{resource}.{group}" if group else f"count/{resource}"
    usage: Amounts = {count_name: ONE}
    if (group, resource) == PODS:
        usage.update(_pod_usage(thing))
    elif (group, resource) == CLAIMS:
        usage.update(_claim_usage(thing, reader))
    elif not group and resource in PLAIN_COUNTS:
        usage[resource] = ONE
    return usage


def concerns(group: str, resource: str, quota_names: Iterable[str], reader: Reader) -> list[str]:
    """Return the quota names that objects of a kind can be charged for."""
    count_name = f"count/{resource}.{group}" if group else f"count/{resource}"
    if (group, resource) == PODS:
        return [name for name in quota_names if name == count_name or _is_pod_name(name)]
    if (group, resource) == CLAIMS:
        return [name for name in quota_names if name == count_name or _is_claim_name(name, reader)]
    return [
        name
        for name in quota_names
        if name == count_name or (not group and name == resource and name in PLAIN_COUNTS)
    ]


def container_names_set(container: JsonObject) -> set[str]:
    """Return the quota names that a container says something about."""
    resources = container.get("resources") or {}
    return set(pod_charges(amounts_of(resources.get("requests")), amounts_of(resources.get("limits"))))


def _pod_usage(pod: JsonObject) -> Amounts:
    if (pod.get("status") or {}).get("phase") in TERMINAL_PHASES:
        return {}  # it holds nothing any more; only the object still counts
    spec = pod.get("spec") or {}
    return {"pods": ONE, **pod_charges(pod_amounts(spec, "requests"), pod_amounts(spec, "limits"))}


def _claim_usage(claim: JsonObject, reader: Reader) -> Amounts:
    requests = ((claim.get("spec") or {}).get("devices") or {}).get("requests") or ()
    return claim_charges(
        [to_view(DeviceRequest, request) for request in requests],
        lambda class_name: _extended_name(class_name, reader),
        _charged_to_pod(claim, reader),
    )


def _charged_to_pod(claim: JsonObject, reader: Reader) -> Amounts:
    """Return what the pod behind a scheduler-made claim has been charged already."""
    metadata = claim.get("metadata") or {}
    owner = owner_charged_first(to_view(ObjectMeta, metadata))
    if owner is None:
        return {}
    pod = reader.get("", "pods", metadata.get("namespace", ""), owner.name)
    if pod is None or pod["metadata"].get("uid") != owner.uid:
        return {}
    status = (pod.get("status") or {}).get("extendedResourceClaimStatus")
    if status and status.get("resourceClaimName") != metadata.get("name"):
        return {}
    return _pod_usage(pod)


def _extended_name(class_name: str, reader: Reader) -> str:
    found = reader.get(RESOURCE, "deviceclasses", "", class_name)
    return str(((found or {}).get("spec") or {}).get("extendedResourceName") or "")


def _is_pod_name(name: str) -> bool:
    if name == "pods" or name in COMPUTE or name.startswith(HUGEPAGES_PREFIX):
        return True
    side, _, rest = name.partition(".")
    if side == "limits":
        return rest in COMPUTE
    return side == "requests" and (rest in COMPUTE or rest.startswith(HUGEPAGES_PREFIX) or is_extended(rest))


def _is_claim_name(name: str, reader: Reader) -> bool:
    if name.endswith(DEVICES_SUFFIX):
        return True
    rest = name.removeprefix("requests.")
    if rest == name:
        return False
    if rest.startswith(DEVICE_CLASS_RESOURCE_PREFIX):
        return True
    classes = reader.list(RESOURCE, "deviceclasses")
    return any((found.get("spec") or {}).get("extendedResourceName") == rest for found in classes)
