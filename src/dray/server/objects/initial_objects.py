"""What a cluster has before anybody asks for it: namespaces, priority classes, roles."""

from __future__ import annotations

import asyncio

from dray.api.json_types import JsonObject
from dray.api.kinds import RBAC, SCHEDULING, Kind, kind_of, kind_of_plural
from dray.api.well_known import HIGH_PRIORITY_CLASS, LOW_PRIORITY_CLASS, NAMESPACE_NAME_LABEL
from dray.server.auth import bootstrap_objects, reconciled
from dray.server.objects.stored_objects import Objects, key_of
from dray.server.requests import Environment
from dray.server.store import ABSENT, WriteConflict

NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_PREEMPT, _WAIT = "PreemptLowerPriority", "Never"
_PRIORITY_CLASSES = {
    "system-cluster-critical": (
        2_000_000_000,
        _PREEMPT,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ),
    "system-node-critical": (
        2_000_001_000,
        _PREEMPT,
        "Used for system critical pods that must not be moved from their current node.",
    ),
    # Everybody may use these. High only goes first: nobody's running job is ended for it.
    HIGH_PRIORITY_CLASS: (1000, _WAIT, "Jobs that go before others and evict none."),
    LOW_PRIORITY_CLASS: (-1000, _WAIT, "Jobs that use what is idle and are evicted when others need it."),
}


def _kind(group: str, name: str) -> Kind:
    kind = kind_of(group, name)
    assert kind is not None
    return kind


async def ensure_bootstrap_objects(objects: Objects, environment: Environment) -> None:
    """Create what is missing and repair roles; forget how a new store came about."""
    is_new = objects.store.revision <= 1
    wanted = [*_namespaces(), *_priority_classes()]
    for plural, obj in bootstrap_objects():
        kind = kind_of_plural(RBAC, plural)
        assert kind is not None
        wanted.append((kind, obj))
    await asyncio.gather(*(ensure_object(objects, environment, kind, obj) for kind, obj in wanted))
    if is_new:
        await objects.store.compact(objects.store.revision)


async def ensure_object(objects: Objects, environment: Environment, kind: Kind, obj: JsonObject) -> None:
    """Create an object unless it exists; a role or binding that lost something is repaired."""
    metadata = obj["metadata"]
    key = key_of(kind, metadata.get("namespace", ""), metadata["name"])
    record = objects.store.get(key)
    try:
        if record is None:
            complete = {
                **metadata,
                "uid": environment.new_uid(),
                "creationTimestamp": environment.timestamp(),
            }
            if kind.keeps_generation:
                complete["generation"] = 1
            await objects.put(kind, key, {**obj, "metadata": complete}, ABSENT)
        elif kind.group == RBAC:
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
    kind = _kind(SCHEDULING, "PriorityClass")
    return [
        (
            kind,
            {
                "metadata": {"name": name},
                "value": value,
                "description": description,
                "preemptionPolicy": policy,
            },
        )
        for name, (value, policy, description) in _PRIORITY_CLASSES.items()
    ]
