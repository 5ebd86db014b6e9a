"""Devices of Intel's three drivers: `gpu.intel.com`, `gaudi.intel.com` and `qat.intel.com`.

As intel/intel-resource-drivers-for-kubernetes publishes them (August 2026). None of them takes opaque configs. A GPU
is offered for containers and for virtual machines at once: the class of the request (`gpu.intel.com` or
`gpu-vfio.intel.com`) decides, at prepare, to which kernel driver it is bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from dray.api.resource import Device, DeviceCapacity
from dray.api.well_known import PCI_BUS_ID, PCIE_ROOT
from dray.drivers import driver_names
from dray.drivers.hardware.attributes import Attributes, Entry, stable_uuid, text, truth
from dray.drivers.hardware.pools import PoolModel

MAX_FUNCTIONS = 1024  # virtual functions of one entry
QAT_SERVICES = ("sym", "asym", "dc", "dcc")  # in the driver's order


@dataclass(frozen=True, slots=True)
class IntelGpu:
    """A product: what every GPU of it has in common."""

    model: str
    family: str
    driver: str  # of the kernel
    memory_mib: int
    virtual_functions: int = 0  # that it can have; 0: no SR-IOV


# PCI id -> product; names as the driver has them, memory as published.
INTEL_GPUS: dict[str, IntelGpu] = {
    "0x56a0": IntelGpu("A770", "Arc A-Series", "i915", 16384),
    "0x56c0": IntelGpu("Flex 170", "Data Center Flex", "i915", 16384, 31),
    "0x56c1": IntelGpu("Flex 140", "Data Center Flex", "i915", 6144, 31),
    "0x0bd5": IntelGpu("Max 1550", "Data Center Max", "i915", 131072, 63),
    "0x0bda": IntelGpu("Max 1100", "Data Center Max", "i915", 49152, 63),
    "0xe20b": IntelGpu("B580", "Arc B-Series", "xe", 12288),
    "0xe211": IntelGpu("B60", "Arc Pro B-Series", "xe", 24576, 24),
    "0xe212": IntelGpu("B50", "Arc Pro B-Series", "xe", 16384, 12),
    "0xe223": IntelGpu("B70", "Arc Pro B-Series", "xe", 32768, 24),
}
# PCI id -> model
GAUDI_MODELS = {"0x1020": "Gaudi2", "0x1060": "Gaudi3"}


def _uid(pci: str, device_id: str) -> str:
    """Return a device's name.

    >>> _uid("0000:4d:00.0", "0x56c0")
    '0000-4d-00-0-0x56c0'
    """
    return f"{pci}-{device_id}".replace(":", "-").replace(".", "-")


def _roots(root: str) -> Attributes:
    """Return both names of the PCIe root; the older one is the bus alone."""
    attributes = {PCIE_ROOT: text(root)}
    domain, colon, bus = root.partition(":")
    return attributes | ({"pciRoot": text(bus)} if domain and colon and ":" not in bus else {})


def intel_gpus(entry: Entry, node: str) -> PoolModel:
    """Model `gpu.intel.com`; `sriov: true` says that the GPUs can have virtual functions."""
    device_id = str(entry["model"])
    if device_id not in INTEL_GPUS:
        known = ", ".join(f"{key} ({gpu.model})" for key, gpu in INTEL_GPUS.items())
        raise ValueError(f"no Intel GPU with PCI id {device_id!r}; known: {known}")
    gpu = INTEL_GPUS[device_id]
    devices = []
    for place in entry["gpus"]:
        pci = str(place["pci"])
        attributes = {
            "model": text(gpu.model),
            "family": text(gpu.family),
            "driver": text(str(place.get("driver", gpu.driver))),
            "sriov": truth(bool(entry.get("sriov")) and gpu.virtual_functions > 0),
            "type": text("gpu"),
            "pciId": text(device_id),
            "pciAddress": text(pci),
            "health": text(str(place.get("health", "Healthy"))),
            PCI_BUS_ID: text(pci),
            **_roots(str(place.get("root", ""))),
        }
        capacity = {
            "memory": DeviceCapacity(value=f"{gpu.memory_mib}Mi"),
            "millicores": DeviceCapacity(value="1k"),
        }
        devices.append(Device(name=_uid(pci, device_id), attributes=attributes, capacity=capacity))
    return PoolModel(driver_names.INTEL_GPU, node, tuple(devices), (), node)


def gaudis(entry: Entry, node: str) -> PoolModel:
    """Model `gaudi.intel.com`: one device per accelerator."""
    device_id = str(entry["model"])
    if device_id not in GAUDI_MODELS:
        raise ValueError(f"no Gaudi with PCI id {device_id!r}; known: {', '.join(GAUDI_MODELS)}")
    devices = []
    for index, place in enumerate(entry["cards"]):
        attributes = {
            "model": text(GAUDI_MODELS[device_id]),
            "serial": text(f"SIM{stable_uuid(node, 'gaudi', index)[:8].upper()}"),
            "healthy": truth(bool(place.get("healthy", True))),
            **_roots(str(place.get("root", ""))),
        }
        devices.append(Device(name=_uid(str(place["pci"]), device_id), attributes=attributes))
    return PoolModel(driver_names.GAUDI, node, tuple(devices), (), node)


def qat_functions(entry: Entry, node: str) -> PoolModel:
    """Model `qat.intel.com`: the virtual functions of each QAT device, with the services it is set to."""
    devices: list[Device] = []
    for card in entry["cards"]:
        wanted = str(card.get("services", "")).split(";") if card.get("services") else []
        unknown = [name for name in wanted if name not in QAT_SERVICES]
        if unknown:
            raise ValueError(f"unknown service {unknown[0]!r}; QAT has {', '.join(QAT_SERVICES)}")
        services = ";".join(name for name in QAT_SERVICES if name in wanted)
        domain_bus = str(card["pci"]).rsplit(":", 1)[0]
        # Virtual functions follow the physical one: eight functions to a PCI device number.
        for function in range(1, int(card.get("vfs", 16)) + 1):
            address = f"{domain_bus}:{function // 8:02x}.{function % 8}"
            name = "qatvf-" + address.replace(":", "-").replace(".", "-")
            devices.append(Device(name=name, attributes={"services": text(services)}))
        if len(devices) > MAX_FUNCTIONS:
            raise ValueError(f"more than {MAX_FUNCTIONS} virtual functions")
    return PoolModel(driver_names.QAT, node, tuple(devices), (), node)
