"""Objects of former versions of resource.k8s.io, rewritten for v1.

v1beta1 and v1alpha3 wrote a request flat and a device under `basic`; v1alpha1 and v1alpha2 ("classic" DRA) named a class
and an object of parameters. Objects are changed as people wrote them: no defaults appear.
"""

from __future__ import annotations

from typing import Any

from dray.api.conversion import FLAT_REQUEST_FIELDS
from dray.api.json_types import JsonObject
from dray.api.kinds import RESOURCE, kind_of, split_api_version
from dray.workbench.pod_templates import pod_templates

_NEW = f"{RESOURCE}/v1"
_CLASSIC = ("v1alpha1", "v1alpha2")
_FLAT = ("v1alpha3", "v1beta1")
_KINDS = ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "ResourceSlice")
_GONE = ("ResourceClaimParameters", "ResourceClassParameters", "PodSchedulingContext", "PodScheduling")


def upgrade(obj: JsonObject, lost: list[str], notes: list[str]) -> bool:
    """Change an object in place to today's version; return whether anything changed."""
    group, version = split_api_version(str(obj.get("apiVersion") or ""))
    changed = _unwrap_sources(obj)
    kind = str(obj.get("kind"))
    if group != RESOURCE:
        return changed
    name = f"{kind} {(obj.get('metadata') or {}).get('name')}"
    if kind in _GONE:
        lost.append(f"{name} stays: {kind} does not exist any more; see `dray check`")
        return changed
    if kind == "ResourceClass":
        _class_of(obj, name, lost, notes)
        return True
    found = kind_of(group, kind)
    if kind not in _KINDS or found is None or version == found.versions[0]:
        return changed
    spec = obj.get("spec")
    holder = spec.get("spec") if kind == "ResourceClaimTemplate" and isinstance(spec, dict) else spec
    if version in _CLASSIC:
        if kind not in ("ResourceClaim", "ResourceClaimTemplate") or not isinstance(holder, dict):
            lost.append(
                f"{name} stays: {version} of it has no counterpart; drivers publish slices by themselves"
            )
            return changed
        if not holder.get("resourceClassName"):
            lost.append(
                f"{name} stays: a claim of {version} names its class in resourceClassName, this one has none"
            )
            return changed
        _classic_claim(holder, name, lost, notes)
    elif version in _FLAT and isinstance(holder, dict):
        _flat_spec(holder, kind, name, lost)
    elif version not in found.versions:
        lost.append(f"{name} stays: nothing is known about {obj.get('apiVersion')}")
        return changed
    obj["apiVersion"] = _NEW
    notes.append(f"{name}: {version} became v1")
    return True


def _unwrap_sources(obj: JsonObject) -> bool:
    """Move the sources of pods' claims up, where they stand since Kubernetes 1.31."""
    changed = False
    for template in pod_templates(obj):
        entries = template.spec.get("resourceClaims")
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and isinstance(entry.get("source"), dict):
                entry.update(entry.pop("source"))
                changed = True
    return changed


def _flat_spec(spec: JsonObject, kind: str, name: str, lost: list[str]) -> None:
    for field in ("controller", "suitableNodes"):
        if spec.pop(field, None) is not None:
            lost.append(f"{name}: `{field}` of v1alpha3 is gone")
    if kind == "ResourceSlice":
        for device in _dicts(spec.get("devices")):
            if isinstance(device.get("basic"), dict):
                device.update(device.pop("basic"))
            capacity = device.get("capacity")
            if isinstance(capacity, dict):
                device["capacity"] = {
                    key: amount if isinstance(amount, dict) else {"value": amount}
                    for key, amount in capacity.items()
                }
        return
    devices = spec.get("devices")
    for request in _dicts(devices.get("requests") if isinstance(devices, dict) else None):
        flat = {key: request.pop(key) for key in list(request) if key in FLAT_REQUEST_FIELDS}
        if flat:
            request["exactly"] = flat


def _classic_claim(spec: JsonObject, name: str, lost: list[str], notes: list[str]) -> None:
    class_name = spec.pop("resourceClassName", None)
    reference = spec.pop("parametersRef", None)
    if spec.pop("allocationMode", None) == "Immediate":
        lost.append(f"{name}: allocationMode Immediate is gone: claims are allocated when a pod needs them")
    if isinstance(reference, dict):
        lost.append(
            f"{name}: its parameters ({reference.get('kind')} {reference.get('name')}) are not carried over: say them "
            "as count and selectors of the request, and in config.opaque.parameters"
        )
    spec["devices"] = {"requests": [{"name": "device", "exactly": {"deviceClassName": str(class_name)}}]}
    notes.append(f"{name}: one device of class {class_name}; the class must exist as a DeviceClass")


def _class_of(obj: JsonObject, name: str, lost: list[str], notes: list[str]) -> None:
    driver = obj.pop("driverName", None)
    for field in ("parametersRef", "suitableNodes", "structuredParameters"):
        if obj.pop(field, None) is not None:
            lost.append(f"{name}: `{field}` is not carried over: say it in selectors and config of the class")
    obj["apiVersion"], obj["kind"] = _NEW, "DeviceClass"
    obj["spec"] = {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]}
    notes.append(f"{name} became a DeviceClass of all devices of {driver}")


def _dicts(value: Any) -> list[JsonObject]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
