"""Kinds and versions of resource.k8s.io that were alpha only: what stands for them today.

Kubernetes 1.26 to 1.30 had "classic" DRA (v1alpha1, v1alpha2), whose claims named a class and an object with
parameters of the driver's own. v1alpha3 (1.31, 1.32) brought today's requests for devices, in the flat shape
of v1beta1. None of them is served any more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dray.api.json_types import JsonObject
from dray.api.kinds import RESOURCE, kind_of
from dray.workbench.lint.findings import Problem, error

_CLASSIC = ("v1alpha1", "v1alpha2")
_CONVERT = "`dray convert` rewrites it"
# Kinds that are gone -> what to do.
_KINDS = {
    "ResourceClass": f"write a DeviceClass with a selector on device.driver; {_CONVERT}",
    "ResourceClaimParameters": "write its requests into `devices.requests` of the claim, with selectors and config",
    "ResourceClassParameters": "write selectors and config into the DeviceClass",
    "PodSchedulingContext": "leave it out: the scheduler allocates by itself",
    "PodScheduling": "leave it out: the scheduler allocates by itself",
    "NodeResourceSlice": "leave it out: drivers publish ResourceSlices by themselves",
    "ResourceCapacity": "leave it out: drivers publish ResourceSlices by themselves",
}
_FIELDS = {
    "resourceClassName": "name the class in devices.requests[].exactly.deviceClassName",
    "parametersRef": "say it in devices.requests[] (count, selectors) and devices.config[].opaque.parameters",
    "allocationMode": "leave it out: claims are allocated when a pod needs them",
}
_ALPHA = re.compile(r"v1alpha\d+")


def removed_api(obj: JsonObject, group: str, version: str, name: str) -> list[Problem]:
    """Return what is wrong with an object that only former versions of resource.k8s.io had; empty: it may exist."""
    if group != RESOURCE:
        return []
    if name in _KINDS:
        return [
            error("removed-api", "kind", f"{name} existed in alpha versions of {RESOURCE} only", _KINDS[name])
        ]
    kind = kind_of(group, name)
    if kind is None or version in kind.versions or not _ALPHA.fullmatch(version):
        return []
    shape = "" if version in _CLASSIC else "; its shape is that of v1beta1"
    message = f"{name} of {RESOURCE}/{version} is not served any more{shape}"
    hint = f"write apiVersion: {kind.api_version()}; {_CONVERT}"
    return [error("removed-api", "apiVersion", message, hint), *_fields(obj)]


def _fields(obj: JsonObject) -> Iterator[Problem]:
    """Yield the fields of classic claims and templates."""
    spec, path = obj.get("spec"), "spec"
    if obj.get("kind") == "ResourceClaimTemplate" and isinstance(spec, dict):
        spec, path = spec.get("spec"), "spec.spec"
    if not isinstance(spec, dict):
        return
    for field, hint in _FIELDS.items():
        if field in spec:
            yield error("removed-api", f"{path}.{field}", f"`{field}` does not exist any more", hint)
