"""Configs of dra-example-driver: GpuConfig and NetConfig, with its defaults and its refusals."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from dray.drivers.opaque_configs.decoding import Config, ConfigKind, OpaqueConfigError, decode

GPU_API_VERSION = "gpu.resource.example.com/v1alpha1"
NET_API_VERSION = "net.resource.example.com/v1alpha1"
INTERVALS = ("Default", "Short", "Medium", "Long")
MAX_BURST_BITS = 8 * (2**32 - 1)  # from here on the traffic shaper cannot count it

_Unsigned = Annotated[int, msgspec.Meta(ge=0)]
_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class TimeSlicing(Config, frozen=True):
    """How long a client may use the GPU before the next one."""

    interval: str = ""


class SpacePartitioning(Config, frozen=True):
    """Into how many equal parts the GPU is cut for its clients."""

    partition_count: _Int64 = 0


class Sharing(Config, frozen=True):
    """How containers that hold the device together share it."""

    strategy: str = ""
    time_slicing_config: TimeSlicing | None = None
    space_partitioning_config: SpacePartitioning | None = None


class GpuConfig(ConfigKind, frozen=True):
    """Config of a GPU."""

    sharing: Sharing | None = None


class Burst(Config, frozen=True):
    """How many bits may pass at once."""

    ingress_burst: _Unsigned = 0
    egress_burst: _Unsigned = 0


class NetConfig(ConfigKind, frozen=True):
    """Config of a network interface."""

    bw_burst: Burst | None = None


def parse_gpu_config(parameters: Any) -> Sharing:
    """Return how the GPU is shared, with defaults filled in; no parameters mean time slices."""
    if parameters is None:
        return Sharing(strategy="TimeSlicing", time_slicing_config=TimeSlicing(interval="Default"))
    config = decode(parameters, GPU_API_VERSION, {"GpuConfig": GpuConfig})
    assert isinstance(config, GpuConfig)
    sharing = config.sharing or Sharing(strategy="TimeSlicing")
    slicing, partitioning = sharing.time_slicing_config, sharing.space_partitioning_config
    if sharing.strategy == "TimeSlicing":
        slicing = slicing or TimeSlicing(interval="Default")
        if slicing.interval not in INTERVALS:
            raise OpaqueConfigError(
                f"unknown time-slice interval: {slicing.interval}", "sharing.timeSlicingConfig.interval"
            )
        if partitioning is not None:
            raise OpaqueConfigError(
                "cannot use SpacePartitioningConfig with the 'TimeSlicing' strategy",
                "sharing.spacePartitioningConfig",
            )
    elif sharing.strategy == "SpacePartitioning":
        partitioning = partitioning or SpacePartitioning(partition_count=1)
        if partitioning.partition_count < 0:
            raise OpaqueConfigError(
                f"invalid partition count: {partitioning.partition_count}",
                "sharing.spacePartitioningConfig.partitionCount",
            )
        if slicing is not None:
            raise OpaqueConfigError(
                "cannot use TimeSlicingConfig with the 'SpacePartitioning' strategy",
                "sharing.timeSlicingConfig",
            )
    else:
        raise OpaqueConfigError(f"unknown GPU sharing strategy: {sharing.strategy}", "sharing.strategy")
    return msgspec.structs.replace(
        sharing, time_slicing_config=slicing, space_partitioning_config=partitioning
    )


def parse_net_config(parameters: Any) -> Burst:
    """Return the bursts of an interface; no parameters mean no limit."""
    if parameters is None:
        return Burst()
    config = decode(parameters, NET_API_VERSION, {"NetConfig": NetConfig})
    assert isinstance(config, NetConfig)
    burst = config.bw_burst or Burst()
    for name, bits in (("ingressBurst", burst.ingress_burst), ("egressBurst", burst.egress_burst)):
        if bits >= MAX_BURST_BITS:
            raise OpaqueConfigError(f"invalid {name}: burst cannot be more than 4GB", f"bwBurst.{name}")
    return burst


def refuse_config(parameters: Any) -> None:
    """Refuse any config, as the CPU profile does."""
    if parameters is not None:
        raise OpaqueConfigError("configuration not allowed")
