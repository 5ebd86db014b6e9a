"""Every finding of `dray doctor` about a cluster, caused by a real fault on a real API server.

tests/unit/workbench/test_doctor_findings.py shows the same codes on facts; here a program examines a server that really has the
fault: objects that are wrong, versions that are not served, gates that are off, rights that are missing. Each fault is made in a
cluster in which the finding is absent, and undone afterwards. Faults of a machine: tests/unit/cli/test_cli_doctor.py.
"""

import asyncio
import base64
import copy
import json
import subprocess
import sys
import urllib.request
from datetime import UTC, datetime, timedelta

import peers
import pytest
import yaml

from dray.client import Client, NotFound, Resource
from dray.client.resources import resource_of
from dray.workbench.doctor import CODES

MACHINE_CODES = {
    "kubelet-gate-off",
    "registry-missing",
    "plugin-socket-dead",
    "plugin-endpoint-dead",
    "plugin-api-too-old",
    "containerd-cdi-off",
    "cdi-spec-invalid",
    "cdi-device-twice",
    "cdi-path-missing",
    "kernel-driver-missing",
    "cgroup-v1",
    "part-not-running",
}
OTHER_RESOURCES = {
    "ValidatingWebhookConfiguration": Resource(
        "admissionregistration.k8s.io",
        "v1",
        "validatingwebhookconfigurations",
        "ValidatingWebhookConfiguration",
        namespaced=False,
    ),
}


def node(name="node-1", kubelet="v1.37.1", runtime="containerd://2.1.4", ready="True"):
    addresses = [{"type": "InternalIP", "address": "192.0.2.1"}]
    info = dict.fromkeys(("machineID", "systemUUID", "bootID", "kernelVersion", "osImage"), "x")
    info |= {"kubeProxyVersion": "", "operatingSystem": "linux", "architecture": "amd64"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "status": {
            "conditions": [
                {"type": "Ready", "status": ready, "reason": "Test", "message": "as the test says"}
            ],
            "addresses": addresses,
            "nodeInfo": info | {"kubeletVersion": kubelet, "containerRuntimeVersion": runtime},
        },
    }


def resource_slice(
    name="slice-1", driver="gpu.example.com", node_name="node-1", version="1.0.0", slices=1, **device
):
    attributes = {"driverVersion": {"version": version}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": driver,
            "nodeName": node_name,
            "pool": {"name": node_name, "generation": 1, "resourceSliceCount": slices},
            "devices": [{"name": "gpu-0", "attributes": attributes, **device}],
        },
    }


def device_class(name="gpu.example.com", driver="gpu.example.com", **spec):
    selectors = [{"cel": {"expression": f'device.driver == "{driver}"'}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": selectors, **spec},
    }


CLAIM_SPEC = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu.example.com"}}]}}


def claim(name="claim-1", device="gpu-0"):
    result = {"request": "r", "driver": "gpu.example.com", "pool": "node-1", "device": device}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": CLAIM_SPEC,
        "status": {"allocation": {"devices": {"results": [result]}}},
    }


def pod(name="pod-1", status=None, **spec):
    found = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": "main", "image": "x"}], **spec},
    }
    return found | ({"status": status} if status else {})


def driver_pod(name="driver-1", node_name="node-1", **status):
    state = {
        "name": "main",
        "state": {"running": {}},
        "ready": True,
        "restartCount": 0,
        "image": "x",
        "imageID": "x",
    }
    volumes = [{"name": "plugins", "hostPath": {"path": "/var/lib/kubelet/plugins"}}]
    return pod(
        name,
        {"phase": "Running", "containerStatuses": [state | status]},
        nodeName=node_name,
        volumes=volumes,
    )


def lease(name, namespace="default", age=0):
    renewed = datetime.now(UTC) - timedelta(seconds=age)
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "holderIdentity": "somebody",
            "leaseDurationSeconds": 15,
            "renewTime": renewed.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }


