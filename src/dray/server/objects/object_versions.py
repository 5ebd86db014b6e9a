"""Versions of objects: stored in one, spoken in several.

On the way in an object gets the defaults of the version that it is written in and
is then converted to the storage version; on the way out it is converted back.
Raw parts leave as compact JSON, whatever whitespace they came with.
"""

from __future__ import annotations

from datetime import datetime
from functools import cache
from typing import Any, Protocol

from dray.api.codec import compact_raw, may_hold_raw
from dray.api.conversion import convert, convert_event
from dray.api.defaults import apply_defaults
from dray.api.json_types import JsonObject
from dray.api.kinds import NEW_EVENTS, RESOURCE, Kind
from dray.api.reading import drop_empty, zero_of
from dray.api.schema import SchemaError, Type, schema_of
from dray.server.objects.workload_strategies import with_encoded_strings, with_template_generation
from dray.server.requests import Call

_SERVED_MINOR = 37  # of Kubernetes v1
# Deprecations of resource.k8s.io: (version, kind; "" for all others) -> minor versions (since, gone).
_DEPRECATED = {
    ("v1beta1", ""): (35, 38),
    ("v1beta2", ""): (36, 39),
    ("v1alpha3", ""): (36, 39),
    ("v1beta2", "DeviceTaintRule"): (39, 42),
    ("v1alpha3", "ResourcePoolStatusRequest"): (39, 42),
}


@cache
def built_in_schema(group: str, version: str, kind: str) -> Type | None:
    """Return the schema of a built-in kind, None for others."""
    try:
        return schema_of(group, version, kind)
    except SchemaError:
        return None


@cache
def _blank(schema: Type) -> JsonObject:
    obj: JsonObject = zero_of(schema)
    return obj


def stored_schema(kind: Kind) -> Type | None:
    """Return the schema in which objects of a built-in kind are stored."""
    group = "" if kind.group == NEW_EVENTS else kind.group
    return built_in_schema(group, kind.storage_version, kind.kind)


def deprecation(kind: Kind, version: str) -> str:
    """Return the warning about a version that is deprecated by now, or ""."""
    if kind.group != RESOURCE:
        return ""
    found = _DEPRECATED.get((version, kind.kind)) or _DEPRECATED.get((version, ""))
    if found is None or found[0] > _SERVED_MINOR:
        return ""
    since, gone = found
    return f"{kind.api_version(version)} {kind.kind} is deprecated in v1.{since}+, unavailable in v1.{gone}+"


class CustomSchemas(Protocol):
    """What is known about custom kinds."""

    def read(self, call: Call, body: Any, validation: str) -> JsonObject:
        """Return a body with known members only and defaults filled in."""

    def apply_type(self, kind: Kind, version: str) -> Type | None:
        """Return the type that apply merges by; None for built-in kinds."""

    def selectable_fields(self, kind: Kind) -> frozenset[str]:
        """Return the fields that selectors may use beside name and namespace."""

    def deprecation(self, kind: Kind, version: str) -> str:
        """Return the warning about a version that is deprecated by now, or ""."""

    def unknown_members(self, kind: Kind, version: str, value: JsonObject) -> list[str]:
        """Return complaints about members that the schema of a version does not know."""

    def scale_paths(self, kind: Kind, version: str) -> tuple[str, str, str]:
        """Return where replicas wanted, replicas present and the label selector are; "" for nowhere."""


