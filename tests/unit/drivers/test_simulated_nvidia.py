"""Time slices and MPS on simulated GPUs: what NVIDIA's programs would be told, what containers get, what is shown."""

import pytest

from dray.api.resource import ResourceClaim
from dray.driver import AllocatedDevice, ClaimRequest, DeviceConfig, DriverError, PreparedClaim
from dray.drivers.hardware import load_profile
from dray.drivers.simulated_node import simulated_drivers


@pytest.fixture
def driver(tmp_path):
    return simulated_drivers(load_profile("workstation"), "box", None, tmp_path)[0]


def gpu(name, **sharing):
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}
    configs = [DeviceConfig("FromClaim", parameters)] if sharing else []
    return AllocatedDevice("gpu", "box", name, configs=configs)


def request(*devices):
    return ClaimRequest("default", "claim", "claim-uid", list(devices), ResourceClaim())


MPS = {
    "strategy": "MPS",
    "mpsConfig": {"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "10Gi"},
}


async def test_an_mps_daemon_is_told_its_limits_and_mounted(driver):
    (prepared,) = await driver.prepare(request(gpu("gpu-1", **MPS)))
    assert "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps" in prepared.edits.env
    assert [mount.container_path for mount in prepared.edits.mounts] == ["/dev/shm", "/tmp/nvidia-mps"]
    daemon = driver.folder / "mps/claim-uid"
    assert (daemon / "pipe/control").exists()
    assert (daemon / "log/control.log").read_text().splitlines() == [
        "set_default_active_thread_percentage 50",
        "set_default_device_pinned_mem_limit 0 10240M",
    ]
    uuid = driver.model.devices[1].attributes["uuid"].string
    assert uuid in (daemon / "log/startup.log").read_text()
    assert f"nvidia-smi -i {uuid} -c EXCLUSIVE_PROCESS" in (driver.folder / "nvidia-smi.log").read_text()
    assert prepared.status.data == {
        "sharingStrategy": "MPS",
        "computeMode": "EXCLUSIVE_PROCESS",
        "multiUser": False,
        "activeThreadPercentage": 50,
    }
    await driver.unprepare(PreparedClaim("default", "claim", "claim-uid", [prepared]))
    assert not daemon.exists()


async def test_the_devices_of_a_claim_share_one_daemon(driver):
    first, second = await driver.prepare(request(gpu("gpu-0", **MPS), gpu("gpu-1", **MPS)))
    assert first.edits.mounts == second.edits.mounts
    log = (driver.folder / "mps/claim-uid/log/control.log").read_text()
    assert [line.split()[1] for line in log.splitlines()[1:]] == ["0", "1"]


async def test_time_slices_are_set_on_the_gpu(driver):
    slices = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
    (prepared,) = await driver.prepare(request(gpu("gpu-0", **slices)))
    uuid = driver.model.devices[0].attributes["uuid"].string
    assert (driver.folder / "nvidia-smi.log").read_text().splitlines() == [
        f"nvidia-smi -i {uuid} -c DEFAULT",
        f"nvidia-smi compute-policy -i {uuid} --set-timeslice=3",
    ]
    assert prepared.status.data["timeSliceInterval"] == "Long"
    assert prepared.edits.mounts == []


async def test_without_a_config_nothing_is_touched(driver):
    (prepared,) = await driver.prepare(request(gpu("gpu-0")))
    assert prepared.status.data is None
    assert not driver.folder.exists()
    await driver.unprepare(PreparedClaim("default", "claim", "claim-uid", [prepared]))


async def test_a_limit_for_a_device_of_somebody_else_is_refused(driver):
    config = {"strategy": "MPS", "mpsConfig": {"defaultPerDevicePinnedMemoryLimit": {"7": "1Gi"}}}
    with pytest.raises(DriverError, match="names '7', which the claim does not hold"):
        await driver.prepare(request(gpu("gpu-0", **config)))


async def test_the_log_of_commands_does_not_grow_without_bound(driver, monkeypatch):
    monkeypatch.setattr("dray.drivers.simulated_nvidia.MAX_LOG", 200)
    slices = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Short"}}
    for _ in range(5):
        await driver.prepare(request(gpu("gpu-0", **slices)))
    assert (driver.folder / "nvidia-smi.log").stat().st_size <= 200
