"""dranet and the SR-IOV driver as modelled: interfaces of every kind, clouds, classes, configs."""

import pytest

from dray.drivers.hardware import device_classes, load_profile
from dray.drivers.hardware.devices import sriov_functions
from dray.drivers.hardware.networks import interfaces
from dray.drivers.opaque_configs import OpaqueConfigError, check_config

SRIOV = "sriovnetwork.k8snetworkplumbingwg.io"


@pytest.fixture
def device_by_name():
    (pool,) = load_profile("dranet").pools("n")
    return {device.name: device for device in pool.devices}


def told(device, name):
    attribute = device.attributes.get(f"dra.net/{name}")
    if attribute is None:
        return None
    return next(
        value for value in (attribute.string, attribute.int_value, attribute.bool_value) if value is not None
    )


def test_interfaces_are_named_after_their_address_or_themselves(device_by_name):
    assert list(device_by_name) == [
        "pci-0000-06-00-0", "pci-0000-86-00-0", "pci-0000-06-00-1", "pci-0000-06-00-2", "dummy0", "net-mr2w23lzl4yq",
    ]  # fmt: skip


def test_a_virtual_interface_has_no_pci_device(device_by_name):
    dummy = device_by_name["dummy0"]
    assert (told(dummy, "virtual"), told(dummy, "type"), told(dummy, "alias")) == (
        True,
        "dummy",
        "made for a test",
    )
    assert (told(dummy, "pciVendor"), told(dummy, "rdma"), told(dummy, "sriov")) == (None, False, False)


def test_functions_addresses_and_programs_are_told(device_by_name):
    port, other = device_by_name["pci-0000-06-00-0"], device_by_name["pci-0000-86-00-0"]
    assert (told(port, "sriov"), told(port, "sriovVfs"), told(port, "isSriovVf")) == (True, 2, None)
    assert told(device_by_name["pci-0000-06-00-1"], "isSriovVf") is True
    assert (told(other, "ipv4"), told(other, "ipv6"), told(other, "ebpf")) == (
        "10.2.0.7/24",
        "fd00:2::7/64",
        True,
    )


def test_a_cloud_tells_where_an_interface_is(device_by_name):
    attributes = device_by_name["pci-0000-86-00-0"].attributes
    assert attributes["gce.dra.net/block"].string == "block-7"
    assert attributes["gce.dra.net/networkName"].string == "net-2"


@pytest.mark.parametrize(
    ("nic", "words"),
    [
        ({"netdev": "d", "virtual": True, "pci": "0000:01:00.0"}, "has no PCI address"),
        ({"netdev": "d", "cloud": {"dra.net/mac": "x"}}, "is not an attribute of a cloud"),
        ({"netdev": "d", "cloud": {f"gce.dra.net/a{n}": "x" for n in range(9)}}, "more than 8"),
    ],
)
def test_an_interface_that_cannot_be_says_why(nic, words):
    with pytest.raises(ValueError, match=words):
        interfaces({"nics": [nic]}, "n")


def test_the_classes_of_dranets_examples_exist():
    names = {each.metadata.name for each in device_classes(frozenset({"dra.net"}))}
    assert names == {"dra.net", "dranet.net", "dranet", "mrdma.google.com", "netdev.google.com"}


def test_a_config_of_a_virtual_function_is_checked():
    config = {
        "apiVersion": f"{SRIOV}/v1alpha1",
        "kind": "VfConfig",
        "ifName": "net1",
        "netAttachDefName": "a",
    }
    check_config(SRIOV, config)
    with pytest.raises(OpaqueConfigError, match='unknown field "ifname"'):
        check_config(SRIOV, {**config, "ifname": "net1"})


@pytest.mark.parametrize("name", ["eks-p4d", "aks-h100", "aks-gb300"])
def test_rdma_devices_without_interface_have_no_name_and_no_addresses(name):
    (pool,) = [each for each in load_profile(name).pools("n") if each.driver == "dra.net"]
    device = pool.devices[0]
    told = {key.removeprefix("dra.net/") for key in device.attributes if key.startswith("dra.net/")}
    assert told == {"rdma", "rdmaDevice", "pciAddress", "pciVendor", "pciDevice", "pciSubsystem", "numaNode"}
    assert device.name.startswith("pci-")


def test_a_device_without_interface_needs_what_names_it():
    with pytest.raises(ValueError, match="without netdev has pci and rdma"):
        interfaces({"nics": [{"pci": "0000:05:00.0"}]}, "n")


@pytest.mark.parametrize(
    ("profile", "attribute", "value"),
    [
        ("ack-erdma", "alibaba.dra.net/erdma", True),
        ("oke-gb200", "oke.dra.net/rackId", "rack-1"),
        ("gke-a3-ultra", "gce.dra.net/networkName", "rdma-net"),
        ("aks-gb300", "azure.dra.net/vmSize", "Standard_ND128isr_GB300_v6"),
    ],
)
def test_clouds_tell_where_an_interface_is(profile, attribute, value):
    (pool,) = [each for each in load_profile(profile).pools("n") if each.driver == "dra.net"]
    told = pool.devices[0].attributes[attribute]
    assert value in (told.string, told.bool_value)


PORT = {"netdev": "eth1", "pci": "0000:17:00.0", "vfs": 1}


def test_functions_have_the_attributes_that_policies_give_their_port():
    port = {**PORT, "resource_name": "nic_1", "attributes": {f"{SRIOV}/resourceName": "port1-vfs"}}
    (device,) = sriov_functions({"ports": [port]}, "n").devices
    assert device.attributes[f"{SRIOV}/resourceName"].string == "port1-vfs"
    assert device.attributes["k8s.cni.cncf.io/resourceName"].string == "nic_1"


def test_a_port_with_too_many_attributes_is_refused():
    with pytest.raises(ValueError, match="more than 8"):
        sriov_functions({"ports": [{**PORT, "attributes": {f"a.example/{n}": "x" for n in range(9)}}]}, "n")
