"""Configs of AMD's driver: GpuConfig, which has no settings yet."""

from __future__ import annotations

from typing import Any

from dray.drivers.opaque_configs.decoding import ConfigKind, decode

API_VERSION = "gpu.resource.amd.com/v1alpha1"


class GpuConfig(ConfigKind, frozen=True):
    """Config of a GPU or a partition."""


def parse_amd_config(parameters: Any) -> None:
    """Check one config; raise OpaqueConfigError with the driver's message."""
    decode(parameters, API_VERSION, {"GpuConfig": GpuConfig})
