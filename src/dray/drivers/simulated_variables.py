"""Environment variables that tell a container what the driver made of an allocation and its config.

For the example drivers they are the real ones, which demo manifests print. The real NVIDIA driver
acts on the GPU instead (time slices, an MPS daemon; see `simulated_nvidia`), so what it would set there is also told in
variables of our own: DRAY_DEVICE_GPU_0_SHARING_STRATEGY, _TIMESLICE_INTERVAL, _MPS_ACTIVE_THREAD_PERCENTAGE and
_MPS_PINNED_MEMORY_LIMIT.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dray.api.quantity import parse_quantity
from dray.driver import AllocatedDevice
from dray.drivers import driver_names
from dray.drivers.opaque_configs.example import parse_gpu_config, parse_net_config
from dray.drivers.opaque_configs.nvidia import (
    GpuConfig,
    GpuSharing,
    MigDeviceConfig,
    MigSharing,
    megabytes_of,
    parse_nvidia_config,
)

Variables = dict[str, str]


def variables_of(driver: str, allocated: AllocatedDevice) -> Variables:
    """Return what the real driver would set; raise OpaqueConfigError for a config that it refuses."""
    build = _BUILDERS.get(driver)
    return build(allocated) if build is not None else {}


def _last_parameters(allocated: AllocatedDevice) -> object:
    """Return the parameters that hold: the last ones, because claims come after classes."""
    return allocated.configs[-1].parameters if allocated.configs else None


def variable_name(device: str) -> str:
    """Return the name of a device's environment variable.

    >>> variable_name("pci-0000-1b-00-0")
    'DRAY_DEVICE_PCI_0000_1B_00_0'
    """
    return "DRAY_DEVICE_" + "".join(letter if letter.isalnum() else "_" for letter in device).upper()


def nvidia_sharing(allocated: AllocatedDevice) -> GpuSharing | MigSharing | None:
    """Return how containers share an NVIDIA device; None: as the driver finds it. OpaqueConfigError for a bad config."""
    wanted = MigDeviceConfig if "-mig-" in allocated.device else GpuConfig
    configs = [parse_nvidia_config(config.parameters) for config in allocated.configs]
    # A config without `requests` reaches devices of every kind; only that of their own kind counts.
    return next((each.sharing for each in reversed(configs) if isinstance(each, wanted)), None)


def _nvidia(allocated: AllocatedDevice) -> Variables:
    sharing = nvidia_sharing(allocated)
    if sharing is None:
        return {}
    name = variable_name(allocated.device)
    variables = {f"{name}_SHARING_STRATEGY": sharing.strategy}
    if sharing.strategy == "TimeSlicing":
        interval = sharing.time_slicing_config.interval if sharing.time_slicing_config else "Default"
        variables[f"{name}_TIMESLICE_INTERVAL"] = interval
    mps = sharing.mps_config
    if mps is not None and mps.default_active_thread_percentage is not None:
        variables[f"{name}_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(mps.default_active_thread_percentage)
    if mps is not None and mps.default_pinned_device_memory_limit is not None:
        limit = megabytes_of(mps.default_pinned_device_memory_limit)
        variables[f"{name}_MPS_PINNED_MEMORY_LIMIT"] = f"{limit}M"
    return variables


def _example_gpu(allocated: AllocatedDevice) -> Variables:
    sharing = parse_gpu_config(_last_parameters(allocated))
    identifier = allocated.device.removeprefix("gpu-").replace("-", "_").upper()
    name = f"GPU_DEVICE_{identifier}"
    variables = {name: allocated.device, f"{name}_SHARING_STRATEGY": sharing.strategy}
    if sharing.time_slicing_config is not None:
        variables[f"{name}_TIMESLICE_INTERVAL"] = sharing.time_slicing_config.interval
    if sharing.space_partitioning_config is not None:
        variables[f"{name}_PARTITION_COUNT"] = str(sharing.space_partitioning_config.partition_count)
    for capacity in ("memory", "compute"):
        if capacity in allocated.consumed_capacity:
            variables[f"{name}_{capacity.upper()}"] = str(allocated.consumed_capacity[capacity])
    return variables


def _example_nic(allocated: AllocatedDevice) -> Variables:
    burst = parse_net_config(_last_parameters(allocated))
    name = f"NET_DEVICE_{allocated.device.removeprefix('nic-')}"
    variables = {}
    for direction, bits in (("INGRESS", burst.ingress_burst), ("EGRESS", burst.egress_burst)):
        if bits:
            variables[f"{name}_{direction}_BURST"] = str(bits)
        consumed = allocated.consumed_capacity.get(f"{direction.lower()}Bandwidth")
        if consumed is not None:
            variables[f"{name}_{direction}_RATE"] = str(parse_quantity(consumed).ceil_value())
    return variables


def _example_cpu(allocated: AllocatedDevice) -> Variables:
    name = f"CPU_DEVICE_{allocated.device.removeprefix('numa-')}"
    consumed = allocated.consumed_capacity.get(f"{driver_names.EXAMPLE_CPU}/cpu")
    return {name: allocated.device} | (
        {f"{name}_CONSUMED_CPU": str(consumed)} if consumed is not None else {}
    )


_BUILDERS: Mapping[str, Callable[[AllocatedDevice], Variables]] = {
    driver_names.NVIDIA: _nvidia,
    driver_names.EXAMPLE_GPU: _example_gpu,
    driver_names.EXAMPLE_NET: _example_nic,
    driver_names.EXAMPLE_CPU: _example_cpu,
}
