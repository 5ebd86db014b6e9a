"""What an object costs under quota: objects by count, pods by what they ask for, claims by devices.

Names are those of ResourceQuota: `pods`, `requests.cpu`, `count/jobs.batch`,
`<class>.deviceclass.resource.k8s.io/devices`, `requests.<extended resource>`,
`requests.deviceclass.resource.kubernetes.io/<class>`. A request for all devices
costs 32, the most that a claim can get; alternatives cost, per class, the dearest.

Extended resources that a DeviceClass provides are counted once: the claim which
the scheduler makes for such a pod is charged only with what the pod is not.
"""

from __future__ import annotations

from collections.abc import Iterable

from dray.api.json_types import JsonObject
from dray.api.quantity import Quantity
from dray.api.well_known import DEVICE_CLASS_RESOURCE_PREFIX, EXTENDED_CLAIM_ANNOTATION
from dray.server.admission.pod_resources import Amounts, amounts_of, pod_amounts
from dray.server.reader import Reader

CLAIMS = ("resource.k8s.io", "resourceclaims")
PODS = ("", "pods")
DEVICES_SUFFIX = ".deviceclass.resource.k8s.io/devices"
MOST_DEVICES = 32
# Kinds with a quota name from before `count/`.
_COUNTED = {
    "configmaps",
    "secrets",
    "resourcequotas",
    "services",
    "persistentvolumeclaims",
    "replicationcontrollers",
}
_COMPUTE = {"cpu", "memory", "ephemeral-storage"}
ONE = Quantity.of(1)


def usage_of(group: str, resource: str, thing: JsonObject, reader: Reader) -> Amounts:
    """Return what an object is charged, by quota name."""
    count_name = f"count/{resource}.{group}" if group else f"count/{resource}"
    usage: Amounts = {count_name: ONE}
    if (group, resource) == PODS:
        usage.update(_pod_usage(thing))
    elif (group, resource) == CLAIMS:
        usage.update(_claim_usage(thing, reader))
    elif not group and resource in _COUNTED:
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
        if name == count_name or (not group and name == resource and name in _COUNTED)
    ]


def container_names_set(container: JsonObject) -> set[str]:
    """Return the quota names that a container says something about."""
    resources = container.get("resources") or {}
    return set(_compute_usage(amounts_of(resources.get("requests")), amounts_of(resources.get("limits"))))


def _pod_usage(pod: JsonObject) -> Amounts:
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return {}  # it holds nothing any more; only the object still counts
    spec = pod.get("spec") or {}
    return {"pods": ONE, **_compute_usage(pod_amounts(spec, "requests"), pod_amounts(spec, "limits"))}


def _compute_usage(requests: Amounts, limits: Amounts) -> Amounts:
    usage: Amounts = {}
    for name, amount in requests.items():
        if name in _COMPUTE or name.startswith("hugepages-"):
            usage[name] = usage[f"requests.{name}"] = amount
        elif _is_extended(name):
            usage[f"requests.{name}"] = amount
    for name, amount in limits.items():
        if name in _COMPUTE:
            usage[f"limits.{name}"] = amount
    return usage


def _claim_usage(claim: JsonObject, reader: Reader) -> Amounts:
    counts: dict[str, int] = {}
    for request in ((claim.get("spec") or {}).get("devices") or {}).get("requests") or ():
        dearest: dict[str, int] = {}
        options = request.get("firstAvailable") or ([request["exactly"]] if request.get("exactly") else [])
        for option in options:
            class_name = option.get("deviceClassName", "")
            dearest[class_name] = max(dearest.get(class_name, 0), _devices(option))
        for class_name, count in dearest.items():
            counts[class_name] = counts.get(class_name, 0) + count
    usage = {f"{class_name}{DEVICES_SUFFIX}": Quantity.of(count) for class_name, count in counts.items()}
    charged = _charged_to_pod(claim, reader)
    for class_name, count in counts.items():
        names = [f"requests.{DEVICE_CLASS_RESOURCE_PREFIX}{class_name}"]
        extended = _extended_name(class_name, reader)
        if extended:
            names.append(f"requests.{extended}")
        for name in names:
            rest = Quantity.of(count) - charged[name] if name in charged else Quantity.of(count)
            if rest.sign > 0:
                usage[name] = rest
    return usage


def _devices(option: JsonObject) -> int:
    mode = option.get("allocationMode") or "ExactCount"
    if mode == "All":
        return MOST_DEVICES
    return int(option.get("count") or 1) if mode == "ExactCount" else 0


def _charged_to_pod(claim: JsonObject, reader: Reader) -> Amounts:
    """Return what the pod behind a scheduler-made claim has been charged already."""
    metadata = claim.get("metadata") or {}
    if (metadata.get("annotations") or {}).get(EXTENDED_CLAIM_ANNOTATION) != "true":
        return {}
    owner = next((found for found in metadata.get("ownerReferences") or () if found.get("controller")), None)
    if owner is None or (owner.get("kind"), owner.get("apiVersion")) != ("Pod", "v1"):
        return {}
    pod = reader.get("", "pods", metadata.get("namespace", ""), owner.get("name", ""))
    if pod is None or pod["metadata"].get("uid") != owner.get("uid"):
        return {}
    status = (pod.get("status") or {}).get("extendedResourceClaimStatus")
    if status and status.get("resourceClaimName") != metadata.get("name"):
        return {}
    return _pod_usage(pod)


def _extended_name(class_name: str, reader: Reader) -> str:
    found = reader.get("resource.k8s.io", "deviceclasses", "", class_name)
    return str(((found or {}).get("spec") or {}).get("extendedResourceName") or "")


def _is_extended(name: str) -> bool:
    if name.startswith(DEVICE_CLASS_RESOURCE_PREFIX):
        return True
    return "/" in name and not name.partition("/")[0].endswith("kubernetes.io")


def _is_pod_name(name: str) -> bool:
    if name == "pods" or name in _COMPUTE or name.startswith("hugepages-"):
        return True
    side, _, rest = name.partition(".")
    if side == "limits":
        return rest in _COMPUTE
    return side == "requests" and (rest in _COMPUTE or rest.startswith("hugepages-") or _is_extended(rest))


def _is_claim_name(name: str, reader: Reader) -> bool:
    if name.endswith(DEVICES_SUFFIX):
        return True
    rest = name.removeprefix("requests.")
    if rest == name:
        return False
    if rest.startswith(DEVICE_CLASS_RESOURCE_PREFIX):
        return True
    classes = reader.list("resource.k8s.io", "deviceclasses")
    return any((found.get("spec") or {}).get("extendedResourceName") == rest for found in classes)
