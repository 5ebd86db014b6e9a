"""The NVIDIA driver on an in-memory NVML: whole GPUs, MIG made and destroyed, sharing, health."""

import asyncio
import dataclasses
import random

import pytest
from fake_nvml import FakeNvml
from sysfs_trees import pci_function, write

from dray.api.resource import ResourceClaim
from dray.driver import AllocatedDevice, ClaimRequest, DeviceConfig, DriverError, PreparedClaim
from dray.drivers.hardware import load_profile
from dray.drivers.nvidia import NvidiaDriver
from dray.drivers.nvidia.configs import parse_config


class Commands:
    """Remembers what would have been run; starting an MPS daemon makes its control pipe."""

    def __init__(self):
        self.calls = []

    def __call__(self, command, *, env=None, feed=""):
        self.calls.append((list(command), feed))
        if "-d" in command:
            write_control = env["CUDA_MPS_PIPE_DIRECTORY"] + "/control"
            open(write_control, "w").close()
        return ""


def make(tmp_path, models=("A100-40GB",), mig=True, **options):
    nvml, commands = FakeNvml(models, mig), Commands()
    for index in range(len(models)):
        write(tmp_path / f"dev/nvidia{index}", "")
    write(tmp_path / "dev/nvidiactl", "")
    sysfs = tmp_path / "sys"
    if not sysfs.exists():
        pci_function(sysfs, "pci0000:15", "0000:16:00.0", "0000:1b:00.0", numa=0)
    driver = NvidiaDriver(nvml, state=tmp_path / "state", sysfs=sysfs, root=tmp_path, run=commands, **options)
    return driver, nvml, commands


def claim(*devices, uid="u1", configs=()):
    listed = [
        AllocatedDevice("gpu", "n", name, configs=[DeviceConfig("FromClaim", config) for config in configs])
        for name in devices
    ]
    return ClaimRequest("default", "c", uid, listed, ResourceClaim())


def done(uid, prepared, complete=True):
    return PreparedClaim("default", "c", uid, prepared, complete)


GPU_CONFIG = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}


def test_a_gpu_without_mig_is_one_exclusive_device(tmp_path):
    driver, _, _ = make(tmp_path, ["H100-80GB", "H100-80GB"], mig=False)
    (pool,) = driver.discover()
    assert [device.name for device in pool.devices] == ["gpu-0", "gpu-1"]
    attributes = pool.devices[0].attributes
    assert attributes["productName"].string == "NVIDIA H100 80GB HBM3"
    assert attributes["architecture"].string == "Hopper"
    assert attributes["driverVersion"].version == "580.82.7"
    assert attributes["cudaDriverVersion"].version == "13.0.0"
    assert attributes["resource.kubernetes.io/pcieRoot"].string == "pci0000:15"
    assert pool.devices[0].capacity["memory"].value == "81559Mi"
    assert not pool.counters


def test_a_gpu_in_mig_mode_offers_what_the_simulated_one_offers(tmp_path):
    driver, _, _ = make(tmp_path)
    (pool,) = driver.discover()
    modelled = load_profile("dgx-a100-mig").pools("n")[0]
    names = {
        device.name
        for device in modelled.devices
        if device.name == "gpu-0" or device.name.startswith("gpu-0-")
    }
    assert {device.name for device in pool.devices} == names
    by_name = {device.name: device for device in modelled.devices}
    for device in pool.devices:
        if device.name != "gpu-0":
            assert device.consumes_counters == by_name[device.name].consumes_counters
            assert device.capacity == by_name[device.name].capacity


def test_a_slice_is_created_at_prepare_and_destroyed_at_unprepare(tmp_path):
    driver, nvml, _ = make(tmp_path)
    write(
        tmp_path / "proc/driver/nvidia/capabilities/gpu0/mig/gi1/access",
        "DeviceFileMinor: 21\nDeviceFileMode: 292",
    )
    write(tmp_path / "proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0/access", "DeviceFileMinor: 22")
    write(tmp_path / "dev/nvidia-caps/nvidia-cap21", "")
    write(tmp_path / "dev/nvidia-caps/nvidia-cap22", "")
    (prepared,) = driver.prepare(claim("gpu-0-mig-3g20gb-9-4"))
    (instance,) = nvml.gpus[0].instances.values()
    assert (instance.profile.name, instance.start, len(instance.computes)) == ("3g.20gb", 4, 1)
    assert f"MIG_DEVICE_0_1={instance.uuid}" in prepared.edits.env
    assert [node.path for node in prepared.edits.device_nodes] == [
        "/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22",
    ]  # fmt: skip
    driver.unprepare(done("u1", [prepared]))
    assert not nvml.gpus[0].instances
    driver.unprepare(done("u1", [prepared]))  # nothing to undo is no error


