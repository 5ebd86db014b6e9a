"""What is scheduled on what: hardware, claims and the share of it that is taken already."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
DRIVER = "gpu.example.com"
ROOT = "resource.kubernetes.io/pcieRoot"
API = "resource.k8s.io/v1"
DEVICES = 10  # whole devices of a node


def gpu(node: int, index: int) -> Object:
    """Return a whole device, described as real drivers do."""
    return {
        "name": f"gpu-{index}",
        "attributes": {
            "uuid": {"string": f"GPU-{node:05}-{index}"},
            "index": {"int": index},
            "productName": {"string": "Accelerator 80GB" if index % 2 else "Accelerator 40GB"},
            "driverVersion": {"version": "550.54.15" if node % 4 == 3 else "570.10.0"},
            ROOT: {"string": f"pci0000:{index // 5:02x}"},
        },
        "capacity": {"memory": {"value": "80Gi" if index % 2 else "40Gi"}},
    }


def whole(node: int) -> list[Object]:
    """Return the slices of a node with whole devices."""
    return [{"devices": [gpu(node, index) for index in range(DEVICES)]}]


def partitioned(node: int) -> list[Object]:
    """Return two devices, each whole or in parts that draw from its eight memory units."""
    counters, devices = [], []
    for index in range(2):
        counters.append({"name": f"gpu-{index}", "counters": {"memory": {"value": "8"}}})
        for name, size, times in (("whole", 8, 1), ("half", 4, 2), ("quarter", 2, 4), ("eighth", 1, 8)):
            for place in range(times):
                draws = [{"counterSet": f"gpu-{index}", "counters": {"memory": {"value": str(size)}}}]
                attributes = {"profile": {"string": name}}
                device = f"gpu-{index}-{name}-{place}"
                devices.append({"name": device, "attributes": attributes, "consumesCounters": draws})
    return [{"devices": devices}, {"sharedCounters": counters}]


def shared(node: int) -> list[Object]:
    """Return four links whose bandwidth is given away in shares."""
    policy = {"default": "1M", "validRange": {"min": "1M", "step": "1M"}}
    bandwidth = {"bandwidth": {"value": "10G", "requestPolicy": policy}}
    return [
        {
            "devices": [
                {"name": f"link-{i}", "allowMultipleAllocations": True, "capacity": bandwidth}
                for i in range(4)
            ]
        }
    ]


def exactly(name: str, count: int = 1, selector: str = "", **more: Any) -> Object:
    """Return a request."""
    wanted: Object = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count, **more}
    if selector:
        wanted["selectors"] = [{"cel": {"expression": selector}}]
    return {"name": name, "exactly": wanted}


def spec(*requests: Object, constraints: list[Object] | None = None) -> Object:
    """Return the spec of a claim."""
    devices: Object = {"requests": list(requests)}
    if constraints:
        devices["constraints"] = constraints
    return {"devices": devices}


BIG_AND_NEW = (
    f'device.capacity["{DRIVER}"].memory.isGreaterThan(quantity("60Gi")) && '
    f'device.attributes["{DRIVER}"].driverVersion.compareTo(semver("560.0.0")) >= 0'
)
NOWHERE = f'device.attributes["{DRIVER}"].productName == "sold out"'
IMPOSSIBLE = spec(exactly("gpu", selector=NOWHERE))


def one(number: int) -> Object:
    return spec(exactly("gpu"))


def mixed_parts(number: int) -> Object:
    profile = ("eighth", "quarter", "half")[number % 3]
    return spec(exactly("part", selector=f'device.attributes["{DRIVER}"].profile == "{profile}"'))


def first_available(number: int) -> Object:
    choices = [
        {"name": "best", "deviceClassName": "gpu", "selectors": [{"cel": {"expression": NOWHERE}}]},
        {"name": "good", "deviceClassName": "gpu", "count": 2},
    ]
    return spec({"name": "gpu", "firstAvailable": choices})


@dataclass(frozen=True)
class Workload:
    """One row of the table."""

    name: str
    about: str
    claim: Callable[[int], Object]  # number of the pod -> spec of its claim
    hardware: Callable[[int], list[Object]] = whole
    taken: int = 0  # devices of each node that are allocated before the clock starts
    pods_per_node: float = 2.0
    impossible: int = 0  # every so many-th pod asks for what nobody has; 0: none
    has_floor: bool = False  # whether a mock that decides nothing can stand in

    def is_impossible(self, number: int) -> bool:
        return bool(self.impossible) and number % self.impossible == self.impossible - 1

    def spec_of(self, number: int) -> Object:
        return IMPOSSIBLE if self.is_impossible(number) else self.claim(number)

    def slices(self, n_nodes: int) -> Iterator[Object]:
        for number in range(n_nodes):
            node, parts = node_name(number), self.hardware(number)
            pool = {"name": node, "generation": 1, "resourceSliceCount": len(parts)}
            for position, part in enumerate(parts):
                body = {"driver": DRIVER, "nodeName": node, "pool": pool, **part}
                metadata = {"name": f"{node}-{position}"}
                yield {"apiVersion": API, "kind": "ResourceSlice", "metadata": metadata, "spec": body}


def node_name(number: int) -> str:
    return f"node-{number:05}"


WORKLOADS = [
    Workload("empty", "one device each, all free", one, has_floor=True),
    Workload("half", "one device each, half of them taken", one, taken=5, has_floor=True),
    Workload("full", "one device each, until none is left", one, taken=8, has_floor=True),
    Workload("selector", "CEL on a version and a quantity", lambda _: spec(exactly("gpu", selector=BIG_AND_NEW))),
    Workload(
        "match", "five requests on one PCIe root",
        lambda _: spec(*[exactly(f"gpu-{i}") for i in range(5)], constraints=[{"matchAttribute": ROOT}]),
        pods_per_node=1.0,
    ),
    Workload("partitions", "parts of devices that share counters", mixed_parts, partitioned),
    Workload(
        "shares", "bandwidth out of shared links",
        lambda _: spec(exactly("link", capacity={"requests": {"bandwidth": "1G"}})), shared,
    ),
    Workload("first available", "the second choice, since nobody has the first", first_available),
    Workload("impossible", "one pod in ten asks for what nobody has", one, impossible=10),
]  # fmt: skip
