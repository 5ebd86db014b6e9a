"""TPU chips and FPGA cards from synthetic sysfs trees."""

import threading
import time

import pytest
from sysfs_trees import class_entry, pci_function, write

from dray.api.resource import ResourceClaim
from dray.driver import AllocatedDevice, ClaimRequest, DeviceConfig, DriverError
from dray.drivers.fpga import FpgaDriver, parse_config
from dray.drivers.hardware import load_profile
from dray.drivers.simulated_node import simulated_driver
from dray.drivers.tpu import TpuDriver, read_environment
from dray.drivers.tpu_topology import common_variables


def claim(*devices):
    return ClaimRequest("default", "c", "uid-1", list(devices), ResourceClaim())


# --- TPU ------------------------------------------------------------------------


@pytest.fixture
def host(tmp_path):
    sysfs, dev = tmp_path / "sys", tmp_path / "dev"
    dev.mkdir()
    for index in range(4):
        function = pci_function(
            sysfs, "pci0000:00", f"0000:00:0{index + 4}.0", numa=index // 2, vendor="0x1ae0", device="0x0063"
        )
        class_entry(sysfs, "accel", f"accel{index}", function)
        (dev / f"accel{index}").touch()
    class_entry(sysfs, "accel", "accel9", pci_function(sysfs, "pci0000:00", "0000:00:0f.0", vendor="0x8086"))
    return TpuDriver("n", sysfs, dev, {"TPU_ACCELERATOR_TYPE": "v5litepod-4", "TPU_TOPOLOGY": "2x2"}), dev


def test_chips_are_published_with_generation_and_topology(host):
    driver, _ = host
    (pool,) = driver.discover()
    assert [device.name for device in pool.devices] == ["accel0", "accel1", "accel2", "accel3"]
    attributes = pool.devices[3].attributes
    assert attributes["tpuGen"].string == "v5litepod"
    assert attributes["accelerator"].string == "tpu-v5-lite-podslice"
    assert attributes["topology"].string == "2x2"
    assert attributes["chipCount"].int_value == 4
    assert not [name for name in attributes if "/" in name]  # Google's driver has none of the standard ones
    (uuid,) = {device.attributes["uuid"].string for device in pool.devices}  # one for the host, as there
    assert uuid.startswith("tpu-")


def test_a_whole_host_gets_its_topology_and_a_part_is_refused(host):
    driver, _ = host
    whole = driver.prepare(claim(*(AllocatedDevice("tpu", "n", f"accel{i}") for i in range(4))))
    env = [variable for device in whole for variable in device.edits.env]
    assert len(env) == len(set(env))  # the variables of the host are there once
    assert {"TPU_TOPOLOGY=2x2", "TPU_ACCELERATOR_TYPE=v5litepod-4", "TPU_HOST_BOUNDS=1,1,1"} <= set(env)
    assert {"TPU_WORKER_ID=0", "TPU_DEVICE_accel2_RESOURCE_CLAIM=uid-1"} <= set(env)
    assert [node.path for device in whole for node in device.edits.device_nodes] == [
        f"/dev/accel{i}" for i in range(4)
    ]
    with pytest.raises(
        DriverError, match=r"claim requests partial tpu devices \(1\), only .* \(4\) on the node"
    ):
        driver.prepare(claim(AllocatedDevice("tpu", "n", "accel2")))


async def test_a_chip_without_its_device_node_is_unhealthy_and_withdrawn(host):
    driver, dev = host
    (dev / "accel1").unlink()
    (pool,) = driver.discover()
    assert "accel1" not in [device.name for device in pool.devices]
    stream = driver.health()
    sick = [device.device for device in await anext(stream) if device.health == "Unhealthy"]
    await stream.aclose()
    assert sick == ["accel1"]
    with pytest.raises(DriverError, match="accel1 is not there any more"):
        driver.prepare(claim(*(AllocatedDevice("tpu", "n", f"accel{i}") for i in range(4))))


