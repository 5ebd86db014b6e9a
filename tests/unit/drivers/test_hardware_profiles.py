"""Profiles: every built-in one fits the API's limits and says what the real driver would."""

import json
import re

import pytest
from shared_data import shared

from dray.drivers.hardware import (
    GPU_MODELS,
    ProfileError,
    device_classes,
    load_profile,
    pool_slices,
    profile_names,
)
from dray.drivers.hardware.cpus import model_cpus

DNS_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_publishes_slices_within_the_limits(name):
    slices = pool_slices(load_profile(name).pools("node-1"))
    assert slices
    for published in slices:
        spec = published.spec
        assert not (spec.devices and spec.shared_counters)
        assert len(spec.shared_counters) <= 8
        elaborate = any(device.consumes_counters or device.taints for device in spec.devices)
        assert len(spec.devices) <= (64 if elaborate else 128)
        for device in spec.devices:
            assert DNS_LABEL.match(device.name), device.name
            assert len(device.attributes or {}) + len(device.capacity or {}) <= 32


@pytest.mark.parametrize("name", profile_names())
def test_device_names_are_unique_in_a_pool_and_counters_exist(name):
    for pool in load_profile(name).pools("node-1"):
        names = [device.name for device in pool.devices]
        assert len(names) == len(set(names))
        sets = {counter_set.name: counter_set.counters for counter_set in pool.counter_sets}
        for device in pool.devices:
            for consumption in device.consumes_counters:
                assert set(consumption.counters) <= set(sets[consumption.counter_set])


def test_a_pool_larger_than_a_slice_is_split_and_counted():
    slices = pool_slices(load_profile("dgx-a100-mig").pools("node-1"))
    gpu_slices = [published for published in slices if published.spec.driver == "gpu.nvidia.com"]
    assert {published.spec.pool.resource_slice_count for published in gpu_slices} == {len(gpu_slices)}
    assert sum(len(published.spec.devices) for published in gpu_slices) == 8 * (1 + 7 + 7 + 4 + 3 + 2 + 1 + 1)


def test_the_same_node_gets_the_same_identities_and_another_node_others():
    def identities(node):
        (pool,) = load_profile("workstation").pools(node)
        return [device.attributes["uuid"].string for device in pool.devices]

    assert identities("a") == identities("a")
    assert not set(identities("a")) & set(identities("b"))


def test_every_gpu_of_the_dgx_shares_its_pcie_root_with_a_nic():
    gpus, nics, _ = load_profile("dgx-h100").pools("n")
    roots = {device.attributes["resource.kubernetes.io/pcieRoot"].string for device in nics.devices}
    for device in gpus.devices:
        assert device.attributes["resource.kubernetes.io/pcieRoot"].string in roots


def test_mig_tables_agree_with_the_published_facts():
    facts = json.loads(shared("data/hw/mig_profiles.json").read_text())["gpus"]
    for model_name, model in GPU_MODELS.items():
        if model_name not in facts or not model.mig_profiles:
            continue
        published = {profile["profile"]: profile for profile in facts[model_name]["profiles"]}
        assert {profile.name for profile in model.mig_profiles} == set(published), model_name
        for profile in model.mig_profiles:
            fact = published[profile.name]
            assert profile.instance_profile_id == fact["gi_profile_id"]
            assert profile.compute_slices == fact["compute_slices"]
            assert profile.memory_slices == fact["placement_size_memory_slices"]
            assert list(profile.starts) == fact["placement_starts"]
            if fact.get("multiprocessors"):
                assert profile.engines.multiprocessors == fact["multiprocessors"]


def test_an_unknown_profile_names_the_known_ones():
    with pytest.raises(ProfileError, match=r"built in: .*dgx-h100"):
        load_profile("dgx-h9000")


def test_a_profile_with_an_unknown_kind_says_what_is_expected(tmp_path):
    path = tmp_path / "odd.yaml"
    path.write_text("name: odd\ndevices: [{kind: abacus}]\n")
    with pytest.raises(ProfileError, match=r"devices\[0\]\.kind is 'abacus'; expected one of nvidia-gpus"):
        load_profile(str(path))


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("{kind: nvidia-gpus, model: H9000, gpus: []}", "model 'H9000' is not known"),
        ("{kind: nvidia-gpus, gpus: []}", "the field 'model' is missing"),
        (
            "{kind: rdma-nics, nics: [{netdev: eth0, virtual: true, pci: '0000:00:01.0'}]}",
            "eth0: a virtual interface",
        ),
    ],
)
def test_an_entry_that_cannot_be_modelled_says_why(tmp_path, entry, words):
    path = tmp_path / "odd.yaml"
    path.write_text(f"name: odd\ndevices: [{entry}]\n")
    with pytest.raises(ProfileError, match=rf"devices\[0\] \(.*\): {re.escape(words)}"):
        load_profile(str(path)).pools("n")


def test_classes_can_be_limited_to_the_drivers_at_hand():
    assert {found.metadata.name for found in device_classes(frozenset({"gpu.nvidia.com"}))} == {
        "gpu.nvidia.com",
        "mig.nvidia.com",
        "vfio.gpu.nvidia.com",
    }


