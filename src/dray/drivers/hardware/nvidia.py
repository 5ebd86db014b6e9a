"""Devices of `gpu.nvidia.com` as kubernetes-sigs/dra-driver-nvidia-gpu publishes them (August 2026).

Four ways to offer a GPU: whole; as every placement of every MIG profile that could be created
(`mig: true`); as MIG devices that exist already (`static_mig`); or to virtual machines
(`vfio: true`). `shares` lets several claims hold one device, in the driver's three modes.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dray.api.resource import (
    CapacityRequestPolicy,
    CapacityRequestPolicyRange,
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
from dray.drivers.hardware.gpus import GPU_MODELS, GpuModel
from dray.drivers.hardware.mig_layouts import (
    amounts_of,
    counters_of,
    existing_mig_device,
    mig_attributes,
    mig_name,
    parse_layout,
    profiles_by_name,
)
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


def _gpu_common(model: GpuModel) -> Attributes:
    return {
        "productName": text(model.product_name),
        "brand": text(model.brand),
        "architecture": text(model.architecture),
        "cudaComputeCapability": version(model.compute_capability),
        "driverVersion": version(NVIDIA_DRIVER_VERSION),
        "cudaDriverVersion": version(CUDA_DRIVER_VERSION),
    }


def _whole_gpu(
    model: GpuModel, minor: int, identity: str, where: Attributes, place: Entry, *, with_mig: bool
) -> tuple[Device, CounterSet | None]:
    extra = {str(name): text(str(value)) for name, value in (place.get("attributes") or {}).items()}
    attributes = {"type": text("gpu"), "uuid": text(identity), **_gpu_common(model), **where, **extra}
    if not with_mig:
        capacity = {"memory": DeviceCapacity(value=f"{model.memory_mib}Mi")}
        return Device(name=f"gpu-{minor}", attributes=attributes, capacity=capacity), None
    amounts = amounts_of(model)
    counters = CounterSet(
        name=f"gpu-{minor}-counter-set", counters=counters_of(amounts, range(model.memory_slices))
    )
    consumption = DeviceCounterConsumption(counter_set=counters.name, counters=counters.counters)
    device = Device(
        name=f"gpu-{minor}",
        attributes=attributes,
        capacity={name: DeviceCapacity(value=amount) for name, amount in amounts.items()},
        consumes_counters=[consumption],
    )
    return device, counters


def _mig_devices(
    model: GpuModel, minor: int, parent: str, where: Attributes, counter_set: str
) -> list[Device]:
    devices = []
    common = _gpu_common(model) | where
    for profile in model.mig_profiles:
        amounts = amounts_of(profile)
        for start in profile.starts:
            counters = counters_of(amounts, range(start, start + profile.memory_slices))
            devices.append(
                Device(
                    name=mig_name(minor, profile, start),
                    attributes=mig_attributes(parent, profile, common),
                    capacity={name: DeviceCapacity(value=amount) for name, amount in amounts.items()},
                    consumes_counters=[DeviceCounterConsumption(counter_set=counter_set, counters=counters)],
                )
            )
    return devices


def _static_mig_devices(
    model: GpuModel, minor: int, parent: str, where: Attributes, layout: Sequence[str]
) -> list[Device]:
    """Return the MIG devices that an administrator created: `PROFILE` at its first free placement, or `PROFILE@START`."""
    profiles = profiles_by_name(model)
    common = _gpu_common(model) | where
    return [
        existing_mig_device(minor, parent, common, profiles[each.profile], each.start)
        for each in parse_layout(model, layout)
    ]


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
