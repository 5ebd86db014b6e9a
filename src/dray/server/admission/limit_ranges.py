"""LimitRanger: defaults and bounds for what containers and pods ask for, per namespace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from dray.api.json_types import JsonObject
from dray.api.quantity import Quantity
from dray.api.quota_charges import Amounts
from dray.server.admission.admission_plugin import BasePlugin, Kept, refused, target_of
from dray.server.admission.pod_amounts import amounts_of, pod_amounts
from dray.server.requests import Call, Reader

ANNOTATION = "kubernetes.io/limit-ranger"


@dataclass(slots=True)
class LimitRanger(BasePlugin):
    """Apply the LimitRanges of a namespace to its new pods."""

    reader: Reader
    name: str = "LimitRanger"
    _limits: Kept = field(init=False)

    def __post_init__(self) -> None:
        self._limits = Kept(self.reader, "", "limitranges")

    def observe(self, group: str, resource: str, old: JsonObject | None, new: JsonObject | None) -> None:
        """Follow changes of the bounds."""
        self._limits.observe(group, resource)

    def mutate(self, call: Call, operation: str, new: JsonObject, old: JsonObject | None) -> None:
        """Fill in the requests and limits that containers leave out."""
        if not _concerns(call, operation) or not isinstance(new.get("spec"), dict):
            return
        for limit_range in self._ranges(call):
            _fill_in(limit_range, new)

    def validate(self, call: Call, operation: str, new: JsonObject, old: JsonObject | None) -> None:
        """Refuse a pod outside the bounds."""
        if not _concerns(call, operation):
            return
        for limit_range in self._ranges(call):
            problems = list(_violations(limit_range, new.get("spec") or {}))
            if problems:
                unique = list(dict.fromkeys(problems))
                raise refused(call, new, unique[0] if len(unique) == 1 else f"[{', '.join(unique)}]")

    def _ranges(self, call: Call) -> tuple[JsonObject, ...]:
        return self._limits.list(call.route.namespace)


def _concerns(call: Call, operation: str) -> bool:
    return operation == "CREATE" and target_of(call) == ("", "pods", "")


def _items(limit_range: JsonObject, kind: str) -> list[JsonObject]:
    items = (limit_range.get("spec") or {}).get("limits") or ()
    return [item for item in items if item.get("type") == kind]


def _fill_in(limit_range: JsonObject, pod: JsonObject) -> None:
    defaults: dict[str, dict[str, str]] = {"requests": {}, "limits": {}}
    for item in _items(limit_range, "Container"):
        defaults["requests"].update(item.get("defaultRequest") or {})
        defaults["limits"].update(item.get("default") or {})
    notes: list[str] = []
    for part, shown in (("containers", "container"), ("initContainers", "init container")):
        for container in pod["spec"].get(part) or ():
            resources = dict(container.get("resources") or {})
            for side, word in (("requests", "request"), ("limits", "limit")):
                given = resources.get(side) or {}
                missing = {name: value for name, value in defaults[side].items() if name not in given}
                if missing:
                    resources[side] = {**given, **missing}
                    notes.append(
                        f"{', '.join(sorted(missing))} {word} for {shown} {container.get('name', '')}"
                    )
            if resources:
                container["resources"] = resources
    if notes:
        metadata = pod.setdefault("metadata", {})
        annotation = {ANNOTATION: "LimitRanger plugin set: " + "; ".join(notes)}
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **annotation}


def _violations(limit_range: JsonObject, spec: JsonObject) -> Iterator[str]:
    for item in _items(limit_range, "Container"):
        for part in ("containers", "initContainers"):
            for container in spec.get(part) or ():
                resources = container.get("resources") or {}
                yield from _judge(
                    item, amounts_of(resources.get("requests")), amounts_of(resources.get("limits"))
                )
    bounded = _bounded(spec)
    for item in _items(limit_range, "Pod"):
        yield from _judge(item, pod_amounts(bounded, "requests"), pod_amounts(bounded, "limits"))


def _bounded(spec: JsonObject) -> JsonObject:
    """Return the spec without what LimitRanger ignores: overhead, and hugepages at pod level."""
    resources = {
        side: {name: value for name, value in (amounts or {}).items() if name in ("cpu", "memory")}
        for side, amounts in (spec.get("resources") or {}).items()
        if side in ("requests", "limits")
    }
    return {**spec, "overhead": None, "resources": resources}


_Check = Callable[[str, str, Quantity, Quantity | None, Quantity | None], str]


def _judge(item: JsonObject, requests: Amounts, limits: Amounts) -> Iterator[str]:
    kind = item["type"]
    checks: tuple[tuple[str, _Check], ...] = (
        ("min", _minimum),
        ("max", _maximum),
        ("maxLimitRequestRatio", _ratio),
    )
    for bound, check in checks:
        for name, enforced in amounts_of(item.get(bound)).items():
            problem = check(name, kind, enforced, requests.get(name), limits.get(name))
            if problem:
                yield problem


def _minimum(name: str, kind: str, least: Quantity, request: Quantity | None, limit: Quantity | None) -> str:
    rule = f"minimum {name} usage per {kind} is {least}"
    if request is None:
        return f"{rule}.  No request is specified"
    if request < least:
        return f"{rule}, but request is {request}"
    if limit is not None and limit < least:
        return f"{rule}, but limit is {limit}"
    return ""


def _maximum(name: str, kind: str, most: Quantity, request: Quantity | None, limit: Quantity | None) -> str:
    rule = f"maximum {name} usage per {kind} is {most}"
    if limit is None:
        return f"{rule}.  No limit is specified"
    if limit > most:
        return f"{rule}, but limit is {limit}"
    if request is not None and request > most:
        return f"{rule}, but request is {request}"
    return ""


def _ratio(name: str, kind: str, most: Quantity, request: Quantity | None, limit: Quantity | None) -> str:
    rule = f"{name} max limit to request ratio per {kind} is {most}"
    if not request:
        return f"{rule}, but no request is specified or request is 0"
    if not limit:
        return f"{rule}, but no limit is specified or limit is 0"
    ratio = limit.as_approximate_float() / request.as_approximate_float()
    if ratio > most.as_approximate_float():
        return f"{rule}, but provided ratio is {ratio:f}"
    return ""
