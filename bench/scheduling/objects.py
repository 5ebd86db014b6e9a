"""The objects of a workload as the API wants them."""

from __future__ import annotations

from collections.abc import Iterator

from bench.scheduling.hardware import DRIVER, Object, node_name
from bench.scheduling.workloads import Place, Workload

API = "resource.k8s.io/v1"
RESOURCE = f"/apis/{API}"
NODES, SLICES, CLASSES = "/api/v1/nodes", f"{RESOURCE}/resourceslices", f"{RESOURCE}/deviceclasses"
SCHEDULER = "contender"
BENCH, TAKEN, PROBE = "bench", "taken", "probe"  # namespaces


def pods_path(namespace: str = BENCH) -> str:
    """Return the path of the pods of a namespace."""
    return f"/api/v1/namespaces/{namespace}/pods"


def claims_path(namespace: str = BENCH) -> str:
    """Return the path of the claims of a namespace."""
    return f"{RESOURCE}/namespaces/{namespace}/resourceclaims"


def templates_path(namespace: str = BENCH) -> str:
    """Return the path of the claim templates of a namespace."""
    return f"{RESOURCE}/namespaces/{namespace}/resourceclaimtemplates"


def node(number: int) -> Object:
    """Return a node that has room for everybody."""
    name, room = node_name(number), {"cpu": "64", "memory": "512Gi", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    return {
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"capacity": room, "allocatable": room, "conditions": [ready]},
    }  # fmt: skip


def slices(workload: Workload) -> Iterator[Object]:
    """Yield the slices of all nodes."""
    for number in range(workload.n_nodes):
        name, parts = node_name(number), workload.hardware(number)
        pool = {"name": name, "generation": 1, "resourceSliceCount": len(parts)}
        for position, part in enumerate(parts):
            spec = {"driver": DRIVER, "nodeName": name, "pool": pool, **part}
            yield _resource("ResourceSlice", {"name": f"{name}-{position}"}, spec)


def device_class(name: str, expression: str) -> Object:
    """Return a class of the devices that an expression selects."""
    return _resource("DeviceClass", {"name": name}, {"selectors": [{"cel": {"expression": expression}}]})


def template(kind: str, spec: Object) -> Object:
    """Return the template that pods with claims of a kind use."""
    return _resource("ResourceClaimTemplate", {"name": template_name(kind)}, {"spec": spec})


def template_name(kind: str) -> str:
    """Return the name of the template of a kind of claim."""
    return f"kind-{kind.replace('.', '-')}"


def taken_claim(number: int, spec: Object) -> Object:
    """Return a claim that was there before; nobody uses it, so controllers leave it alone."""
    return _resource("ResourceClaim", {"name": f"taken-{number:05}", "namespace": TAKEN}, spec)


def allocation(place: Place) -> Object:
    """Return what the status of a claim says of its devices."""
    field = {"key": "metadata.name", "operator": "In", "values": [node_name(place.node)]}
    return {
        "devices": {"results": place.results},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
    }


def pod(name: str, kind: str = "", scheduler: str = SCHEDULER) -> Object:
    """Return a pod, with a claim from a template if it has a kind."""
    container: Object = {"name": "main", "image": "registry.example/pause"}
    spec: Object = {"schedulerName": scheduler, "containers": [container]}
    if kind:
        container["resources"] = {"claims": [{"name": "device"}]}
        spec["resourceClaims"] = [{"name": "device", "resourceClaimTemplateName": template_name(kind)}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def namespace(name: str) -> Object:
    """Return a namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _resource(kind: str, metadata: Object, spec: Object) -> Object:
    return {"apiVersion": API, "kind": kind, "metadata": metadata, "spec": spec}
