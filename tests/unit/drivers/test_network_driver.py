"""Network interfaces: found in sysfs, and really moved between namespaces where that is permitted."""

import asyncio
import dataclasses
import os
import shutil
import subprocess
import time
from pathlib import Path

import msgspec
import pytest
from node_builders import eventually
from sysfs_trees import class_entry, pci_function, write

from dray.api.cdi import NEEDS_POD_NETWORK
from dray.api.resource import ResourceClaim, ResourceClaimConsumerReference, ResourceClaimStatus
from dray.driver import AllocatedDevice, ClaimRequest, DeviceConfig, DriverError, PreparedClaim
from dray.drivers.network import NetworkDriver
from dray.drivers.network.driver import parse_config
from dray.drivers.network.moving import Move, attach, detach, in_namespace, netlink
from dray.drivers.network.pod_processes import PodProcesses


def interface(sysfs, name, device=None, **files):
    folder = class_entry(sysfs, "net", name, device)
    for file, content in (
        {"ifindex": "7", "type": "1", "address": "02:00:00:00:00:01", "mtu": "1500", "operstate": "up"}
        | files
    ).items():
        write(folder / file, content)
    return folder


@pytest.fixture
def driver(tmp_path):
    sysfs = tmp_path / "sys"
    nic = pci_function(
        sysfs, "pci0000:15", "0000:16:00.0", "0000:18:00.0", numa=1, vendor="0x15b3", device="0x1021",
        sriov_totalvfs="8", sriov_numvfs="2",
    )  # fmt: skip
    (nic / "infiniband/mlx5_0").mkdir(parents=True)
    interface(sysfs, "ibp24s0", nic, type="32", mtu="4092")
    interface(sysfs, "eth0")
    interface(sysfs, "lo", type="772")
    interface(sysfs, "Veth_1.x")
    (interface(sysfs, "slave0") / "master").mkdir()
    verbs = class_entry(sysfs, "infiniband_verbs", "uverbs0", nic)
    assert verbs.exists()
    for node in ("rdma_cm", "uverbs0"):
        write(tmp_path / f"dev/infiniband/{node}", "")
    routes = tmp_path / "route"
    write(
        routes,
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\neth0\t00000000\t0100A8C0\t3\t0\t0\t0\t00000000",
    )
    addresses = {"ibp24s0": ["10.1.0.2/24", "fe80::1/64"]}
    return NetworkDriver(
        state=tmp_path / "state", sysfs=sysfs, dev=tmp_path / "dev", routes=routes, pins=tmp_path / "pins",
        addresses=lambda: addresses,
    )  # fmt: skip


def claim(*devices, config=None):
    configs = [DeviceConfig("FromClaim", config)] if config is not None else []
    listed = [AllocatedDevice("nic", "n", name, configs=configs) for name in devices]
    return ClaimRequest("default", "c", "uid-1", listed, ResourceClaim())


def test_the_nodes_own_uplink_loopback_and_bonded_interfaces_are_not_offered(driver):
    (pool,) = driver.discover()
    assert [device.name for device in pool.devices] == ["pci-0000-18-00-0", "veth-1-x"]


def test_an_interface_is_published_with_its_place_and_abilities(driver):
    (pool,) = driver.discover()
    attributes = pool.devices[0].attributes
    assert attributes["dra.net/ifName"].string == "ibp24s0"
    assert attributes["dra.net/rdmaDevice"].string == "mlx5_0"
    assert attributes["dra.net/rdma"].bool_value is True
    assert attributes["dra.net/sriovVfs"].int_value == 2
    assert attributes["dra.net/ipv4"].string == "10.1.0.2/24"
    assert attributes["resource.kubernetes.io/pcieRoot"].string == "pci0000:15"
    assert attributes["resource.kubernetes.io/numaNode"].int_value == 1
    assert pool.devices[1].attributes["dra.net/virtual"].bool_value is True


def test_a_prepared_interface_brings_its_hook_rdma_nodes_and_status(driver):
    (device,) = driver.prepare(
        claim("pci-0000-18-00-0", config={"interface": {"name": "rdma0", "mtu": 9000}})
    )
    (hook,) = device.edits.hooks
    assert hook.args[-1] == "uid-1-pci-0000-18-00-0"
    assert NEEDS_POD_NETWORK in hook.env
    move = msgspec.convert(device.private["move"], Move)
    assert (move.host_name, move.container_name, move.mtu) == ("ibp24s0", "rdma0", 9000)
    assert [node.path for node in device.edits.device_nodes] == [
        "/dev/infiniband/rdma_cm",
        "/dev/infiniband/uverbs0",
    ]
    assert device.status.network_data.interface_name == "rdma0"
    assert device.status.network_data.ips == ["10.1.0.2/24", "fe80::1/64"]