# Which attributes the drivers publish, read in their sources (docs/drivers.md names the versions).
SRIOV = "sriovnetwork.k8snetworkplumbingwg.io"
_OF_AMD = {
    "type", "productName", "deviceID", "numaNode", "driverVersion", "driverVersionFull",
    "resource.kubernetes.io/pciBusID", "resource.kubernetes.io/pcieRoot",
}  # fmt: skip
PUBLISHED = {
    "cpu-numa": {
        "resource.kubernetes.io/numaNode", "dra.cpu/numaNodeID", "dra.net/numaNode", "dra.cpu/socketID",
        "dra.cpu/numCPUs", "dra.cpu/smtEnabled",
    },
    "sriov-nics": {
        *(f"{SRIOV}/{name}" for name in (
            "vendor", "deviceID", "pfDeviceID", "pciAddress", "PFName", "EswitchMode", "vfID", "pfPciAddress",
            "linkType", "rdmaCapable",
        )),
        "k8s.cni.cncf.io/deviceID", "k8s.cni.cncf.io/resourceName", "resource.kubernetes.io/pcieRoot",
        "resource.kubernetes.io/pciBusID", "dra.net/numaNode",
    },
    "intel-flex170": {
        "model", "family", "driver", "sriov", "type", "pciId", "pciAddress", "health", "pciRoot",
        "resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/pciBusID",
    },
    "gaudi3": {"model", "serial", "healthy", "pciRoot", "resource.kubernetes.io/pcieRoot"},
    "qat-gen4": {"services"},
    "mi300x": _OF_AMD | {"partitionProfile"},
    "mi300x-cpx": _OF_AMD | {"partitionProfile"},
    "mi300x-auto": _OF_AMD | {"computePartition", "memoryPartition", "gpuIndex", "pciAddr"},
    "rebellions-atom": {
        "type", "productName", "sid", "uuid", "pciDeviceID", "pciLinkSpeed", "pciLinkWidth", "firmwareVersion",
        "driverVersion", "resource.kubernetes.io/pciBusID", "resource.kubernetes.io/pcieRoot",
        "resource.kubernetes.io/numaNode",
    },
    "spyre": {
        "index", "driverVersion", "vendor", "driver", "productId", "pciAddress", "pfPciAddress", "isPf", "subClass",
        "vfId", "numaInfo", "linkSpeed",
    },
    "ascend-310p": {
        "index", "physicalID", "uuid", "model", "productName", "brand", "type", "cores", "memory",
    },
    "hami-l40s": {
        "type", "uuid", "minor", "productName", "brand", "architecture", "cudaComputeCapability", "driverVersion",
        "cudaDriverVersion", "pcieBusID", "resource.kubernetes.io/pcieRoot",
    },
    "tpu-v5e": {"index", "uuid", "tpuGen", "brand", "accelerator", "chipCount", "topology"},
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_model_publishes_exactly_the_attributes_of_the_real_driver(name):
    (pool,) = load_profile(name).pools("n")
    for device in pool.devices:
        assert set(device.attributes) == PUBLISHED[name]


def test_interfaces_have_dranets_attributes_and_no_others():
    _, nics, *_ = load_profile("dgx-h100").pools("n")
    names = {
        "ifName",
        "pciAddress",
        "mac",
        "pciVendor",
        "pciDevice",
        "numaNode",
        "mtu",
        "encapsulation",
        "alias",
    }
    names |= {"state", "type", "ebpf", "sriov", "virtual", "rdma", "rdmaDevice"}
    expected = {f"dra.net/{name}" for name in names}
    expected |= {"resource.kubernetes.io/numaNode", "resource.kubernetes.io/pcieRoot"}
    for device in nics.devices:
        assert set(device.attributes) == expected


def cpus(**more):
    nodes = [
        {"cpus": 4, "socket": 0, "roots": ["pci0000:00"]},
        {"cpus": 4, "socket": 0},
        {"cpus": 4, "socket": 1},
    ]
    return model_cpus({"numa_nodes": nodes, **more})


def test_cpus_can_be_grouped_by_socket_and_machine_and_offered_one_by_one():
    sockets = cpus(group_by="socket")
    assert [(device.name, device.capacity["dra.cpu/cpu"].value) for device in sockets] == [
        ("cpudevsocket000", "8"), ("cpudevsocket001", "4"),
    ]  # fmt: skip
    assert "resource.kubernetes.io/numaNode" not in sockets[0].attributes
    assert sockets[0].attributes["resource.kubernetes.io/pcieRoot"].strings == ["pci0000:00"]
    (machine,) = cpus(group_by="machine")
    assert (machine.name, machine.capacity["dra.cpu/cpu"].value) == ("cpudevmachine", "12")
    assert set(machine.attributes) == {
        "dra.cpu/numCPUs", "dra.cpu/smtEnabled", "resource.kubernetes.io/pcieRoot",
    }  # fmt: skip
    single = cpus(mode="individual")
    assert [device.attributes["dra.cpu/cpuID"].int_value for device in single[:4]] == [0, 6, 1, 7]
    assert [device.attributes["dra.cpu/coreID"].int_value for device in single[:10:2]] == [0, 1, 2, 3, 0]
    assert single[11].name == "cpudev011"
    assert single[11].attributes["dra.cpu/coreType"].string == "standard"
    assert not single[0].capacity


@pytest.mark.parametrize("entry", [{"mode": "both"}, {"group_by": "rack"}, {"numa_nodes": [{"cpus": 10**6}]}])
def test_cpus_that_are_not_understood_are_refused(entry):
    with pytest.raises(ValueError, match="mode is grouped|more than 8192"):
        cpus(**entry)


@pytest.mark.parametrize("name", profile_names())
def test_a_node_has_kubelets_labels(name):
    labels = load_profile(name).node_labels("n-1")
    assert labels["kubernetes.io/hostname"] == "n-1"
    assert labels["kubernetes.io/os"] == labels["beta.kubernetes.io/os"] == "linux"
    has_grace = name in ("gb200-tray", "gh200-mig", "aks-gb300", "oke-gb200")
    assert labels["kubernetes.io/arch"] == ("arm64" if has_grace else "amd64")
