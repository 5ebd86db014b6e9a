"""Devices of kubernetes-sigs/dra-example-driver: `gpu.example.com`, `net.example.com`, `cpu.example.com`.

The driver invents its devices, so a model can be exact: names, attributes, capacities,
request policies and counters are those of its three device profiles (July 2026). Two
things differ: identities come from our own hash, and what a CPU device costs the node is
published in the form of Kubernetes 1.37 (`nodeAllocatableResources`, with a multiplier of 1).
"""

from __future__ import annotations

import msgspec

from dray.api.resource import (
    CapacityRequestPolicy,
    CapacityRequestPolicyRange,
    Counter,
    CounterSet,
    Device,
    DeviceCapacity,
    DeviceCounterConsumption,
    NodeAllocatableMapping,
    NodeAllocatableResource,
)
from dray.drivers.driver_names import EXAMPLE_CPU, EXAMPLE_GPU, EXAMPLE_NET
from dray.drivers.hardware.attributes import Attributes, Entry, number, stable_uuid, text, truth, version
from dray.drivers.hardware.pools import PoolModel

MAX_DEVICES = 1024  # of one entry; partitions count
MEMORY_GIB = 80  # of each GPU
COMPUTE = 100  # of each GPU, in percent
BINDING_CONDITION = "BindingConditions"
BINDING_FAILURE_CONDITION = "BindingFailureConditions"
_GIB = 2**30
_UNIT_BY_CAPACITY = {"memory": "1Gi", "compute": "1"}


def example_gpus(entry: Entry, node: str) -> PoolModel:
    """Model `gpu.example.com`.

    `partitions: N` cuts every GPU into N equal parts and publishes the whole GPU beside them;
    `shared: true` lets several claims hold a device by memory and compute; `binding_conditions:
    true` makes pods wait until the driver's controller calls the device ready.
    """
    count, partitions = int(entry.get("count", 8)), int(entry.get("partitions", 0))
    if count < 1 or not 0 <= partitions <= COMPUTE or count * (partitions + 1) > MAX_DEVICES:
        raise ValueError(
            f"count must be at least 1, partitions 0 to {COMPUTE}, and all devices together at most {MAX_DEVICES}"
        )
    shared = bool(entry.get("shared"))
    devices: list[Device] = []
    counter_sets: list[CounterSet] = []
    for index in range(count):
        attributes = _common(index, f"gpu-{stable_uuid(node, EXAMPLE_GPU, index)}", "LATEST-GPU-MODEL")
        whole = {"memory": f"{MEMORY_GIB}Gi", "compute": str(COMPUTE)}
        if not partitions:
            devices.append(_gpu(f"gpu-{index}", attributes, whole, shared))
            continue
        counter_set = f"gpu-{index}-counters"
        counter_sets.append(CounterSet(name=counter_set, counters=_counters(whole)))
        part = {"memory": _gibibytes(MEMORY_GIB * _GIB // partitions), "compute": str(COMPUTE // partitions)}
        for number_of_part in range(partitions):
            of_part = {**attributes, "partition": number(number_of_part), "partitionable": truth(True)}
            name = f"gpu-{index}-partition-{number_of_part}"
            devices.append(_gpu(name, of_part, part, shared, counter_set))
        of_whole = {**attributes, "partitionable": truth(True), "full": truth(True)}
        devices.append(_gpu(f"gpu-{index}-full", of_whole, whole, shared, counter_set))
    if entry.get("binding_conditions"):
        devices = [_with_binding_conditions(device) for device in devices]
    return PoolModel(EXAMPLE_GPU, node, tuple(devices), tuple(counter_sets), node)


def _common(index: int, identity: str, model: str) -> Attributes:
    return {
        "index": number(index),
        "uuid": text(identity),
        "model": text(model),
        "driverVersion": version("1.0.0"),
    }


def _gibibytes(amount: int) -> str:
    return f"{amount // _GIB}Gi" if amount % _GIB == 0 else str(amount)


def _counters(amounts: dict[str, str]) -> dict[str, Counter]:
    return {name: Counter(value=amount) for name, amount in amounts.items()}


def _gpu(
    name: str, attributes: Attributes, amounts: dict[str, str], shared: bool, counter_set: str = ""
) -> Device:
    capacity = {}
    for kind, amount in amounts.items():
        unit = _UNIT_BY_CAPACITY[kind]
        policy = CapacityRequestPolicy(
            default=amount, valid_range=CapacityRequestPolicyRange(min=unit, step=unit, max=amount)
        )
        capacity[kind] = DeviceCapacity(value=amount, request_policy=policy if shared else None)
    consumption = DeviceCounterConsumption(counter_set=counter_set, counters=_counters(amounts))
    return Device(
        name=name,
        attributes=attributes,
        capacity=capacity,
        consumes_counters=[consumption] if counter_set else [],
        allow_multiple_allocations=shared,
    )


def _with_binding_conditions(device: Device) -> Device:
    return msgspec.structs.replace(
        device,
        binding_conditions=[BINDING_CONDITION],
        binding_failure_conditions=[BINDING_FAILURE_CONDITION],
    )


def example_nics(entry: Entry, node: str) -> PoolModel:
    """Model `net.example.com`: every interface is shared by bandwidth and has 100 virtual functions."""
    count = int(entry.get("count", 8))
    if not 1 <= count <= MAX_DEVICES:
        raise ValueError(f"count must be 1 to {MAX_DEVICES}")
    bandwidth = DeviceCapacity(
        value="100G",
        request_policy=CapacityRequestPolicy(
            default="1G", valid_range=CapacityRequestPolicyRange(min="100M", max="100G", step="1M")
        ),
    )
    functions = DeviceCapacity(
        value="100", request_policy=CapacityRequestPolicy(default="1", valid_values=["1"])
    )
    devices = [
        Device(
            name=f"nic-{index}",
            attributes=_common(index, f"net-{stable_uuid(node, EXAMPLE_NET, index)}", "LATEST-NET-MODEL"),
            capacity={"vfs": functions, "ingressBandwidth": bandwidth, "egressBandwidth": bandwidth},
            allow_multiple_allocations=True,
        )
        for index in range(count)
    ]
    return PoolModel(EXAMPLE_NET, node, tuple(devices), (), node)


def example_cpus(entry: Entry, node: str) -> PoolModel:
    """Model `cpu.example.com`: a device per NUMA node whose CPUs are taken from the node's own."""
    nodes, per_node = int(entry.get("numa_nodes", 8)), int(entry.get("cpus_per_numa_node", 4))
    if not 1 <= nodes <= MAX_DEVICES or per_node < 1:
        raise ValueError(f"numa_nodes must be 1 to {MAX_DEVICES}, cpus_per_numa_node at least 1")
    key = f"{EXAMPLE_CPU}/cpu"
    cost = NodeAllocatableResource(mapping=NodeAllocatableMapping(capacity_key=key, capacity_multiplier="1"))
    devices = [
        Device(
            name=f"numa-{index}",
            attributes={"numaNodeID": number(index)},
            capacity={key: DeviceCapacity(value=str(per_node))},
            allow_multiple_allocations=True,
            node_allocatable_resources={"cpu": cost},
        )
        for index in range(nodes)
    ]
    return PoolModel(EXAMPLE_CPU, node, tuple(devices), (), node)
