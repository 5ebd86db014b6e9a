"""Configs of AMD's driver: GpuConfig, which has no settings yet, and VfioDeviceConfig of GPUs for virtual machines."""

from __future__ import annotations

from typing import Any

import msgspec

from dray.drivers.opaque_configs.decoding import Config, ConfigKind, OpaqueConfigError, decode

API_VERSION = "gpu.resource.amd.com/v1alpha1"
BACKEND_POLICIES = ("", "LegacyOnly", "PreferIommuFD")  # empty means: the first


class GpuConfig(ConfigKind, frozen=True):
    """Config of a GPU or a partition."""


class IommuConfig(Config, frozen=True):
    """Which interface of the kernel a virtual machine monitor gets."""

    backend_policy: str = ""


class VfioDeviceConfig(ConfigKind, frozen=True):
    """Config of a GPU for a virtual machine."""

    iommu: IommuConfig | None = msgspec.field(default=None)


def parse_amd_config(parameters: Any) -> None:
    """Check one config; raise OpaqueConfigError with the driver's message."""
    config = decode(parameters, API_VERSION, {"GpuConfig": GpuConfig, "VfioDeviceConfig": VfioDeviceConfig})
    if isinstance(config, VfioDeviceConfig) and config.iommu is not None:
        policy = config.iommu.backend_policy
        if policy not in BACKEND_POLICIES:
            raise OpaqueConfigError(f"unknown IOMMU backend policy: {policy}", "iommu.backendPolicy")
