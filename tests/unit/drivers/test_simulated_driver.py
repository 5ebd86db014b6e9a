"""The simulated driver: publishes the model, prepares with an identity, fails on demand."""

import asyncio

import pytest

from dray.api.resource import DeviceTaint, ResourceClaim
from dray.driver import (
    AllocatedDevice,
    ClaimRequest,
    DeviceConfig,
    DriverError,
    PreparedClaim,
    PreparedDevice,
)
from dray.drivers.faults import DeviceFault, FaultFile, parse_faults
from dray.drivers.hardware import load_profile
from dray.drivers.simulated import SimulatedDriver
from dray.drivers.simulated_node import simulated_drivers


@pytest.fixture
def faults(tmp_path):
    return FaultFile(tmp_path / "faults.yaml")


@pytest.fixture
def driver(faults):
    (model,) = load_profile("workstation").pools("box")
    return SimulatedDriver(model, faults.path, interval=0.01)


def request(*devices):
    return ClaimRequest("default", "claim", "uid", list(devices), ResourceClaim())


def gpu(name="gpu-0", **fields):
    return AllocatedDevice("gpu", "box", name, **fields)


def test_the_model_is_published_under_the_real_drivers_name(driver):
    (pool,) = driver.discover()
    assert driver.name == "gpu.nvidia.com"
    assert [device.name for device in pool.devices] == ["gpu-0", "gpu-1"]


def test_a_node_has_one_driver_for_each_kind_of_hardware(tmp_path):
    drivers = simulated_drivers(load_profile("dgx-h100"), "n", tmp_path)
    assert [driver.name for driver in drivers] == ["gpu.nvidia.com", "dra.net", "dra.cpu"]


async def test_a_container_learns_which_devices_it_got(driver):
    first, second = await driver.prepare(request(gpu("gpu-0"), gpu("gpu-1")))
    assert "DRAY_DEVICE_GPU_0=gpu.nvidia.com/box/gpu-0" in first.edits.env
    assert "DRAY_DEVICE_GPU_0_REQUEST=gpu" in first.edits.env
    assert any(variable.startswith("DRAY_DEVICE_GPU_1_UUID=GPU-") for variable in second.edits.env)
    assert not set(first.edits.env) & set(second.edits.env)


async def test_a_share_and_its_config_reach_the_container(driver):
    config = DeviceConfig(
        "FromClaim",
        {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": {"strategy": "MPS"}},
    )
    (device,) = await driver.prepare(
        request(
            gpu(share_id="s-1", consumed_capacity={"memory": "10Gi"}, configs=[config], admin_access=True)
        )
    )
    assert "DRAY_DEVICE_GPU_0_SHARE=s-1" in device.edits.env
    assert "DRAY_DEVICE_GPU_0_CAPACITY_MEMORY=10Gi" in device.edits.env
    assert any(
        line.startswith("DRAY_DEVICE_GPU_0_CONFIG=") and '"sharing":{"strategy":"MPS"}' in line
        for line in device.edits.env
    )
    assert "DRA_ADMIN_ACCESS=true" in device.edits.env


async def test_an_unknown_device_is_refused(driver):
    with pytest.raises(DriverError, match="there is no device box/gpu-9"):
        await driver.prepare(request(gpu("gpu-9")))


def test_a_vanished_device_is_not_published_and_a_tainted_one_shows_it(driver, faults):
    faults.change("gpu-0", DeviceFault(vanish=True))
    faults.change("gpu-1", DeviceFault(taint=DeviceTaint(key="xid", value="79", effect="NoExecute")))
    (pool,) = driver.discover()
    (device,) = pool.devices
    assert device.name == "gpu-1"
    assert [taint.key for taint in device.taints] == ["xid"]
    faults.change("gpu-0", None)
    faults.change("gpu-1", None)
    (pool,) = driver.discover()
    assert [len(device.taints) for device in pool.devices] == [0, 0]


async def test_prepare_and_unprepare_fail_on_demand(driver, faults):
    faults.change("gpu-0", DeviceFault(prepare_error="no such firmware", unprepare_error="stuck"))
    with pytest.raises(DriverError, match="gpu-0: no such firmware"):
        await driver.prepare(request(gpu()))
    with pytest.raises(DriverError, match="stuck"):
        await driver.unprepare(
            PreparedClaim("default", "claim", "uid", [PreparedDevice("gpu", "box", "gpu-0")])
        )


async def test_health_follows_the_faults(driver, faults):
    stream = driver.health()
    assert {device.health for device in await anext(stream)} == {"Healthy"}
    faults.change("gpu-1", DeviceFault(health="Unhealthy", message="fell off the bus"))
    changed = {
        device.device: (device.health, device.message) for device in await asyncio.wait_for(anext(stream), 60)
    }
    assert changed == {"gpu-0": ("Healthy", ""), "gpu-1": ("Unhealthy", "fell off the bus")}
    await stream.aclose()


@pytest.mark.usefixtures("virtual_time")
async def test_a_change_of_the_faults_is_announced(driver, faults):
    stream = driver.changes()
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0.02)
    faults.change("gpu-0", DeviceFault(vanish=True))
    await asyncio.wait_for(waiting, 60)
    await stream.aclose()


def test_a_typo_in_the_faults_file_heals_nothing(driver, faults):
    faults.change("gpu-0", DeviceFault(vanish=True))
    driver.discover()
    faults.path.write_text("devices: {gpu-0: {vanisch: true}}")
    (pool,) = driver.discover()
    assert [device.name for device in pool.devices] == ["gpu-1"]


def test_unknown_fields_in_faults_are_named():
    with pytest.raises(ValueError, match="vanisch"):
        parse_faults({"devices": {"gpu-0": {"vanisch": True}}})
