"""Devices of `gpu.amd.com` as ROCm/k8s-gpu-dra-driver publishes them (October 2025): whole GPUs and partitions.

An administrator sets the compute and memory mode of a GPU (`spx` is whole); the driver offers what it finds, so a
GPU is either one device or so many partitions, never both. The driver's documentation calls two attributes of
partitions `pciAddr` and `deviceID`; its code publishes them as `parentPciAddr` and `parentDeviceID`, and so do we.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from dray.api.resource import Device, DeviceCapacity
from dray.api.well_known import PCIE_ROOT
from dray.drivers import driver_names
from dray.drivers.hardware.attributes import Attributes, Entry, number, text, version
from dray.drivers.hardware.pools import PoolModel

DRIVER_VERSION = "6.12.12"
SOURCE_VERSION = "B8F1C1E8F6F3E4B1A2C3D4E"
SIMDS_PER_COMPUTE_UNIT = 4
FIRST_RENDER_NODE = 128
WHOLE = "spx"
_EIGHT_DIES: Mapping[str, int] = {"spx": 1, "dpx": 2, "qpx": 4, "cpx": 8}


@dataclass(frozen=True, slots=True)
class AmdGpu:
    """A product: what every GPU of it has in common."""

    product_name: str
    memory_mib: int
    compute_units: int
    partitions_by_mode: Mapping[str, int]
    memory_modes: tuple[str, ...]
    family: str = "AI"


AMD_GPUS: dict[str, AmdGpu] = {
    "MI210": AmdGpu("AMD_Instinct_MI210", 65520, 104, {"spx": 1}, ("nps1",)),
    "MI300A": AmdGpu("AMD_Instinct_MI300A", 131072, 228, {"spx": 1, "tpx": 3, "cpx": 6}, ("nps1",)),
    "MI300X": AmdGpu("AMD_Instinct_MI300X_OAM", 196592, 304, _EIGHT_DIES, ("nps1", "nps4")),
    "MI325X": AmdGpu("AMD_Instinct_MI325X_OAM", 262128, 304, _EIGHT_DIES, ("nps1", "nps4")),
    "MI355X": AmdGpu("AMD_Instinct_MI355X_OAM", 294896, 256, _EIGHT_DIES, ("nps1", "nps2")),
}


def _unique_id(node: str, index: int) -> str:
    """Return a GPU's identity, a 64-bit number as the kernel has it; partitions share their parent's."""
    digest = hashlib.sha256(f"{node}/{driver_names.AMD}/{index}".encode()).digest()
    return str(int.from_bytes(digest[:8], "big"))


def amd_gpus(entry: Entry, node: str) -> PoolModel:
    """Model `gpu.amd.com`; `compute` and `memory`, of the entry or of one GPU, are the partition modes."""
    name = str(entry["model"])
    if name not in AMD_GPUS:
        raise ValueError(f"no AMD GPU {name!r}; known: {', '.join(AMD_GPUS)}")
    gpu = AMD_GPUS[name]
    devices: list[Device] = []
    for index, place in enumerate(entry["gpus"]):
        compute = str(place.get("compute", entry.get("compute", WHOLE)))
        memory = str(place.get("memory", entry.get("memory", "nps1")))
        if compute not in gpu.partitions_by_mode or memory not in gpu.memory_modes:
            raise ValueError(
                f"{name} cannot be in mode {compute}_{memory}; compute modes: "
                f"{', '.join(gpu.partitions_by_mode)}; memory modes: {', '.join(gpu.memory_modes)}"
            )
        common: Attributes = {
            "family": text(gpu.family),
            "productName": text(gpu.product_name),
            "driverVersion": version(DRIVER_VERSION),
            "driverSrcVersion": text(SOURCE_VERSION),
            "partitionProfile": text(f"{compute}_{memory}"),
        }
        if "root" in place:
            common[PCIE_ROOT] = text(str(place["root"]))
        identity = {"pciAddr": text(str(place["pci"])), "deviceID": text(_unique_id(node, index))}
        if compute != WHOLE:
            identity = {f"parent{key[0].upper()}{key[1:]}": value for key, value in identity.items()}
        kind = "amdgpu" if compute == WHOLE else "amdgpu-partition"
        parts = gpu.partitions_by_mode[compute]
        for _ in range(parts):
            # Partitions get cards and render nodes of their own, one after the other.
            card, render = 1 + len(devices), FIRST_RENDER_NODE + len(devices)
            attributes = {
                "type": text(kind),
                "cardIndex": number(card),
                "renderIndex": number(render),
                **identity,
                **common,
            }
            devices.append(
                Device(
                    name=f"gpu-{card}-{render}",
                    attributes=attributes,
                    capacity=_capacity(gpu, parts),
                )
            )
    return PoolModel(driver_names.AMD, node, tuple(devices), (), node)


def _capacity(gpu: AmdGpu, parts: int) -> dict[str, DeviceCapacity]:
    units = gpu.compute_units // parts
    return {
        "memory": DeviceCapacity(value=f"{gpu.memory_mib // parts}Mi"),
        "computeUnits": DeviceCapacity(value=str(units)),
        "simdUnits": DeviceCapacity(value=str(units * SIMDS_PER_COMPUTE_UNIT)),
    }
