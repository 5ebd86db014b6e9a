"""Pods of workload manifests: what the workload controllers would make of them, for offline tools."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dray.api.json_types import JsonObject
from dray.sim.snapshot import Snapshot, SnapshotError, read_objects

MOST_PODS = 10_000  # of one workload


def pods_of(obj: JsonObject) -> list[JsonObject]:
    """Return the pods that a Deployment, ReplicaSet, StatefulSet or Job would have."""
    kind = obj.get("kind")
    spec: dict[str, Any] = obj.get("spec") or {}
    if kind in ("Deployment", "ReplicaSet", "StatefulSet"):
        count = int(spec.get("replicas", 1))
    elif kind == "Job":
        count = min(
            int(spec.get("parallelism", 1)), int(spec.get("completions") or spec.get("parallelism", 1))
        )
    else:
        return []
    if count > MOST_PODS:
        name = (obj.get("metadata") or {}).get("name", "?")
        raise SnapshotError(
            f"{kind} {name} has {str(count)[:20]} pods; the tools look at {MOST_PODS} at most"
        )
    template = spec.get("template") or {}
    meta = obj.get("metadata") or {}
    pods = []
    for number in range(count):
        given = template.get("metadata") or {}
        metadata = {
            "name": f"{meta.get('name', kind.lower())}-{number}",
            "namespace": meta.get("namespace", "default"),
            "labels": given.get("labels") or {},
        }
        pods.append(
            {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template.get("spec") or {}}
        )
    return pods


def expand_workloads(paths: Iterable[Path], snapshot: Snapshot) -> None:
    """Add the pods of the workloads in these files to the snapshot."""
    for path in paths:
        for obj in read_objects(path):
            for pod in pods_of(obj):
                snapshot.add(pod)