def test_seven_slices_fit_where_the_counters_say_so(tmp_path):
    driver, nvml, _ = make(tmp_path)
    for index in range(7):
        driver.prepare(claim(f"gpu-0-mig-1g5gb-19-{index}", uid=f"u{index}"))
    assert len(nvml.gpus[0].instances) == 7


def test_a_prepare_that_was_cut_short_finds_its_slice_again(tmp_path):
    driver, nvml, _ = make(tmp_path)
    driver.prepare(claim("gpu-0-mig-1g5gb-19-2"))
    driver.prepare(claim("gpu-0-mig-1g5gb-19-2"))
    assert nvml.created == 1


def test_a_claim_that_fails_half_way_leaves_nothing_behind(tmp_path):
    driver, nvml, _ = make(tmp_path)
    with pytest.raises(DriverError, match="no device gpu-9"):
        driver.prepare(claim("gpu-0-mig-1g5gb-19-0", "gpu-9"))
    assert not nvml.gpus[0].instances
    nvml.fail_compute = True
    with pytest.raises(Exception, match="Insufficient Permissions"):
        driver.prepare(claim("gpu-0-mig-1g5gb-19-0"))
    assert not nvml.gpus[0].instances


def test_a_foreign_instance_in_the_way_is_explained(tmp_path):
    driver, _, _ = make(tmp_path)
    driver.prepare(claim("gpu-0-mig-7g40gb-0-0"))
    with pytest.raises(DriverError, match="nvidia-smi mig -lgi"):
        driver.prepare(claim("gpu-0-mig-1g5gb-19-0", uid="u2"))


def test_a_restart_destroys_what_belongs_to_no_claim(tmp_path):
    driver, nvml, _ = make(tmp_path)
    kept = driver.prepare(claim("gpu-0-mig-1g5gb-19-0", uid="kept"))
    driver.prepare(claim("gpu-0-mig-1g5gb-19-1", uid="leaked"))
    half = driver.prepare(claim("gpu-0-mig-1g5gb-19-2", uid="half"))
    driver.recover([done("kept", kept), done("half", half, complete=False)])
    assert sorted(instance.start for instance in nvml.gpus[0].instances.values()) == [0, 2]


def test_an_unfinished_prepare_is_undone_by_place(tmp_path):
    driver, nvml, _ = make(tmp_path)
    (prepared,) = driver.prepare(claim("gpu-0-mig-1g5gb-19-2"))
    driver.unprepare(done("u1", [dataclasses.replace(prepared, private=None)], complete=False))
    assert not nvml.gpus[0].instances


def test_static_mig_publishes_what_exists_and_never_destroys(tmp_path):
    driver, nvml, _ = make(tmp_path)
    driver.prepare(claim("gpu-0-mig-2g10gb-14-0"))
    static = NvidiaDriver(
        nvml, state=tmp_path / "state", sysfs=tmp_path / "sys", root=tmp_path, static_mig=True
    )
    (pool,) = static.discover()
    (device,) = pool.devices
    assert device.name == "gpu-0-mig-2g10gb-14-0"
    assert device.attributes["uuid"].string.startswith("MIG-")
    prepared = static.prepare(claim("gpu-0-mig-2g10gb-14-0", uid="u2"))
    static.unprepare(done("u2", prepared))
    static.recover([])
    assert len(nvml.gpus[0].instances) == 1


def test_any_order_of_making_and_destroying_ends_where_it_began(tmp_path):
    driver, nvml, _ = make(tmp_path, ["A100-40GB", "H100-80GB"])
    (pool,) = driver.discover()
    names = [device.name for device in pool.devices if "mig" in device.name]
    chance = random.Random(7)
    held = {}
    for step in range(300):
        if held and chance.random() < 0.4:
            uid = chance.choice(list(held))
            driver.unprepare(done(uid, held.pop(uid)))
        else:
            try:
                # The SDK never offers a device that another claim holds.
                busy = {device.device for prepared in held.values() for device in prepared}
                wanted = chance.choice([name for name in names if name not in busy])
                held[f"u{step}"] = driver.prepare(claim(wanted, uid=f"u{step}"))
            except DriverError:
                continue
        assert sum(len(gpu.instances) for gpu in nvml.gpus) == len(
            {d.private["uuid"] for p in held.values() for d in p}
        )
    for uid, prepared in held.items():
        driver.unprepare(done(uid, prepared))
    assert not any(gpu.instances for gpu in nvml.gpus)


# --- sharing ----------------------------------------------------------------------


