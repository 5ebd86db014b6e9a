"""Devices of `gpu.amd.com` as ROCm/k8s-gpu-dra-driver publishes them (2026): whole GPUs, partitions, and partitions on demand.

An administrator sets the compute and memory mode of a GPU (`spx` is whole); the driver offers what it finds, so a
GPU is either one device or so many partitions, never both. With its gate AutoPartition (`compute: auto`) it offers every
mode of every GPU instead, as one device that is shared by as many claims as it has partitions; a counter of value 1 for each
GPU lets only one mode of it be allocated at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dray.api.resource import (
    CapacityRequestPolicy,
    Counter,
    CounterSet,
    Device,
    DeviceCapacity,
    DeviceCounterConsumption,
)
from dray.api.well_known import NUMA_NODE
from dray.drivers import driver_names
from dray.drivers.hardware.attributes import Attributes, Entry, number, place_attributes, text, version
from dray.drivers.hardware.pools import PoolModel

DRIVER_VERSION = "6.12.12"
SIMDS_PER_COMPUTE_UNIT = 4
FIRST_RENDER_NODE = 128
WHOLE, AUTO = "spx", "auto"
_EIGHT_DIES: Mapping[str, int] = {"spx": 1, "dpx": 2, "qpx": 4, "cpx": 8}
# What AutoPartition offers, as far as the GPU has the modes.
_AUTO_MODES = (
    ("spx", "nps1"),
    ("dpx", "nps1"),
    ("dpx", "nps2"),
    ("qpx", "nps1"),
    ("cpx", "nps1"),
    ("cpx", "nps4"),
)


@dataclass(frozen=True, slots=True)
class AmdGpu:
    """A product: what every GPU of it has in common."""

    product_name: str
    device_id: str  # of PCI
    memory_mib: int
    compute_units: int
    partitions_by_mode: Mapping[str, int]
    memory_modes: tuple[str, ...]


AMD_GPUS: dict[str, AmdGpu] = {
    "MI210": AmdGpu("AMD_Instinct_MI210", "0x740f", 65520, 104, {"spx": 1}, ("nps1",)),
    "MI300A": AmdGpu("AMD_Instinct_MI300A", "0x74a0", 131072, 228, {"spx": 1, "tpx": 3, "cpx": 6}, ("nps1",)),
    "MI300X": AmdGpu("AMD_Instinct_MI300X_OAM", "0x74a1", 196592, 304, _EIGHT_DIES, ("nps1", "nps4")),
    "MI325X": AmdGpu("AMD_Instinct_MI325X_OAM", "0x74a5", 262128, 304, _EIGHT_DIES, ("nps1", "nps4")),
    "MI355X": AmdGpu("AMD_Instinct_MI355X_OAM", "0x75a3", 294896, 256, _EIGHT_DIES, ("nps1", "nps2")),
}


def amd_gpus(entry: Entry, node: str) -> PoolModel:
    """Model `gpu.amd.com`; `compute` and `memory`, of the entry or of one GPU, are the partition modes."""
    name = str(entry["model"])
    if name not in AMD_GPUS:
        raise ValueError(f"no AMD GPU {name!r}; known: {', '.join(AMD_GPUS)}")
    gpu = AMD_GPUS[name]
    devices: list[Device] = []
    counter_sets: list[CounterSet] = []
    for index, place in enumerate(entry["gpus"]):
        compute = str(place.get("compute", entry.get("compute", WHOLE)))
        memory = str(place.get("memory", entry.get("memory", "nps1")))
        common = _common(gpu, place)
        if compute == AUTO:
            counter_sets.append(CounterSet(name=f"gpu-{index}-mutex", counters=dict(_ONE_MODE)))
            devices += _partitions_on_demand(gpu, index, str(place["pci"]), common)
            continue
        if compute not in gpu.partitions_by_mode or memory not in gpu.memory_modes:
            raise ValueError(
                f"{name} cannot be in mode {compute}_{memory}; compute modes: "
                f"{', '.join([*gpu.partitions_by_mode, AUTO])}; memory modes: {', '.join(gpu.memory_modes)}"
            )
        parts = gpu.partitions_by_mode[compute]
        for _ in range(parts):
            # Partitions get cards and render nodes of their own, one after the other.
            card, render = 1 + len(devices), FIRST_RENDER_NODE + len(devices)
            attributes = {
                "type": text("amdgpu" if compute == WHOLE else "amdgpu-partition"),
                "partitionProfile": text(f"{compute}_{memory}"),
                **common,
            }
            capacity = {key: DeviceCapacity(value=value) for key, value in _amounts(gpu, parts, 1).items()}
            devices.append(Device(name=f"gpu-{card}-{render}", attributes=attributes, capacity=capacity))
    return PoolModel(driver_names.AMD, node, tuple(devices), tuple(counter_sets), node)


_ONE_MODE = {"partition-mode": Counter(value="1")}


def _common(gpu: AmdGpu, place: Entry) -> Attributes:
    """Return what the driver tells of a GPU and of each of its partitions."""
    standard = place_attributes(place)
    standard.pop(NUMA_NODE, None)  # the driver has an attribute of its own for it
    return {
        "productName": text(gpu.product_name),
        "deviceID": text(gpu.device_id),
        "numaNode": number(int(place.get("numa", 0))),
        "driverVersion": version(DRIVER_VERSION),
        "driverVersionFull": text(DRIVER_VERSION),
        **standard,
    }


def _partitions_on_demand(gpu: AmdGpu, index: int, pci: str, common: Attributes) -> Iterator[Device]:
    """Yield a GPU's modes; every claim takes exactly one partition of the mode."""
    mutex = DeviceCounterConsumption(counter_set=f"gpu-{index}-mutex", counters=dict(_ONE_MODE))
    for compute, memory in _AUTO_MODES:
        parts = gpu.partitions_by_mode.get(compute, 0)
        if not parts or memory not in gpu.memory_modes:
            continue
        one = {**_amounts(gpu, parts, 1), "partitions": "1"}
        capacity = {
            key: DeviceCapacity(
                value=value,
                request_policy=CapacityRequestPolicy(default=one[key], valid_values=[one[key]])
                if parts > 1
                else None,
            )
            for key, value in {**_amounts(gpu, parts, parts), "partitions": str(parts)}.items()
        }
        yield Device(
            name=f"gpu-{index}-{compute}-{memory}",
            attributes={
                "type": text("amdgpu" if compute == WHOLE else "amdgpu-partition"),
                "computePartition": text(compute),
                "memoryPartition": text(memory),
                "gpuIndex": number(index),
                "pciAddr": text(pci),
                **common,
            },
            capacity=capacity,
            consumes_counters=[mutex],
            allow_multiple_allocations=True if parts > 1 else None,
        )


def _amounts(gpu: AmdGpu, parts: int, count: int) -> dict[str, str]:
    """Return what `count` of so many parts of a GPU have."""
    units = gpu.compute_units // parts * count
    return {
        "memory": f"{gpu.memory_mib // parts * count}Mi",
        "computeUnits": str(units),
        "simdUnits": str(units * SIMDS_PER_COMPUTE_UNIT),
    }
