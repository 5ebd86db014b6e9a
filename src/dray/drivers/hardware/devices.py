"""Builders of modelled devices: the names and attributes that the real drivers publish.

Each builder takes one entry of a profile's `devices` list and returns a pool. The
attribute names follow the drivers in the field: `gpu.nvidia.com`, `dra.net`,
`tpu.google.com`, `sriovnetwork.k8snetworkplumbingwg.io`, `dra.cpu`. There is no
public FPGA driver; `fpga.dray.dev` is ours.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Mapping
from typing import Any

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
from dray.api.well_known import NUMA_NODE, PCI_BUS_ID, PCIE_ROOT
from dray.drivers import driver_names
from dray.drivers.hardware.gpus import GPU_MODELS, GpuModel, MigProfile
from dray.drivers.hardware.pools import PoolModel

Entry = Mapping[str, Any]
Attributes = dict[str, DeviceAttribute]


NVIDIA_DRIVER_VERSION = "580.82.7"
CUDA_DRIVER_VERSION = "13.0.0"


def stable_uuid(*parts: object) -> str:
    """Return the same UUID for the same parts: a simulated device keeps its identity over restarts."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return str(uuid.UUID(bytes=digest[:16], version=4))


def text(value: str) -> DeviceAttribute:
    """Return a string attribute."""
    return DeviceAttribute(string=value)


def number(value: int) -> DeviceAttribute:
    """Return an int attribute."""
    return DeviceAttribute(int_value=value)


def truth(value: bool) -> DeviceAttribute:
    """Return a bool attribute."""
    return DeviceAttribute(bool_value=value)


def version(value: str) -> DeviceAttribute:
    """Return a version attribute."""
    return DeviceAttribute(version=value)


def place_attributes(entry: Entry) -> Attributes:
    """Return the standard attributes that say where a device sits, as far as the entry knows."""
    attributes: Attributes = {}
    if "pci" in entry:
        attributes[PCI_BUS_ID] = text(str(entry["pci"]))
    if "root" in entry:
        attributes[PCIE_ROOT] = text(str(entry["root"]))
    if "numa" in entry:
        attributes[NUMA_NODE] = number(int(entry["numa"]))
    return attributes


# --- NVIDIA -------------------------------------------------------------------


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


def _consumption(
    counter_set: str, amounts: Mapping[str, str], memory_slices: range
) -> list[DeviceCounterConsumption]:
    counters = {_kebab(name): Counter(value=amount) for name, amount in amounts.items()}
    counters |= {f"memory-slice-{index}": Counter(value="1") for index in memory_slices}
    return [DeviceCounterConsumption(counter_set=counter_set, counters=counters)]


def _share_policy(memory_mib: int) -> CapacityRequestPolicy:
    whole = f"{memory_mib}Mi"
    return CapacityRequestPolicy(
        default=whole, valid_range=CapacityRequestPolicyRange(min="1Mi", step="1Mi", max=whole)
    )


def nvidia_gpus(entry: Entry, node: str) -> PoolModel:
    """Model `gpu.nvidia.com`: whole GPUs, with `mig: true` every placement of every MIG profile as well."""
    model = GPU_MODELS[str(entry["model"])]
    with_mig = bool(entry.get("mig")) and bool(model.mig_profiles)
    shared = bool(entry.get("shared"))
    devices: list[Device] = []
    counter_sets: list[CounterSet] = []
    for minor, place in enumerate(entry["gpus"]):
        identity = f"GPU-{stable_uuid(node, 'gpu', minor)}"
        where = place_attributes(place)
        extra = {str(name): text(str(value)) for name, value in (place.get("attributes") or {}).items()}
        whole_attributes = {
            "type": text("gpu"),
            "uuid": text(identity),
            **_gpu_common(model),
            **where,
            **extra,
        }
        counter_set = f"gpu-{minor}-counter-set"
        all_slices = range(model.memory_slices)
        whole_amounts = _amounts(model)
        if with_mig:
            counters = {_kebab(name): Counter(value=amount) for name, amount in whole_amounts.items()}
            counters |= {f"memory-slice-{index}": Counter(value="1") for index in all_slices}
            counter_sets.append(CounterSet(name=counter_set, counters=counters))
            capacity = {name: DeviceCapacity(value=amount) for name, amount in whole_amounts.items()}
        else:
            policy = _share_policy(model.memory_mib) if shared else None
            capacity = {"memory": DeviceCapacity(value=f"{model.memory_mib}Mi", request_policy=policy)}
        devices.append(
            Device(
                name=f"gpu-{minor}",
                attributes=whole_attributes,
                capacity=capacity,
                consumes_counters=_consumption(counter_set, whole_amounts, all_slices) if with_mig else [],
                allow_multiple_allocations=True if shared else None,
            )
        )
        if with_mig:
            devices += _mig_devices(model, minor, identity, where, counter_set)
    # By name, as the NVIDIA driver does: the scheduler takes the first match.
    devices.sort(key=lambda device: device.name)
    return PoolModel(driver_names.NVIDIA, node, tuple(devices), tuple(counter_sets), node)


