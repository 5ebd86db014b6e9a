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


# --- partitions ---------------------------------------------------------------------


@pytest.fixture
def static_mig(tmp_path):
    def start():
        return simulated_drivers(load_profile("a100-static-mig"), "box", None, tmp_path)[0]

    return start


def layout_claim(driver, minor, *partitions, uid="claim-uid", without=0):
    names = [
        device.name
        for device in driver.models[0].devices
        if device.name == f"gpu-{minor}" or device.name.startswith(f"gpu-{minor}-")
    ]
    parameters = {
        "apiVersion": "fleet.dray.dev/v1alpha1",
        "kind": "PartitionLayout",
        "partitions": list(partitions),
    }
    configs = [DeviceConfig("FromClaim", parameters)]
    devices = [
        AllocatedDevice("device", "box", name, configs=configs) for name in names[: len(names) - without]
    ]
    return ClaimRequest("dray-fleet", "claim", uid, devices, ResourceClaim())


def published(driver):
    return [device.name for pool in driver.discover() for device in pool.devices]


async def test_a_claim_that_holds_a_whole_gpu_changes_its_partitions(static_mig):
    driver = static_mig()
    assert "gpu-0" in published(driver)
    prepared = await driver.prepare(layout_claim(driver, 0, "3g.20gb@4", "2g.10gb", "1g.5gb"))
    assert [each.device for each in prepared] == ["gpu-0"]
    now = [name for name in published(driver) if name.startswith("gpu-0")]
    assert now == ["gpu-0-mig-1g5gb-19-2", "gpu-0-mig-2g10gb-14-0", "gpu-0-mig-3g20gb-9-4"]
    # The partitions say where they are, as the GPU did.
    attributes = driver.models[0].devices[0].attributes
    assert attributes["resource.kubernetes.io/pciBusID"].string == "0000:07:00.0"
    assert published(static_mig()) == published(driver)  # after a restart


async def test_a_gpu_becomes_whole_again(static_mig):
    driver = static_mig()
    await driver.prepare(layout_claim(driver, 1))
    assert published(driver) == ["gpu-0", "gpu-1"]
    whole = driver.models[0].devices[1]
    assert whole.attributes["type"].string == "gpu"
    assert "parentUUID" not in whole.attributes
    assert whole.capacity["memory"].value == "40960Mi"


async def test_a_claim_that_is_prepared_again_changes_nothing(static_mig):
    driver = static_mig()
    first = layout_claim(driver, 1, "7g.40gb")
    await driver.prepare(first)
    again = await static_mig().prepare(first)  # its devices do not exist any more
    assert [each.device for each in again] == [each.device for each in first.devices]


@pytest.mark.parametrize(
    ("minor", "partitions", "without", "message"),
    [
        (0, ["9g.5gb"], 0, "has no MIG profile '9g.5gb'"),
        (0, ["4g.20gb", "4g.20gb"], 0, "no place for 4g.20gb"),
        (0, ["1g.5gb@9"], 0, "no place for 1g.5gb@9"),
        (0, ["1g.5gb+me", "1g.5gb+me"], 0, "too few engines"),
        (0, ["1g.5gb"] * 60, 0, "cannot have so many"),
        (0, ["1g.5gb"] * 65, 0, "more than 64 partitions"),
        (0, ["x" * 65], 0, "longer than 64 characters"),
        (1, ["1g.5gb"], 1, "must hold all devices of gpu-1"),
    ],
)
async def test_a_layout_that_is_refused_changes_nothing(static_mig, minor, partitions, without, message):
    driver = static_mig()
    before = published(driver)
    with pytest.raises(DriverError, match=message):
        await driver.prepare(layout_claim(driver, minor, *partitions, without=without))
    assert published(driver) == before
    assert published(static_mig()) == before


async def test_a_gpu_whose_partitions_the_scheduler_chooses_has_no_layout(tmp_path):
    driver = simulated_drivers(load_profile("dgx-a100-mig"), "box", None, tmp_path)[0]
    with pytest.raises(DriverError, match="cannot be changed: it offers all partitions already"):
        await driver.prepare(layout_claim(driver, 0, "7g.40gb"))
