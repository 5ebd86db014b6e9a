"""Which objects of a kind a request selects: label selector and field selector together.

Every kind can be selected by name and namespace; some offer a few more fields,
named here once. Nodes and namespaces and slices leave `metadata.namespace` out,
as upstream does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dray.api.kinds import NEW_EVENTS, RESOURCE, Kind
from dray.server.requests import (
    FieldSelector,
    LabelSelector,
    ListOptions,
    field_text,
    matches_fields,
    matches_labels,
    parse_field_selector,
    parse_label_selector,
)

_NAME = frozenset({"metadata.name"})
_EVERY = _NAME | {"metadata.namespace"}
_OBJECT_REFERENCE = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_FIELDS: dict[tuple[str, str], frozenset[str]] = {
    ("", "pods"): _EVERY
    | {
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.podIPs",
        "status.nominatedNodeName",
    },
    ("", "nodes"): _NAME | {"spec.unschedulable"},
    ("", "namespaces"): _NAME | {"status.phase"},
    ("", "secrets"): _EVERY | {"type"},
    ("", "events"): _EVERY
    | {f"involvedObject.{part}" for part in _OBJECT_REFERENCE}
    | {"reason", "reportingComponent", "source", "type"},
    (NEW_EVENTS, "events"): _EVERY
    | {f"regarding.{part}" for part in _OBJECT_REFERENCE}
    | {"reason", "reportingController", "type"},
    ("batch", "jobs"): _EVERY | {"status.successful"},
    (RESOURCE, "resourceslices"): _NAME | {"spec.nodeName", "spec.driver", "spec.pool.name"},
}

# Fields that are shown under one name and stored under another.
_STORED_AS = {
    "reportingController": "reportingComponent",
    "status.successful": "status.succeeded",
}
_BOOLEANS = frozenset({"spec.unschedulable", "spec.hostNetwork"})


@dataclass(frozen=True, slots=True)
class Selection:
    """A parsed pair of selectors; empty selects everything."""

    labels: LabelSelector = ()
    fields: FieldSelector = ()

    @property
    def is_everything(self) -> bool:
        """Return whether there is nothing to check."""
        return not self.labels and not self.fields

    def accepts(self, obj: dict[str, Any]) -> bool:
        """Return whether an object (in its storage version) is selected."""
        if self.labels and not matches_labels(self.labels, (obj.get("metadata") or {}).get("labels")):
            return False
        return not self.fields or matches_fields(self.fields, lambda field: _value(obj, field))


def parse_selection(
    kind: Kind, version: str, options: ListOptions, extra_fields: frozenset[str] = frozenset()
) -> Selection:
    """Parse the selectors of a request; raises 400 for what the kind does not offer."""
    labels = parse_label_selector(options.label_selector) if options.label_selector else ()
    if not options.field_selector:
        return Selection(labels)
    return Selection(
        labels, parse_field_selector(options.field_selector, _judge(kind, version, extra_fields))
    )


def _judge(kind: Kind, version: str, extra_fields: frozenset[str]) -> Callable[[str], str]:
    own = _FIELDS.get((kind.group, kind.plural))
    known = (own or _EVERY) | extra_fields

    def why_not(field: str) -> str:
        if field in known:
            return ""
        if own is None:
            return f'"{field}" is not a known field selector: only "metadata.name", "metadata.namespace"'
        if kind.plural == "resourceslices":
            return f"field label not supported for {kind.api_version(version)}, Kind={kind.kind}: {field}"
        return f"field label not supported: {field}"

    return why_not


def _value(obj: dict[str, Any], field: str) -> str:
    if field.startswith("regarding."):
        field = "involvedObject." + field.removeprefix("regarding.")
    if field == "source":
        return field_text(obj, "source.component") or field_text(obj, "reportingComponent")
    text = field_text(obj, _STORED_AS.get(field, field))
    if field in _BOOLEANS:
        return text or "false"
    if field == "status.successful":
        return text or "0"
    return text
