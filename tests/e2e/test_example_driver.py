"""dra-example-driver's features on its models: feature × profile × what its pods see, in our own manifests."""

import tempfile
from pathlib import Path

import yaml
from device_features import (
    Feature,
    RunningUp,
    check,
    make,
    make_namespace,
    play,
    pod_body,
    printed,
    refused_with,
    wait_for,
)

from dray.api.core import Pod
from dray.client import Client
from dray.client.resources import PODS, resource_of
from dray.drivers.hardware import load_profile
from dray.local.system import Plan, System

GPU, NET, CPU = "gpu.example.com", "net.example.com", "cpu.example.com"


def gpu(**fields):
    return {"name": "gpu", "exactly": {"deviceClassName": GPU, **fields}}


def devices(*requests, config=()):
    return yaml.safe_dump({"requests": list(requests), "config": list(config)})


def config(request, **sharing):
    parameters = {"apiVersion": "gpu.resource.example.com/v1alpha1", "kind": "GpuConfig", "sharing": sharing}
    return {"requests": [request], "opaque": {"driver": GPU, "parameters": parameters}}


def cel(expression):
    return [{"cel": {"expression": expression}}]


MODEL = f"device.attributes['{GPU}'].model == 'LATEST-GPU-MODEL'"
FEATURES = [
    Feature("basic", "example", devices(gpu()), pods=2, shows=("_SHARING_STRATEGY=TimeSlicing", "_TIMESLICE_INTERVAL=Default")),
    Feature("two-requests", "example", devices(gpu(), {**gpu(), "name": "second"}), devices=2),
    Feature("selector", "example", devices(gpu(selectors=cel(
        f"{MODEL} && device.capacity['{GPU}'].memory.compareTo(quantity('4Gi')) >= 0"))), shows=("GPU_DEVICE_",)),
    Feature("alternatives", "example", devices({"name": "gpu", "firstAvailable": [
        {"name": "huge", "deviceClassName": GPU,
         "selectors": cel(f"device.capacity['{GPU}'].memory.compareTo(quantity('1Ti')) >= 0")},
        {"name": "any", "deviceClassName": GPU}]}), shows=("GPU_DEVICE_",), devices=1),
    Feature("time-slices", "example", devices(gpu(), config=[
        config("gpu", strategy="TimeSlicing", timeSlicingConfig={"interval": "Long"})]),
        shows=("_TIMESLICE_INTERVAL=Long",)),
    Feature("space", "example", devices(gpu(), config=[
        config("gpu", strategy="SpacePartitioning", spacePartitioningConfig={"partitionCount": 10})]),
        shows=("_SHARING_STRATEGY=SpacePartitioning", "_PARTITION_COUNT=10")),
    Feature("partitions", "example-partitions", devices(gpu(count=2)),
            shows=("GPU_DEVICE_0_PARTITION_0=gpu-0-partition-0", "GPU_DEVICE_0_PARTITION_1=gpu-0-partition-1"), devices=2),
    Feature("whole-of-partitioned", "example-partitions", devices(gpu(selectors=cel(
        f"has(device.attributes['{GPU}'].full) && device.attributes['{GPU}'].full"))), shows=("_FULL=gpu-",)),
    Feature("shares", "example-shared", devices(gpu(capacity={"requests": {"memory": "16Gi", "compute": "20"}})),
            pods=2, shows=("_MEMORY=16Gi", "_COMPUTE=20"), distinct=False),
    Feature("shares-of-partitions", "example-shared-partitions",
            devices(gpu(capacity={"requests": {"memory": "8Gi", "compute": "10"}})),
            pods=2, shows=("_PARTITION_0_MEMORY=8Gi", "_PARTITION_0_COMPUTE=10"), distinct=False),
    Feature("admin", "example", devices(gpu(allocationMode="All", adminAccess=True)),
            shows=("DRA_ADMIN_ACCESS=true",), devices=8),
    Feature("binding", "example-binding", devices(gpu()), shows=("GPU_DEVICE_0=gpu-0",)),
    Feature("bandwidth", "example", devices({"name": "nic", "exactly": {
        "deviceClassName": NET, "capacity": {"requests": {"ingressBandwidth": "10G", "egressBandwidth": "5G"}}}}),
        pods=2, shows=("NET_DEVICE_0_INGRESS_RATE=10000000000", "NET_DEVICE_0_EGRESS_RATE=5000000000"), distinct=False),
    Feature("native-cpu", "example", devices(
        {"name": "a", "exactly": {"deviceClassName": CPU, "capacity": {"requests": {f"{CPU}/cpu": "1"}}}},
        {"name": "b", "exactly": {"deviceClassName": CPU, "capacity": {"requests": {f"{CPU}/cpu": "1"}}}}),
        shows=("CPU_DEVICE_0=numa-0", "CPU_DEVICE_0_CONSUMED_CPU=1"), devices=2),
]  # fmt: skip


def check_own(feature, held):
    """Compare what only this driver has."""
    check(feature, held)
    results = [claim.status.allocation.devices.results for claim in held]
    if feature.name == "binding":
        (entry,) = held[0].status.devices
        assert {"BindingConditions", "Ready"} == {each.type for each in entry.conditions}
        assert {each.status for each in entry.conditions} == {"True"}
    if feature.name == "native-cpu":
        assert {result.driver for result in results[0]} == {CPU}