def guard(*webhooks):
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "dray-guard"},
        "webhooks": list(webhooks),
    }


WEBHOOK = {
    "name": "guard.dray.example.com",
    "failurePolicy": "Fail",
    "sideEffects": "None",
    "admissionReviewVersions": ["v1"],
    "clientConfig": {"service": {"namespace": "default", "name": "dray-guard"}},
    "rules": [
        {
            "apiGroups": ["resource.k8s.io"],
            "apiVersions": ["v1"],
            "operations": ["UPDATE"],
            "resources": ["resourceclaims/status"],
        }
    ],
}
TEMPLATE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "one", "namespace": "default"},
    "spec": {"spec": CLAIM_SPEC},
}
CRASH = {
    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    "ready": False,
    "lastState": {"terminated": {"exitCode": 1, "message": "cannot open /dev/x", "reason": "Error"}},
}
TAINT = [{"key": "example.com/broken", "effect": "NoSchedule"}]
HEALTHY = [
    node(),
    resource_slice(),
    device_class(),
    claim(),
    driver_pod(),
    lease("kube-scheduler", "kube-system"),
]

# code -> the objects that cause it, in the place of healthy ones of the same kind and name; None takes one away
FAULTS = {
    "node-not-ready": lambda: [node(ready="Unknown")],
    "kubelet-too-old": lambda: [node(kubelet="v1.33.9")],
    "kubelet-skew": lambda: [node(kubelet="v1.99.0")],
    "runtime-without-cdi": lambda: [node(runtime="containerd://1.6.20")],
    "runtime-cdi-by-setting": lambda: [node(runtime="containerd://1.7.27")],
    "pool-incomplete": lambda: [resource_slice(slices=2)],
    "pool-of-unknown-node": lambda: [resource_slice("slice-2", node_name="gone")],
    "devices-all-tainted": lambda: [resource_slice(taints=TAINT)],
    "driver-pod-failing": lambda: [driver_pod(**CRASH)],
    "driver-publishes-nothing": lambda: [node("node-2"), driver_pod("driver-2", "node-2")],
    "driver-versions-differ": lambda: [
        node("node-2"),
        resource_slice("slice-2", node_name="node-2", version="2.0.0"),
    ],
    "class-selects-nothing": lambda: [device_class("none", "x.example")],
    "driver-without-class": lambda: [resource_slice("slice-2", "other.example.com")],
    "extended-resource-twice": lambda: [
        device_class("first", extendedResourceName="example.com/gpu"),
        device_class("second", extendedResourceName="example.com/gpu"),
    ],
    "claim-device-gone": lambda: [claim("claim-2", "gpu-7")],
    "pods-waiting": lambda: [pod(resourceClaims=[{"name": "c", "resourceClaimName": "claim-1"}])],
    "scheduler-absent": lambda: [pod(schedulerName="dray"), lease("dray-scheduler-dray", age=300)],
    "two-schedulers-no-guard": lambda: [lease("kube-scheduler", "kube-system"), lease("dray-scheduler-dray")],
    "guard-inactive": lambda: [guard()],
    "guard-unavailable": lambda: [guard(WEBHOOK)],
}
# Objects that no API server accepts or makes at once; they are what an older version, or time, leaves behind.
LONG_AGO = "2026-01-01T00:00:00Z"
STORED_FAULTS = {
    "class-does-not-compile": {
        "/registry/deviceclasses/broken": device_class("broken")
        | {"spec": {"selectors": [{"cel": {"expression": "device.driver =="}}]}}
    },
    "claim-deletion-stuck": {
        "/registry/resourceclaims/default/stuck": claim("stuck")
        | {
            "metadata": {
                "name": "stuck",
                "namespace": "default",
                "uid": "00000000-0000-0000-0000-000000000001",
                "finalizers": ["resource.kubernetes.io/delete-protection"],
                "creationTimestamp": LONG_AGO,
                "deletionTimestamp": LONG_AGO,
            }
        }
    },
    "claim-not-created": {
        "/registry/resourceclaimtemplates/default/one": TEMPLATE,
        "/registry/pods/default/old": pod(
            "old", {"phase": "Pending"}, resourceClaims=[{"name": "c", "resourceClaimTemplateName": "one"}]
        )
        | {
            "metadata": {
                "name": "old",
                "namespace": "default",
                "uid": "00000000-0000-0000-0000-000000000002",
                "creationTimestamp": LONG_AGO,
            }
        },
    },
}
# Those that are shown below with a server, or with rights, of their own.
OWN_TESTS = {
    "api-not-served",
    "api-beta-only",
    "gate-off",
    "optional-gate-off",
    "no-devices",
    "no-classes",
    "not-permitted",
}


