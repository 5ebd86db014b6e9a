"""The configs that claims and classes may carry for the NVIDIA driver: `resource.nvidia.com/v1beta1`.

Decoding is strict: a typo in a config must fail the pod with a clear word, not be
ignored. When several configs apply to a device, the last one wins (claims come after
classes).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from dray.api.quantity import QuantityError, parse_quantity
from dray.driver import DeviceConfig, DriverError

API_VERSION = "resource.nvidia.com/v1beta1"
# Interval name -> argument of nvidia-smi compute-policy --set-timeslice
INTERVALS = {"Default": 0, "Short": 1, "Medium": 2, "Long": 3}


class _Config(msgspec.Struct, rename="camel", frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base: unknown fields are errors."""


class TimeSlicingConfig(_Config, frozen=True):
    """How long a process may use the GPU before the next one gets it."""

    interval: str = "Default"


class MpsConfig(_Config, frozen=True):
    """Limits for the clients of one MPS daemon."""

    default_active_thread_percentage: int | None = None
    default_pinned_device_memory_limit: str | None = None
    default_per_device_pinned_memory_limit: dict[str, str] | None = None
    multi_user: bool = False


class Sharing(_Config, frozen=True):
    """How containers that hold the device together share it."""

    strategy: str = "TimeSlicing"
    time_slicing_config: TimeSlicingConfig | None = None
    mps_config: MpsConfig | None = None


class GpuConfig(_Config, frozen=True, tag_field="kind", tag="GpuConfig"):
    """Config of whole GPUs."""

    api_version: str = API_VERSION
    sharing: Sharing | None = None


class MigDeviceConfig(_Config, frozen=True, tag_field="kind", tag="MigDeviceConfig"):
    """Config of MIG devices."""

    api_version: str = API_VERSION
    sharing: Sharing | None = None


Config = GpuConfig | MigDeviceConfig


def parse_config(parameters: Any) -> Config:
    """Decode one config; raises DriverError that names what is wrong."""
    version = parameters.get("apiVersion") if isinstance(parameters, dict) else None
    if version != API_VERSION:
        raise DriverError(f"config has apiVersion {version!r}; this driver understands {API_VERSION}")
    try:
        config: Config = msgspec.convert(parameters, Config)
    except msgspec.ValidationError as error:
        raise DriverError(f"strict decoding error: {error}") from error
    _check(config)
    return config


def _check(config: Config) -> None:
    sharing = config.sharing
    if sharing is None:
        return
    if sharing.strategy not in ("TimeSlicing", "MPS"):
        raise DriverError(f"unknown sharing strategy {sharing.strategy!r}; known: TimeSlicing, MPS")
    slicing = sharing.time_slicing_config
    if slicing is not None:
        if sharing.strategy != "TimeSlicing":
            raise DriverError("timeSlicingConfig needs the strategy TimeSlicing")
        if slicing.interval not in INTERVALS:
            raise DriverError(f"unknown interval {slicing.interval!r}; known: {', '.join(INTERVALS)}")
    mps = sharing.mps_config
    if mps is None:
        return
    if sharing.strategy != "MPS":
        raise DriverError("mpsConfig needs the strategy MPS")
    percentage = mps.default_active_thread_percentage
    if percentage is not None and not 0 <= percentage <= 100:
        raise DriverError(f"defaultActiveThreadPercentage is {percentage}; it must be 0 to 100")
    limits = dict(mps.default_per_device_pinned_memory_limit or {})
    if mps.default_pinned_device_memory_limit is not None:
        limits[""] = mps.default_pinned_device_memory_limit
    for limit in limits.values():
        try:
            megabytes_of(limit)
        except QuantityError as error:
            raise DriverError(f"pinned memory limit {limit!r}: {error}") from error


def megabytes_of(limit: str) -> int:
    """Return a memory limit in the whole MiB that MPS understands; at least one."""
    amount = parse_quantity(limit).ceil_value()
    if amount <= 0:
        raise DriverError(f"pinned memory limit {limit!r} must be positive")
    return max(1, amount >> 20)


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