def vfio_host(tmp_path, *groups):
    sysfs, dev = tmp_path / "sys", tmp_path / "dev"
    for index, number in enumerate(groups):
        function = pci_function(
            sysfs, "pci0000:00", f"0000:00:{index + 4:02x}.0", vendor="0x1ae0", device="0x006f"
        )
        group = sysfs / f"kernel/iommu_groups/{number}"
        group.mkdir(parents=True)
        (function / "iommu_group").symlink_to(group)
        write(dev / f"vfio/{number}", "")
    return TpuDriver("n", sysfs, dev, {})


def test_chips_behind_vfio_are_called_by_the_number_of_their_group(tmp_path):
    driver = vfio_host(tmp_path, 7)
    (pool,) = driver.discover()
    assert [device.name for device in pool.devices] == ["7"]
    (prepared,) = driver.prepare(claim(AllocatedDevice("tpu", "n", "7")))
    assert [node.path for node in prepared.edits.device_nodes] == ["/dev/vfio/7", "/dev/vfio/vfio"]


def test_a_host_that_knows_nothing_of_a_slice_is_a_tpu_by_itself(tmp_path):
    (pool,) = vfio_host(tmp_path, 10, 9, 8, 11).discover()
    # In the order in which a folder is listed, as Google's driver numbers them.
    assert [(device.name, device.attributes["index"].int_value) for device in pool.devices] == [
        ("10", 0), ("11", 1), ("8", 2), ("9", 3),
    ]  # fmt: skip
    assert pool.devices[0].attributes["topology"].string == "2x2"
    assert pool.devices[0].attributes["accelerator"].string == "tpu-v6e-slice"


@pytest.mark.parametrize(
    ("accelerator", "topology", "chips", "expected"),
    [
        # One host of four: a slice of 4 x 4 chips, four on each host.
        ("tpu-v5-lite-podslice", "4x4", 4, {"TPU_ACCELERATOR_TYPE": "v5litepod-16", "TPU_HOST_BOUNDS": "2,2,1"}),
        ("tpu-v5-lite-podslice", "16x16", 8, {"TPU_TOPOLOGY_WRAP": "true,true,false"}),
        ("tpu-v5p-slice", "4x4x4", 4, {"TPU_TOPOLOGY_WRAP": "true,true,true", "ENABLE_ICI_RESILIENCY": "true"}),
        ("tpu-v4-podslice", "2x2x1", 4, {"TPU_ACCELERATOR_TYPE": "v4-8", "TPU_WORKER_HOSTNAMES": "localhost"}),
    ],
)  # fmt: skip
def test_variables_follow_from_type_and_topology(accelerator, topology, chips, expected):
    variables = common_variables(accelerator, topology, chips, "n")
    assert {name: variables.get(name) for name in expected} == expected


def test_an_unknown_topology_says_nothing(tmp_path):
    assert set(common_variables("tpu-v6e-slice", "5 by 5", 4, "n")) == {
        "KUBERNETES_NODE_NAME", "DRA_RESOURCE_DRIVER_NAME", "TPU_SKIP_MDS_QUERY",
    }  # fmt: skip


async def test_the_model_refuses_a_part_and_gives_the_host(tmp_path):
    (pool,) = load_profile("tpu-v5e").pools("n")
    driver = simulated_driver(pool)
    assert [device.name for device in pool.devices] == [str(index) for index in range(8)]
    assert len({device.attributes["uuid"].string for device in pool.devices}) == 1
    with pytest.raises(DriverError, match="partial tpu devices"):
        await driver.prepare(claim(AllocatedDevice("tpu", "n", "0")))
    prepared = await driver.prepare(claim(*(AllocatedDevice("tpu", "n", str(i)) for i in range(8))))
    env = [variable for device in prepared for variable in device.edits.env]
    assert "TPU_CHIPS_PER_HOST_BOUNDS=2,4,1" in env
    assert env.count("TPU_TOPOLOGY=2x4") == 1


