"""The model of `gpu.nvidia.com`: VFIO, static MIG, share modes and attributes, read in the driver's source (August 2026)."""

import msgspec
import pytest

from dray.api.resource import ResourceClaim
from dray.api.well_known import NUMA_NODE
from dray.driver import AllocatedDevice, ClaimRequest, DeviceConfig
from dray.drivers.hardware import ProfileError, load_profile
from dray.drivers.hardware.nvidia import nvidia_gpus
from dray.drivers.hardware.profiles import parse_profile
from dray.drivers.opaque_configs import OpaqueConfigError, check_config
from dray.drivers.simulated import SimulatedDriver

NVIDIA = "gpu.nvidia.com"
PLACE = {"pci": "0000:1b:00.0", "root": "pci0000:1a", "numa": 1}
STANDARD = {f"resource.kubernetes.io/{name}" for name in ("pciBusID", "pcieRoot", "numaNode")}
COMMON = {
    "type", "productName", "brand", "architecture", "cudaComputeCapability", "driverVersion", "cudaDriverVersion",
} | STANDARD  # fmt: skip


def model(gpu=(), **entry):
    body = {"kind": "nvidia-gpus", "model": "H100-80GB", "gpus": [{**PLACE, **dict(gpu)}], **entry}
    (pool,) = parse_profile({"name": "mine", "devices": [body]}, "mine.yaml").pools("n")
    return pool


def capacity(device):
    return {name: amount.value for name, amount in device.capacity.items()}


def test_a_vfio_device_has_the_attributes_of_passthrough_and_no_driver_versions():
    (device,) = model(vfio=True).devices
    assert device.name == "gpu-vfio-0"
    expected = {"type", "uuid", "deviceID", "vendorID", "productName", "iommuFDEnabled"} | STANDARD
    assert set(device.attributes) == expected
    assert device.attributes["type"].string == "vfio"
    assert device.attributes["vendorID"].string == "0x10de"
    assert capacity(device) == {"addressableMemory": "81559Mi"}


def test_static_mig_devices_have_an_identity_and_their_memory_slices():
    pool = model({"static_mig": ["3g.40gb", "2g.20gb", "1g.10gb"]})
    assert pool.counter_sets == ()
    by_profile = {device.name: device for device in pool.devices}
    assert set(by_profile) == {"gpu-0-mig-3g40gb-9-0", "gpu-0-mig-2g20gb-14-4", "gpu-0-mig-1g10gb-19-6"}
    device = by_profile["gpu-0-mig-2g20gb-14-4"]
    assert set(device.attributes) == COMMON | {"uuid", "parentUUID", "profile"}
    assert device.attributes["uuid"].string.startswith("MIG-")
    slices = {name for name in capacity(device) if name.startswith("memorySlice")}
    assert slices == {"memorySlice4", "memorySlice5"}
    assert not device.consumes_counters


@pytest.mark.parametrize(
    ("mode", "default", "least", "shares"),
    [("memory", "81559Mi", "1Mi", None), ("unlimited", "0", "0", None), (10, "0", "0", "10")],
)
def test_the_three_share_modes(mode, default, least, shares):
    (device,) = model(shares=mode).devices
    assert device.allow_multiple_allocations is True
    policy = device.capacity["memory"].request_policy
    assert (policy.default, policy.valid_range.min, policy.valid_range.max, policy.valid_range.step) == (
        default, least, "81559Mi", "1Mi",
    )  # fmt: skip
    assert capacity(device).get("shares") == shares
    if shares:
        assert msgspec.to_builtins(device.capacity["shares"].request_policy) == {
            "default": "1",
            "validRange": {"min": "1", "max": "10", "step": "1"},
        }


def test_shares_of_static_mig_devices_and_none_of_vfio():
    assert all(
        device.allow_multiple_allocations for device in model({"static_mig": ["7g.80gb"]}, shares=4).devices
    )
    assert all(not device.allow_multiple_allocations for device in model(vfio=True, shares=4).devices)


def test_numa_as_a_list_and_the_addressing_mode_reach_mig_devices_too():
    for device in model(mig=True, numa_as_list=True, addressing_mode="ATS").devices:
        assert device.attributes[NUMA_NODE].ints == [1]
        assert device.attributes["addressingMode"].string == "ATS"
    (plain,) = model().devices
    assert plain.attributes[NUMA_NODE].int_value == 1
    assert set(plain.attributes) == COMMON | {"uuid"}


@pytest.mark.parametrize(
    ("gpu", "entry", "message"),
    [
        ({}, {"shares": 0}, "shares is memory, unlimited or a number"),
        ({}, {"shares": "some"}, "shares is memory, unlimited or a number"),
        ({}, {"shares": True}, "shares is memory, unlimited or a number"),
        ({"static_mig": ["9g.90gb"]}, {}, "no MIG profile '9g.90gb'; it has 1g.10gb"),
        ({"static_mig": ["7g.80gb", "1g.10gb"]}, {}, "no place for 1g.10gb"),
    ],
)
def test_what_the_driver_could_not_offer_is_refused(gpu, entry, message):
    with pytest.raises(ProfileError, match=message):
        model(gpu, **entry)


