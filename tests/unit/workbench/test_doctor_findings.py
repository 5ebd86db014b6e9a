"""Every finding of `dray doctor` is shown by a fault that causes it, and is absent without the fault."""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dray.api.cdi import CdiDevice, CdiSpec, ContainerEdits, DeviceNode
from dray.sim.snapshot import Snapshot
from dray.workbench.doctor import CODES, ClusterFacts, Finding, MachineFacts, check_cluster, check_machine
from dray.workbench.doctor import classes as class_checks
from dray.workbench.doctor import cluster as cluster_checks
from dray.workbench.doctor import machine as machine_checks
from dray.workbench.doctor.machine import Accelerator, PluginFacts, SpecFile

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
FRESH = "2026-01-01T11:59:55.000000Z"
OLD = "2026-01-01T11:00:00Z"
Objects = list[dict[str, Any]]


def node(name: str = "node-1") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"kubeletVersion": "v1.37.1", "containerRuntimeVersion": "containerd://2.1.4"},
        },
    }


def resource_slice(name: str = "slice-1", driver: str = "gpu.example.com") -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": driver,
            "nodeName": "node-1",
            "pool": {"name": "node-1", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0", "attributes": {"driverVersion": {"version": "1.0.0"}}}],
        },
    }


def device_class(name: str = "gpu.example.com", expression: str = "") -> dict[str, Any]:
    expression = expression or 'device.driver == "gpu.example.com"'
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }


def claim(device: str = "gpu-0") -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "claim-1", "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu.example.com"}}]}},
        "status": {
            "allocation": {
                "devices": {
                    "results": [
                        {"request": "r", "driver": "gpu.example.com", "pool": "node-1", "device": device}
                    ]
                }
            }
        },
    }


def pod(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "pod-1", "namespace": "default", "creationTimestamp": OLD},
        "spec": {"containers": [{"name": "main", "image": "x"}], **spec},
        "status": {"phase": "Pending"},
    }


def driver_pod(node_name: str = "node-1") -> dict[str, Any]:
    volume = {"name": "plugins", "hostPath": {"path": "/var/lib/kubelet/plugins"}}
    found = pod(nodeName=node_name, volumes=[volume])
    found["status"] = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}
    return found


def lease(name: str, renewed: str = FRESH, namespace: str = "kube-system") -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"renewTime": renewed, "leaseDurationSeconds": 15},
    }


def cluster(*objects: dict[str, Any], **changes: Any) -> ClusterFacts:
    snapshot = Snapshot()
    for obj in objects:
        snapshot.add(copy.deepcopy(obj))
    facts = ClusterFacts(
        NOW,
        "v1.37.1",
        ("v1", "v1beta2"),
        {"DynamicResourceAllocation": True},
        snapshot,
        [lease("kube-scheduler")],
        [],
    )
    return dataclasses.replace(facts, **changes)


def healthy() -> Objects:
    return [node(), resource_slice(), device_class(), claim(), driver_pod()]