async def extended_resources(client):
    """Both names of an extended resource: that of the class, and the class's own."""
    await make_namespace(client, "extended")
    for name, resource in (
        ("by-class", f"deviceclass.resource.kubernetes.io/{GPU}"),
        ("by-name", "example.com/gpu"),
    ):
        await make(client, pod_body(name, "extended", "example", {"limits": {resource: "1"}}))
        await printed(client, name, "extended", ("GPU_DEVICE_",))


async def shared_claim(client):
    """One claim in two pods, one of them with an init container: all see the same device."""
    await make_namespace(client, "shared-claim")
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "one", "namespace": "shared-claim"},
        "spec": {"devices": {"requests": [gpu()]}},
    }
    await make(client, claim)
    use = {"claims": [{"name": "it"}]}
    entry = {"resourceClaims": [{"name": "it", "resourceClaimName": "one"}]}
    first = {"name": "first", "image": "busybox", "command": ["sh", "-c", "env"], "resources": use}
    await make(client, pod_body("a", "shared-claim", "example", use, **entry, initContainers=[first]))
    await make(client, pod_body("b", "shared-claim", "example", use, **entry))
    lines = []
    for name in ("a", "b"):
        text = await printed(client, name, "shared-claim", ("GPU_DEVICE_",))
        lines.append({line for line in text.splitlines() if line.startswith("GPU_DEVICE_")})
    assert lines[0] == lines[1]


async def refused_config(client):
    """A config that the driver refuses keeps the pod from starting, with the driver's words."""
    await make_namespace(client, "refused")
    bad = config("gpu", strategy="TimeSlicing", timeSlicingConfig={"intervall": "Long"})
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "bad", "namespace": "refused"},
        "spec": {"devices": {"requests": [gpu()], "config": [bad]}},
    }
    await make(client, claim)
    entry = {"resourceClaims": [{"name": "it", "resourceClaimName": "bad"}]}
    await make(client, pod_body("waits", "refused", "example", {"claims": [{"name": "it"}]}, **entry))
    words = 'strict decoding error: unknown field "sharing.timeSlicingConfig.intervall"'
    await refused_with(client, "refused", words)


async def taints(client):
    """A rule taints all GPUs of the driver: pods without toleration go, others stay. Runs last."""
    await make_namespace(client, "taints")
    rule = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "unhealthy"},
        "spec": {
            "deviceSelector": {"driver": GPU},
            "taint": {"key": f"{GPU}/unhealthy", "value": "true", "effect": "NoExecute"},
        },
    }
    tolerated = {"key": f"{GPU}/unhealthy", "operator": "Equal", "value": "true", "effect": "NoExecute"}
    for name, fields in (("goes", {}), ("stays", {"tolerations": [tolerated]})):
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "taints"},
            "spec": {"devices": {"requests": [gpu(**fields)]}},
        }
        await make(client, body)
        entry = {"resourceClaims": [{"name": "it", "resourceClaimName": name}]}
        await make(client, pod_body(name, "taints", "example-shared", {"claims": [{"name": "it"}]}, **entry))
        await printed(client, name, "taints", ("GPU_DEVICE_",))
    await make(client, rule)

    async def evicted():
        pods = await client.list(PODS, namespace="taints", view=Pod)
        running = {pod.metadata.name for pod in pods.items if pod.status.phase == "Running"}
        return running == {"stays"}

    await wait_for(evicted, "the pod without toleration was not evicted")


async def test_every_feature_of_the_example_driver_works_on_its_model():
    profiles = [load_profile(name) for name in sorted({feature.profile for feature in FEATURES})]
    with tempfile.TemporaryDirectory(prefix="de-") as folder:
        plan = Plan(Path(folder), port=0, simulated=[(profile, 1) for profile in profiles])
        system = System(plan)
        await system.start()
        try:
            async with Client.connect(system.plan.kubeconfig) as client:
                for feature in FEATURES:
                    check_own(feature, await play(client, feature))
                    for number in range(feature.pods):
                        await client.delete(PODS, f"pod-{number}", feature.name)
                await extended_resources(client)
                await shared_claim(client)
                await refused_config(client)
                await taints(client)
        finally:
            await system.stop()


async def test_cpus_of_claims_are_taken_from_the_node(tmp_path):
    """With DRANodeAllocatableResources the CPU devices say what they cost, and the scheduler charges it."""
    running = RunningUp(
        tmp_path, "example", arguments=["--feature-gates", "DRANodeAllocatableResources=true"]
    )
    try:
        async with Client.connect(running.kubeconfig) as client:

            async def published():
                slices = (await client.list(resource_of("resource.k8s.io", "ResourceSlice"))).items
                return [
                    device
                    for each in slices
                    if each["spec"]["driver"] == CPU
                    for device in each["spec"]["devices"]
                ]

            devices_of_cpu = await wait_for(published, "no CPU devices are published")
            assert all("cpu" in device["nodeAllocatableResources"] for device in devices_of_cpu)
            request = {
                "name": "a",
                "exactly": {"deviceClassName": CPU, "capacity": {"requests": {f"{CPU}/cpu": "2"}}},
            }
            await play(client, Feature("charged", "example", devices(request), shows=("_CONSUMED_CPU=2",)))
            pod = await client.get(PODS, "pod-0", "charged")
            (charged,) = pod["status"]["nodeAllocatableResourceClaimStatuses"]
            assert charged["resourceClaimName"].startswith("pod-0-it-")
            assert charged["mapping"] == [{"name": "cpu", "quantity": "2"}]
    finally:
        running.stop()