def _mig_devices(
    model: GpuModel, minor: int, parent: str, where: Attributes, counter_set: str
) -> list[Device]:
    devices = []
    for profile in model.mig_profiles:
        amounts = _amounts(profile)
        for start in profile.starts:
            attributes = {
                "type": text("mig"),
                "parentUUID": text(parent),
                "profile": text(profile.name),
                **_gpu_common(model),
                **where,
            }
            devices.append(
                Device(
                    name=f"gpu-{minor}-mig-{profile.label}-{profile.instance_profile_id}-{start}",
                    attributes=attributes,
                    capacity={name: DeviceCapacity(value=amount) for name, amount in amounts.items()},
                    consumes_counters=_consumption(
                        counter_set, amounts, range(start, start + profile.memory_slices)
                    ),
                )
            )
    return devices


# --- network ------------------------------------------------------------------


def rdma_nics(entry: Entry, node: str) -> PoolModel:
    """Model `dra.net`: one device per network interface, named after its PCI address."""
    devices = []
    for index, nic in enumerate(entry["nics"]):
        mac = ":".join(
            f"{byte:02x}" for byte in (0x02, *hashlib.sha256(f"{node}/{index}".encode()).digest()[:5])
        )
        attributes = {
            "dra.net/ifName": text(str(nic["netdev"])),
            "dra.net/rdmaDevice": text(str(nic["rdma"])),
            "dra.net/rdma": truth(True),
            "dra.net/mac": text(mac),
            "dra.net/mtu": number(int(nic.get("mtu", 4096))),
            "dra.net/state": text("up"),
            "dra.net/type": text("device"),
            "dra.net/encapsulation": text(str(entry.get("encapsulation", "infiniband"))),
            "dra.net/pciVendor": text(str(entry.get("vendor", "Mellanox Technologies"))),
            "dra.net/pciDevice": text(str(entry.get("product", "MT2910 Family [ConnectX-7]"))),
            "dra.net/sriov": truth(False),
            "dra.net/virtual": truth(False),
            **place_attributes(nic),
        }
        if "pci" in nic:
            attributes["dra.net/pciAddress"] = text(str(nic["pci"]))
        if "numa" in nic:
            attributes["dra.net/numaNode"] = number(int(nic["numa"]))
        name = (
            f"pci-{nic['pci']}".replace(":", "-").replace(".", "-").lower()
            if "pci" in nic
            else str(nic["netdev"])
        )
        devices.append(Device(name=name, attributes=attributes))
    return PoolModel(driver_names.NETWORK, node, tuple(devices), (), node)


def sriov_functions(entry: Entry, node: str) -> PoolModel:
    """Model `sriovnetwork.k8snetworkplumbingwg.io`: the virtual functions of each physical port."""
    driver = "sriovnetwork.k8snetworkplumbingwg.io"
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
                **place_attributes({**port, "pci": address}),
            }
            devices.append(Device(name=address.replace(":", "-").replace(".", "-"), attributes=attributes))
    return PoolModel(driver, node, tuple(devices), (), node)


# --- TPU, FPGA, CPU -----------------------------------------------------------


def tpus(entry: Entry, node: str) -> PoolModel:
    """Model `tpu.google.com`: one device per chip, with the host's topology."""
    chips = int(entry["chips"])
    devices = []
    for index in range(chips):
        attributes = {
            "index": number(index),
            "uuid": text(stable_uuid(node, "tpu", index)),
            "tpuGen": text(str(entry["generation"])),
            "brand": text("Google"),
            "accelerator": text(str(entry["accelerator"])),
            "chipCount": number(chips),
        }
        if "topology" in entry:
            attributes["topology"] = text(str(entry["topology"]))
        numa_nodes = int(entry.get("numa_nodes", 1))
        attributes[NUMA_NODE] = number(index * numa_nodes // chips)
        devices.append(Device(name=f"accel{index}", attributes=attributes))
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
    """Model `dra.cpu` in grouped mode: one shared device per NUMA node, CPUs taken as capacity."""
    devices = []
    for index, group in enumerate(entry["numa_nodes"]):
        count = int(group["cpus"])
        policy = CapacityRequestPolicy(
            default="1", valid_range=CapacityRequestPolicyRange(min="1", step="1", max=str(count))
        )
        attributes = {
            "dra.cpu/socketID": number(int(group.get("socket", index))),
            "dra.cpu/numaNodeID": number(index),
            "dra.cpu/numCPUs": number(count),
            "dra.cpu/smtEnabled": truth(bool(entry.get("smt", True))),
            NUMA_NODE: number(index),
        }
        devices.append(
            Device(
                name=f"cpudevnuma{index:03d}",
                attributes=attributes,
                capacity={"dra.cpu/cpu": DeviceCapacity(value=str(count), request_policy=policy)},
                allow_multiple_allocations=True,
            )
        )
    return PoolModel(driver_names.CPU, node, tuple(devices), (), node)


# What a profile may name under `kind`.
BUILDERS: dict[str, Callable[[Entry, str], PoolModel]] = {
    "nvidia-gpus": nvidia_gpus,
    "rdma-nics": rdma_nics,
    "sriov": sriov_functions,
    "tpus": tpus,
    "fpgas": fpgas,
    "cpus": cpus,
}
