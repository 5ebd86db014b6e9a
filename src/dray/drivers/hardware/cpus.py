"""Devices of `dra.cpu` as dra-driver-cpu publishes them; used by the model and by the real driver.

Grouped mode: one shared device per NUMA node, socket or machine, CPUs taken as capacity. There is no request
policy: a claim that names no amount gets the whole group. Individual mode: one device per CPU, siblings of a
core beside each other, so that the first match takes whole cores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dray.api.resource import Device, DeviceAttribute, DeviceCapacity
from dray.api.well_known import NUMA_NODE, PCIE_ROOT

CAPACITY = "dra.cpu/cpu"
NUMA, SOCKET, MACHINE = "numanode", "socket", "machine"
MAX_CPUS = 8192  # of a modelled machine


@dataclass(frozen=True, slots=True)
class CpuGroup:
    """CPUs that are offered together."""

    count: int
    smt: bool
    numa_node: int | None = None  # None: the group spans several
    socket: int | None = None  # None: the group spans several
    pcie_roots: Sequence[str] = ()


def group_device(group: CpuGroup) -> Device:
    """Return the device of a group, with its name."""
    attributes = {
        "dra.cpu/numCPUs": DeviceAttribute(int_value=group.count),
        "dra.cpu/smtEnabled": DeviceAttribute(bool_value=group.smt),
        **_numa_attributes(group.numa_node),
    }
    if group.socket is not None:
        attributes["dra.cpu/socketID"] = DeviceAttribute(int_value=group.socket)
    if group.pcie_roots:
        attributes[PCIE_ROOT] = DeviceAttribute(strings=list(group.pcie_roots))
    if group.numa_node is not None:
        name = f"cpudevnuma{group.numa_node:03d}"
    else:
        name = "cpudevmachine" if group.socket is None else f"cpudevsocket{group.socket:03d}"
    return Device(
        name=name,
        attributes=attributes,
        capacity={CAPACITY: DeviceCapacity(value=str(group.count))},
        allow_multiple_allocations=True,
    )


def _numa_attributes(numa_node: int | None) -> dict[str, DeviceAttribute]:
    if numa_node is None:
        return {}
    # The last two are the driver's older names, which it still publishes.
    return {
        name: DeviceAttribute(int_value=numa_node)
        for name in (NUMA_NODE, "dra.cpu/numaNodeID", "dra.net/numaNode")
    }


def model_cpus(entry: Mapping[str, Any]) -> list[Device]:
    """Return the devices of a profile's entry; raises ValueError when it is not understood."""
    mode, group_by = str(entry.get("mode", "grouped")), str(entry.get("group_by", NUMA))
    if mode not in ("grouped", "individual") or group_by not in (NUMA, SOCKET, MACHINE):
        raise ValueError(
            f"mode is grouped or individual (not {mode}), group_by is numanode, socket or machine (not {group_by})"
        )
    smt = bool(entry.get("smt", True))
    nodes = [
        CpuGroup(
            int(node["cpus"]),
            smt,
            index,
            int(node.get("socket", index)),
            tuple(map(str, node.get("roots", ()))),
        )
        for index, node in enumerate(entry["numa_nodes"])
    ]
    if sum(node.count for node in nodes) > MAX_CPUS:
        raise ValueError(f"more than {MAX_CPUS} CPUs")
    if mode == "individual":
        return _individual(nodes, entry, smt)
    if group_by == NUMA:
        return [group_device(node) for node in nodes]
    if group_by == MACHINE:
        return [group_device(_joined(nodes, None))]
    sockets = sorted({node.socket for node in nodes if node.socket is not None})
    return [
        group_device(_joined([node for node in nodes if node.socket == socket], socket)) for socket in sockets
    ]


def _joined(nodes: Sequence[CpuGroup], socket: int | None) -> CpuGroup:
    roots = tuple(root for node in nodes for root in node.pcie_roots)
    return CpuGroup(sum(node.count for node in nodes), nodes[0].smt, None, socket, roots)


def _individual(nodes: Sequence[CpuGroup], entry: Mapping[str, Any], smt: bool) -> list[Device]:
    """One device per CPU. As on Linux, the second threads are numbered after all first ones."""
    threads = 2 if smt else 1
    cores = sum(node.count // threads for node in nodes)
    cores_per_cache = int(entry.get("cores_per_l3", 0))
    devices: list[Device] = []
    core = 0
    core_by_socket: dict[int, int] = {}
    for node in nodes:
        assert node.numa_node is not None
        assert node.socket is not None
        for _ in range(node.count // threads):
            core_id = core_by_socket.get(node.socket, 0)
            core_by_socket[node.socket] = core_id + 1
            cache = core // cores_per_cache if cores_per_cache else node.numa_node
            kind = str(entry["numa_nodes"][node.numa_node].get("core_type", "standard"))
            for thread in range(threads):
                numbers = {
                    "cpuID": core + thread * cores,
                    "coreID": core_id,
                    "cacheL3ID": cache,
                    "socketID": node.socket,
                }
                attributes = {
                    f"dra.cpu/{name}": DeviceAttribute(int_value=value) for name, value in numbers.items()
                }
                attributes["dra.cpu/coreType"] = DeviceAttribute(string=kind)
                attributes["dra.cpu/smtEnabled"] = DeviceAttribute(bool_value=smt)
                attributes |= _numa_attributes(node.numa_node)
                if node.pcie_roots:
                    attributes[PCIE_ROOT] = DeviceAttribute(strings=list(node.pcie_roots))
                devices.append(Device(name=f"cpudev{len(devices):03d}", attributes=attributes))
            core += 1
    return devices
