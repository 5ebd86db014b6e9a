"""Builders of modelled devices: the names and attributes that the real drivers publish.

Each builder takes one entry of a profile's `devices` list and returns a pool. The
attribute names follow the drivers in the field: `gpu.nvidia.com`, `dra.net`,
`tpu.google.com`, `sriovnetwork.k8snetworkplumbingwg.io`, `dra.cpu`. There is no
public FPGA driver; `fpga.dray.dev` is ours.
"""

from __future__ import annotations

from collections.abc import Callable

from dray.api.resource import (
    Device,
    DeviceCapacity,
)
from dray.api.well_known import PCI_BUS_ID, PCIE_ROOT
from dray.drivers import driver_names
from dray.drivers.hardware.amd import amd_gpus
from dray.drivers.hardware.attributes import (
    Attributes,
    Entry,
    number,
    place_attributes,
    stable_uuid,
    text,
    truth,
    version,
)
from dray.drivers.hardware.compute_domains import compute_domain_devices
from dray.drivers.hardware.cpus import model_cpus
from dray.drivers.hardware.example import example_cpus, example_gpus, example_nics
from dray.drivers.hardware.intel import gaudis, intel_gpus, qat_functions
from dray.drivers.hardware.networks import interfaces
from dray.drivers.hardware.nvidia import nvidia_gpus
from dray.drivers.hardware.pools import PoolModel
from dray.drivers.hardware.published import published
from dray.drivers.tpu_topology import generation_of, has_vfio, topology_of_host

# --- network ------------------------------------------------------------------

MAX_GIVEN_ATTRIBUTES = 8  # of one port, so that a device stays within its 32 attributes


def sriov_functions(entry: Entry, node: str) -> PoolModel:
    """Model `sriovnetwork.k8snetworkplumbingwg.io`: the virtual functions of each physical port."""
    driver = driver_names.SRIOV
    devices = []
    for port in entry["ports"]:
        domain_bus = str(port["pci"]).rsplit(":", 1)[0]
        for function in range(int(port["vfs"])):
            # Virtual functions follow the physical one: eight functions to a PCI device number.
            number_on_bus = function + 2
            address = f"{domain_bus}:{number_on_bus // 8:02x}.{number_on_bus % 8}"
            attributes = {
                f"{driver}/pciAddress": text(address),
                f"{driver}/PFName": text(str(port["netdev"])),
                f"{driver}/pfPciAddress": text(str(port["pci"])),
                f"{driver}/EswitchMode": text(str(entry.get("eswitch", "legacy"))),
                f"{driver}/vendor": text(str(entry.get("vendor", "15b3"))),
                f"{driver}/deviceID": text(str(entry.get("device", "101e"))),
                f"{driver}/pfDeviceID": text(str(entry.get("pf_device", "1021"))),
                f"{driver}/vfID": number(function),
                f"{driver}/linkType": text(str(entry.get("link", "ethernet"))),
                f"{driver}/rdmaCapable": truth(bool(entry.get("rdma", True))),
                "k8s.cni.cncf.io/deviceID": text(address),
                PCI_BUS_ID: text(address),
                PCIE_ROOT: text(str(port.get("root", ""))),
                # As the kernel says it: -1 where it does not know.
                "dra.net/numaNode": number(int(port.get("numa", -1))),
            }
            attributes |= _given_attributes(port)
            devices.append(Device(name=address.replace(":", "-").replace(".", "-"), attributes=attributes))
    return PoolModel(driver, node, tuple(devices), (), node)


def _given_attributes(port: Entry) -> Attributes:
    """Return what policies of the administrator say of a port's functions; the driver discovers none of it."""
    given = port.get("attributes") or {}
    if len(given) > MAX_GIVEN_ATTRIBUTES:
        raise ValueError(f"attributes: more than {MAX_GIVEN_ATTRIBUTES}")
    attributes = {str(name): text(str(value)) for name, value in given.items()}
    if "resource_name" in port:  # as Multus needs it
        attributes["k8s.cni.cncf.io/resourceName"] = text(str(port["resource_name"]))
    return attributes


# --- TPU, FPGA, CPU -----------------------------------------------------------


def tpus(entry: Entry, node: str) -> PoolModel:
    """Model `tpu.google.com`: one device per chip, with the host's topology."""
    chips = int(entry["chips"])
    generation = generation_of(str(entry["accelerator"]))
    devices = []
    for index in range(chips):
        attributes = {
            "index": number(index),
            # Google's driver makes it from the node's name alone: all chips of a host have the same one.
            "uuid": text(f"tpu-{stable_uuid(node, 'tpu')}"),
            "tpuGen": text(generation),
            "brand": text("Google"),
            "accelerator": text(str(entry["accelerator"])),
            "chipCount": number(chips),
        }
        topology = str(entry.get("topology") or topology_of_host(chips))
        if topology:
            attributes["topology"] = text(topology)
        # The number of a VFIO group, or /dev/accelN.
        name = str(index) if has_vfio(generation) else f"accel{index}"
        devices.append(Device(name=name, attributes=attributes))
    return PoolModel(driver_names.TPU, node, tuple(devices), (), node)


def fpgas(entry: Entry, node: str) -> PoolModel:
    """Model `fpga.dray.dev`: cards with their shell and their resources."""
    devices = []
    for index, card in enumerate(entry["cards"]):
        attributes = {
            "index": number(index),
            "uuid": text(stable_uuid(node, "fpga", index)),
            "vendor": text(str(entry["vendor"])),
            "deviceID": text(str(entry["device"])),
            "productName": text(str(entry["product"])),
            "shell": text(str(card.get("shell", entry.get("shell", "none")))),
            "shellVersion": version(str(entry.get("shell_version", "1.0.0"))),
            **place_attributes(card),
        }
        capacity = {name: DeviceCapacity(value=str(amount)) for name, amount in entry["capacity"].items()}
        devices.append(Device(name=f"fpga-{index}", attributes=attributes, capacity=capacity))
    return PoolModel(driver_names.FPGA, node, tuple(devices), (), node)


def cpus(entry: Entry, node: str) -> PoolModel:
    """Model `dra.cpu`, grouped (the default) or with one device per CPU."""
    return PoolModel(driver_names.CPU, node, tuple(model_cpus(entry)), (), node)


# What a profile may name under `kind`.
BUILDERS: dict[str, Callable[[Entry, str], PoolModel]] = {
    "nvidia-gpus": nvidia_gpus,
    "nvidia-compute-domain": compute_domain_devices,
    "intel-gpus": intel_gpus,
    "gaudis": gaudis,
    "qat": qat_functions,
    "amd-gpus": amd_gpus,
    "rdma-nics": interfaces,
    "sriov": sriov_functions,
    "tpus": tpus,
    "fpgas": fpgas,
    "cpus": cpus,
    "example-gpus": example_gpus,
    "example-nics": example_nics,
    "example-cpus": example_cpus,
    "published": published,
}
