"""Device-plugin manifests and manifests of former API versions, rewritten for resource.k8s.io/v1.

    conversion = convert_objects(objects, known_classes=frozenset({"gpu.nvidia.com"}))
    conversion.objects      # templates and classes before the workloads that use them
    conversion.notes        # what to know; .lost: what could not be carried over

Works on pods wherever they are (see `pod_templates`) and on quotas. Whatever does not
ask for devices passes through untouched.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from dray.api.json_types import JsonObject
from dray.api.quantity import QuantityError, parse_quantity
from dray.drivers.hardware import device_classes
from dray.workbench.conversion.pods import convert_pod
from dray.workbench.conversion.resources import is_known, request_for
from dray.workbench.conversion.versions import upgrade
from dray.workbench.pod_templates import pod_templates

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
    groups: list[list[Converted]] = field(default_factory=list)  # what became of each object that was given
    made: list[Converted] = field(default_factory=list)  # classes that were added
    changed: int = 0  # pod templates that use DRA now
    upgraded: int = 0  # objects of former versions

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
        before = len(conversion.results)
        lost: list[str] = []
        notes: list[str] = []
        conversion.upgraded += upgrade(obj, lost, notes)
        if obj.get("kind") == "DeviceClass":
            own.add(str((obj.get("metadata") or {}).get("name")))
        if obj.get("kind") == "ResourceQuota":
            conversion.results.append(_convert_quota(obj, mapped))
        else:
            classes |= _convert_workload(obj, mapped, conversion)
        last = conversion.results[-1]
        conversion.results[-1] = Converted(last.obj, (*notes, *last.notes), (*lost, *last.lost))
        conversion.groups.append(conversion.results[before:])
    missing = classes - own
    if known_classes is not None:
        missing -= known_classes
    if with_classes or known_classes is not None:
        conversion.made = [Converted(_device_class(name)) for name in sorted(missing)]
        conversion.results[:0] = conversion.made
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
        change = convert_pod(template.spec, name, mapped, is_step=template.is_step)
        lost += change.lost
        if not change.requests:
            continue
        notes += change.notes
        classes |= change.classes
        conversion.changed += 1
        conversion.results.append(Converted(_claim_template(name, metadata, change.requests)))
    for path, resource in remaining_resources(obj, mapped):
        if not any(resource in text for text in lost):
            lost.append(f"{resource} stays at {path}: it is not part of a container of a pod template")
    conversion.results.append(Converted(obj, tuple(dict.fromkeys(notes)), tuple(dict.fromkeys(lost))))
    return classes


# Where the name of a resource is a label, a taint or what a class provides, not a request.
_LABEL_MAPS = ("labels", "annotations", "nodeSelector", "matchLabels", "nodeLabels", "hard", "used")
_OTHER_MEANINGS = (
    "key",
    "topologyKey",
    "extendedResourceName",
    "apiVersion",
    "matchAttribute",
    "distinctAttribute",
)
_ASKED_IN_TEXT = re.compile(
    r"""^[ \t-]*["']?([\w.-]{1,200}/[\w.-]{1,200})["']?[ \t]*:[ \t]*["']?\d""", re.MULTILINE
)


def remaining_resources(value: Any, mapped: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield every place that still names a resource of a known device plugin."""
    stack: list[tuple[Any, str, str]] = [(value, "", "")]
    while stack:
        item, path, key = stack.pop()
        if isinstance(item, dict):
            for name, inner in item.items():
                place = f"{path}.{name}" if path else str(name)
                if key not in _LABEL_MAPS and is_known(str(name), mapped):
                    yield f"{path}[{name}]", str(name)
                stack.append((inner, place, str(name)))
        elif isinstance(item, list):
            stack += [(inner, f"{path}[{index}]", key) for index, inner in enumerate(item)]
        elif isinstance(item, str) and key not in (*_LABEL_MAPS, *_OTHER_MEANINGS):
            if is_known(item, mapped):
                yield path, item
            elif "\n" in item:  # a manifest as a text, for example of a step of a workflow
                asked = (found[1] for found in _ASKED_IN_TEXT.finditer(item))
                yield from ((path, name) for name in dict.fromkeys(asked) if is_known(name, mapped))


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
