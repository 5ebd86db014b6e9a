"""Configs of `compute-domain.nvidia.com`: which ComputeDomain a channel or a daemon belongs to."""

from __future__ import annotations

from typing import Any

import msgspec

from dray.api.compute_domains import API_VERSION, CHANNEL_CONFIG, DAEMON_CONFIG
from dray.drivers.opaque_configs.decoding import ConfigKind, Kinds, OpaqueConfigError, decode
from dray.drivers.opaque_configs.nvidia import NVIDIA_KINDS


class ChannelConfig(ConfigKind, frozen=True):
    """Config of a workload's channel."""

    domain_id: str = msgspec.field(default="", name="domainID")
    allocation_mode: str = ""  # only All is read; the driver does not check it


class DaemonConfig(ConfigKind, frozen=True):
    """Config of a daemon."""

    domain_id: str = msgspec.field(default="", name="domainID")


DomainConfig = ChannelConfig | DaemonConfig
_KINDS: Kinds = {**NVIDIA_KINDS, CHANNEL_CONFIG: ChannelConfig, DAEMON_CONFIG: DaemonConfig}


def parse_domain_config(parameters: Any) -> DomainConfig:
    """Decode and check one config; raise OpaqueConfigError with the driver's message."""
    config = decode(parameters, API_VERSION, _KINDS)
    if not isinstance(config, ChannelConfig | DaemonConfig):
        # The driver's decoder knows the kinds of its sibling for GPUs, too.
        raise OpaqueConfigError("runtime object is not a recognized configuration", "kind")
    if not config.domain_id:
        raise OpaqueConfigError("error validating config: domainID cannot be empty", "domainID")
    return config