def test_time_slices_are_set_and_reset(tmp_path):
    driver, nvml, commands = make(tmp_path, mig=False)
    config = GPU_CONFIG | {"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}}
    prepared = driver.prepare(claim("gpu-0", configs=[config]))
    uuid = nvml.gpus[0].uuid
    assert commands.calls == [(["nvidia-smi", "compute-policy", "-i", uuid, "--set-timeslice=3"], "")]
    driver.unprepare(done("u1", prepared))
    assert commands.calls[-1][0][-1] == "--set-timeslice=0"


def test_an_mps_daemon_lives_as_long_as_its_claim(tmp_path):
    driver, _, commands = make(tmp_path, mig=False)
    mps = {"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "10Gi"}
    config = GPU_CONFIG | {"sharing": {"strategy": "MPS", "mpsConfig": mps}}
    (prepared,) = driver.prepare(claim("gpu-0", configs=[config]))
    assert "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps" in prepared.edits.env
    assert [mount.container_path for mount in prepared.edits.mounts] == ["/dev/shm", "/tmp/nvidia-mps"]
    assert commands.calls[0][0] == ["nvidia-cuda-mps-control", "-d"]
    assert commands.calls[1][1] == (
        "set_default_active_thread_percentage 50\nset_default_device_pinned_mem_limit 0 10240M\n"
    )
    driver.unprepare(done("u1", [prepared]))
    assert commands.calls[-1] == (["nvidia-cuda-mps-control"], "quit\n")
    assert not (tmp_path / "state/mps/u1").exists()


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({}, "Object 'Kind' is missing"),
        ({"apiVersion": "resource.nvidia.com/v1beta1", "kind": "Other"}, 'no kind "Other"'),
        (GPU_CONFIG | {"sharin": {}}, "strict decoding error.*sharin"),
        (GPU_CONFIG | {"sharing": {"strategy": "Hope"}}, "unknown GPU sharing strategy: Hope"),
        (
            GPU_CONFIG | {"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Ages"}}},
            "unknown time-slice interval: Ages",
        ),
        (GPU_CONFIG | {"sharing": {"strategy": "TimeSlicing", "mpsConfig": {}}}, "cannot use MpsConfig"),
        (
            GPU_CONFIG | {"sharing": {"strategy": "MPS", "timeSlicingConfig": {}}},
            "cannot use TimeSlicingConfig",
        ),
        (
            GPU_CONFIG
            | {"sharing": {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 101}}},
            "must not be greater than 100",
        ),
        (
            GPU_CONFIG
            | {"sharing": {"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "lots"}}},
            "pinned memory limit 'lots'",
        ),
    ],
)
def test_a_config_with_a_mistake_is_refused_with_its_name(config, complaint):
    with pytest.raises(DriverError, match=complaint):
        parse_config(config)


def test_a_config_of_the_wrong_kind_creates_nothing(tmp_path):
    driver, nvml, _ = make(tmp_path)
    with pytest.raises(DriverError, match="GpuConfig cannot be applied to a MIG device"):
        driver.prepare(claim("gpu-0-mig-1g5gb-19-0", configs=[GPU_CONFIG]))
    assert nvml.created == 0


# --- health -----------------------------------------------------------------------


async def test_a_fatal_xid_taints_the_gpu_and_its_slices(tmp_path):
    driver, nvml, _ = make(tmp_path, ["A100-40GB", "A100-40GB"])
    stream = driver.health()
    assert {device.health for device in await anext(stream)} == {"Healthy"}
    nvml.xid(1, 79)
    report = {device.device: device for device in await asyncio.wait_for(anext(stream), 60)}
    await stream.aclose()
    assert report["gpu-1"].health == "Unhealthy"
    assert report["gpu-1"].message == "xid 79"
    assert report["gpu-1-mig-1g5gb-19-0"].health == "Unhealthy"
    assert report["gpu-0"].health == "Healthy"
    (pool,) = driver.discover()
    tainted = {device.name: [(t.key, t.value, t.effect) for t in device.taints] for device in pool.devices}
    assert tainted["gpu-1"] == [("gpu.nvidia.com/xid", "79", "NoSchedule")]
    assert tainted["gpu-0"] == []


async def test_an_applications_own_xid_keeps_nobody_away(tmp_path):
    driver, nvml, _ = make(tmp_path, mig=False)
    stream = driver.health()
    await anext(stream)
    nvml.xid(0, 31)
    report = await asyncio.wait_for(anext(stream), 60)
    await stream.aclose()
    assert [device.health for device in report] == ["Healthy"]
    (pool,) = driver.discover()
    assert [taint.effect for taint in pool.devices[0].taints] == ["None"]


async def test_a_lost_gpu_is_unhealthy(tmp_path):
    driver, nvml, _ = make(tmp_path, ["H100-80GB", "H100-80GB"], mig=False)
    stream = driver.health()
    await anext(stream)
    nvml.lose(0)
    report = {device.device: device for device in await asyncio.wait_for(anext(stream), 60)}
    await stream.aclose()
    assert (report["gpu-0"].health, report["gpu-0"].message) == ("Unhealthy", "gpu-lost")
    assert report["gpu-1"].health == "Healthy"