def test_the_machines_tpu_environment_is_read_in_both_spellings(tmp_path):
    path = tmp_path / "tpu-env"
    path.write_text("TPU_TOPOLOGY=2x4\nWORKER_ID: '0'\n")
    assert read_environment(path)["TPU_TOPOLOGY"] == "2x4"
    assert read_environment(path)["WORKER_ID"] == "0"


# --- FPGA -----------------------------------------------------------------------


@pytest.fixture
def card(tmp_path):
    sysfs, dev, firmware = tmp_path / "sys", tmp_path / "dev", tmp_path / "firmware"
    function = pci_function(
        sysfs, "pci0000:3a", "0000:3a:00.0", "0000:3b:00.0", numa=1, vendor="0x10ee", device="0x500c"
    )
    region = class_entry(sysfs, "fpga_region", "region0", function)
    write(region / "compat_id", "c0ffee")
    manager = class_entry(sysfs, "fpga_manager", "fpga0", None)
    write(manager / "name", "Alveo U280")
    write(manager / "state", "operating")
    write(firmware / "matmul.bin", "bits")
    write(dev / "fpga0", "")
    return FpgaDriver(sysfs, dev, firmware, timeout=30.0), manager


def config(**fields):
    return DeviceConfig("FromClaim", {"apiVersion": "fpga.dray.dev/v1", "kind": "FpgaConfig"} | fields)


def test_a_card_is_published_with_its_facts(card):
    driver, _ = card
    (pool,) = driver.discover()
    (device,) = pool.devices
    assert device.attributes["vendor"].string == "Xilinx"
    assert device.attributes["productName"].string == "Alveo U280"
    assert device.attributes["resource.kubernetes.io/pciBusID"].string == "0000:3b:00.0"
    assert device.attributes["resource.kubernetes.io/pcieRoot"].string == "pci0000:3a"


def test_the_claims_bitstream_is_programmed(card):
    driver, manager = card
    (prepared,) = driver.prepare(
        claim(AllocatedDevice("f", "n", "fpga-0", configs=[config(bitstream="matmul.bin")]))
    )
    assert (manager / "firmware").read_text() == "matmul.bin"
    assert "FPGA_DEVICE_0_BITSTREAM=matmul.bin" in prepared.edits.env
    assert [node.path for node in prepared.edits.device_nodes] == ["/dev/fpga0"]


def test_programming_waits_for_the_card(card):
    driver, manager = card
    write(manager / "state", "write")

    def finish():
        time.sleep(0.1)
        write(manager / "state", "operating")

    worker = threading.Thread(target=finish)
    worker.start()
    driver.prepare(claim(AllocatedDevice("f", "n", "fpga-0", configs=[config(bitstream="matmul.bin")])))
    worker.join()


def test_a_failed_programming_says_how_it_ended(card):
    driver, manager = card
    write(manager / "state", "write error")
    with pytest.raises(DriverError, match="ended in state 'write error'"):
        driver.prepare(claim(AllocatedDevice("f", "n", "fpga-0", configs=[config(bitstream="matmul.bin")])))


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", ".hidden", "", 7])
def test_a_bitstream_outside_the_folder_is_refused(name):
    with pytest.raises(DriverError, match="plain name"):
        parse_config({"apiVersion": "fpga.dray.dev/v1", "kind": "FpgaConfig", "bitstream": name})


def test_a_missing_bitstream_touches_no_card(card):
    driver, manager = card
    with pytest.raises(DriverError, match="there is no bitstream 'other.bin'"):
        driver.prepare(claim(AllocatedDevice("f", "n", "fpga-0", configs=[config(bitstream="other.bin")])))
    assert not (manager / "firmware").exists()


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ([], "must be a JSON object"),
        ({"apiVersion": "v1", "kind": "FpgaConfig"}, r"understands fpga.dray.dev/v1 FpgaConfig"),
        (
            {"apiVersion": "fpga.dray.dev/v1", "kind": "FpgaConfig", "bitstreem": "x"},
            "unknown field 'bitstreem'",
        ),
    ],
)
def test_a_config_that_is_not_understood_is_refused(parameters, complaint):
    with pytest.raises(DriverError, match=complaint):
        parse_config(parameters)
