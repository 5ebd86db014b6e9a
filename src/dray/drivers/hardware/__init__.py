"""Models of real hardware: what the real drivers would publish for it, from profile files.

A profile (profiles/*.yaml) says what stands in one node. `load_profile` reads it,
`Profile.pools(node)` turns it into pools of wire-format devices with the names,
attributes, capacities and counters of the real drivers, so that claims written
for real clusters work unchanged. Nothing here touches the machine: the simulated
driver publishes these pools, the demo, what-if and benches use them directly.
"""

from dray.drivers.hardware.classes import device_classes
from dray.drivers.hardware.compute_domains import custom_resources
from dray.drivers.hardware.gpus import GPU_MODELS, GpuModel, MigProfile
from dray.drivers.hardware.pools import PoolModel, pool_slices
from dray.drivers.hardware.profiles import Profile, ProfileError, load_profile, profile_names

__all__ = [
    "GPU_MODELS",
    "GpuModel",
    "MigProfile",
    "PoolModel",
    "Profile",
    "ProfileError",
    "custom_resources",
    "device_classes",
    "load_profile",
    "pool_slices",
    "profile_names",
]