OTHER_VERSIONS = ("v1", "v1beta1", "v1alpha3")
WITHOUT_THEM = ",".join(f"resource.k8s.io/{version}=false" for version in OTHER_VERSIONS)


def doctor(kubeconfig):
    """Examine the cluster as a user does; return the codes found, with their findings."""
    command = [
        sys.executable,
        "-m",
        "dray",
        "doctor",
        "--cluster",
        "-o",
        "json",
        "--kubeconfig",
        str(kubeconfig),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 1), done.stderr
    report = json.loads(done.stdout)
    serious = [finding for finding in report["findings"] if finding["severity"] != "info"]
    assert done.returncode == (1 if serious else 0)
    for finding in report["findings"]:
        assert finding["subject"] and finding["evidence"] and finding["fix"]
    return {finding["code"]: finding for finding in report["findings"]}


def resource(obj):
    group = obj["apiVersion"].rpartition("/")[0]
    return OTHER_RESOURCES.get(obj["kind"]) or resource_of(group, obj["kind"])


def key(obj):
    return obj["kind"], obj["metadata"].get("namespace"), obj["metadata"]["name"]


async def remove(client, obj):
    try:
        namespace = obj["metadata"].get("namespace")
        await client.delete(resource(obj), obj["metadata"]["name"], namespace, grace_seconds=0)
    except NotFound:
        pass


async def place(client, obj):
    """Create an object with its status."""
    namespace = obj["metadata"].get("namespace")
    made = await client.create(resource(obj), copy.deepcopy(obj), namespace)
    if "status" in obj:
        body = made | {"status": obj["status"]}
        await client.update(resource(obj), made["metadata"]["name"], body, namespace, subresource="status")


def change(kubeconfig, *, away=(), there=()):
    """Delete the objects `away`, create the objects `there`."""

    async def carry_out():
        async with Client.connect(str(kubeconfig)) as client:
            for obj in away:
                await remove(client, obj)
            for obj in there:
                await place(client, obj)

    asyncio.run(carry_out())


@pytest.fixture(scope="module")
def kubernetes_alone():
    with peers.kubernetes(gates="DRADeviceTaints=true", controllers="") as peer:
        change(peer.kubeconfig, there=HEALTHY)
        yield peer


@pytest.fixture(scope="module")
def dray_alone():
    with peers.dray_server(controllers="") as peer:
        change(peer.kubeconfig, there=HEALTHY)
        yield peer


@pytest.fixture(params=["dray", pytest.param("kubernetes", marks=pytest.mark.kubernetes)])
def alone(request):
    """An API server without any controller, that holds one healthy node with a driver, a device, a class and a claim."""
    return request.getfixturevalue(f"{request.param}_alone")


def test_every_code_of_a_cluster_is_shown_here():
    assert set(FAULTS) | set(STORED_FAULTS) | OWN_TESTS == set(CODES) - MACHINE_CODES


def test_a_healthy_cluster_has_no_finding(alone):
    assert doctor(alone.kubeconfig) == {}


