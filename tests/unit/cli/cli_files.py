"""Manifests and snapshots for the tests of commands."""

import json

import msgspec

from dray.drivers.hardware import load_profile
from dray.sim.cluster import OfflineCluster
from dray.sim.hardware import hardware_snapshot
from dray.sim.snapshot import Snapshot


def claim(name="c", *, namespace="default", count=1, class_name="gpu.nvidia.com", where=(), **more):
    exactly = {"deviceClassName": class_name, "count": count}
    if where:
        exactly["selectors"] = [{"cel": {"expression": text}} for text in where]
    exactly.update(more.pop("exactly", {}))
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}], **more}},
    }


def pod(name="p", claim_name="c", *, namespace="default", **spec):
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "resourceClaims": [{"name": "gpu", "resourceClaimName": claim_name}],
            "containers": [{"name": "main", "image": "busybox", "resources": {"claims": [{"name": "gpu"}]}}],
            **spec,
        },
    }


def cluster(*objects, profiles=(("dgx-h100", 1),)):
    """Return the snapshot of a cluster with these objects, the pods placed as the scheduler would."""
    snapshot = hardware_snapshot([(load_profile(name), count) for name, count in profiles])
    for obj in objects:
        snapshot.add(obj)
    offline = OfflineCluster(snapshot)
    outcome = offline.place([found for found in offline.pods.values() if not found.spec.node_name])
    placed = {entry.pod: entry.node for entry in outcome.placed}
    result = Snapshot()
    for obj in snapshot.objects:
        meta = obj["metadata"]
        key = f"{meta.get('namespace')}/{meta.get('name')}"
        if obj["kind"] == "Pod" and key in placed:
            obj = {**obj, "spec": {**obj["spec"], "nodeName": placed[key]}, "status": {"phase": "Running"}}
        if obj["kind"] == "ResourceClaim" and key in offline.claims:
            status = offline.claims[key].status
            if status.allocation is not None:
                obj = {**obj, "status": msgspec.to_builtins(status)}
        result.add(obj)
    return result


def written(path, *objects):
    """Write objects as one file and return its name."""
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))
    return str(path)


__all__ = ["claim", "cluster", "pod", "written"]
