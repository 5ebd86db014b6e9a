"""Fields of features that are switched off.

A field that belongs to a feature gate is removed from what clients send while the gate
is off, silently, unless the stored object already uses the feature: switching a gate off
must not damage what exists.

Theory of operation: one table says which fields hang on which gates; a field is named by
its path, where `[]` steps into each item of a list and `{}` into each value of a map.
A feature is in use if any of its fields is set in the old object. All paths of disabled
fields of a kind also make one tree, which tells most objects in one walk that there is
nothing to remove.

Objects are in their storage shape (for resource.k8s.io: that of v1). Gates that dray
does not know at all (see `features`) are off for good, and so are their fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final

from dray.api.features import Features
from dray.api.json_types import JsonObject
from dray.api.kinds import COORDINATION, RESOURCE, SCHEDULING

__all__ = ["GATED_FIELDS", "GatedFields", "drop_disabled_fields"]


@dataclass(frozen=True, slots=True)
class GatedFields:
    """Fields that need all of some gates."""

    gates: tuple[str, ...]
    paths: tuple[str, ...]
    also_used_by: tuple[str, ...] = ()  # further fields that show the feature to be in use


def _rule(gates: str, *paths: str, also_used_by: tuple[str, ...] = ()) -> GatedFields:
    return GatedFields(tuple(gates.split()), paths, also_used_by)


def _claim_spec(spec: str) -> tuple[GatedFields, ...]:
    """Return the rules of a claim's spec, wherever that is."""
    exactly, alternative = f"{spec}.devices.requests[].exactly", f"{spec}.devices.requests[].firstAvailable[]"
    return (
        _rule("DRAPrioritizedList", f"{spec}.devices.requests[].firstAvailable"),
        _rule("DRADeviceTaints", f"{exactly}.tolerations", f"{alternative}.tolerations"),
        _rule("DRAAdminAccess", f"{exactly}.adminAccess"),
        _rule(
            "DRAConsumableCapacity",
            f"{spec}.devices.constraints[].distinctAttribute",
            f"{exactly}.capacity",
            f"{alternative}.capacity",
        ),
        _rule("DRADerivedAttributes", f"{exactly}.derivedAttributes", f"{alternative}.derivedAttributes"),
    )


_RESULT: Final = "status.allocation.devices.results[]"
_DEVICE: Final = "spec.devices[]"

# (group, kind) -> rules
GATED_FIELDS: Final[dict[tuple[str, str], tuple[GatedFields, ...]]] = {
    (RESOURCE, "ResourceSlice"): (
        _rule("DRADeviceTaints", f"{_DEVICE}.taints"),
        _rule(
            "DRAPartitionableDevices",
            "spec.sharedCounters",
            "spec.perDeviceNodeSelection",
            f"{_DEVICE}.consumesCounters",
            f"{_DEVICE}.nodeName",
            f"{_DEVICE}.nodeSelector",
            f"{_DEVICE}.allNodes",
        ),
        _rule(
            "DRADeviceBindingConditions DRAResourceClaimDeviceStatus",
            f"{_DEVICE}.bindingConditions",
            f"{_DEVICE}.bindingFailureConditions",
            f"{_DEVICE}.bindsToNode",
        ),
        _rule(
            "DRAConsumableCapacity",
            f"{_DEVICE}.allowMultipleAllocations",
            f"{_DEVICE}.capacity{{}}.requestPolicy",
        ),
        _rule("DRADeviceCompatibilityGroups", f"{_DEVICE}.consumesCounters[].compatibilityGroups"),
        _rule("DRANodeAllocatableResources", f"{_DEVICE}.nodeAllocatableResources"),
        _rule(
            "DRAListTypeAttributes",
            *(f"{_DEVICE}.attributes{{}}.{name}" for name in ("ints", "bools", "strings", "versions")),
        ),
        _rule("DRAPartitionableDevicesType", "spec.partitionTypeAttribute"),
        _rule("DRAOptionalNodeOperations", "spec.skipNodeOperations"),
    ),
    (RESOURCE, "ResourceClaim"): (
        *_claim_spec("spec"),
        _rule("DRAResourceClaimDeviceStatus", "status.devices"),
        _rule(
            "DRAAdminAccess",
            f"{_RESULT}.adminAccess",
            also_used_by=("spec.devices.requests[].exactly.adminAccess",),
        ),
        _rule(
            "DRAConsumableCapacity",
            f"{_RESULT}.shareID",
            f"{_RESULT}.consumedCapacity",
            "status.devices[].shareID",
            also_used_by=_claim_spec("spec")[3].paths,
        ),
        _rule(
            "DRADeviceBindingConditions",
            f"{_RESULT}.bindingConditions",
            f"{_RESULT}.bindingFailureConditions",
        ),
        _rule("DRAOptionalNodeOperations", f"{_RESULT}.skipNodeOperations"),
    ),
    (RESOURCE, "ResourceClaimTemplate"): _claim_spec("spec.spec"),
    (RESOURCE, "DeviceClass"): (_rule("DRAExtendedResource", "spec.extendedResourceName"),),
    (RESOURCE, "ResourcePoolStatusRequest"): (
        _rule("DRAPartitionableDevicesType", "spec.defaultPartitionTypeAttribute"),
    ),
    ("", "Pod"): (
        _rule(
            "DynamicResourceAllocation",
            "spec.resourceClaims",
            "spec.containers[].resources.claims",
            "spec.initContainers[].resources.claims",
            "spec.ephemeralContainers[].resources.claims",
            "status.resourceClaimStatuses",
        ),
        _rule("DRAExtendedResource", "status.extendedResourceClaimStatus"),
        _rule("DRANodeAllocatableResources", "status.nodeAllocatableResourceClaimStatuses"),
        _rule("GenericWorkload", "spec.schedulingGroup"),
        _rule(
            "ResourceHealthStatus",
            "status.containerStatuses[].allocatedResourcesStatus",
            "status.initContainerStatuses[].allocatedResourcesStatus",
            "status.ephemeralContainerStatuses[].allocatedResourcesStatus",
        ),
    ),
    ("", "Node"): (_rule("NodeDeclaredFeatures", "status.declaredFeatures"),),
    (SCHEDULING, "PodGroup"): (
        _rule(
            "DRAWorkloadResourceClaims",
            "spec.resourceClaims",
            "status.resourceClaimStatuses",
        ),
    ),
    (SCHEDULING, "Workload"): (
        _rule("DRAWorkloadResourceClaims", "spec.podGroupTemplates[].resourceClaims"),
    ),
    (COORDINATION, "Lease"): (
        _rule("CoordinatedLeaderElection", "spec.strategy"),
        _rule("CoordinatedLeaderElection", "spec.preferredHolder"),
    ),
}