class Versions:
    """Converts between the storage version and the version of a request."""

    custom: CustomSchemas  # set once, by whoever assembles the server

    def schema(self, kind: Kind, version: str) -> Type | None:
        """Return the schema of a kind in a version; None for custom kinds."""
        return built_in_schema(kind.group, version, kind.kind)

    def stored_schema(self, kind: Kind) -> Type | None:
        """Return the schema in which objects of a kind are stored."""
        return stored_schema(kind)

    def is_stored_form(self, kind: Kind, version: str) -> bool:
        """Return whether stored bytes can be sent as they are."""
        return kind.storage_version == version and kind.group != NEW_EVENTS

    def items_carry_kind(self, kind: Kind) -> bool:
        """Return whether items of a list say their kind: custom ones do."""
        return self.stored_schema(kind) is None

    def outgoing(self, kind: Kind, obj: JsonObject, version: str) -> JsonObject:
        """Return a stored object as a version shows it."""
        schema = self.stored_schema(kind)
        shown: JsonObject = compact_raw(obj) if schema is not None and may_hold_raw(schema, obj) else obj
        if kind.group == NEW_EVENTS:
            return convert_event(shown, kind.group)
        if version == kind.storage_version:
            return shown
        if self.schema(kind, version) is None:
            return {**shown, "apiVersion": kind.api_version(version)}
        return convert(kind.group, kind.kind, shown, kind.storage_version, version)

    def incoming(self, kind: Kind, obj: JsonObject, version: str, now: datetime) -> JsonObject:
        """Return a client's object (which it may change) as it is stored."""
        if self.schema(kind, version) is None:
            return {**obj, "apiVersion": kind.api_version(kind.storage_version)}
        apply_defaults(kind.group, version, kind.kind, obj, now)
        if kind.kind == "Secret" and not kind.group:
            with_encoded_strings(obj)
        elif kind.kind == "DaemonSet":
            with_template_generation(obj)
        if kind.group == NEW_EVENTS:
            return convert_event(obj, "")
        if version == kind.storage_version:
            return obj
        return convert(kind.group, kind.kind, obj, version, kind.storage_version)

    def drop_empties(self, kind: Kind, obj: JsonObject) -> None:
        """Remove empty lists and maps that were kept for validation."""
        schema = self.stored_schema(kind)
        if schema is not None:
            drop_empty(schema, obj)

    def complete(self, kind: Kind, obj: JsonObject) -> None:
        """Write the parts that an object always shows, even empty: `status: {}` of a claim."""
        schema = self.stored_schema(kind)
        if schema is None:
            return
        for field in schema.fields.values():
            if field.always and field.name not in obj:
                obj[field.name] = None if field.pointer else zero_of(field.type)

    def read_custom(self, call: Call, body: Any, validation: str) -> JsonObject:
        """Return the body of a custom kind, pruned as its definition says."""
        return self.custom.read(call, body, validation)

    def apply_schema(self, kind: Kind, version: str) -> Type | None:
        """Return the schema that apply merges by; None takes values by their form."""
        return self.schema(kind, version) or self.custom.apply_type(kind, version)

    def blank(self, kind: Kind, version: str) -> JsonObject:
        """Return what an object of a version shows when nothing is set; shared, not to be changed."""
        schema = self.schema(kind, version)
        return _blank(schema) if schema is not None else {}

    def stored_shape(self, kind: Kind, obj: JsonObject, version: str) -> JsonObject:
        """Return an object of a version in the storage version, without adding anything."""
        if kind.group == NEW_EVENTS:
            return convert_event(obj, "")
        if version == kind.storage_version or self.schema(kind, version) is None:
            return obj
        return convert(kind.group, kind.kind, obj, version, kind.storage_version)

    def extra_fields(self, kind: Kind) -> frozenset[str]:
        """Return the selectable fields that a custom kind declares."""
        return self.custom.selectable_fields(kind)

    def warning(self, kind: Kind, version: str) -> str:
        """Return the warning about a version that is deprecated by now, or ""."""
        return deprecation(kind, version) or self.custom.deprecation(kind, version)

    def empty(self, kind: Kind, version: str, revision: int) -> JsonObject:
        """Return an object that says nothing but its kind and a resourceVersion."""
        schema = self.schema(kind, version)
        obj: JsonObject = zero_of(schema) if schema is not None else {}
        obj = {"kind": kind.kind, "apiVersion": kind.api_version(version), **obj}
        obj["metadata"] = {**(obj.get("metadata") or {}), "resourceVersion": str(revision)}
        return obj
