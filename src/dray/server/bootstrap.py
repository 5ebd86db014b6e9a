"""What a cluster has before anybody asks for it: namespaces, priority classes, roles."""

from __future__ import annotations

import asyncio

from dray.api.json_types import JsonObject
from dray.api.kinds import Kind, kind_of, kind_of_plural
from dray.api.well_known import NAMESPACE_NAME_LABEL
from dray.server.calls import World
from dray.server.objects import Objects, key_of
from dray.server.rbac_bootstrap import bootstrap_objects, reconciled
from dray.server.store import ABSENT, WriteConflict

NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_PRIORITY_CLASSES = {
    "system-cluster-critical": (
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ),
    "system-node-critical": (
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
}


def _kind(group: str, name: str) -> Kind:
    kind = kind_of(group, name)
    assert kind is not None
    return kind


async def ensure_bootstrap_objects(objects: Objects, world: World) -> None:
    """Create what is missing and repair roles; forget how a new store came about."""
    is_new = objects.store.revision <= 1
    wanted = [*_namespaces(), *_priority_classes()]
    for plural, obj in bootstrap_objects():
        kind = kind_of_plural("rbac.authorization.k8s.io", plural)
        assert kind is not None
        wanted.append((kind, obj))
    await asyncio.gather(*(_ensure(objects, world, kind, obj) for kind, obj in wanted))
    if is_new:
        await objects.store.compact(objects.store.revision)


async def _ensure(objects: Objects, world: World, kind: Kind, obj: JsonObject) -> None:
    metadata = obj["metadata"]
    key = key_of(kind, metadata.get("namespace", ""), metadata["name"])
    record = objects.store.get(key)
    try:
        if record is None:
            complete = {**metadata, "uid": world.new_uid(), "creationTimestamp": world.timestamp()}
            if kind.keeps_generation:
                complete["generation"] = 1
            await objects.put(kind, key, {**obj, "metadata": complete}, ABSENT)
        elif kind.group == "rbac.authorization.k8s.io":
            repaired = reconciled(objects.decoded(kind, record), obj)
            if repaired is not None:
                await objects.put(kind, key, repaired, record.revision)
    except WriteConflict:
        pass  # somebody else just made it


def _namespaces() -> list[tuple[Kind, JsonObject]]:
    kind = _kind("", "Namespace")
    return [
        (
            kind,
            {
                "metadata": {"name": name, "labels": {NAMESPACE_NAME_LABEL: name}},
                "spec": {"finalizers": ["kubernetes"]},
                "status": {"phase": "Active"},
            },
        )
        for name in NAMESPACES
    ]


def _priority_classes() -> list[tuple[Kind, JsonObject]]:
    kind = _kind("scheduling.k8s.io", "PriorityClass")
    return [
        (
            kind,
            {
                "metadata": {"name": name},
                "value": value,
                "description": description,
                "preemptionPolicy": "PreemptLowerPriority",
            },
        )
        for name, (value, description) in _PRIORITY_CLASSES.items()
    ]
