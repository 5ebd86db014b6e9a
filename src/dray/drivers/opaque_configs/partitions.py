"""`PartitionLayout`: the config with which a claim that holds all of a GPU changes its partitions.

It is dray's own kind and no config of NVIDIA's driver, which refuses it; so `check_config` does not know it. A driver that accepts it
changes the layout while it prepares the claim: the scheduler has given the whole GPU to this claim, so nobody else uses it.
"""

from __future__ import annotations

from typing import Any

from dray.drivers.opaque_configs.decoding import ConfigKind, OpaqueConfigError, decode

API_VERSION = "fleet.dray.dev/v1alpha1"
KIND = "PartitionLayout"
_MOST_PARTITIONS = 64  # before a product's own limit is known
_MOST_CHARACTERS = 64  # of one partition


class PartitionLayout(ConfigKind, frozen=True):
    """Which partitions the GPU shall have."""

    api_version: str = API_VERSION
    kind: str = KIND
    partitions: tuple[str, ...] = ()  # PROFILE or PROFILE@START; empty means: the GPU as a whole


def is_partition_layout(parameters: Any) -> bool:
    """Return whether the parameters are meant to be a PartitionLayout of some version."""
    return isinstance(parameters, dict) and parameters.get("kind") == KIND


def parse_partition_layout(parameters: Any) -> PartitionLayout:
    """Decode and check; raise OpaqueConfigError."""
    config = decode(parameters, API_VERSION, {KIND: PartitionLayout})
    assert isinstance(config, PartitionLayout)
    if len(config.partitions) > _MOST_PARTITIONS:
        raise OpaqueConfigError(f"more than {_MOST_PARTITIONS} partitions", "partitions")
    for index, each in enumerate(config.partitions):
        if len(each) > _MOST_CHARACTERS:
            raise OpaqueConfigError(f"longer than {_MOST_CHARACTERS} characters", f"partitions[{index}]")
    return config
