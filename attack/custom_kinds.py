"""Custom kinds: one made to be attacked, and those that dray brings itself."""

from __future__ import annotations

from importlib import resources
from typing import Any

from dray.api.kinds import Kind
from dray.api.parsing import load_yaml

Json = Any
GROUP = "attack.example.com"  # of the kind that is made to be attacked
CUSTOM = Kind(GROUP, "Widget", "widgets", ("v1",), "v1", True)
ROLLOUT = Kind("fleet.dray.dev", "DriverRollout", "driverrollouts", ("v1alpha1",), "v1alpha1", False)
DOMAIN = Kind("resource.nvidia.com", "ComputeDomain", "computedomains", ("v1beta1",), "v1beta1", True)
CLIQUE = Kind(
    "resource.nvidia.com", "ComputeDomainClique", "computedomaincliques", ("v1beta1",), "v1beta1", True
)
CUSTOM_KINDS = (CUSTOM, ROLLOUT, DOMAIN, CLIQUE)
_OWN = (
    ("dray.workbench.fleet", "driverrollouts.yaml"),
    ("dray.drivers.hardware", "computedomains.yaml"),
    ("dray.drivers.hardware", "computedomaincliques.yaml"),
)


def definition(
    metadata: Json, plural: str = "widgets", kind: str = "Widget", group: str = GROUP
) -> dict[str, Json]:
    """Return a definition with a schema, rules of several kinds, columns and subresources."""
    part = {"type": "object", "required": ["k"], "properties": {"k": {"type": "string", "maxLength": 40}, "n": {"type": "integer", "default": 1}}}  # fmt: skip
    properties = {
        "size": {
            "type": "integer", "minimum": 0, "maximum": 100,
            "x-kubernetes-validations": [{"rule": "self >= oldSelf - 90", "messageExpression": "self > 5 ? 'much smaller' : 'too ' + 'small'"}],
        },
        "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 20},
        "parts": {
            "type": "array", "maxItems": 50, "items": part, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            "x-kubernetes-validations": [{"rule": "self.all(x, self.exists_one(y, x.k == y.k))", "message": "each once", "reason": "FieldValueDuplicate"}],
        },
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "port": {"x-kubernetes-int-or-string": True},
        "labels": {"type": "object", "maxProperties": 20, "additionalProperties": {"type": "string", "maxLength": 50}},
        "since": {"type": "string", "format": "date-time", "nullable": True},
        "either": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    }  # fmt: skip
    rules: list[Json] = [
        {"rule": "!has(self.size) || !has(self.parts) || self.parts.size() <= 60", "fieldPath": ".size"},
        {"rule": "!has(self.labels) || !('never' in self.labels)"},
        {
            "rule": "!oldSelf.hasValue() || has(self.size) || !has(oldSelf.value().size)",
            "optionalOldSelf": True,
        },
    ]
    spec = {"type": "object", "properties": properties, "x-kubernetes-validations": rules}
    status = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": spec, "status": status}}
    column = {"name": "Size", "type": "integer", "jsonPath": ".spec.size"}
    keys = {"name": "Parts", "type": "string", "jsonPath": ".spec.parts[*].k", "priority": 1}
    version = {
        "name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"}},
        "additionalPrinterColumns": [column, keys], "selectableFields": [{"jsonPath": ".spec.name"}],
    }  # fmt: skip
    names = {
        "plural": plural,
        "singular": kind.lower(),
        "kind": kind,
        "listKind": f"{kind}List",
        "shortNames": ["wd"],
    }
    return {
        "metadata": metadata,
        "spec": {"group": group, "names": names, "scope": "Namespaced", "versions": [version]},
    }


def own_definitions() -> list[Json]:
    """Return the definitions of the kinds that dray brings."""
    return [
        load_yaml(resources.files(package).joinpath("crds", name).read_text("utf-8"))
        for package, name in _OWN
    ]


def custom_bodies() -> list[tuple[Kind, Json]]:
    """Return a valid spec of each kind, and more."""
    rollout = {
        "driver": "gpu.example.com", "daemonSet": {"namespace": "default", "name": "a0", "container": "main"},
        "to": {"version": "2.0.0", "image": "registry.example/a:2"}, "pods": "Wait", "maxUnavailable": 2, "canary": 1, "maxFailures": 1,
        "rollBack": True, "stepSeconds": 60, "paused": True,
    }  # fmt: skip
    node = {"name": "n1", "ipAddress": "10.0.0.1", "cliqueID": "c.1", "index": 0, "status": "Ready"}
    widget = {
        "size": 3, "name": "abc", "parts": [{"k": "v"}, {"k": "w", "n": 2}], "free": {"x": [1]}, "port": "80%", "labels": {"a": "b"},
        "since": "2026-01-02T03:04:05Z", "either": {"a": "x"},
    }  # fmt: skip
    domain = {
        "numNodes": 2,
        "channel": {"resourceClaimTemplate": {"name": "t"}, "allocationMode": "Single"},
    }
    return [
        (CUSTOM, {"spec": widget}),
        (ROLLOUT, {"spec": rollout}),
        (DOMAIN, {"spec": domain, "status": {"status": "Ready", "nodes": [node]}}),
        (CLIQUE, {"daemons": [{**node, "nodeName": "n1"}]}),
    ]