def test_a_lent_interface_stays_published_and_comes_back_after_a_restart(driver, tmp_path):
    prepared = driver.prepare(claim("veth-1-x"))
    shutil.rmtree(tmp_path / "sys/class/net/Veth_1.x")  # it is inside the container now
    (pool,) = driver.discover()
    assert "veth-1-x" in [device.name for device in pool.devices]
    reborn = NetworkDriver(
        state=tmp_path / "state",
        sysfs=tmp_path / "sys",
        routes=tmp_path / "route",
        pins=tmp_path / "pins",
        addresses=dict,
    )
    known = PreparedClaim("default", "c", "uid-1", prepared)
    reborn.recover([known])
    assert "veth-1-x" in [device.name for device in reborn.discover()[0].devices]
    reborn.unprepare(known)
    assert "veth-1-x" not in [device.name for device in reborn.discover()[0].devices]


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"interfase": {}}, "unknown field `interfase`"),
        ({"interface": {"name": "a name that is far too long"}}, "not a name that the kernel allows"),
        ({"interface": {"name": "a/b"}}, "not a name that the kernel allows"),
        ({"interface": {"addresses": ["10.0.0.1"]}}, "needs a prefix length"),
        ([], "strict decoding error"),
    ],
)
def test_a_config_with_a_mistake_is_refused(config, complaint):
    with pytest.raises(DriverError, match=complaint):
        parse_config(config)


def test_two_interfaces_cannot_have_one_name(driver):
    with pytest.raises(DriverError, match="would have the name 'same'"):
        driver.prepare(claim("veth-1-x", "pci-0000-18-00-0", config={"interface": {"name": "same"}}))


# --- for real -----------------------------------------------------------------------


def _may_make_namespaces():
    if os.geteuid() != 0:
        return False
    done = subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False)
    return done.returncode == 0


@pytest.fixture
def veth():
    if not _may_make_namespaces():
        pytest.skip("needs root and permission to make network namespaces")
    link = netlink()
    try:
        link.link("add", ifname="draytest0", kind="veth", peer="draytest1")
    except Exception as error:
        link.close()
        pytest.skip(f"cannot make veth pairs here: {error}")
    yield link
    for name in ("draytest0", "draytest1"):
        for index in link.link_lookup(ifname=name):
            link.link("del", index=index)
    link.close()


@pytest.fixture
def container():
    process = subprocess.Popen(["unshare", "-n", "sleep", "600"])
    await_own_network(process)
    yield process
    process.kill()
    process.wait()


def await_own_network(process):
    mine = os.stat("/proc/self/ns/net").st_ino
    limit = time.monotonic() + 30
    while os.stat(f"/proc/{process.pid}/ns/net").st_ino == mine:
        assert time.monotonic() < limit, "unshare does not come to its point"
        time.sleep(0.01)


MOVE = Move(key="k", host_name="draytest1", container_name="net1", addresses=["10.99.0.2/24"], mtu=1400)


def names(link):
    return {entry.get_attr("IFLA_IFNAME"): entry for entry in link.get_links()}


@pytest.mark.root
def test_an_interface_moves_into_the_container_and_back(veth, container, tmp_path):
    attach(MOVE, container.pid, tmp_path)
    attach(MOVE, container.pid, tmp_path)  # once more changes nothing
    assert "draytest1" not in names(veth)

    def look(inside):
        found = names(inside)["net1"]
        addresses = inside.get_addr(index=found["index"], family=2)
        return found.get_attr("IFLA_MTU"), [entry.get_attr("IFA_ADDRESS") for entry in addresses]

    assert in_namespace(Path(f"/proc/{container.pid}/ns/net"), look) == (1400, ["10.99.0.2"])
    detach(MOVE, tmp_path)
    detach(MOVE, tmp_path)
    assert "draytest1" in names(veth)
    assert not list(tmp_path.iterdir())


@pytest.mark.root
def test_an_interface_survives_its_container(veth, container, tmp_path, monkeypatch):
    def fork():
        raise AssertionError("a driver has threads: it must not fork")

    monkeypatch.setattr(os, "fork", fork)
    here = os.stat("/proc/thread-self/ns/net").st_ino
    attach(MOVE, container.pid, tmp_path)
    assert os.stat("/proc/thread-self/ns/net").st_ino == here
    container.kill()
    container.wait()
    detach(MOVE, tmp_path)
    assert "draytest1" in names(veth)


@pytest.mark.root
def test_the_hosts_own_network_is_refused(veth, tmp_path):
    with pytest.raises(DriverError, match="shares the host's network"):
        attach(MOVE, os.getpid(), tmp_path)
    assert "draytest1" in names(veth)


@pytest.mark.root
def test_an_interface_follows_its_pod_into_a_new_sandbox(veth, container, tmp_path):
    attach(MOVE, container.pid, tmp_path)
    second = subprocess.Popen(["unshare", "-n", "sleep", "600"])
    try:
        await_own_network(second)
        attach(MOVE, second.pid, tmp_path)
        assert "net1" not in in_namespace(Path(f"/proc/{container.pid}/ns/net"), names)
        assert "net1" in in_namespace(Path(f"/proc/{second.pid}/ns/net"), names)
    finally:
        second.kill()
        second.wait()
    detach(MOVE, tmp_path)
    assert "draytest1" in names(veth)


