"""Pods and claim templates of manifests: what their controllers would make of them, for offline tools.

Pod templates are found by shape (`pod_templates`), so any custom kind works. How many pods a template stands for is read
on the way to it: the numbers of copies that enclosing mappings name are multiplied (a JobSet has replicas of Jobs
with parallelism, a RayCluster groups with replicas of several hosts). A LeaderWorkerSet says it in a way of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from dray.api.codec import to_view
from dray.api.compute_domains import API_VERSION as DOMAIN_VERSION
from dray.api.compute_domains import ComputeDomain
from dray.api.json_types import JsonObject
from dray.control.compute_domains import workload_template
from dray.sim.snapshot import SnapshotError
from dray.workbench.pod_templates import PodTemplate, pod_templates

MOST_PODS = 10_000  # of one workload
_UNCOUNTED = ("Pod", "DaemonSet", "PodTemplate", "ClusterTrainingRuntime", "TrainingRuntime")
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


def templates_of(obj: JsonObject) -> list[JsonObject]:
    """Return the claim templates that the controller of an object makes: that of a ComputeDomain's workload."""
    if (obj.get("apiVersion"), obj.get("kind")) != (DOMAIN_VERSION, "ComputeDomain"):
        return []
    try:
        domain = to_view(ComputeDomain, {key: obj.get(key) or {} for key in ("metadata", "spec")})
    except ValueError:
        return []  # the server refuses it, too
    if not domain.spec.channel.resource_claim_template.name:
        return []
    return [workload_template(domain)]


def pods_of(obj: JsonObject) -> list[JsonObject]:
    """Return the pods that a workload would have at once; none for a pod itself and for what runs on every node."""
    if obj.get("kind") in _UNCOUNTED:
        return []
    metadata = obj.get("metadata") if isinstance(obj.get("metadata"), dict) else {}
    assert metadata is not None
    name = str(metadata.get("name") or str(obj.get("kind")).lower())
    pods: list[JsonObject] = []
    templates = [each for each in pod_templates(obj) if isinstance(each.spec.get("containers"), list)]
    for index, template in enumerate(templates):
        count = _count(obj, template, name)
        if len(pods) + count > MOST_PODS:
            raise SnapshotError(
                f"{obj.get('kind')} {name} has {len(pods) + count} pods; the tools look at {MOST_PODS} at most"
            )
        base = name if len(templates) == 1 else f"{name}-{index}"
        labels = template.metadata.get("labels")
        pods += [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"{base}-{number}",
                    "namespace": metadata.get("namespace") or "default",
                    "labels": labels if isinstance(labels, dict) else {},
                },
                "spec": _pod_spec(template),
            }
            for number in range(count)
        ]
    return pods


def _pod_spec(template: PodTemplate) -> JsonObject:
    """Return the spec of a pod; names that the controller of a custom kind fills in are filled in here."""
    spec = dict(template.spec)
    spec["containers"] = [
        {"name": f"main-{index}", "image": "image", **container} if isinstance(container, dict) else container
        for index, container in enumerate(spec["containers"])
    ]
    return spec


def _count(obj: JsonObject, template: PodTemplate, name: str) -> int:
    total = 1
    for key, holder in _holders(obj, template.path):
        for field in ("replicas", "numOfHosts"):
            total *= _number(holder, field, 1, obj, name)
        if "replicas" not in holder and "minReplicas" in holder:
            total *= max(1, _number(holder, "minReplicas", 1, obj, name))
        if "parallelism" in holder or "completions" in holder:
            parallel = _number(holder, "parallelism", 1, obj, name)
            total *= min(parallel, _number(holder, "completions", parallel, obj, name))
        if "size" in holder and ("workerTemplate" in holder or "leaderTemplate" in holder):
            leaders = 1 if holder.get("leaderTemplate") else 0
            size = _number(holder, "size", 1, obj, name)
            total *= max(0, size - leaders) if key == "workerTemplate" else 1
    return total


def _holders(obj: JsonObject, path: str) -> Iterator[tuple[str, JsonObject]]:
    """Yield the mappings around a template, each with the field that leads on from it."""
    value: Any = obj
    for key, index in _STEP.findall(path):
        if isinstance(value, dict):
            yield key, value
        value = value[int(index)] if index else value[key]
    if isinstance(value, dict) and value is not obj:
        yield "", value


def _number(holder: JsonObject, field: str, default: int, obj: JsonObject, name: str) -> int:
    value = holder.get(field)
    if value is None or isinstance(
        value, (dict, list)
    ):  # another thing of that name, as in LLMInferenceService
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise SnapshotError(
            f"{obj.get('kind')} {name}: the number of pods must be a whole number, not {value!r}"
        )
    return value
