"""Hardware and questions of the bench, as plain JSON data that both sides read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

GPU, NIC, MIG = "gpu.example.com", "nic.example.com", "mig.example.com"
ROOT = "resource.kubernetes.io/pcieRoot"
Data = dict[str, Any]


@dataclass
class Inventory:
    """A cluster: what both sides load."""

    name: str
    slices: list[Data] = field(default_factory=list)
    nodes: list[Data] = field(default_factory=list)
    used: list[Data] = field(default_factory=list)

    def data(self) -> Data:
        classes = [
            {
                "metadata": {"name": name},
                "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]},
            }
            for name, driver in (("gpu", GPU), ("nic", NIC), ("mig", MIG))
        ]
        return {"slices": self.slices, "classes": classes, "nodes": self.nodes, "allocatedDevices": self.used}


@dataclass
class Question:
    """What a pod wants, and how far to look."""

    name: str
    inventory: Inventory
    claims: list[Data]
    first: int = 0  # 0: every node
    target: float = 0.0  # wanted ratio upstream / dray
    rounds: int = 5


def gpu(node: int, index: int) -> Data:
    return {
        "name": f"gpu-{index}",
        "attributes": {
            "model": {"string": "H100"},
            "uuid": {"string": f"GPU-{node:05}-{index}"},
            "index": {"int": index},
            "architecture": {"string": "Hopper"},
            "driverVersion": {"version": "550.54.15"},
            "cudaComputeCapability": {"version": "9.0.0"},
            "productName": {"string": "NVIDIA H100 80GB HBM3"},
            "numaNode": {"int": index // 4},
            ROOT: {"string": f"pci0000:{index // 2:02x}"},
        },
        "capacity": {"memory": {"value": "80Gi"}},
    }


def nic(node: int, index: int) -> Data:
    return {
        "name": f"nic-{index}",
        "attributes": {
            "model": {"string": "CX7"},
            "mac": {"string": f"02:00:00:{node >> 8:02x}:{node & 255:02x}:{index:02x}"},
            "index": {"int": index},
            "speed": {"string": "400G"},
            "rdma": {"bool": True},
            "mtu": {"int": 9000},
            "firmware": {"version": "28.39.1002"},
            "numaNode": {"int": index},
            ROOT: {"string": f"pci0000:{index:02x}"},
        },
    }


def resource_slice(name: str, node: str, driver: str, pool: str, total: int = 1, **spec: Any) -> Data:
    return {
        "metadata": {"name": name},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": pool, "generation": 1, "resourceSliceCount": total},
            **spec,
        },
    }


def node_of(name: str) -> Data:
    return {"metadata": {"name": name}}


def used(driver: str, pool: str, device: str) -> Data:
    return {"driver": driver, "pool": pool, "device": device}


def cluster(n_nodes: int, label: str = "", used_gpus: int = 0, last_free: bool = False) -> Inventory:
    """Nodes of 8 GPUs and 2 NICs, the first `used_gpus` in use (not on the last node if `last_free`)."""
    inventory = Inventory(f"{n_nodes} nodes{label}")
    for number in range(n_nodes):
        node = f"node-{number:05}"
        inventory.nodes.append(node_of(node))
        inventory.slices.append(
            resource_slice(f"{node}-gpu", node, GPU, node, devices=[gpu(number, i) for i in range(8)])
        )
        inventory.slices.append(
            resource_slice(f"{node}-nic", node, NIC, node, devices=[nic(number, i) for i in range(2)])
        )
        if not (last_free and number == n_nodes - 1):
            inventory.used += [used(GPU, node, f"gpu-{i}") for i in range(used_gpus)]
    return inventory


def one_node(devices: list[Data], label: str) -> Inventory:
    return Inventory(
        label, [resource_slice("s", "node-0", GPU, "node-0", devices=devices)], [node_of("node-0")]
    )


PROFILES = (("1g", 1, range(7)), ("2g", 2, (0, 2, 4)), ("3g", 4, (0, 4)), ("4g", 4, (0,)), ("7g", 8, (0,)))


def partitions(n_gpus: int, per_node: int = 8) -> Inventory:
    """Every placement of every profile of each GPU, drawing from the GPU's memory slices."""
    inventory = Inventory(f"{n_gpus} GPUs in partitions")
    for number in range(n_gpus // per_node):
        node = f"node-{number:05}"
        inventory.nodes.append(node_of(node))
        devices, sets = [], []
        for gpu_index in range(per_node):
            sets.append(
                {"name": f"gpu-{gpu_index}", "counters": {f"slice-{i}": {"value": "1"} for i in range(8)}}
            )
            for profile, size, starts in PROFILES:
                for start in starts:
                    covered = range(start, min(start + size, 8))
                    devices.append(
                        {
                            "name": f"gpu-{gpu_index}-{profile}-{start}",
                            "attributes": {"profile": {"string": profile}, "gpu": {"int": gpu_index}},
                            "consumesCounters": [
                                {
                                    "counterSet": f"gpu-{gpu_index}",
                                    "counters": {f"slice-{i}": {"value": "1"} for i in covered},
                                }
                            ],
                        }
                    )
        half = len(devices) // 2
        parts = {"a": devices[:half], "b": devices[half:]}
        for name, members in parts.items():
            inventory.slices.append(resource_slice(f"{node}-{name}", node, MIG, node, 3, devices=members))
        inventory.slices.append(resource_slice(f"{node}-z", node, MIG, node, 3, sharedCounters=sets))
    return inventory


def request(name: str, device_class: str, count: int = 1, selector: str = "") -> Data:
    selectors = [{"cel": {"expression": selector}}] if selector else []
    return {
        "name": name,
        "exactly": {
            "deviceClassName": device_class,
            "allocationMode": "ExactCount",
            "count": count,
            "selectors": selectors,
        },
    }


def claim(*requests: Data, constraints: list[Data] | None = None) -> list[Data]:
    return [
        {
            "metadata": {"name": "claim", "namespace": "bench", "uid": "claim"},
            "spec": {"devices": {"requests": list(requests), "constraints": constraints or []}},
        }
    ]


BIG_GPU = (
    f'device.attributes["{GPU}"].model == "H100" && '
    f'device.capacity["{GPU}"].memory.compareTo(quantity("40Gi")) >= 0'
)


def profile(name: str) -> str:
    return f'device.attributes["{MIG}"].profile == "{name}"'


def questions(*, quick: bool) -> list[Question]:
    """Return all questions, grouped by inventory."""
    found: list[Question] = []
    sizes = [500] if quick else [500, 5000]
    pair = claim(request("gpus", "gpu", 2), request("nic", "nic"), constraints=[{"matchAttribute": ROOT}])
    for size in sizes:
        fresh = cluster(size)
        found.append(
            Question(
                "one GPU ≥ 40 GiB, first 100 nodes", fresh, claim(request("gpu", "gpu", 1, BIG_GPU)), 100, 10
            )
        )
        found.append(Question("GPU pair + NIC on one PCIe root, first 100 nodes", fresh, pair, 100, 10))
        found.append(
            Question(
                "eight GPUs wanted, four free everywhere",
                cluster(size, ", 4 of 8 GPUs used", 4),
                claim(request("gpu", "gpu", 8)),
                0,
                100,
                3,
            )
        )
        found.append(
            Question(
                "one GPU, free only on the last node",
                cluster(size, ", all GPUs used but on the last", 8, last_free=True),
                claim(request("gpu", "gpu", 1, BIG_GPU)),
                0,
                100,
                3,
            )
        )
        found.append(
            Question(
                "one GPU by its uuid, first 100 nodes",
                fresh,
                claim(request("gpu", "gpu", 1, f'device.attributes["{GPU}"].uuid == "GPU-{size - 1:05}-7"')),
                100,
                1,
                3,
            )
        )
    mig = partitions(80 if quick else 1000)
    found.append(
        Question(
            "MIG: one 3g partition, first 100 nodes", mig, claim(request("p", "mig", 1, profile("3g"))), 100
        )
    )
    found.append(
        Question(
            "MIG: 8 × 4g + 8 × 3g per node, first 100 nodes",
            mig,
            claim(request("a", "mig", 8, profile("4g")), request("b", "mig", 8, profile("3g"))),
            100,
            rounds=3,
        )
    )
    return found + exponential(quick=quick)


def exponential(*, quick: bool) -> list[Question]:
    """Questions without an answer that upstream takes exponential time to refuse."""
    found = []
    for n in (8, 12) if quick else (8, 12, 16, 32):
        same = one_node([{"name": f"gpu-{i:02}"} for i in range(n)], f"{n} equal devices")
        roots = one_node(
            [
                {"name": f"gpu-{i:02}", "attributes": {ROOT: {"string": f"r{min(i, n - 2)}"}}}
                for i in range(n)
            ],
            f"{n} devices, {n - 1} roots",
        )
        groups = one_node(
            [{"name": f"gpu-{i:02}", "attributes": {ROOT: {"string": f"r{i // 4}"}}} for i in range(n)],
            f"{n} devices in groups of 4",
        )
        if n < 32:
            found.append(
                Question(f"{n} + 1 of {n} devices", same, claim(request("r", "gpu", n + 1)), rounds=2)
            )
            found.append(
                Question(
                    f"{n} + 1 single requests for {n} devices",
                    same,
                    claim(*[request(f"r{i}", "gpu") for i in range(n + 1)]),
                    rounds=2,
                )
            )
        found.append(
            Question(
                f"{n} distinct values of {n - 1}",
                roots,
                claim(request("r", "gpu", n), constraints=[{"distinctAttribute": ROOT}]),
                rounds=2,
            )
        )
        found.append(
            Question(
                f"five of one group of four, {n} devices",
                groups,
                claim(request("r", "gpu", 5), constraints=[{"matchAttribute": ROOT}]),
                rounds=2,
            )
        )
    four = one_node(
        [{"name": f"gpu-{i:02}", "attributes": {ROOT: {"string": f"r{i % 4}"}}} for i in range(16)],
        "16 devices, 4 roots",
    )
    found.append(
        Question(
            "five distinct roots of four + an impossible request, 16 devices",
            four,
            claim(
                request("r", "gpu", 5),
                request("x", "gpu", 1, "false"),
                constraints=[{"distinctAttribute": ROOT, "requests": ["r"]}],
            ),
            rounds=2,
        )
    )
    return found
