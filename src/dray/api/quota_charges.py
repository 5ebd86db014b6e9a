"""What pods and resource claims are charged under a ResourceQuota, by quota name.

A pod is charged for its requests (`cpu` and `requests.cpu`, hugepages, extended
resources as `requests.<name>`) and for its limits of cpu, memory and ephemeral storage.

A claim is charged for the devices it may get at most, per class: 32 (the most a claim can
have) for a request of all devices, and for alternatives the largest count of each class.
Devices are charged as `<class>.deviceclass.resource.k8s.io/devices` and as the extended
resources that their class provides: `requests.deviceclass.resource.kubernetes.io/<class>`
and `requests.<extendedResourceName>`. A claim that the scheduler made for a pod's extended
resources is charged only for the extended resources that its pod is not charged for.

Admission (before the write) and the quota controller (the recount) both use this module,
so that what is enforced is what is shown (tests/property/test_pod_charges_agree.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from dray.api.meta import ObjectMeta, OwnerReference
from dray.api.pod_resources import HUGEPAGES_PREFIX, add_amounts
from dray.api.quantity import Quantity
from dray.api.resource import DeviceRequest, DeviceSubRequest, ExactDeviceRequest
from dray.api.well_known import DEVICE_CLASS_RESOURCE_PREFIX, EXTENDED_CLAIM_ANNOTATION

__all__ = [
    "COMPUTE",
    "DEVICES_SUFFIX",
    "MOST_DEVICES",
    "ONE",
    "PLAIN_COUNTS",
    "Amounts",
    "claim_charges",
    "is_extended",
    "owner_charged_first",
    "pod_charges",
]

Amounts = dict[str, Quantity]

ONE: Final = Quantity.of(1)
MOST_DEVICES: Final = 32  # AllocationResultsMaxSize of resource.k8s.io
COMPUTE: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
DEVICES_SUFFIX: Final = ".deviceclass.resource.k8s.io/devices"
# Core kinds that are counted under their plural too, beside `count/<plural>`.
PLAIN_COUNTS: Final = frozenset(
    {
        "configmaps",
        "persistentvolumeclaims",
        "replicationcontrollers",
        "resourcequotas",
        "secrets",
        "services",
    }
)


def pod_charges(requests: Mapping[str, Quantity], limits: Mapping[str, Quantity]) -> Amounts:
    """Return what a pod, or one container, is charged for these requests and limits."""
    charges: Amounts = {}
    for name, amount in requests.items():
        if name in COMPUTE or name.startswith(HUGEPAGES_PREFIX):
            charges[name] = charges[f"requests.{name}"] = amount
        elif is_extended(name):
            charges[f"requests.{name}"] = amount
    for name, amount in limits.items():
        if name in COMPUTE:
            charges[f"limits.{name}"] = amount
    return charges


def claim_charges(
    requests: Iterable[DeviceRequest],
    extended_name_of: Callable[[str], str],
    pod: Mapping[str, Quantity],
) -> Amounts:
    """Return what the device requests of a claim are charged.

    `extended_name_of` returns the extended resource that a class provides, "" for none;
    `pod` is what the pod of `owner_charged_first` is charged, empty for other claims.
    """
    counts = _devices_by_class(requests)
    charges = {f"{class_name}{DEVICES_SUFFIX}": Quantity.of(count) for class_name, count in counts.items()}
    extended: Amounts = {}
    for class_name, count in counts.items():
        names = [DEVICE_CLASS_RESOURCE_PREFIX + class_name, extended_name_of(class_name)]
        add_amounts(extended, {f"requests.{name}": Quantity.of(count) for name in names if name})
    for name, amount in extended.items():
        rest = amount - pod[name] if name in pod else amount
        if rest.sign > 0:
            charges[name] = rest
    return charges


def owner_charged_first(claim: ObjectMeta) -> OwnerReference | None:
    """Return the pod for whose extended resources the scheduler made a claim; None for other claims."""
    if (claim.annotations or {}).get(EXTENDED_CLAIM_ANNOTATION) != "true":
        return None
    owner = next((found for found in claim.owner_references if found.controller), None)
    if owner is None or (owner.kind, owner.api_version) != ("Pod", "v1"):
        return None
    return owner


def is_extended(name: str) -> bool:
    """Return whether a resource name is that of an extended resource, given by a driver or by a class.

    >>> is_extended("example.com/gpu"), is_extended("memory"), is_extended("kubernetes.io/batch-cpu")
    (True, False, False)
    """
    if name.startswith(DEVICE_CLASS_RESOURCE_PREFIX):
        return True
    return "/" in name and not name.partition("/")[0].endswith("kubernetes.io")


def _devices_by_class(requests: Iterable[DeviceRequest]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for request in requests:
        most: dict[str, int] = {}
        for option in _options(request):
            most[option.device_class_name] = max(most.get(option.device_class_name, 0), _devices(option))
        for class_name, count in most.items():
            counts[class_name] = counts.get(class_name, 0) + count
    return counts


def _options(request: DeviceRequest) -> Sequence[ExactDeviceRequest | DeviceSubRequest]:
    if request.first_available:
        return request.first_available
    return [request.exactly] if request.exactly is not None else []


def _devices(option: ExactDeviceRequest | DeviceSubRequest) -> int:
    if option.allocation_mode == "All":
        return MOST_DEVICES
    # A mode of a later version is not charged, as in Kubernetes.
    return (option.count or 1) if option.allocation_mode in ("", "ExactCount") else 0
