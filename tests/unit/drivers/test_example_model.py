"""The models of dra-example-driver: what its three device profiles publish, read in its source (July 2026)."""

import msgspec
import pytest

from dray.api.meta import Condition
from dray.api.resource import (
    AllocatedDeviceStatus,
    AllocationResult,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
    ResourceClaimStatus,
)
from dray.driver import AllocatedDevice, ClaimRequest, DeviceConfig, DriverError
from dray.drivers.binding_conditions import has_conditions, ready_devices
from dray.drivers.hardware import ProfileError, load_profile
from dray.drivers.hardware.example import example_cpus, example_gpus, example_nics
from dray.drivers.hardware.profiles import parse_profile
from dray.drivers.opaque_configs import OpaqueConfigError, check_config
from dray.drivers.simulated import SimulatedDriver

GPU, NET, CPU = "gpu.example.com", "net.example.com", "cpu.example.com"


def plain(device):
    """The device as JSON, without its identity."""
    body = msgspec.to_builtins(device)
    body.get("attributes", {}).pop("uuid", None)
    return body


def common(index, model):
    return {"index": {"int": index}, "model": {"string": model}, "driverVersion": {"version": "1.0.0"}}


def policy(default, least, most, step):
    return {"default": default, "validRange": {"min": least, "max": most, "step": step}}


def amounts(memory, compute, *, shared):
    found = {"memory": {"value": memory}, "compute": {"value": compute}}
    if shared:
        found["memory"]["requestPolicy"] = policy(memory, "1Gi", memory, "1Gi")
        found["compute"]["requestPolicy"] = policy(compute, "1", compute, "1")
    return found


def test_a_gpu_is_published_as_the_driver_does():
    pool = example_gpus({"count": 2}, "n")
    assert (pool.driver, pool.name, pool.counter_sets) == (GPU, "n", ())
    assert [device.name for device in pool.devices] == ["gpu-0", "gpu-1"]
    assert plain(pool.devices[1]) == {
        "name": "gpu-1",
        "attributes": common(1, "LATEST-GPU-MODEL"),
        "capacity": amounts("80Gi", "100", shared=False),
        "allowMultipleAllocations": False,
    }
    assert pool.devices[0].attributes["uuid"].string.startswith("gpu-")


@pytest.mark.parametrize("shared", [False, True])
def test_partitions_and_the_whole_gpu_share_its_counters(shared):
    pool = example_gpus({"count": 1, "partitions": 4, "shared": shared}, "n")
    (counters,) = pool.counter_sets
    assert (counters.name, {name: each.value for name, each in counters.counters.items()}) == (
        "gpu-0-counters",
        {"memory": "80Gi", "compute": "100"},
    )
    assert [device.name for device in pool.devices] == [
        *(f"gpu-0-partition-{i}" for i in range(4)),
        "gpu-0-full",
    ]
    part, whole = plain(pool.devices[2]), plain(pool.devices[4])
    assert part == {
        "name": "gpu-0-partition-2",
        "attributes": common(0, "LATEST-GPU-MODEL")
        | {"partition": {"int": 2}, "partitionable": {"bool": True}},
        "capacity": amounts("20Gi", "25", shared=shared),
        "consumesCounters": [
            {
                "counterSet": "gpu-0-counters",
                "counters": {"memory": {"value": "20Gi"}, "compute": {"value": "25"}},
            }
        ],
        "allowMultipleAllocations": shared,
    }
    assert whole["attributes"] == common(0, "LATEST-GPU-MODEL") | {
        "partitionable": {"bool": True},
        "full": {"bool": True},
    }
    assert whole["consumesCounters"][0]["counters"] == {
        "memory": {"value": "80Gi"},
        "compute": {"value": "100"},
    }


def test_a_nic_is_shared_by_bandwidth_and_has_virtual_functions():
    pool = example_nics({}, "n")
    assert (pool.driver, len(pool.devices)) == (NET, 8)
    bandwidth = {"value": "100G", "requestPolicy": policy("1G", "100M", "100G", "1M")}
    assert plain(pool.devices[3]) == {
        "name": "nic-3",
        "attributes": common(3, "LATEST-NET-MODEL"),
        "capacity": {
            "vfs": {"value": "100", "requestPolicy": {"default": "1", "validValues": ["1"]}},
            "ingressBandwidth": bandwidth,
            "egressBandwidth": bandwidth,
        },
        "allowMultipleAllocations": True,
    }


