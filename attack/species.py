"""The corpus: all known valid objects of each kind and version, and the requests that store them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from attack.custom_kinds import GROUP, definition, own_definitions
from attack.policies import in_force
from attack.templates import Template
from attack.vocabulary import JSON, NAMES
from attack.wire import Request
from dray.api.kinds import Kind
from dray.api.schema import SchemaError, Type, schema_of

Json = Any


@dataclass
class Species:
    """All known valid objects of one kind in one version."""

    kind: Kind
    version: str
    bodies: list[Json]
    limits: bool = False

    @property
    def schema(self) -> Type | None:
        """Return the schema; custom kinds have none here."""
        try:
            return schema_of(self.kind.group, self.version, self.kind.kind)
        except SchemaError:
            return None


def species_of(templates: list[Template]) -> list[Species]:
    """Gather templates by kind and version."""
    found: dict[tuple[str, str, str], Species] = {}
    for each in templates:
        key = (each.kind.group, each.kind.kind, each.version)
        made = found.setdefault(key, Species(each.kind, each.version, [], each.limits))
        made.bodies.append(each.body)
    return list(found.values())


def named(species: Species, body: Json, name: str, namespace: str) -> Json:
    """Return an object with kind, version, name and namespace."""
    kind = species.kind
    metadata = dict(body.get("metadata") or {})
    made = {"apiVersion": kind.api_version(species.version), "kind": kind.kind, **body}
    if kind.kind == "CustomResourceDefinition":
        plural = f"gadget{name}s"
        metadata["name"] = f"{plural}.{GROUP}"
        names = {
            "plural": plural,
            "singular": f"gadget{name}",
            "kind": f"Gadget{name}",
            "listKind": f"Gadget{name}List",
        }
        if isinstance(body.get("spec"), dict):
            made["spec"] = {**body["spec"], "names": names}
    else:
        metadata["name"] = name
    if kind.namespaced:
        metadata["namespace"] = namespace
        for field in ("involvedObject", "regarding"):
            if isinstance(made.get(field), dict):
                made[field] = {**made[field], "namespace": namespace}
    made["metadata"] = metadata
    return made


def dumps(value: Json) -> bytes:
    """Return JSON as short as it gets."""
    return json.dumps(value, separators=(",", ":")).encode("utf-8", "surrogatepass")


def setup_requests(species: list[Species], namespace: str) -> list[Request]:
    """Return the requests that make the objects which later requests change: namespaces, the custom kind, one of each name."""
    made = []
    for each in (namespace, namespace + "-limits"):
        made.append(
            Request(
                "POST",
                "/api/v1/namespaces",
                {"Content-Type": JSON},
                dumps({"metadata": {"name": each}}),
                shape="setup",
            )
        )
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    first = [(crds, definition({"name": f"widgets.{GROUP}"})), *((crds, each) for each in own_definitions())]
    made += [
        Request("POST", target, {"Content-Type": JSON}, dumps(body), shape="setup")
        for target, body in (*first, *in_force(GROUP))
    ]
    for each_species in species:
        kind = each_species.kind
        if not kind.is_stored:
            continue
        home = namespace + "-limits" if each_species.limits else namespace
        for place, name in enumerate(NAMES):
            body = named(each_species, each_species.bodies[place % len(each_species.bodies)], name, home)
            target = kind.path(version=each_species.version, namespace=home)
            made.append(
                Request("POST", target, {"Content-Type": JSON}, dumps(body), shape="setup", changes=True)
            )
    return made
