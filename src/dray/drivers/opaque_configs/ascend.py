"""Configs of HAMi's Ascend driver: NpuConfig, how containers share an NPU and which part of one they want."""

from __future__ import annotations

from typing import Any

from dray.drivers.driver_names import ASCEND
from dray.drivers.opaque_configs.decoding import Config, ConfigKind, OpaqueConfigError, decode
from dray.drivers.opaque_configs.example import INTERVALS, Sharing

API_VERSION = f"{ASCEND}/v1alpha1"


class VnpuSpec(Config, frozen=True):
    """The part of a card: a template of Huawei's tools."""

    template_name: str = ""


class NpuConfig(ConfigKind, frozen=True):
    """Config of an NPU; it shares as the example driver does."""

    sharing: Sharing | None = None
    vnpu_spec: VnpuSpec | None = None


def parse_npu_config(parameters: Any) -> None:
    """Check one config; raise OpaqueConfigError with the driver's message."""
    config = decode(parameters, API_VERSION, {"NpuConfig": NpuConfig})
    assert isinstance(config, NpuConfig)
    sharing = config.sharing
    if sharing is None:
        return
    slicing, partitioning = sharing.time_slicing_config, sharing.space_partitioning_config
    if sharing.strategy not in ("TimeSlicing", "SpacePartitioning"):
        raise OpaqueConfigError(f"unknown NPU sharing strategy: {sharing.strategy}", "sharing.strategy")
    if sharing.strategy == "TimeSlicing" and slicing is not None and slicing.interval not in INTERVALS:
        raise OpaqueConfigError(
            f"unknown time-slice interval: {slicing.interval}", "sharing.timeSlicingConfig.interval"
        )
    if (
        sharing.strategy == "SpacePartitioning"
        and partitioning is not None
        and partitioning.partition_count < 0
    ):
        raise OpaqueConfigError(
            f"invalid partition count: {partitioning.partition_count}",
            "sharing.spacePartitioningConfig.partitionCount",
        )