def changed(obj: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return the object with the value at `a.b.0.c` replaced (None removes it)."""
    obj = copy.deepcopy(obj)
    *parents, last = path.split(".")
    inner: Any = obj
    for part in parents:
        inner = inner[int(part)] if isinstance(inner, list) else inner.setdefault(part, {})
    if value is None:
        inner.pop(last, None)
    else:
        inner[last] = value
    return obj


def with_first(path: str, value: Any, kind: int) -> Objects:
    objects = healthy()
    objects[kind] = changed(objects[kind], path, value)
    return objects


NODE, SLICE, CLASS, CLAIM, DRIVER = range(5)
GUARD = {
    "metadata": {"name": "dray-guard"},
    "webhooks": [
        {"failurePolicy": "Fail", "clientConfig": {"service": {"namespace": "dray", "name": "dray-guard"}}}
    ],
}
TEMPLATE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "one", "namespace": "default"},
    "spec": {"spec": claim()["spec"]},
}
TAINT = [{"key": "example.com/broken", "effect": "NoSchedule"}]
CRASH = {
    "name": "main",
    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    "lastState": {"terminated": {"exitCode": 1, "message": "cannot open /dev/x"}},
}

CLUSTER_FAULTS: dict[str, Callable[[], ClusterFacts]] = {
    "api-not-served": lambda: cluster(resource_versions=()),
    "api-beta-only": lambda: cluster(resource_versions=("v1beta1",)),
    "gate-off": lambda: cluster(gates={"DynamicResourceAllocation": False}),
    "optional-gate-off": lambda: cluster(gates={"DRAConsumableCapacity": False}),
    "node-not-ready": lambda: cluster(
        *with_first("status.conditions", [{"type": "Ready", "status": "Unknown"}], NODE)
    ),
    "kubelet-too-old": lambda: cluster(*with_first("status.nodeInfo.kubeletVersion", "v1.33.9", NODE)),
    "kubelet-skew": lambda: cluster(*with_first("status.nodeInfo.kubeletVersion", "v1.38.0", NODE)),
    "runtime-without-cdi": lambda: cluster(
        *with_first("status.nodeInfo.containerRuntimeVersion", "containerd://1.6.20", NODE)
    ),
    "runtime-cdi-by-setting": lambda: cluster(
        *with_first("status.nodeInfo.containerRuntimeVersion", "containerd://1.7.27", NODE)
    ),
    "no-devices": lambda: cluster(node(), device_class()),
    "pool-incomplete": lambda: cluster(*with_first("spec.pool.resourceSliceCount", 2, SLICE)),
    "pool-of-unknown-node": lambda: cluster(*with_first("spec.nodeName", "gone", SLICE)),
    "devices-all-tainted": lambda: cluster(*with_first("spec.devices.0.taints", TAINT, SLICE)),
    "driver-pod-failing": lambda: cluster(*with_first("status.containerStatuses", [CRASH], DRIVER)),
    "driver-publishes-nothing": lambda: cluster(*healthy()[:4], driver_pod("node-2"), node("node-2")),
    "driver-versions-differ": lambda: cluster(
        *healthy(),
        node("node-2"),
        changed(
            changed(
                changed(resource_slice("slice-2"), "spec.nodeName", "node-2"), "spec.pool.name", "node-2"
            ),
            "spec.devices.0.attributes.driverVersion.version",
            "2.0.0",
        ),
    ),
    "no-classes": lambda: cluster(node(), resource_slice()),
    "class-does-not-compile": lambda: cluster(*healthy(), device_class("bad", "device.driver ==")),
    "class-selects-nothing": lambda: cluster(
        *healthy(), device_class("none", 'device.driver == "x.example"')
    ),
    "driver-without-class": lambda: cluster(*healthy(), resource_slice("slice-2", "other.example.com")),
    "extended-resource-twice": lambda: cluster(
        *with_first("spec.extendedResourceName", "example.com/gpu", CLASS),
        changed(device_class("second"), "spec.extendedResourceName", "example.com/gpu"),
    ),
    "claim-device-gone": lambda: cluster(*healthy()[:3], claim("gpu-7"), driver_pod()),
    "claim-deletion-stuck": lambda: cluster(*with_first("metadata.deletionTimestamp", OLD, CLAIM)),
    "claim-not-created": lambda: cluster(
        *healthy(), TEMPLATE, pod(resourceClaims=[{"name": "c", "resourceClaimTemplateName": "one"}])
    ),
    "pods-waiting": lambda: cluster(
        *healthy(), pod(resourceClaims=[{"name": "c", "resourceClaimName": "claim-1"}])
    ),
    "scheduler-absent": lambda: cluster(
        *healthy(),
        pod(schedulerName="dray"),
        leases=[lease("kube-scheduler"), lease("dray-scheduler-dray", OLD, "dray-system")],
    ),
    "two-schedulers-no-guard": lambda: cluster(
        *healthy(),
        leases=[lease("kube-scheduler"), lease("dray-scheduler-dray", namespace="dray-system")],
    ),
    "guard-inactive": lambda: cluster(*healthy(), webhooks=[{"metadata": {"name": "dray-guard"}}]),
    "guard-unavailable": lambda: cluster(
        *healthy(), webhooks=[GUARD], ready_endpoints={"dray/dray-guard": 0}
    ),
    "not-permitted": lambda: cluster(*healthy(), forbidden={"leases": "forbidden"}),
}

SPEC = CdiSpec(cdi_version="0.6.0", kind="example.com/gpu", devices=[CdiDevice(name="0")])


def machine(**changes: Any) -> MachineFacts:
    plugin = PluginFacts("/r/gpu.sock", driver="gpu", endpoint="/p/dra.sock", services=("v1.DRAPlugin",))
    facts = MachineFacts(
        has_kubelet=True,
        kubelet_configuration={"featureGates": {"DynamicResourceAllocation": True}},
        containerd_configuration="[plugins]\n  enable_cdi = true\n",
        plugins=[plugin],
        specs=[SpecFile("/etc/cdi/a.json", SPEC)],
        accelerators=[Accelerator("0000:01:00.0", "NVIDIA", "nvidia")],
        parts={"server": True},
    )
    return dataclasses.replace(facts, **changes)


MACHINE_FAULTS: dict[str, Callable[[], MachineFacts]] = {
    "kubelet-gate-off": lambda: machine(
        kubelet_configuration={"featureGates": {"DynamicResourceAllocation": False}}
    ),
    "registry-missing": lambda: machine(has_registry=False),
    "plugin-socket-dead": lambda: machine(plugins=[PluginFacts("/r/a.sock", "Connection refused")]),
    "plugin-endpoint-dead": lambda: machine(
        plugins=[PluginFacts("/r/a.sock", driver="a", endpoint="/p", endpoint_error="Connection refused")]
    ),
    "plugin-api-too-old": lambda: machine(
        plugins=[PluginFacts("/r/a.sock", driver="a", services=("v1beta1.DRAPlugin",))]
    ),
    "containerd-cdi-off": lambda: machine(containerd_configuration="  enable_cdi = false\n"),
    "cdi-spec-invalid": lambda: machine(specs=[SpecFile("/etc/cdi/a.json", CdiSpec(kind="x"))]),
    "cdi-device-twice": lambda: machine(
        specs=[SpecFile("/etc/cdi/a.json", SPEC), SpecFile("/etc/cdi/b.json", SPEC)]
    ),
    "cdi-path-missing": lambda: machine(specs=[SpecFile("/etc/cdi/a.json", SPEC, missing_paths=("/dev/x",))]),
    "kernel-driver-missing": lambda: machine(accelerators=[Accelerator("0000:01:00.0", "NVIDIA")]),
    "cgroup-v1": lambda: machine(cgroup_version=1),
    "part-not-running": lambda: machine(parts={"server": False}),
}


# Further ways to codes that are in the tables above.
OTHER_MACHINE_FAULTS: dict[str, Callable[[], MachineFacts]] = {
    "not-permitted": lambda: machine(unreadable={"/etc/containerd/config.toml": "Permission denied"}),
}


def codes(found: list[Any]) -> set[str]:
    return {finding.code for finding in found}


def test_a_healthy_cluster_has_no_findings() -> None:
    assert codes(check_cluster(cluster(*healthy()))) == set()


def test_a_healthy_machine_has_no_findings() -> None:
    assert codes(check_machine(machine())) == set()


@pytest.mark.parametrize("code", CLUSTER_FAULTS)
def test_a_fault_of_a_cluster_is_found(code: str) -> None:
    found = [finding for finding in check_cluster(CLUSTER_FAULTS[code]()) if finding.code == code]
    assert found
    assert all(finding.subject and finding.evidence and finding.fix for finding in found)


@pytest.mark.parametrize("code", MACHINE_FAULTS)
def test_a_fault_of_a_machine_is_found(code: str) -> None:
    found = [finding for finding in check_machine(MACHINE_FAULTS[code]()) if finding.code == code]
    assert found
    assert all(finding.subject and finding.evidence and finding.fix for finding in found)


def test_every_code_has_a_fault_that_causes_it() -> None:
    assert set(CLUSTER_FAULTS) | set(MACHINE_FAULTS) == set(CODES)


def test_every_place_that_makes_a_finding_is_reached_by_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only every code: two places may make the same code for different faults."""
    places: set[tuple[str, int]] = set()
    reached: set[tuple[str, int]] = set()

    def noted(*words: Any, **options: Any) -> Any:
        frame = sys._getframe(1)
        reached.add((frame.f_globals["__name__"], frame.f_lineno))
        return Finding(*words, **options)

    for module in (cluster_checks, machine_checks, class_checks):
        for call in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Finding":
                assert isinstance(call.args[0], ast.Constant), "the code is written where the finding is made"
                assert call.args[0].value in CODES
                places.add((module.__name__, call.lineno))
        monkeypatch.setattr(module, "Finding", noted)
    for fault in CLUSTER_FAULTS.values():
        check_cluster(fault())
    for other in MACHINE_FAULTS.values():
        check_machine(other())
    for code, another in OTHER_MACHINE_FAULTS.items():
        assert code in codes(check_machine(another()))
    assert len(places) >= len(CODES)
    assert sorted(places - reached) == []


def test_the_documentation_lists_every_code_with_its_severity() -> None:
    text = (Path(__file__).parents[3] / "docs" / "doctor.md").read_text()
    listed = dict(re.findall(r"^\| `([a-z0-9-]+)` \| (error|warning|info) \|", text, re.MULTILINE))
    assert listed == {code: severity for code, (severity, _) in CODES.items()}


def test_a_broken_fleet_does_not_bury_other_findings() -> None:
    slices = [
        changed(
            changed(resource_slice(f"s-{index}"), "spec.pool.name", f"p-{index}"),
            "spec.pool.resourceSliceCount",
            2,
        )
        for index in range(200)
    ]
    found = check_cluster(cluster(node(), device_class(), *slices, forbidden={"leases": "no"}))
    assert sum(finding.code == "pool-incomplete" for finding in found) == 50
    assert "not-permitted" in codes(found)


def test_a_scheduler_that_holds_its_lease_in_any_namespace_is_not_absent() -> None:
    leases = [lease("dray-scheduler-dray", OLD, "old"), lease("dray-scheduler-dray", FRESH, "dray-system")]
    facts = cluster(*healthy(), pod(schedulerName="dray"), leases=leases)
    assert "scheduler-absent" not in codes(check_cluster(facts))


def test_a_scheduler_whose_lease_is_not_known_is_not_called_absent() -> None:
    facts = cluster(*healthy(), pod(schedulerName="volcano"))
    assert "scheduler-absent" not in codes(check_cluster(facts))


@pytest.mark.parametrize(
    ("path", "is_driver"),
    [
        ("/var/lib/kubelet/plugins", True),
        ("/var/lib/kubelet/plugins_registry/", True),
        ("/var/lib/k0s/kubelet/plugins/gpu.example.com", True),
        ("/var/lib/kubelet", True),
        ("/var/lib/kubelet/pods", False),
        ("/opt/kubelet-tools/plugins", False),
        ("/var/lib/kubelet/plugins_of_mine", False),
    ],
)
def test_a_pod_that_mounts_kubelets_plugin_folders_is_a_driver(path: str, is_driver: bool) -> None:
    volume = {"name": "v", "hostPath": {"path": path}}
    assert cluster_checks.is_driver_pod(pod(volumes=[volume])) == is_driver


def test_device_nodes_of_specs_count_as_host_paths() -> None:
    from dray.workbench.doctor.machine import host_paths

    edits = ContainerEdits(
        device_nodes=[DeviceNode(path="/dev/a"), DeviceNode(path="/dev/b", host_path="/dev/c")]
    )
    assert host_paths(edits) == ["/dev/a", "/dev/c"]
