"""The configs that claims and classes may carry for the NVIDIA driver, as its `prepare` uses them.

Types and checks are those of `dray.drivers.opaque_configs.nvidia`: a typo in a config must fail
the pod with a clear word, not be ignored. When several configs apply to a device, the last one
wins (claims come after classes).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dray.driver import DeviceConfig, DriverError
from dray.drivers.opaque_configs import OpaqueConfigError
from dray.drivers.opaque_configs.nvidia import (
    GpuConfig,
    MigDeviceConfig,
    NvidiaConfig,
    parse_nvidia_config,
)

Config = GpuConfig | MigDeviceConfig


def parse_config(parameters: Any) -> NvidiaConfig:
    """Decode one config; raises DriverError that names what is wrong."""
    try:
        return parse_nvidia_config(parameters)
    except OpaqueConfigError as error:
        raise DriverError(str(error)) from error


def effective_config(configs: Iterable[DeviceConfig], *, is_mig: bool) -> Config:
    """Return the config that holds for a device: the last one of its kind, else the default."""
    wanted = MigDeviceConfig if is_mig else GpuConfig
    chosen: Config = wanted()
    for config in configs:
        parsed = parse_config(config.parameters)
        if isinstance(parsed, wanted):
            chosen = parsed
        else:
            kind = "a MIG device" if is_mig else "a whole GPU"
            raise DriverError(f"a {type(parsed).__name__} cannot be applied to {kind}")
    return chosen