def test_a_numa_node_takes_its_cpus_from_the_node():
    pool = example_cpus({}, "n")
    assert (pool.driver, len(pool.devices)) == (CPU, 8)
    assert plain(pool.devices[5]) == {
        "name": "numa-5",
        "attributes": {"numaNodeID": {"int": 5}},
        "capacity": {f"{CPU}/cpu": {"value": "4"}},
        "allowMultipleAllocations": True,
        "nodeAllocatableResources": {
            "cpu": {"mapping": {"capacityKey": f"{CPU}/cpu", "capacityMultiplier": "1"}}
        },
    }


@pytest.mark.parametrize(
    "entry",
    [
        {"kind": "example-gpus", "count": 0},
        {"kind": "example-gpus", "count": 8, "partitions": 101},
        {"kind": "example-gpus", "count": 10**9},
        {"kind": "example-nics", "count": "many"},
        {"kind": "example-nics", "count": 10**9},
        {"kind": "example-cpus", "numa_nodes": 10**9},
        {"kind": "example-cpus", "cpus_per_numa_node": 0},
    ],
)
def test_numbers_that_make_no_sense_are_refused_with_the_entry(entry):
    with pytest.raises(ProfileError, match=r"devices\[0\] \(example-"):
        parse_profile({"name": "odd", "devices": [entry]}, "odd.yaml").pools("n")


def gpu_config(**sharing):
    return {"apiVersion": "gpu.resource.example.com/v1alpha1", "kind": "GpuConfig", "sharing": sharing}


def net_config(**burst):
    return {"apiVersion": "net.resource.example.com/v1alpha1", "kind": "NetConfig", "bwBurst": burst}


def test_configs_that_the_driver_takes():
    check_config(GPU, gpu_config(strategy="TimeSlicing", timeSlicingConfig={"interval": "Short"}))
    check_config(
        GPU, gpu_config(strategy="SpacePartitioning", spacePartitioningConfig={"partitionCount": 10})
    )
    check_config(GPU, {"apiVersion": "gpu.resource.example.com/v1alpha1", "kind": "GpuConfig"})
    check_config(NET, net_config(ingressBurst=8, egressBurst=0))
    check_config("some.other.driver", {"whatever": 1})


@pytest.mark.parametrize(
    ("driver", "parameters", "message", "path"),
    [
        (GPU, [1], "not an object", ""),
        (GPU, {}, "Object 'Kind' is missing", ""),
        (GPU, {"kind": "GpuConfig"}, "Object 'apiVersion' is missing", ""),
        (GPU, gpu_config() | {"kind": "Lamp"}, 'no kind "Lamp" is registered', "kind"),
        (GPU, gpu_config() | {"apiVersion": "gpu.example.com/v1"}, "no kind", "apiVersion"),
        (GPU, gpu_config() | {"sharring": {}}, 'unknown field "sharring"', "sharring"),
        (GPU, gpu_config(strategy="TimeSlicing", timeSlicingConfig={"intervall": "Long"}),
         'unknown field "sharing.timeSlicingConfig.intervall"', "sharing.timeSlicingConfig.intervall"),
        (GPU, gpu_config(strategy="TimeSlicing", timeSlicingConfig={"interval": "Forever"}),
         "unknown time-slice interval: Forever", "sharing.timeSlicingConfig.interval"),
        (GPU, gpu_config(strategy="MPS"), "unknown GPU sharing strategy: MPS", "sharing.strategy"),
        (GPU, gpu_config(strategy="SpacePartitioning", spacePartitioningConfig={"partitionCount": -1}),
         "invalid partition count: -1", "sharing.spacePartitioningConfig.partitionCount"),
        (GPU, gpu_config(strategy="SpacePartitioning", spacePartitioningConfig={"partitionCount": "two"}),
         "cannot decode: sharing.spacePartitioningConfig.partitionCount: Expected `int`",
         "sharing.spacePartitioningConfig.partitionCount"),
        (GPU, gpu_config(strategy="SpacePartitioning", timeSlicingConfig={}), "cannot use TimeSlicingConfig",
         "sharing.timeSlicingConfig"),
        (GPU, gpu_config(strategy="TimeSlicing", spacePartitioningConfig={}), "cannot use SpacePartitioningConfig",
         "sharing.spacePartitioningConfig"),
        (NET, net_config(ingressBurst=-1), "cannot decode", "bwBurst.ingressBurst"),
        (NET, net_config(egressBurst=2**35), "burst cannot be more than 4GB", "bwBurst.egressBurst"),
        (CPU, {"apiVersion": "v1", "kind": "Any"}, "configuration not allowed", ""),
    ],
)  # fmt: skip
def test_a_config_that_the_driver_refuses_names_the_field(driver, parameters, message, path):
    with pytest.raises(OpaqueConfigError, match=message.replace("[", r"\[")) as caught:
        check_config(driver, parameters)
    assert caught.value.path == path


