"""Devices of `gpu.nvidia.com` as kubernetes-sigs/dra-driver-nvidia-gpu publishes them (August 2026).

Four ways to offer a GPU: whole; as every placement of every MIG profile that could be created
(`mig: true`); as MIG devices that exist already (`static_mig`); or to virtual machines
(`vfio: true`). `shares` lets several claims hold one device, in the driver's three modes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from dray.api.resource import (
    CapacityRequestPolicy,
    CapacityRequestPolicyRange,
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceCounterConsumption,
)
from dray.api.well_known import NUMA_NODE
from dray.drivers import driver_names
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
from dray.drivers.hardware.gpus import GPU_MODELS, GpuModel, MigProfile
from dray.drivers.hardware.pools import PoolModel

NVIDIA_DRIVER_VERSION = "580.82.7"
CUDA_DRIVER_VERSION = "13.0.0"
NVIDIA_VENDOR_ID = "0x10de"
FABRIC_PARTITION_SIZES = (1, 2, 4, 8)  # GPUs
MAX_SHARES = 1000  # of one device
SHARES_BY_MEMORY, SHARES_UNLIMITED = "memory", "unlimited"


def nvidia_gpus(entry: Entry, node: str) -> PoolModel:
    """Model `gpu.nvidia.com`; see the module for the ways to offer a GPU."""
    model = GPU_MODELS[str(entry["model"])]
    if entry.get("vfio"):
        devices = [
            _vfio_device(model, entry, node, index, place) for index, place in enumerate(entry["gpus"])
        ]
        return PoolModel(driver_names.NVIDIA, node, tuple(devices), (), node)
    with_mig = bool(entry.get("mig")) and bool(model.mig_profiles)
    shares = _share_mode(entry)
    devices, counter_sets = [], []
    for minor, place in enumerate(entry["gpus"]):
        identity = f"GPU-{stable_uuid(node, 'gpu', minor)}"
        where = _where(entry, place)
        if place.get("static_mig"):
            devices += [
                _with_shares(device, shares)
                for device in _static_mig_devices(model, minor, identity, where, place["static_mig"])
            ]
            continue
        device, counters = _whole_gpu(model, minor, identity, where, place, with_mig=with_mig)
        devices.append(_with_shares(device, shares))
        if counters is not None:
            counter_sets.append(counters)
            devices += _mig_devices(model, minor, identity, where, counters.name)
    # By name, as the NVIDIA driver does: the scheduler takes the first match.
    devices.sort(key=lambda device: device.name)
    return PoolModel(driver_names.NVIDIA, node, tuple(devices), tuple(counter_sets), node)


def _where(entry: Entry, place: Entry) -> Attributes:
    """Return what the GPU and its MIG devices say of their place; `numa_as_list` as the driver's gate does."""
    where = place_attributes(place)
    if entry.get("numa_as_list") and NUMA_NODE in where:
        where[NUMA_NODE] = DeviceAttribute(ints=[int(place["numa"])])
    if "addressing_mode" in entry:
        where["addressingMode"] = text(str(entry["addressing_mode"]))
    # Of Fabric Manager: where the GPU stands, and in which partition of each size it is.
    if "module" in place:
        where["gpuModuleID"] = number(int(place["module"]))
    for size, partition in (place.get("partitions") or {}).items():
        if int(size) not in FABRIC_PARTITION_SIZES:
            raise ValueError(f"partitions: there is none of {size} GPUs, only of {FABRIC_PARTITION_SIZES}")
        where[f"partition{int(size)}"] = number(int(partition))
    return where


def _kebab(name: str) -> str:
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name)


def _gpu_common(model: GpuModel) -> Attributes:
    return {
        "productName": text(model.product_name),
        "brand": text(model.brand),
        "architecture": text(model.architecture),
        "cudaComputeCapability": version(model.compute_capability),
        "driverVersion": version(NVIDIA_DRIVER_VERSION),
        "cudaDriverVersion": version(CUDA_DRIVER_VERSION),
    }


def _amounts(model_or_profile: GpuModel | MigProfile) -> dict[str, str]:
    amounts = {name: str(count) for name, count in model_or_profile.engines.amounts().items()}
    return amounts | {"memory": f"{model_or_profile.memory_mib}Mi"}


def _counters(amounts: Mapping[str, str], memory_slices: range) -> dict[str, Counter]:
    counters = {_kebab(name): Counter(value=amount) for name, amount in amounts.items()}
    return counters | {f"memory-slice-{index}": Counter(value="1") for index in memory_slices}


def _whole_gpu(
    model: GpuModel, minor: int, identity: str, where: Attributes, place: Entry, *, with_mig: bool
) -> tuple[Device, CounterSet | None]:
    extra = {str(name): text(str(value)) for name, value in (place.get("attributes") or {}).items()}
    attributes = {"type": text("gpu"), "uuid": text(identity), **_gpu_common(model), **where, **extra}
    if not with_mig:
        capacity = {"memory": DeviceCapacity(value=f"{model.memory_mib}Mi")}
        return Device(name=f"gpu-{minor}", attributes=attributes, capacity=capacity), None
    amounts = _amounts(model)
    counters = CounterSet(
        name=f"gpu-{minor}-counter-set", counters=_counters(amounts, range(model.memory_slices))
    )
    consumption = DeviceCounterConsumption(counter_set=counters.name, counters=counters.counters)
    device = Device(
        name=f"gpu-{minor}",
        attributes=attributes,
        capacity={name: DeviceCapacity(value=amount) for name, amount in amounts.items()},
        consumes_counters=[consumption],
    )
    return device, counters