@pytest.mark.parametrize("code", FAULTS)
def test_a_fault_is_found_while_it_lasts(alone, code):
    faulty = FAULTS[code]()
    replaced = [obj for obj in HEALTHY if key(obj) in {key(each) for each in faulty}]
    change(alone.kubeconfig, away=replaced, there=faulty)
    try:
        assert code in doctor(alone.kubeconfig)
    finally:
        change(alone.kubeconfig, away=faulty, there=replaced)
    assert doctor(alone.kubeconfig) == {}


def test_devices_without_a_class_and_a_class_without_devices(alone):
    classes, slices = [HEALTHY[2]], [HEALTHY[1]]
    change(alone.kubeconfig, away=classes)
    assert "no-classes" in doctor(alone.kubeconfig)
    change(alone.kubeconfig, away=slices, there=classes)
    assert "no-devices" in doctor(alone.kubeconfig)
    change(alone.kubeconfig, there=slices)
    assert doctor(alone.kubeconfig) == {}


def test_what_may_not_be_read_is_said_and_not_called_absent(alone, tmp_path):
    name = f"nearly-blind-{alone.kind}"
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": [
            {"apiGroups": ["resource.k8s.io"], "resources": ["deviceclasses"], "verbs": ["list", "watch"]}
        ],
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}],
    }
    change(alone.kubeconfig, there=[role, binding])
    config = yaml.safe_load(alone.kubeconfig.read_text())
    config["users"][0]["user"]["as"] = name
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))
    assert set(doctor(kubeconfig)) == {"not-permitted"}


@pytest.mark.parametrize(
    ("code", "versions"),
    [
        ("api-not-served", f"{WITHOUT_THEM},resource.k8s.io/v1beta2=false"),
        ("api-beta-only", f"{WITHOUT_THEM},resource.k8s.io/v1beta2=true"),
    ],
)
@pytest.mark.parametrize("kind", ["dray", pytest.param("kubernetes", marks=pytest.mark.kubernetes)])
def test_a_version_that_is_not_served_is_found(kind, code, versions):
    if kind == "dray":
        running = peers.dray_server(controllers="", runtime_config=versions)
    else:
        running = peers.kubernetes(controllers="", runtime_config=versions)
    with running as peer:
        assert set(doctor(peer.kubeconfig)) == {code}


@pytest.mark.parametrize("kind", ["dray", pytest.param("kubernetes", marks=pytest.mark.kubernetes)])
def test_an_optional_gate_that_is_off_is_found(kind):
    start = peers.dray_server if kind == "dray" else peers.kubernetes
    with start(gates="DRADeviceBindingConditions=false", controllers="") as peer:
        change(peer.kubeconfig, there=HEALTHY)
        found = doctor(peer.kubeconfig)
    assert set(found) == {"optional-gate-off"}
    assert "DRADeviceBindingConditions" in found["optional-gate-off"]["evidence"]


def test_the_gate_that_is_off_is_found():
    """Upstream it is locked since 1.35; an older server, and ours, can be without."""
    with peers.dray_server(gates="DynamicResourceAllocation=false", controllers="") as peer:
        assert "gate-off" in doctor(peer.kubeconfig)


@pytest.mark.kubernetes
@pytest.mark.parametrize("code", STORED_FAULTS)
def test_a_fault_that_an_older_version_left_in_the_store_is_found(kubernetes_alone, code):
    stored = STORED_FAULTS[code]
    for path, obj in stored.items():
        etcd(kubernetes_alone, "put", key=path, value=json.dumps(obj))
    try:
        assert code in doctor(kubernetes_alone.kubeconfig)
    finally:
        for path in stored:
            etcd(kubernetes_alone, "deleterange", key=path)


def etcd(peer, verb, **words):
    """Write into the store of kube-apiserver, behind its back."""
    words = {name: base64.b64encode(text.encode()).decode() for name, text in words.items()}
    request = urllib.request.Request(f"{peer.etcd}/v3/kv/{verb}", json.dumps(words).encode())
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200
