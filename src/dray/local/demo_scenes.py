"""The scenes of the guided tour: the classic claims of DRA, each with the words that explain it.

A scene is data: what is applied, which pods should run (or stay pending), and what a
newcomer should notice. The tour (`dray demo`) plays them on a real system.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dray.api.json_types import JsonObject
from dray.api.well_known import ADMIN_ACCESS_LABEL, PCIE_ROOT

NAMESPACE = "demo"
ADMIN_NAMESPACE = "demo-admin"
NODES = ("dgx-h100:1", "dgx-a100-mig:1", "l40s-shared:1", "tpu-v5e:1", "fpga-u280:1", "sriov-nics:1")
GPU = "device.attributes['gpu.nvidia.com']"


@dataclass(frozen=True, slots=True)
class Scene:
    """One step of the tour."""

    title: str
    text: str
    objects: tuple[JsonObject, ...]
    runs: tuple[str, ...] = ()  # pods that should run; a trailing * matches generated names
    waits: tuple[str, ...] = ()  # pods that should stay pending, with an explanation
    fault: tuple[str, str] | None = None  # (driver, taint key): taint the device that the running pod holds
    namespace: str = NAMESPACE


def request(name: str, device_class: str, **fields: Any) -> JsonObject:
    """Return a request for exactly these devices."""
    selector = fields.pop("where", None)
    if selector:
        fields["selectors"] = [{"cel": {"expression": selector}}]
    return {"name": name, "exactly": {"deviceClassName": device_class, **fields}}


def alternative(name: str, device_class: str, where: str, count: int = 1) -> JsonObject:
    """Return one alternative of a first-available request."""
    return {
        "name": name,
        "deviceClassName": device_class,
        "count": count,
        "selectors": [{"cel": {"expression": where}}],
    }


def claim(
    name: str,
    requests: Sequence[JsonObject],
    constraints: Sequence[JsonObject] = (),
    namespace: str = NAMESPACE,
) -> JsonObject:
    """Return a claim."""
    devices: JsonObject = {"requests": list(requests)}
    if constraints:
        devices["constraints"] = list(constraints)
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": devices},
    }


def pod(name: str, claims: Sequence[str] = (), namespace: str = NAMESPACE, **spec: Any) -> JsonObject:
    """Return a pod that shows its devices and then waits; its claims have the names given."""
    container: JsonObject = {
        "name": "main",
        "image": "busybox",
        "command": ["sh", "-c", "env | grep '^DRAY_DEVICE' | sort; sleep 3600"],
        "resources": spec.pop("resources", {}),
    }
    if claims:
        container["resources"] = {**container["resources"], "claims": [{"name": entry} for entry in claims]}
        spec["resourceClaims"] = [{"name": entry, "resourceClaimName": entry} for entry in claims]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"demo": name}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **spec},
    }


def with_claim(
    name: str, requests: Sequence[JsonObject], constraints: Sequence[JsonObject] = ()
) -> tuple[JsonObject, JsonObject]:
    """Return a claim and the pod that uses it, under one name."""
    return claim(name, requests, constraints), pod(name, [name])


def gang(name: str, size: int, requests: Sequence[JsonObject]) -> list[JsonObject]:
    """Return a PodGroup of pods that run all together or not at all."""
    group = {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"schedulingPolicy": {"gang": {"minCount": size}}},
    }
    objects: list[JsonObject] = [group]
    for number in range(size):
        member = f"{name}-{number}"
        objects.append(claim(member, requests))
        objects.append(pod(member, [member], schedulingGroup={"podGroupName": name}))
    return objects


def healing_service(name: str, requests: Sequence[JsonObject]) -> list[JsonObject]:
    """Return a Deployment of one pod with a claim from a template."""
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"spec": {"devices": {"requests": list(requests)}}},
    }
    body = pod(name)["spec"] | {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": name}]}
    body["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": body},
        },
    }
    return [template, deployment]


def namespace_object(name: str, **labels: str) -> JsonObject:
    """Return a namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


@dataclass(slots=True)
class Tour:
    """All scenes, and what must be there before the first."""

    before: list[JsonObject] = field(default_factory=list)
    scenes: list[Scene] = field(default_factory=list)