async def test_prepare_fails_with_the_drivers_words():
    driver = SimulatedDriver(load_profile("example").pools("n")[0])
    bad = DeviceConfig("FromClaim", gpu_config(strategy="MPS"))
    allocated = AllocatedDevice("gpu", "n", "gpu-0", configs=(bad,))
    with pytest.raises(DriverError, match="request gpu: opaque config: unknown GPU sharing strategy: MPS"):
        await driver.prepare(ClaimRequest("default", "claim", "uid", [allocated], ResourceClaim()))


async def test_the_config_of_the_claim_overrides_that_of_the_class():
    driver = SimulatedDriver(load_profile("example").pools("n")[0])
    configs = (
        DeviceConfig("FromClass", gpu_config(strategy="SpacePartitioning")),
        DeviceConfig("FromClaim", gpu_config(strategy="TimeSlicing", timeSlicingConfig={"interval": "Long"})),
    )
    allocated = AllocatedDevice("gpu", "n", "gpu-0", configs=configs)
    (prepared,) = await driver.prepare(ClaimRequest("default", "claim", "uid", [allocated], ResourceClaim()))
    assert "GPU_DEVICE_0_TIMESLICE_INTERVAL=Long" in prepared.edits.env
    assert not any("PARTITION_COUNT" in variable for variable in prepared.edits.env)


def claim_with(results, devices=()):
    allocation = AllocationResult(devices=DeviceAllocationResult(results=list(results)))
    return ResourceClaim(status=ResourceClaimStatus(allocation=allocation, devices=list(devices)))


def result(device="gpu-0", pool="n", driver=GPU, conditions=("BindingConditions",)):
    return DeviceRequestAllocationResult(
        request="gpu", driver=driver, pool=pool, device=device, binding_conditions=list(conditions)
    )


def test_only_devices_of_the_pool_that_wait_are_called_ready():
    assert has_conditions(load_profile("example-binding").pools("n")[0])
    assert not has_conditions(load_profile("example").pools("n")[0])
    assert ready_devices(ResourceClaim(), GPU, "n") is None
    others = [result(pool="m"), result(driver=NET), result(conditions=())]
    assert ready_devices(claim_with(others), GPU, "n") is None
    (entry,) = ready_devices(claim_with([result()]), GPU, "n")
    assert [(each.type, each.status, each.reason) for each in entry.conditions] == [
        ("BindingConditions", "True", "Ready")
    ]
    assert ready_devices(claim_with([result()], [entry]), GPU, "n") is None


def test_a_condition_that_was_false_becomes_true_and_others_stay():
    entry = AllocatedDeviceStatus(
        driver=GPU,
        pool="n",
        device="gpu-0",
        conditions=[
            Condition(type="Ready", status="True"),
            Condition(type="BindingConditions", status="False"),
        ],
    )
    (changed,) = ready_devices(claim_with([result()], [entry]), GPU, "n")
    assert {each.type: each.status for each in changed.conditions} == {
        "Ready": "True",
        "BindingConditions": "True",
    }
