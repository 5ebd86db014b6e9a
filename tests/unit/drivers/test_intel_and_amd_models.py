"""Intel's and AMD's drivers as modelled: names, capacities, modes, what containers are told, what profiles may say."""

import pytest

from dray.api.resource import ResourceClaim
from dray.driver import AllocatedDevice, ClaimRequest, DeviceConfig, DriverError
from dray.drivers.hardware import device_classes, load_profile
from dray.drivers.hardware.amd import AMD_GPUS, amd_gpus
from dray.drivers.hardware.intel import INTEL_GPUS, gaudis, intel_gpus, qat_functions
from dray.drivers.simulated_node import simulated_drivers


def model_of(profile):
    return load_profile(profile).pools("n")[0]


def driver_of(profile):
    return simulated_drivers(load_profile(profile), "n")[0]


def claim(*devices, configs=()):
    allocated = [AllocatedDevice("it", "n", name, configs=list(configs)) for name in devices]
    return ClaimRequest("default", "claim", "uid", allocated, ResourceClaim())


def test_an_intel_gpu_is_named_after_its_address_and_id():
    first = model_of("intel-flex170").devices[0]
    assert first.name == "0000-4d-00-0-0x56c0"
    assert first.attributes["family"].string == "Data Center Flex"
    assert first.attributes["pciRoot"].string == "4a"
    assert first.attributes["sriov"].bool_value is True
    assert {name: each.value for name, each in first.capacity.items()} == {
        "memory": "16384Mi",
        "millicores": "1k",
    }


def test_gpus_of_intel_are_for_containers_and_for_virtual_machines():
    names = [each.metadata.name for each in device_classes(frozenset({"gpu.intel.com"}))]
    assert names == ["gpu.intel.com", "gpu-vfio.intel.com"]


def test_a_card_without_sriov_does_not_promise_it():
    entry = {"model": "0xe20b", "sriov": True, "gpus": [{"pci": "0000:03:00.0"}]}
    (device,) = intel_gpus(entry, "n").devices
    assert device.attributes["sriov"].bool_value is False
    assert "pciRoot" not in device.attributes  # there is no root to tell


async def test_a_claim_of_gaudis_names_all_of_them():
    driver = driver_of("gaudi3")
    names = [driver.model.devices[index].name for index in (1, 4)]
    prepared = await driver.prepare(claim(*names))
    for device in prepared:
        assert {
            "HABANA_VISIBLE_DEVICES=1,4",
            "HABANA_VISIBLE_MODULES=1,4",
            "HL_VISIBLE_DEVICES=/dev/accel/accel1,/dev/accel/accel4",
        } <= set(device.edits.env)


def test_services_of_qat_stand_in_the_drivers_order():
    cards = [{"pci": "0000:6b:00.0", "vfs": 9, "services": "dc;sym"}]
    devices = qat_functions({"cards": cards}, "n").devices
    assert [device.name for device in devices][:1] + [device.name for device in devices][-2:] == [
        "qatvf-0000-6b-00-1",
        "qatvf-0000-6b-01-0",
        "qatvf-0000-6b-01-1",
    ]
    assert {device.attributes["services"].string for device in devices} == {"sym;dc"}


@pytest.mark.parametrize("name", AMD_GPUS)
def test_partitions_are_as_large_as_their_gpu(name):
    gpu = AMD_GPUS[name]
    for mode, parts in gpu.partitions_by_mode.items():
        entry = {"model": name, "compute": mode, "gpus": [{"pci": "0000:05:00.0"}, {"pci": "0000:26:00.0"}]}
        devices = amd_gpus(entry, "n").devices
        assert len(devices) == 2 * parts
        units = sum(int(device.capacity["computeUnits"].value) for device in devices[:parts])
        assert gpu.compute_units - parts < units <= gpu.compute_units
        assert {device.attributes["partitionProfile"].string for device in devices} == {f"{mode}_nps1"}


