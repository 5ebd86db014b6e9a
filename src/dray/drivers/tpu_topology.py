"""What the type of a TPU says: its generation, its form, and the variables that libtpu reads.

GKE names types by node labels (`tpu-v5-lite-podslice`), Cloud TPU by the type of the accelerator (`v5litepod-16`).
Devices carry the first form. One host is either the whole TPU or one of several of a slice; `HOST_BOUNDS`
says how many hosts stand in each dimension, `CHIPS_PER_HOST_BOUNDS` how many chips one host has there.

Google's driver gives all chips of a host or none, and so do ours, real and simulated: `partial_claim` is its refusal.
"""

from __future__ import annotations

import re
from math import prod

from dray.drivers import driver_names

# Generation -> what its type ends with. Those of a `lite` name have one core per chip.
_TYPE_BY_PREFIX = {
    "v5litepod": "tpu-v5-lite-podslice",
    "v5lite": "tpu-v5-lite-device",
    "v5p": "tpu-v5p-slice",
    "v6e": "tpu-v6e-slice",
    "v4": "tpu-v4-podslice",
    "v3": "tpu-v3-device",
}
_TYPE = re.compile(r"tpu-(v\d+[a-z]?)(-lite)?-(device|podslice|slice)")
_CHIPS_BY_DIMENSION = {1: (1, 1, 1), 2: (1, 2, 1), 4: (2, 2, 1), 8: (2, 4, 1)}
_LARGEST_LITE_DIMENSION = 16  # where a torus of these generations closes
_CUBE = 4


def accelerator_of(cloud_type: str) -> str:
    """Return the type as in node labels; unknown ones stay.

    >>> accelerator_of("v5litepod-16")
    'tpu-v5-lite-podslice'
    """
    lower = cloud_type.lower()
    return next((name for prefix, name in _TYPE_BY_PREFIX.items() if lower.startswith(prefix)), lower)


def generation_of(accelerator: str) -> str:
    """Return the generation of a type; the type itself where its form is unknown.

    >>> [generation_of(name) for name in ("tpu-v5-lite-podslice", "tpu-v5p-slice", "tpu-v4-podslice")]
    ['v5litepod', 'v5p', 'v4']
    """
    found = _TYPE.fullmatch(accelerator)
    if found is None:
        return accelerator
    generation = found[1] + ("lite" if found[2] else "")
    return f"{generation}pod" if generation.startswith("v5lite") and found[3] == "podslice" else generation


def has_vfio(generation: str) -> bool:
    """Return whether chips of a generation are VFIO groups (`/dev/vfio/0`) and not `/dev/accel0`."""
    return generation.startswith(("v5", "v6", "tpu7"))


def topology_of_host(chips: int) -> str:
    """Return the topology of a TPU that is one host; empty for numbers of chips that no host has."""
    bounds = _CHIPS_BY_DIMENSION.get(chips)
    if bounds is None:
        return ""
    return "x".join(map(str, bounds[:2] if bounds[2] == 1 else bounds))


def partial_claim(claimed: int, chips: int) -> str:
    """Return why a claim for a part of a host's chips is refused; empty when it is for all of them."""
    if claimed == chips:
        return ""
    return (
        f"invalid tpu resourceClaim, claim requests partial tpu devices ({claimed}), "
        f"only requests for all tpu devices ({chips}) on the node are supported"
    )


def common_variables(accelerator: str, topology: str, chips: int, node: str) -> dict[str, str]:
    """Return the variables that every container with TPUs gets on a host."""
    variables = {
        "KUBERNETES_NODE_NAME": node,
        "DRA_RESOURCE_DRIVER_NAME": driver_names.TPU,
        "TPU_SKIP_MDS_QUERY": "true",
    }
    dimensions = _dimensions(topology)
    if not dimensions:
        return variables
    generation = generation_of(accelerator)
    cores = prod(dimensions) * (1 if "lite" in generation or generation == "v6e" else 2)
    variables |= {"TPU_TOPOLOGY": topology, "TPU_ACCELERATOR_TYPE": f"{generation}-{cores}"}
    bounds = _CHIPS_BY_DIMENSION.get(chips)
    if accelerator.endswith("slice") and bounds is not None:
        variables |= _slice_variables(generation, dimensions, bounds)
    if prod(dimensions) == chips:
        variables |= {"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"}
    return variables


def _slice_variables(generation: str, dimensions: tuple[int, ...], bounds: tuple[int, ...]) -> dict[str, str]:
    hosts = ",".join(str(size // own) for size, own in zip(dimensions, bounds, strict=True))
    own_chips = ",".join(map(str, bounds))
    is_cube = min(dimensions) >= _CUBE
    if ("lite" in generation and generation.startswith("v5")) or generation == "v6e":
        closed = [size == _LARGEST_LITE_DIMENSION for size in dimensions]
    else:
        closed = [is_cube] * len(dimensions)
    wrap = ",".join(str(each).lower() for each in closed)
    resilience = {"ENABLE_ICI_RESILIENCY": "true"} if is_cube and generation.startswith(("v4", "v5p")) else {}
    return resilience | {
        "TPU_TOPOLOGY_ALT": "false",
        "ALT": "false",
        "TPU_TOPOLOGY_WRAP": wrap,
        "WRAP": wrap,
        "TPU_HOST_BOUNDS": hosts,
        "HOST_BOUNDS": hosts,
        "TPU_CHIPS_PER_HOST_BOUNDS": own_chips,
        "CHIPS_PER_HOST_BOUNDS": own_chips,
    }


def _dimensions(topology: str) -> tuple[int, ...]:
    """Return three dimensions; none where the text is no topology."""
    if not re.fullmatch(r"[1-9]\d{0,4}(x[1-9]\d{0,4}){1,2}", topology):
        return ()
    sizes = tuple(map(int, topology.split("x")))
    return (*sizes, 1) if len(sizes) == 2 else sizes
