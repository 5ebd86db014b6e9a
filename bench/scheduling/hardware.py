"""What the nodes of a workload have: the slices that a driver would publish.

Each function takes the number of a node and returns the parts of its pool, one per slice.
`Results` are the devices of one claim as they stand in its allocation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Object = dict[str, Any]
Results = list[Object]
Hardware = Callable[[int], list[Object]]

DRIVER = "gpu.example.com"
ROOT = "resource.kubernetes.io/pcieRoot"


def node_name(number: int) -> str:
    """Return the name of a node, which is the name of its pool, too."""
    return f"node-{number:05}"


def result(node: int, device: str, request: str = "wanted", **more: Any) -> Object:
    """Return one device of an allocation."""
    return {"request": request, "driver": DRIVER, "pool": node_name(node), "device": device, **more}


# --- whole devices --------------------------------------------------------------


def whole(n_devices: int) -> Hardware:
    """Return nodes with so many devices; more than half are small, every fourth node has an old driver."""
    return lambda node: [{"devices": [_gpu(node, index) for index in range(n_devices)]}]


def is_old(node: int) -> bool:
    """Tell whether the driver of a node is too old for those who want a new one."""
    return node % 4 == 3


def is_small(index: int) -> bool:
    """Tell whether a whole device has little memory."""
    return index // 2 % 2 == 0


def root_of(index: int) -> int:
    """Return the PCIe root of a device; neighbours are on different ones."""
    return index % 2


def _gpu(node: int, index: int) -> Object:
    """Return a device with about as many attributes as drivers of real ones publish."""
    size = 40 if is_small(index) else 80
    return {
        "name": f"gpu-{index}",
        "attributes": {
            "type": {"string": "gpu"},
            "uuid": {"string": f"GPU-{node:08x}-{index:04x}-8000"},
            "index": {"int": index},
            "productName": {"string": f"Accelerator {size}GB"},
            "architecture": {"string": "Ampere"},
            "computeCapability": {"version": "8.0.0"},
            "driverVersion": {"version": "550.54.15" if is_old(node) else "570.10.0"},
            "runtimeVersion": {"version": "12.8.0"},
            "addressingMode": {"string": "HMM"},
            "isVirtual": {"bool": False},
            "resource.kubernetes.io/pciBusID": {"string": f"0000:{index + 16:02x}:00.0"},
            ROOT: {"string": f"pci0000:{root_of(index):02x}"},
        },
        "capacity": {"memory": {"value": f"{size}Gi"}, "cores": {"value": "108"}},
    }


# --- devices in parts -----------------------------------------------------------

MEMORY_SLICES = 8
# profile -> (multiprocessors, memory slices, where it may start), as of a large GPU
PROFILES: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "1g.10gb": (16, 1, (0, 1, 2, 3, 4, 5, 6)),
    "2g.20gb": (32, 2, (0, 2, 4)),
    "3g.40gb": (60, 4, (0, 4)),
    "4g.40gb": (64, 4, (0,)),
    "7g.80gb": (132, 8, (0,)),
}


def part_name(gpu: int, profile: str, start: int) -> str:
    """Return the name of a part of a device."""
    return f"gpu-{gpu}-{profile.replace('.', '-')}-{start}"


def parts_of(profile: str, gpu: int) -> Iterator[str]:
    """Yield parts of one profile that fit into one device beside one another."""
    for start in PROFILES[profile][2]:
        yield part_name(gpu, profile, start)


def partitioned(node: int) -> list[Object]:
    """Return two devices, each whole or in parts: multiprocessors and memory slices are counted."""
    counters, devices = [], []
    for gpu in range(2):
        everything = _draw(gpu, 132, range(MEMORY_SLICES))
        counters.append({"name": f"gpu-{gpu}", "counters": everything["counters"]})
        whole_one = {"type": {"string": "gpu"}, "profile": {"string": "whole"}}
        devices.append({"name": f"gpu-{gpu}", "attributes": whole_one, "consumesCounters": [everything]})
        for profile, (processors, size, starts) in PROFILES.items():
            attributes = {"type": {"string": "part"}, "profile": {"string": profile}}
            for start in starts:
                draws = [_draw(gpu, processors, range(start, start + size))]
                name = part_name(gpu, profile, start)
                devices.append({"name": name, "attributes": attributes, "consumesCounters": draws})
    return [{"sharedCounters": counters}, {"devices": devices}]


def _draw(gpu: int, processors: int, memory: range) -> Object:
    slices = {f"memory-slice-{place}": {"value": "1"} for place in memory}
    return {"counterSet": f"gpu-{gpu}", "counters": {"multiprocessors": {"value": str(processors)}, **slices}}


def misleading(node: int) -> list[Object]:
    """Return eight parts of 70Gi: whoever wants seven and takes the first (20Gi) is one too low at the end."""
    sizes = ["20Gi", *["10Gi"] * 7]
    parts = [
        {
            "name": f"part-{index}",
            "consumesCounters": [{"counterSet": "pool", "counters": {"memory": {"value": size}}}],
        }
        for index, size in enumerate(sizes)
    ]
    return [
        {"sharedCounters": [{"name": "pool", "counters": {"memory": {"value": "70Gi"}}}]},
        {"devices": parts},
    ]


# --- devices in shares ----------------------------------------------------------

LINKS, SHARES, SHARE = 4, 4, "2500M"  # links of a node, shares of a link, size of one


def shared(node: int) -> list[Object]:
    """Return links whose bandwidth is given away in shares."""
    policy = {"default": "1M", "validRange": {"min": "1M", "step": "1M"}}
    links = [
        {
            "name": f"link-{index}",
            "allowMultipleAllocations": True,
            "attributes": {"index": {"int": index}},
            "capacity": {"bandwidth": {"value": "10G", "requestPolicy": policy}},
        }
        for index in range(LINKS)
    ]
    return [{"devices": links}]