def test_partitions_of_one_gpu_share_their_parents_identity():
    devices = model_of("mi300x-cpx").devices
    parents = [device.attributes["resource.kubernetes.io/pciBusID"].string for device in devices]
    assert {device.attributes["deviceID"].string for device in devices} == {
        "0x74a1"
    }  # of PCI: that of the product
    assert len(set(parents)) == 8
    assert len(set(parents[:8])) == 1
    assert [device.name for device in devices[:2]] == ["gpu-1-128", "gpu-2-129"]
    assert {device.attributes["type"].string for device in devices} == {"amdgpu-partition"}


def test_a_gpu_that_is_partitioned_on_demand_has_one_mode_at_a_time_and_so_many_claims():
    pool = model_of("mi300x-auto")
    modes = [device for device in pool.devices if device.attributes["gpuIndex"].int_value == 3]
    assert [device.name for device in modes] == [
        f"gpu-3-{mode}" for mode in ("spx-nps1", "dpx-nps1", "qpx-nps1", "cpx-nps1", "cpx-nps4")
    ]
    assert {consumed.counter_set for device in modes for consumed in device.consumes_counters} == {
        "gpu-3-mutex"
    }
    whole, *_, parts = modes
    assert not whole.allow_multiple_allocations
    assert parts.allow_multiple_allocations
    assert parts.capacity["partitions"].value == "8"
    assert {key: each.request_policy.default for key, each in parts.capacity.items()} == {
        "partitions": "1", "memory": f"{196592 // 8}Mi", "computeUnits": "38", "simdUnits": "152",
    }  # fmt: skip


async def test_amds_driver_tells_its_name_and_refuses_what_it_does_not_know():
    driver = driver_of("mi300x")
    good = DeviceConfig("FromClaim", {"apiVersion": "gpu.resource.amd.com/v1alpha1", "kind": "GpuConfig"})
    (prepared,) = await driver.prepare(claim("gpu-1-128", configs=[good]))
    assert {"KUBERNETES_NODE_NAME=n", "DRA_RESOURCE_DRIVER_NAME=gpu.amd.com"} <= set(prepared.edits.env)
    bad = DeviceConfig("FromClaim", {**good.parameters, "sharing": {}})
    with pytest.raises(DriverError, match='strict decoding error: unknown field "sharing"'):
        await driver.prepare(claim("gpu-1-128", configs=[bad]))


@pytest.mark.parametrize(
    ("build", "entry", "words"),
    [
        (intel_gpus, {"model": "0xffff", "gpus": []}, "no Intel GPU with PCI id '0xffff'; known: 0x56a0"),
        (gaudis, {"model": "0x9", "cards": []}, "no Gaudi with PCI id"),
        (qat_functions, {"cards": [{"pci": "0000:6b:00.0", "services": "gzip"}]}, "unknown service 'gzip'"),
        (qat_functions, {"cards": [{"pci": "0000:6b:00.0", "vfs": 5000}]}, "more than 1024"),
        (amd_gpus, {"model": "MI9", "gpus": []}, "no AMD GPU 'MI9'"),
        (
            amd_gpus,
            {"model": "MI300X", "compute": "tpx", "gpus": [{"pci": "x"}]},
            "cannot be in mode tpx_nps1",
        ),
        (
            amd_gpus,
            {"model": "MI300X", "memory": "nps8", "gpus": [{"pci": "x"}]},
            "compute modes: spx, dpx, qpx, cpx, auto; memory modes: nps1, nps4",
        ),
    ],
)
def test_a_profile_that_cannot_be_says_why(build, entry, words):
    with pytest.raises(ValueError, match=words):
        build(entry, "n")


def test_every_intel_gpu_has_memory_and_a_kernel_driver():
    assert all(gpu.memory_mib and gpu.driver in ("i915", "xe") for gpu in INTEL_GPUS.values())