def drop_disabled_fields(
    group: str, kind: str, obj: JsonObject, old: JsonObject | None, features: Features
) -> None:
    """Remove the fields of disabled features from an object, in place.

    `old` is the stored object, or None on creation. Both are in the storage shape. Lists and
    maps on the way to a removed field must not be shared with `old`.
    """
    disabled, way = _disabled(group, kind, features)
    if not disabled or not _leads_to_any(way, obj):
        return
    for rule in disabled:
        if old is not None and _is_in_use(rule, old):
            continue
        for path in rule.paths:
            for holder, name in _places(obj, path):
                holder.pop(name, None)


class _Way:
    """All paths of disabled fields in one tree: the fields here, and the members that lead further."""

    __slots__ = ("fields", "further")

    def __init__(self) -> None:
        self.fields: set[str] = set()
        self.further: dict[tuple[str, str], _Way] = {}  # (name, "[]", "{}" or "")

    def add(self, path: str) -> None:
        """Add the way to a field."""
        steps, last = _steps(path)
        way = self
        for step in steps:
            way = way.further.setdefault(step, _Way())
        way.fields.add(last)


@lru_cache(maxsize=1024)  # of all kinds, for the features of a server and of some tests
def _disabled(group: str, kind: str, features: Features) -> tuple[tuple[GatedFields, ...], _Way]:
    """Return the rules of a kind that need a gate which is off, and the ways to their fields."""
    rules = GATED_FIELDS.get((group, kind), ())
    disabled = tuple(rule for rule in rules if not features.issuperset(rule.gates))
    way = _Way()
    for rule in disabled:
        for path in rule.paths:
            way.add(path)
    return disabled, way


def _leads_to_any(way: _Way, holder: Any) -> bool:
    """Return whether a value has any of the fields; few objects use what is switched off."""
    if not isinstance(holder, dict):
        return False
    if not way.fields.isdisjoint(holder):
        return True
    for (name, ending), inner in way.further.items():
        found = holder.get(name)
        if not found:
            continue
        if ending == "[]":
            if isinstance(found, list) and any(_leads_to_any(inner, item) for item in found):
                return True
        elif ending == "{}":
            if isinstance(found, dict) and any(_leads_to_any(inner, item) for item in found.values()):
                return True
        elif _leads_to_any(inner, found):
            return True
    return False


def _is_in_use(rule: GatedFields, old: JsonObject) -> bool:
    return any(_is_set(old, path) for path in (*rule.paths, *rule.also_used_by))


def _is_set(obj: JsonObject, path: str) -> bool:
    found = (holder.get(name) for holder, name in _places(obj, path))
    # False and 0 behind a pointer count as set; empty lists and maps do not.
    return any(value is not None and value != [] and value != {} for value in found)


def _places(obj: JsonObject, path: str) -> Iterator[tuple[JsonObject, str]]:
    """Yield each struct that can hold the last field of a path, with the field's name."""
    steps, last = _steps(path)
    holders: list[Any] = [obj]
    for name, ending in steps:
        found = [holder.get(name) for holder in holders if isinstance(holder, dict)]
        if ending == "[]":
            holders = [item for items in found if isinstance(items, list) for item in items]
        elif ending == "{}":
            holders = [item for items in found if isinstance(items, dict) for item in items.values()]
        else:
            holders = [item for item in found if item is not None]
        if not holders:
            return
    yield from ((holder, last) for holder in holders if isinstance(holder, dict))


@cache
def _steps(path: str) -> tuple[tuple[tuple[str, str], ...], str]:
    """Split a path into (name, "[]", "{}" or "") steps and the last field's name."""
    *steps, last = path.split(".")
    return tuple((step.rstrip("[]{}"), step[len(step.rstrip("[]{}")) :]) for step in steps), last
