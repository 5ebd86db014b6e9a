"""Device-plugin manifests, rewritten for DRA.

    conversion = convert_objects(objects, known_classes=frozenset({"gpu.nvidia.com"}))
    conversion.objects      # templates and classes before the workloads that use them
    conversion.notes        # what to know; .lost: what could not be carried over

Works on pods wherever they are (see `pod_templates`) and on quotas. Whatever does not
ask for devices passes through untouched.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from dray.api.json_types import JsonObject
from dray.api.quantity import QuantityError, parse_quantity
from dray.drivers.hardware import device_classes
from dray.sim.converting.pods import convert_pod
from dray.sim.converting.resources import request_for
from dray.sim.pod_templates import pod_templates

__all__ = ["Conversion", "Converted", "convert_objects"]

_QUOTA_SUFFIX = "deviceclass.resource.k8s.io/devices"


@dataclass(frozen=True, slots=True)
class Converted:
    """One object of the result, with what there is to say about it."""

    obj: JsonObject
    notes: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


@dataclass(slots=True)
class Conversion:
    """The result of converting some manifests."""

    results: list[Converted] = field(default_factory=list)
    changed: int = 0  # objects that use DRA now

    @property
    def objects(self) -> list[JsonObject]:
        """Return the objects in an order in which they can be applied."""
        return [result.obj for result in self.results]

    @property
    def lost(self) -> list[str]:
        """Return what could not be carried over."""
        return [text for result in self.results for text in result.lost]

    @property
    def notes(self) -> list[str]:
        """Return what to know about the result."""
        return [text for result in self.results for text in result.notes]


def convert_objects(
    objects: Iterable[JsonObject],
    *,
    mapped: dict[str, str] | None = None,
    known_classes: frozenset[str] | None = None,
    with_classes: bool = False,
) -> Conversion:
    """Convert objects; classes are added when asked for, or when the cluster is known to lack them."""
    conversion = Conversion()
    mapped = mapped or {}
    classes: set[str] = set()
    own: set[str] = set()
    for original in objects:
        obj = copy.deepcopy(original)
        if obj.get("kind") == "DeviceClass":
            own.add(str((obj.get("metadata") or {}).get("name")))
        if obj.get("kind") == "ResourceQuota":
            conversion.results.append(_convert_quota(obj, mapped))
            continue
        classes |= _convert_workload(obj, mapped, conversion)
    missing = classes - own
    if known_classes is not None:
        missing -= known_classes
    if with_classes or known_classes is not None:
        made = [Converted(_device_class(name)) for name in sorted(missing)]
        conversion.results[:0] = made
    return conversion


def _convert_workload(obj: JsonObject, mapped: dict[str, str], conversion: Conversion) -> set[str]:
    metadata = obj.get("metadata") if isinstance(obj.get("metadata"), dict) else {}
    assert metadata is not None
    base = str(metadata.get("name") or str(metadata.get("generateName") or "pod").rstrip("-"))
    classes: set[str] = set()
    notes: list[str] = []
    lost: list[str] = []
    templates = pod_templates(obj)
    for number, template in enumerate(templates, 1):
        suffix = "-devices" if len(templates) == 1 else f"-devices-{number}"
        name = f"{base[: 253 - len(suffix)]}{suffix}"
        change = convert_pod(template.spec, name, mapped)
        lost += change.lost
        if not change.requests:
            continue
        notes += change.notes
        classes |= change.classes
        conversion.changed += 1
        conversion.results.append(Converted(_claim_template(name, metadata, change.requests)))
    conversion.results.append(Converted(obj, tuple(dict.fromkeys(notes)), tuple(dict.fromkeys(lost))))
    return classes


def _claim_template(name: str, metadata: JsonObject, requests: list[JsonObject]) -> JsonObject:
    meta: JsonObject = {"name": name}
    if metadata.get("namespace"):
        meta["namespace"] = metadata["namespace"]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": meta,
        "spec": {"spec": {"devices": {"requests": requests}}},
    }


def _device_class(name: str) -> JsonObject:
    """Return the class that the driver's installation would bring, or a plain one for its driver."""
    for found in device_classes():
        if found.metadata.name == name:
            spec = msgspec.to_builtins(found.spec)
            break
    else:
        spec = {"selectors": [{"cel": {"expression": f'device.driver == "{name}"'}}]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": spec,
    }


def _convert_quota(obj: JsonObject, mapped: dict[str, str]) -> Converted:
    """Let a quota count claims too: as many devices per class as it allowed of the resource."""
    hard = (obj.get("spec") or {}).get("hard")
    notes: list[str] = []
    if not isinstance(hard, dict):
        return Converted(obj)
    for key in list(hard):
        resource = str(key).removeprefix("requests.").removeprefix("limits.")
        request = request_for(resource, mapped) if resource != key else None
        if request is None:
            continue
        try:
            amount = parse_quantity(str(hard[key])).as_approximate_float()
        except QuantityError:
            continue
        name = f"{request.device_class}.{_QUOTA_SUFFIX}"
        before = int(hard[name]) if str(hard.get(name, "")).isdigit() else 0
        hard[name] = str(before + int(amount))
        notes.append(f"{key} counts extended resources only; {name} counts devices of claims")
        if before:
            notes.append(f"{name} is the sum of several resources: a quota counts per class, not per profile")
    return Converted(obj, tuple(notes))
