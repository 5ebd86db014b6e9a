"""What NVML knows, as devices: whole GPUs, and the MIG instances each could be cut into.

A GPU in MIG mode is published as all placements of all profiles over one counter
set, so that the allocator itself decides how to cut it (dynamic MIG); nothing is
created before a claim is prepared. With `static_mig` the instances that exist at
start are published instead, and never changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dray.api.resource import (
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceCounterConsumption,
)
from dray.drivers.hardware.attributes import text, version
from dray.drivers.hardware.mig_layouts import kebab
from dray.drivers.nvidia.nvml import NOT_FOUND, NOT_SUPPORTED, Handle, Nvml, as_text, code_of
from dray.drivers.sysfs import PciPlace, pci_place

MAX_PROFILES = 32  # NVML numbers GPU instance profiles from 0; unknown ones answer "not supported"
ARCHITECTURES = {2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada Lovelace",
                 9: "Hopper", 10: "Blackwell"}  # fmt: skip
BRANDS = {1: "Quadro", 2: "Tesla", 3: "NVS", 5: "GeForce", 6: "Titan", 13: "QuadroRTX", 14: "NvidiaRTX", 15: "Nvidia",
          16: "GeForceRTX", 17: "TitanRTX"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Profile:
    """One kind of GPU instance this GPU can be cut into."""

    index: int  # NVML's profile number, for asking
    id: int  # the GPU instance profile id, for creating and for names
    name: str  # 1g.10gb
    memory_mib: int
    slices: int
    amounts: dict[str, int]  # capacity name -> count
    placements: tuple[tuple[int, int], ...]  # (start, size) in memory slices


@dataclass(frozen=True, slots=True)
class Gpu:
    """One physical GPU."""

    handle: Handle
    index: int
    minor: int
    uuid: str
    product: str
    memory_mib: int
    common: dict[str, DeviceAttribute]
    place: PciPlace
    is_mig: bool
    profiles: tuple[Profile, ...] = ()

    @property
    def name(self) -> str:
        """Return the device name of the whole GPU."""
        return f"gpu-{self.minor}"


@dataclass(frozen=True, slots=True)
class MigSlot:
    """A MIG device that could exist: a profile at a placement of a GPU."""

    gpu: Gpu
    profile: Profile
    start: int
    size: int

    @property
    def name(self) -> str:
        """Return the device name, a DNS label."""
        label = self.profile.name.replace(".", "").replace("+", "")
        return f"{self.gpu.name}-mig-{label}-{self.profile.id}-{self.start}"


def read_gpus(nvml: Nvml, sysfs: Path) -> list[Gpu]:
    """Ask NVML for everything that is published."""
    driver_version = semver_of(as_text(nvml.nvmlSystemGetDriverVersion()))
    cuda = nvml.nvmlSystemGetCudaDriverVersion()
    gpus = []
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        product = as_text(nvml.nvmlDeviceGetName(handle))
        common = {
            "productName": text(product[:64]),
            "brand": text(BRANDS.get(nvml.nvmlDeviceGetBrand(handle), "Unknown")),
            "architecture": text(ARCHITECTURES.get(nvml.nvmlDeviceGetArchitecture(handle), "Unknown")),
            "cudaComputeCapability": version(f"{major}.{minor}.0"),
            "driverVersion": version(driver_version),
            "cudaDriverVersion": version(f"{cuda // 1000}.{cuda % 1000 // 10}.0"),
        }
        memory_mib = int(nvml.nvmlDeviceGetMemoryInfo(handle).total) >> 20
        address = pci_address(as_text(nvml.nvmlDeviceGetPciInfo(handle).busId))
        place = pci_place(sysfs / "bus/pci/devices" / address)
        if place.address is None:
            place = PciPlace(address)
        is_mig = mig_is_on(nvml, handle)
        gpus.append(
            Gpu(
                handle,
                index,
                nvml.nvmlDeviceGetMinorNumber(handle),
                as_text(nvml.nvmlDeviceGetUUID(handle)),
                product,
                memory_mib,
                common,
                place,
                is_mig,
                read_profiles(nvml, handle) if is_mig else (),
            )
        )
    return gpus


def mig_is_on(nvml: Nvml, handle: Handle) -> bool:
    """Return whether the GPU is in MIG mode now."""
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError as error:
        if code_of(error) == NOT_SUPPORTED:
            return False
        raise
    return bool(current)


def read_profiles(nvml: Nvml, handle: Handle) -> tuple[Profile, ...]:
    """Return the GPU instance profiles with their placements."""
    profiles = []
    for index in range(MAX_PROFILES):
        try:
            info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, index, 2)
            placements = nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, info.id)
        except nvml.NVMLError as error:
            if code_of(error) in (NOT_SUPPORTED, NOT_FOUND, 2):  # 2: invalid argument, an unknown number
                continue
            raise
        name = as_text(info.name).removeprefix("MIG ").strip()
        amounts = {
            "multiprocessors": int(info.multiprocessorCount),
            "copyEngines": int(info.copyEngineCount),
            "decoders": int(info.decoderCount),
            "encoders": int(info.encoderCount),
            "jpegEngines": int(info.jpegCount),
            "ofaEngines": int(info.ofaCount),
        }
        spans = tuple((int(entry.start), int(entry.size)) for entry in placements)
        profiles.append(
            Profile(index, int(info.id), name, int(info.memorySizeMB), int(info.sliceCount), amounts, spans)
        )
    return tuple(profiles)


def mig_slots(gpu: Gpu) -> list[MigSlot]:
    """Return every MIG device the GPU could have."""
    return [
        MigSlot(gpu, profile, start, size) for profile in gpu.profiles for start, size in profile.placements
    ]


def whole_device(gpu: Gpu) -> Device:
    """Return the whole GPU; when it can be cut, it draws everything from its counters."""
    attributes = {"type": text("gpu"), "uuid": text(gpu.uuid), **gpu.common, **gpu.place.attributes()}
    amounts = whole_amounts(gpu)
    capacity = {name: DeviceCapacity(value=value) for name, value in amounts.items()}
    consumption = [consumption_of(gpu, amounts, range(memory_slices(gpu)))] if gpu.profiles else []
    return Device(name=gpu.name, attributes=attributes, capacity=capacity, consumes_counters=consumption)


def mig_device(slot: MigSlot) -> Device:
    """Return a MIG device that could be made."""
    attributes = {
        "type": text("mig"),
        "parentUUID": text(slot.gpu.uuid),
        "profile": text(slot.profile.name),
        **slot.gpu.common,
        **slot.gpu.place.attributes(),
    }
    amounts = {name: str(count) for name, count in slot.profile.amounts.items()}
    amounts["memory"] = f"{slot.profile.memory_mib}Mi"
    return Device(
        name=slot.name,
        attributes=attributes,
        capacity={name: DeviceCapacity(value=value) for name, value in amounts.items()},
        consumes_counters=[consumption_of(slot.gpu, amounts, range(slot.start, slot.start + slot.size))],
    )


def counter_set(gpu: Gpu) -> CounterSet:
    """Return the budget that the GPU and its slices draw from."""
    counters = {kebab(name): Counter(value=value) for name, value in whole_amounts(gpu).items()}
    counters |= {f"memory-slice-{index}": Counter(value="1") for index in range(memory_slices(gpu))}
    return CounterSet(name=f"{gpu.name}-counter-set", counters=counters)


def consumption_of(gpu: Gpu, amounts: dict[str, str], slices: range) -> DeviceCounterConsumption:
    """Return what a device of the GPU draws."""
    counters = {kebab(name): Counter(value=value) for name, value in amounts.items()}
    counters |= {f"memory-slice-{index}": Counter(value="1") for index in slices}
    return DeviceCounterConsumption(counter_set=f"{gpu.name}-counter-set", counters=counters)


def memory_slices(gpu: Gpu) -> int:
    """Return how many memory slices the GPU is divided into."""
    return max((start + size for profile in gpu.profiles for start, size in profile.placements), default=0)


def whole_amounts(gpu: Gpu) -> dict[str, str]:
    """Return the capacities of a whole GPU: of what its slices can have, the most."""
    amounts = {"memory": f"{gpu.memory_mib}Mi"}
    for profile in gpu.profiles:
        for name, count in profile.amounts.items():
            # Seven small slices may together have more of an engine than the largest slice.
            most = count * max(1, len(profile.placements))
            amounts[name] = str(
                max(int(amounts.get(name, 0)), count, most if name == "multiprocessors" else 0)
            )
    return amounts


def pci_address(bus_id: str) -> str:
    """Turn NVML's bus id into sysfs' spelling.

    >>> pci_address("00000000:1B:00.0")
    '0000:1b:00.0'
    """
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def semver_of(driver_version: str) -> str:
    """Turn a driver version into a semantic one (no leading zeros, three parts).

    >>> semver_of("580.82.07")
    '580.82.7'
    """
    parts = [str(int(part)) if part.isdigit() else "0" for part in driver_version.split(".")]
    return ".".join([*parts, "0", "0"][:3])


def static_instances(nvml: Nvml, gpu: Gpu) -> list[tuple[MigSlot, Any]]:
    """Return the GPU instances that exist, with NVML's info of each."""
    found = []
    for profile in gpu.profiles:
        for instance in nvml.nvmlDeviceGetGpuInstances(gpu.handle, profile.id):
            info = nvml.nvmlGpuInstanceGetInfo(instance)
            found.append((MigSlot(gpu, profile, int(info.placement.start), int(info.placement.size)), info))
    return found
