"""A write as webhooks and policies see it, and which of them it concerns.

Objects are shown in the version of the request, or in another version of the same resource
where a configuration names only that one (`matchPolicy: Equivalent`). What the object looks
like in a version is computed when somebody asks, and once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from dray.api.json_types import JsonMapping, JsonObject
from dray.api.kinds import ADMISSION
from dray.api.label_selectors import matches_label_object
from dray.server.requests import Call, Reader

# Whoever configures admission badly must be able to repair it.
_EXEMPT = frozenset(
    {
        "mutatingwebhookconfigurations",
        "validatingwebhookconfigurations",
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
    }
)


class ObjectForms(Protocol):
    """Shows stored objects in a version, and reads what somebody changed in it."""

    def show(self, call: Call, obj: JsonObject, version: str) -> JsonObject:
        """Return a stored object in a version of its kind."""

    def read(self, call: Call, shown: JsonObject, version: str) -> JsonObject:
        """Return an object in a version as it is stored, with defaults; raise ApiError."""


@dataclass(slots=True)
class AdmissionRequest:
    """One write; `new` and `old` are in their storage version."""

    call: Call
    operation: str  # CREATE, UPDATE, DELETE, CONNECT
    new: JsonObject | None
    old: JsonObject | None
    forms: ObjectForms
    dry_run: bool = False
    name: str = ""
    own_kind: tuple[str, str, str] | None = None  # of a body that is not an object: Binding, PodExecOptions
    _shown: dict[tuple[str, bool], JsonObject | None] = field(default_factory=dict)

    @property
    def namespace(self) -> str:
        """Return where the object is; a namespace counts as being inside itself."""
        kind = self.call.route.kind
        if kind.plural == "namespaces" and not kind.group:
            return self.name
        return self.call.route.namespace

    @property
    def is_exempt(self) -> bool:
        """Return whether nobody is asked about this write."""
        kind = self.call.route.kind
        return kind.group == ADMISSION and kind.plural in _EXEMPT

    def gvk(self, version: str) -> JsonObject:
        """Return group, version and kind of the object."""
        kind = self.call.route.kind
        group, version, name = self.own_kind or (kind.group, version, kind.kind)
        return {"group": group, "version": version, "kind": name}

    def gvr(self, version: str) -> JsonObject:
        """Return group, version and resource of the request's path."""
        kind = self.call.route.kind
        return {"group": kind.group, "version": version, "resource": kind.plural}

    def object_in(self, version: str) -> JsonObject | None:
        """Return the new object in a version; None for a deletion."""
        return self._in(version, self.new, old=False)

    def old_object_in(self, version: str) -> JsonObject | None:
        """Return the old object in a version; None for a creation."""
        return self._in(version, self.old, old=True)

    def _in(self, version: str, obj: JsonObject | None, *, old: bool) -> JsonObject | None:
        if obj is None or self.own_kind is not None:
            return obj
        if (version, old) not in self._shown:
            self._shown[version, old] = self.forms.show(self.call, obj, version)
        return self._shown[version, old]

    def change(self, shown: JsonObject, version: str) -> bool:
        """Take over what a webhook made of the new object; returns whether that is another one."""
        assert self.new is not None
        changed = self.forms.read(self.call, shown, version)
        if changed == self.new:
            return False
        self.new.clear()
        self.new.update(changed)
        self._shown = {key: value for key, value in self._shown.items() if key[1]}
        return True

    def review(self, version: str) -> JsonObject:
        """Return what reviews and expressions call the request, without objects."""
        route = self.call.route
        request: JsonObject = {
            "kind": self.gvk(version),
            "resource": self.gvr(version),
            "requestKind": self.gvk(route.version),
            "requestResource": self.gvr(route.version),
            "name": self.name,
            "namespace": self.namespace,
            "operation": self.operation,
            "userInfo": self.call.user.info(),
            "dryRun": self.dry_run,
            "options": _options(self),
        }
        if route.subresource:
            request["subResource"] = request["requestSubResource"] = route.subresource
        return {name: value for name, value in request.items() if value not in ("", None)}


def _options(request: AdmissionRequest) -> JsonObject | None:
    kinds = {"CREATE": "CreateOptions", "UPDATE": "UpdateOptions", "DELETE": "DeleteOptions"}
    kind = kinds.get(request.operation)
    if kind is None:
        return None
    if request.call.route.verb == "patch":
        kind = "PatchOptions"
    options: JsonObject = {"kind": kind, "apiVersion": "meta.k8s.io/v1"}
    for name in ("fieldManager", "fieldValidation"):
        said = request.call.request.first(name)
        if said and kind != "DeleteOptions":
            options[name] = said
    if request.dry_run:
        options["dryRun"] = ["All"]
    return options


# --- which configuration is concerned ---------------------------------------------------


def rule_version(
    rules: Iterable[JsonMapping], request: AdmissionRequest, match_policy: str | None
) -> str | None:
    """Return the version in which the first rule that fits wants the object; None if none fits."""
    rules = list(rules)
    route = request.call.route
    if any(_fits(rule, request, route.version) for rule in rules):
        return route.version
    if match_policy == "Exact":
        return None
    for rule in rules:
        for version in route.kind.versions:
            if version != route.version and _fits(rule, request, version):
                return version
    return None


def _fits(rule: JsonMapping, request: AdmissionRequest, version: str) -> bool:
    kind = request.call.route.kind
    names = rule.get("resourceNames") or ()
    return (
        _listed(rule.get("operations"), request.operation)
        and _listed(rule.get("apiGroups"), kind.group)
        and _listed(rule.get("apiVersions"), version)
        and any(_names_resource(entry, request) for entry in rule.get("resources") or ())
        and _in_scope(rule.get("scope") or "*", request)
        and (not names or request.name in names)
    )


def _listed(words: Iterable[str] | None, wanted: str) -> bool:
    return any(word in ("*", wanted) for word in words or ())


def _names_resource(entry: str, request: AdmissionRequest) -> bool:
    resource, _, subresource = entry.partition("/")
    route = request.call.route
    return resource in ("*", route.kind.plural) and subresource in ("*", route.subresource)


def _in_scope(scope: str, request: AdmissionRequest) -> bool:
    if scope == "*":
        return True
    kind = request.call.route.kind
    is_namespace = kind.plural == "namespaces" and not kind.group
    return (scope == "Namespaced") == (not is_namespace and bool(request.namespace))


def namespace_fits(
    selector: JsonMapping | None,
    request: AdmissionRequest,
    reader: Reader,
    absent: Callable[[str], Exception],
) -> bool:
    """Return whether a namespace selector matches; objects outside of namespaces always match."""
    if not selector or not request.namespace:
        return True
    kind = request.call.route.kind
    found: JsonObject | None
    if kind.plural == "namespaces" and not kind.group and request.operation != "DELETE":
        found = request.new
    else:
        found = reader.get("", "namespaces", "", request.namespace)
    if found is None:
        raise absent(request.namespace)
    return matches_label_object(selector, (found.get("metadata") or {}).get("labels"))


def object_fits(selector: JsonMapping | None, request: AdmissionRequest) -> bool:
    """Return whether an object selector matches the new object or the old one."""
    if not selector:
        return True
    return any(
        obj is not None and matches_label_object(selector, (obj.get("metadata") or {}).get("labels"))
        for obj in (request.new, request.old)
    )