def test_the_built_in_profiles_show_each_way_to_offer_a_gpu():
    types = {
        name: {device.attributes["type"].string for device in load_profile(name).pools("n")[0].devices}
        for name in ("h100-vfio", "a100-static-mig", "l40s-timesliced")
    }
    assert types == {"h100-vfio": {"vfio"}, "a100-static-mig": {"mig", "gpu"}, "l40s-timesliced": {"gpu"}}


def config(kind="GpuConfig", **fields):
    return {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, **fields}


def test_configs_that_the_driver_takes():
    check_config(NVIDIA, config())
    check_config(
        NVIDIA, config(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}})
    )
    limits = {"defaultPinnedDeviceMemoryLimit": "10Gi", "defaultPerDevicePinnedMemoryLimit": {"0": "2Gi"}}
    check_config(NVIDIA, config("MigDeviceConfig", sharing={"strategy": "MPS", "mpsConfig": limits}))
    check_config(NVIDIA, config("VfioDeviceConfig", iommu={"backendPolicy": "PreferIommuFD"}))


@pytest.mark.parametrize(
    ("parameters", "message", "path"),
    [
        (config("Other"), "no kind", "kind"),
        (config(sharin={}), 'unknown field "sharin"', "sharin"),
        (config(sharing={"strategy": "Hope"}), "unknown GPU sharing strategy: Hope", "sharing.strategy"),
        (config(sharing={"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "1Ki"}}),
         "value set too low", "sharing.mpsConfig.defaultPinnedDeviceMemoryLimit"),
        (config("MigDeviceConfig", sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {}}),
         'unknown field "sharing.timeSlicingConfig"', "sharing.timeSlicingConfig"),
        (config("VfioDeviceConfig", iommu={"backendPolicy": "New"}), "unknown IOMMU backend policy: New",
         "iommu.backendPolicy"),
    ],
)  # fmt: skip
def test_configs_that_the_driver_refuses_name_the_field(parameters, message, path):
    with pytest.raises(OpaqueConfigError, match=message) as caught:
        check_config(NVIDIA, parameters)
    assert caught.value.path == path


async def env_of(device, *configs):
    driver = SimulatedDriver(model(mig=True))
    allocated = AllocatedDevice(
        "gpu", "n", device, configs=[DeviceConfig("FromClaim", each) for each in configs]
    )
    (prepared,) = await driver.prepare(ClaimRequest("default", "claim", "uid", [allocated], ResourceClaim()))
    return {
        line
        for line in prepared.edits.env
        if "_CONFIG=" not in line and ("SHARING" in line or "TIMESLICE" in line or "MPS" in line)
    }


async def test_sharing_can_be_seen_in_the_container():
    assert await env_of("gpu-0") == set()
    slices = config(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}})
    assert await env_of("gpu-0", slices) == {
        "DRAY_DEVICE_GPU_0_SHARING_STRATEGY=TimeSlicing",
        "DRAY_DEVICE_GPU_0_TIMESLICE_INTERVAL=Long",
    }
    mps = {"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "10Gi"}
    assert await env_of("gpu-0", slices, config(sharing={"strategy": "MPS", "mpsConfig": mps})) == {
        "DRAY_DEVICE_GPU_0_SHARING_STRATEGY=MPS",
        "DRAY_DEVICE_GPU_0_MPS_ACTIVE_THREAD_PERCENTAGE=50",
        "DRAY_DEVICE_GPU_0_MPS_PINNED_MEMORY_LIMIT=10240M",
    }
    # A config for whole GPUs says nothing about a MIG device.
    assert await env_of("gpu-0-mig-1g10gb-19-0", slices) == set()


def test_the_fields_of_a_vfio_config_are_spelled_as_the_driver_spells_them():
    check_config(
        NVIDIA, config("VfioDeviceConfig", iommu={"backendPolicy": "LegacyOnly", "enableAPIDevice": True})
    )
    with pytest.raises(OpaqueConfigError, match='unknown field "iommu.enableApiDevice"'):
        check_config(NVIDIA, config("VfioDeviceConfig", iommu={"enableApiDevice": True}))


def test_gpus_of_a_fabric_know_their_partitions():
    devices = load_profile("h100-vfio").pools("n")[0].devices
    assert [device.attributes["partition2"].int_value for device in devices] == [5, 5, 6, 6]
    assert [device.attributes["gpuModuleID"].int_value for device in devices] == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="there is none of 3 GPUs"):
        nvidia_gpus({"model": "H100-80GB", "gpus": [{"partitions": {3: 1}}]}, "n")
