"""The objects of the bench: a cluster of 500 nodes, and claims to write."""

from __future__ import annotations

from typing import Any

from bench.server.load import prepared

Object = dict[str, Any]
RESOURCE = "/apis/resource.k8s.io/v1"
NAMESPACE = "bench"
CLAIMS = f"{RESOURCE}/namespaces/{NAMESPACE}/resourceclaims"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
SLICES = f"{RESOURCE}/resourceslices"
DRIVER = "gpu.example.com"


def create(path: str, api_version: str, kind: str, name: str, **parts: Any) -> bytes:
    """Return the request that creates an object."""
    metadata = {"name": name, **parts.pop("metadata", {})}
    return prepared("POST", path, {"apiVersion": api_version, "kind": kind, "metadata": metadata, **parts})


def foundations() -> list[bytes]:
    """Return what everything else needs."""
    return [
        create("/api/v1/namespaces", "v1", "Namespace", NAMESPACE),
        create(
            f"{RESOURCE}/deviceclasses", "resource.k8s.io/v1", "DeviceClass", "gpu",
            spec={"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
        ),
    ]  # fmt: skip


def node(number: int) -> bytes:
    """Return a node as a kubelet registers it."""
    name = f"node-{number:05}"
    allocatable = {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "500Gi"}
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is ready"}
    status = {"capacity": allocatable, "allocatable": allocatable, "conditions": [ready]}
    return create("/api/v1/nodes", "v1", "Node", name, metadata={"labels": labels}, status=status)


def resource_slice(number: int) -> bytes:
    """Return eight devices of a node."""
    name = f"node-{number:05}"
    devices = [
        {
            "name": f"gpu-{index}",
            "attributes": {
                "index": {"int": index},
                "uuid": {"string": f"GPU-{number:05}-{index}"},
                "productName": {"string": "Example Accelerator 80GB"},
                "architecture": {"string": "example"},
                "driverVersion": {"version": "550.54.15"},
                "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{index // 2:02x}"},
            },
            "capacity": {"memory": {"value": "80Gi"}},
        }
        for index in range(8)
    ]
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices}
    return create(SLICES, "resource.k8s.io/v1", "ResourceSlice", f"{name}-gpus", spec=spec)


def claim(name: str) -> bytes:
    """Return a claim of one device."""
    expression = f'device.capacity["{DRIVER}"].memory.compareTo(quantity("40Gi")) >= 0'
    wanted = {"deviceClassName": "gpu", "selectors": [{"cel": {"expression": expression}}]}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": wanted}]}}
    finalizers = ["resource.kubernetes.io/delete-protection"]
    return create(
        CLAIMS, "resource.k8s.io/v1", "ResourceClaim", name, metadata={"finalizers": finalizers}, spec=spec
    )


def allocated(stored: Object, number: int) -> bytes:
    """Return the status write that allocates a stored claim, as a scheduler does."""
    pool, device = f"node-{number // 8 % 5000:05}", f"gpu-{number % 8}"
    result = {"request": "gpu", "driver": DRIVER, "pool": pool, "device": device}
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [pool]}]}
    allocation = {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [term]}}
    user = {"resource": "pods", "name": f"pod-{number}", "uid": f"uid-of-pod-{number}"}
    body = {**stored, "status": {"allocation": allocation, "reservedFor": [user]}}
    return prepared("PUT", f"{CLAIMS}/{stored['metadata']['name']}/status", body)


def pod(number: int) -> bytes:
    """Return a pod with a claim."""
    container = {
        "name": "main",
        "image": "registry.example/trainer:1",
        "resources": {"requests": {"cpu": "1", "memory": "4Gi"}, "claims": [{"name": "gpu"}]},
        "env": [{"name": "RANK", "value": str(number)}],
    }
    spec = {
        "containers": [container],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": f"claim-{number}"}],
        "nodeName": f"node-{number // 5:05}",
    }
    return create(PODS, "v1", "Pod", f"pod-{number}", metadata={"labels": {"app": "trainer"}}, spec=spec)