def the_tour() -> Tour:
    """Return the tour on the nodes of NODES."""
    small = [
        with_claim(f"small-{n}", [request("mig", "mig.nvidia.com", where=f"{GPU}.profile == '1g.5gb'")])
        for n in range(7)
    ]
    whole_a100 = with_claim(
        "large", [request("gpu", "gpu.nvidia.com", where=f"{GPU}.productName.contains('A100')", count=2)]
    )
    scenes = [
        Scene(
            "Any GPU with at least 40 GiB",
            "A claim says what it needs, not which card: CEL compares the capacity.",
            with_claim(
                "roomy",
                [request("gpu", "gpu.nvidia.com",
                         where="device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40Gi')) >= 0"
                               " && !device.allowMultipleAllocations")],
            ),
            runs=("roomy",),
        ),
        Scene(
            "A GPU and a NIC on one PCIe root",
            "matchAttribute ties two requests together: data goes from NIC to GPU without crossing the CPU.",
            with_claim(
                "rdma",
                [request("gpu", "gpu.nvidia.com", where=f"{GPU}.productName.contains('H100')"),
                 request("nic", "dra.net", where="device.attributes['dra.net'].rdma")],
                [{"matchAttribute": PCIE_ROOT}],
            ),
            runs=("rdma",),
        ),
        Scene(
            "Seven small models on slices of one GPU, while another job holds two whole ones",
            "MIG slices and whole GPUs draw on the same counters: the allocator never cuts a GPU that is in use.",
            tuple(obj for pair in small for obj in pair) + whole_a100,
            runs=(*(f"small-{n}" for n in range(7)), "large"),
        ),
        Scene(
            "One GPU shared by capacity",
            "Two pods take 12 GiB and 24 GiB of a 45 GiB card; each gets a share of its own.",
            (
                *with_claim("share-a", [request("gpu", "gpu.nvidia.com", where="device.allowMultipleAllocations",
                                                capacity={"requests": {"memory": "12Gi"}})]),
                *with_claim("share-b", [request("gpu", "gpu.nvidia.com", where="device.allowMultipleAllocations",
                                                capacity={"requests": {"memory": "24Gi"}})]),
            ),
            runs=("share-a", "share-b"),
        ),
        Scene(
            "Eight H100, or else two A100",
            "firstAvailable lists alternatives in order of preference; some H100 are taken, so the second one is used.",
            with_claim(
                "either",
                [{"name": "gpu", "firstAvailable": [
                    alternative("h100", "gpu.nvidia.com", f"{GPU}.productName.contains('H100')", 8),
                    alternative("a100", "gpu.nvidia.com", f"{GPU}.productName.contains('A100')", 2)]}],
            ),
            runs=("either",),
        ),
        Scene(
            "All devices of a node",
            "allocationMode All takes every matching device: here all 32 virtual functions of the SR-IOV node.",
            with_claim("every-vf", [request("vfs", "sriovnetwork.k8snetworkplumbingwg.io", allocationMode="All")]),
            runs=("every-vf",),
        ),
        Scene(
            "A TPU slice",
            "All chips of a v5e host: the driver gives all of them or none.",
            with_claim("tpu", [request("chips", "tpu.google.com", allocationMode="All", where="device.attributes['tpu.google.com'].tpuGen == 'v5litepod'")]),
            runs=("tpu",),
        ),
        Scene(
            "An FPGA, with the bitstream in the claim's config",
            "Opaque parameters travel from the claim to the driver untouched.",
            _fpga(),
            runs=("fpga",),
        ),
        Scene(
            "An administrator's monitor",
            "adminAccess looks at devices that others hold; only namespaces with the label may ask for it.",
            (
                claim("monitor", [request("gpus", "gpu.nvidia.com", allocationMode="All", adminAccess=True,
                                          where=f"{GPU}.productName.contains('H100')")], namespace=ADMIN_NAMESPACE),
                pod("monitor", ["monitor"], namespace=ADMIN_NAMESPACE),
            ),
            runs=("monitor",),
            namespace=ADMIN_NAMESPACE,
        ),
        Scene(
            "A pod of the device-plugin era",
            "`nvidia.com/gpu: 1` in limits still works: the scheduler makes the claim behind it.",
            (pod("legacy", resources={"limits": {"nvidia.com/gpu": "1"}}),),
            runs=("legacy",),
        ),
        Scene(
            "A gang",
            "Three pods with a whole H100 each start together, or none does.",
            tuple(gang("trainers", 3, [request("gpu", "gpu.nvidia.com", where=f"{GPU}.productName.contains('H100')")])),
            runs=tuple(f"trainers-{n}" for n in range(3)),
        ),
        Scene(
            "An impossible claim, and why",
            "No device is an H200. The pod waits, and everybody can read the reason.",
            with_claim("impossible", [request("gpu", "gpu.nvidia.com", where=f"{GPU}.productName == 'NVIDIA H200'")]),
            waits=("impossible",),
        ),
        Scene(
            "A device fails, and its pod moves",
            "The driver taints the broken GPU with NoExecute; the pod is evicted and its Deployment makes another.",
            tuple(healing_service("service", [request("gpu", "gpu.nvidia.com", where=f"{GPU}.productName.contains('A100')")])),
            runs=("service-*",),
            fault=("gpu.nvidia.com", "gpu.nvidia.com/xid"),
        ),
    ]  # fmt: skip
    before = [
        namespace_object(NAMESPACE),
        namespace_object(ADMIN_NAMESPACE, **{ADMIN_ACCESS_LABEL: "true"}),
    ]
    return Tour(before, scenes)


def _fpga() -> tuple[JsonObject, JsonObject]:
    wanted, user = with_claim("fpga", [request("card", "fpga.dray.dev")])
    parameters = {"apiVersion": "fpga.dray.dev/v1", "bitstream": "matmul-v2.bin", "kind": "FpgaConfig"}
    wanted["spec"]["devices"]["config"] = [{"opaque": {"driver": "fpga.dray.dev", "parameters": parameters}}]
    return wanted, user