def _mig_name(minor: int, profile: MigProfile, start: int) -> str:
    return f"gpu-{minor}-mig-{profile.label}-{profile.instance_profile_id}-{start}"


def _mig_attributes(model: GpuModel, parent: str, profile: MigProfile, where: Attributes) -> Attributes:
    return {
        "type": text("mig"),
        "parentUUID": text(parent),
        "profile": text(profile.name),
        **_gpu_common(model),
        **where,
    }


def _mig_devices(
    model: GpuModel, minor: int, parent: str, where: Attributes, counter_set: str
) -> list[Device]:
    devices = []
    for profile in model.mig_profiles:
        amounts = _amounts(profile)
        for start in profile.starts:
            counters = _counters(amounts, range(start, start + profile.memory_slices))
            devices.append(
                Device(
                    name=_mig_name(minor, profile, start),
                    attributes=_mig_attributes(model, parent, profile, where),
                    capacity={name: DeviceCapacity(value=amount) for name, amount in amounts.items()},
                    consumes_counters=[DeviceCounterConsumption(counter_set=counter_set, counters=counters)],
                )
            )
    return devices


def _static_mig_devices(
    model: GpuModel, minor: int, parent: str, where: Attributes, layout: Sequence[str]
) -> list[Device]:
    """Return the MIG devices that an administrator created: each profile at its first free placement."""
    profile_by_name = {profile.name: profile for profile in model.mig_profiles}
    taken: set[int] = set()
    devices = []
    for name in layout:
        profile = profile_by_name.get(str(name))
        if profile is None:
            known = ", ".join(profile_by_name) or "none"
            raise ValueError(f"{model.product_name} has no MIG profile {name!r}; it has {known}")
        spans = (range(start, start + profile.memory_slices) for start in profile.starts)
        span = next((span for span in spans if taken.isdisjoint(span)), None)
        if span is None:
            raise ValueError(f"static_mig: no place for {name} beside the profiles before it")
        taken |= set(span)
        identity = f"MIG-{stable_uuid(parent, profile.name, span.start)}"
        capacity = {key: DeviceCapacity(value=amount) for key, amount in _amounts(profile).items()}
        capacity |= {f"memorySlice{index}": DeviceCapacity(value="1") for index in span}
        attributes = _mig_attributes(model, parent, profile, where) | {"uuid": text(identity)}
        devices.append(
            Device(name=_mig_name(minor, profile, span.start), attributes=attributes, capacity=capacity)
        )
    return devices


def _vfio_device(model: GpuModel, entry: Entry, node: str, index: int, place: Entry) -> Device:
    attributes = {
        "type": text("vfio"),
        "uuid": text(stable_uuid(node, "vfio", index)),
        "deviceID": text(str(entry.get("device_id", "0x2330"))),
        "vendorID": text(NVIDIA_VENDOR_ID),
        "productName": text(model.product_name),
        "iommuFDEnabled": truth(bool(entry.get("iommufd", True))),
        **_where({key: value for key, value in entry.items() if key != "addressing_mode"}, place),
    }
    capacity = {"addressableMemory": DeviceCapacity(value=f"{model.memory_mib}Mi")}
    return Device(name=f"gpu-vfio-{index}", attributes=attributes, capacity=capacity)


# --- shares -------------------------------------------------------------------


def _share_mode(entry: Entry) -> str | int | None:
    mode = entry.get("shares", SHARES_BY_MEMORY if entry.get("shared") else None)
    if mode is None or mode in (SHARES_BY_MEMORY, SHARES_UNLIMITED):
        return None if mode is None else str(mode)
    if isinstance(mode, bool) or not isinstance(mode, int) or not 1 <= mode <= MAX_SHARES:
        raise ValueError(f"shares is memory, unlimited or a number from 1 to {MAX_SHARES}, not {mode!r}")
    return mode


def _policy(default: str, least: str, most: str, step: str) -> CapacityRequestPolicy:
    return CapacityRequestPolicy(
        default=default, valid_range=CapacityRequestPolicyRange(min=least, step=step, max=most)
    )


def _with_shares(device: Device, mode: str | int | None) -> Device:
    """Return the device as it is offered in a share mode.

    memory: claims divide the memory, and one that names no amount gets all of it. unlimited: any
    number of claims, memory only when asked for. A number: at most so many claims.
    """
    if mode is None or device.capacity is None:
        return device
    whole = str(device.capacity["memory"].value)
    by_memory = mode == SHARES_BY_MEMORY
    policy = _policy(whole, "1Mi", whole, "1Mi") if by_memory else _policy("0", "0", whole, "1Mi")
    capacity = dict(device.capacity) | {"memory": DeviceCapacity(value=whole, request_policy=policy)}
    if isinstance(mode, int):
        number_of_shares = str(mode)
        capacity["shares"] = DeviceCapacity(
            value=number_of_shares, request_policy=_policy("1", "1", number_of_shares, "1")
        )
    return msgspec.structs.replace(device, capacity=capacity, allow_multiple_allocations=True)
