"""Configs of the NVIDIA driver: `resource.nvidia.com/v1beta1`, of GPUs, MIG devices and VFIO devices.

The gates of the real driver that refuse a strategy (TimeSlicingSettings, MPSSupport) count as on.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dray.api.compute_domains import API_VERSION
from dray.api.quantity import QuantityError, parse_quantity
from dray.drivers.opaque_configs.decoding import Config, ConfigKind, Kinds, OpaqueConfigError, decode

# Interval name -> argument of nvidia-smi compute-policy --set-timeslice
INTERVALS = {"Default": 0, "Short": 1, "Medium": 2, "Long": 3}
BACKEND_POLICIES = ("LegacyOnly", "PreferIommuFD")


class TimeSlicingConfig(Config, frozen=True):
    """How long a process may use the GPU before the next one gets it."""

    interval: str = "Default"


class MpsConfig(Config, frozen=True):
    """Limits for the clients of one MPS daemon."""

    default_active_thread_percentage: int | None = None
    default_pinned_device_memory_limit: str | int | None = None
    default_per_device_pinned_memory_limit: dict[str, str | int] | None = None
    multi_user: bool = False


class MigSharing(Config, frozen=True):
    """How containers that hold a MIG device together share it."""

    strategy: str = ""
    mps_config: MpsConfig | None = None

    @property
    def time_slicing_config(self) -> TimeSlicingConfig | None:
        """Return None: a MIG device has no interval of its own."""
        return None


class GpuSharing(Config, frozen=True):
    """How containers that hold a GPU together share it."""

    strategy: str = ""
    time_slicing_config: TimeSlicingConfig | None = None
    mps_config: MpsConfig | None = None


class GpuConfig(ConfigKind, frozen=True):
    """Config of whole GPUs."""

    api_version: str = API_VERSION
    kind: str = "GpuConfig"
    sharing: GpuSharing | None = None


class MigDeviceConfig(ConfigKind, frozen=True):
    """Config of MIG devices."""

    api_version: str = API_VERSION
    kind: str = "MigDeviceConfig"
    sharing: MigSharing | None = None


class IommuConfig(Config, frozen=True):
    """Which interface of the kernel a virtual machine monitor gets."""

    backend_policy: str = ""
    enable_api_device: bool | None = msgspec.field(default=None, name="enableAPIDevice")


class VfioDeviceConfig(ConfigKind, frozen=True):
    """Config of GPUs for virtual machines."""

    api_version: str = API_VERSION
    kind: str = "VfioDeviceConfig"
    iommu: IommuConfig | None = None


NvidiaConfig = GpuConfig | MigDeviceConfig | VfioDeviceConfig
NVIDIA_KINDS: Kinds = {
    "GpuConfig": GpuConfig,
    "MigDeviceConfig": MigDeviceConfig,
    "VfioDeviceConfig": VfioDeviceConfig,
}


def parse_nvidia_config(parameters: Any) -> NvidiaConfig:
    """Decode and check one config; raise OpaqueConfigError with the driver's message."""
    config = decode(parameters, API_VERSION, NVIDIA_KINDS)
    if isinstance(config, VfioDeviceConfig):
        policy = config.iommu.backend_policy if config.iommu is not None else ""
        if policy and policy not in BACKEND_POLICIES:
            raise OpaqueConfigError(
                f"unknown IOMMU backend policy: {policy}, supported IOMMU backend policies: "
                + ", ".join(BACKEND_POLICIES),
                "iommu.backendPolicy",
            )
        return config
    assert isinstance(config, GpuConfig | MigDeviceConfig)
    if config.sharing is not None:
        _check_sharing(config.sharing)
    return config


def _check_sharing(sharing: GpuSharing | MigSharing) -> None:
    slicing, mps = sharing.time_slicing_config, sharing.mps_config
    if sharing.strategy == "TimeSlicing":
        if mps is not None:
            raise OpaqueConfigError(
                "cannot use MpsConfig with the 'TimeSlicing' strategy", "sharing.mpsConfig"
            )
        if slicing is not None and slicing.interval not in INTERVALS:
            raise OpaqueConfigError(
                f"unknown time-slice interval: {slicing.interval}, supported time-slice intervals: "
                + ", ".join(INTERVALS),
                "sharing.timeSlicingConfig.interval",
            )
    elif sharing.strategy == "MPS":
        if slicing is not None:
            raise OpaqueConfigError(
                "cannot use TimeSlicingConfig with the 'MPS' strategy", "sharing.timeSlicingConfig"
            )
        if mps is not None:
            _check_mps(mps)
    else:
        raise OpaqueConfigError(
            f"unknown GPU sharing strategy: {sharing.strategy}, supported GPU sharing strategies: TimeSlicing, MPS",
            "sharing.strategy",
        )


def _check_mps(mps: MpsConfig) -> None:
    path = "sharing.mpsConfig"
    percentage = mps.default_active_thread_percentage
    if percentage is not None and not 0 <= percentage <= 100:
        what = "negative" if percentage < 0 else "greater than 100"
        raise OpaqueConfigError(
            f"active thread percentage must not be {what}", f"{path}.defaultActiveThreadPercentage"
        )
    limits = {
        f"{path}.defaultPerDevicePinnedMemoryLimit.{key}": limit
        for key, limit in (mps.default_per_device_pinned_memory_limit or {}).items()
    }
    if mps.default_pinned_device_memory_limit is not None:
        limits[f"{path}.defaultPinnedDeviceMemoryLimit"] = mps.default_pinned_device_memory_limit
    for where, limit in limits.items():
        try:
            megabytes = megabytes_of(limit)
        except QuantityError as error:
            raise OpaqueConfigError(f"pinned memory limit {limit!r}: {error}", where) from error
        if megabytes < 1:
            raise OpaqueConfigError(f"invalid limit: value set too low: {limit}", where)


def megabytes_of(limit: str | int) -> int:
    """Return a memory limit in the whole MiB that MPS understands."""
    return parse_quantity(limit).ceil_value() >> 20