@pytest.mark.root
def test_an_interface_that_the_kernel_brought_back_gets_its_name_again(veth, tmp_path):
    (index,) = veth.link_lookup(ifname="draytest1")
    mac = veth.get_links(index)[0].get_attr("IFLA_ADDRESS")
    veth.link("set", index=index, ifname="net1")
    detach(msgspec.structs.replace(MOVE, mac="02:00:00:00:00:99"), tmp_path)
    assert "net1" in names(veth)  # another interface of that name is left alone
    detach(msgspec.structs.replace(MOVE, mac=mac), tmp_path)
    assert "draytest1" in names(veth)


def test_processes_of_pods_are_found_by_their_cgroups(tmp_path, monkeypatch):
    for pid, group in (
        ("10", "0::/system.slice/sshd.service"),
        ("11", "4:cpuset:/kubepods/besteffort/podaa-bb/0123"),
        ("12", "0::/../kubepods-burstable.slice/kubepods-burstable-podcc_dd.slice/cri-containerd-1.scope"),
        ("13", "0::/kubepods/podee-ff/pause"),
    ):
        write(tmp_path / pid / "cgroup", group)
    write(tmp_path / "uptime", "1")
    monkeypatch.setattr(PodProcesses, "_has_own_network", lambda self, pid: pid != "13")
    assert PodProcesses(tmp_path).find(["aa-bb", "cc-dd", "ee-ff", "11-22"]) == {"aa-bb": 11, "cc-dd": 12}


@pytest.mark.root
def test_a_pod_is_given_its_interface_without_a_container_that_refers_to_it(
    veth, container, driver, tmp_path
):
    veth_folder = interface(tmp_path / "sys", "draytest1")
    assert veth_folder.exists()
    user = ResourceClaimConsumerReference(resource="pods", name="p", uid="aa-bb")
    asked = claim("draytest1", config={"interface": {"name": "net1"}})
    stored = ResourceClaim(status=ResourceClaimStatus(reserved_for=[user]))
    prepared = driver.prepare(dataclasses.replace(asked, claim=stored))
    driver._proc = tmp_path / "proc"
    (tmp_path / "proc").mkdir(exist_ok=True)
    driver.attach(PreparedClaim("default", "c", "uid-1", prepared), ["aa-bb"])  # nothing of it runs yet
    write(tmp_path / "proc" / str(container.pid) / "cgroup", "0::/kubepods/podaa-bb/x")
    (tmp_path / "proc" / str(container.pid) / "ns").symlink_to(f"/proc/{container.pid}/ns")

    async def run():
        work = asyncio.create_task(driver.run_beside())
        await eventually(lambda: "net1" in in_namespace(Path(f"/proc/{container.pid}/ns/net"), names))
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    asyncio.run(run())
    driver.unprepare(PreparedClaim("default", "c", "uid-1", prepared))
    assert "draytest1" in names(veth)


@pytest.mark.root
def test_a_running_pod_is_given_an_interface_and_loses_it_again(veth, container, driver, tmp_path):
    interface(tmp_path / "sys", "draytest1")
    write(tmp_path / "proc" / str(container.pid) / "cgroup", "0::/kubepods/podaa-bb/x")
    (tmp_path / "proc" / str(container.pid) / "ns").symlink_to(f"/proc/{container.pid}/ns")
    driver._proc = tmp_path / "proc"
    prepared = driver.prepare(claim("draytest1", config={"interface": {"name": "net1"}}))
    assert "draytest1" in names(veth)  # not moved before what `prepare` said is on disk
    held = PreparedClaim("default", "c", "uid-1", prepared)
    for _ in range(2):  # the node asks again after a crash
        driver.attach(held, ["aa-bb"])
        assert "net1" in in_namespace(Path(f"/proc/{container.pid}/ns/net"), names)
    driver.unprepare(held)
    assert "net1" not in in_namespace(Path(f"/proc/{container.pid}/ns/net"), names)
    assert "draytest1" in names(veth)


def test_a_pod_on_the_hosts_network_is_given_no_interface(driver, tmp_path):
    write(tmp_path / "proc/77/cgroup", "0::/kubepods/podaa-bb/x")
    write(tmp_path / "proc/77/ns/net", "")
    driver._proc = tmp_path / "proc"
    prepared = driver.prepare(claim("veth-1-x"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dray.drivers.network.pod_processes.OWN_NETWORK", tmp_path / "proc/77/ns/net")
        with pytest.raises(DriverError, match="the pod shares the host's network"):
            driver.attach(PreparedClaim("default", "c", "uid-1", prepared), ["aa-bb"])
