"""Pools of modelled devices, and the ResourceSlices they fit into.

A pool larger than one slice is split by the API's limits (128 devices, or 64 when
any has taints, counters or list values; 8 counter sets), counters in slices of
their own, in an order that keeps the devices' priority: the allocator takes the
first match, so the order of devices is part of the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dray.api.meta import ObjectMeta
from dray.api.resource import CounterSet, Device, ResourcePool, ResourceSlice, ResourceSliceSpec
from dray.api.slice_limits import MOST_COUNTER_SETS, MOST_DEVICES, MOST_WITH_RICH_DEVICES, is_rich

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class PoolModel:
    """The devices one driver offers under one pool name."""

    driver: str
    name: str
    devices: tuple[Device, ...]
    counter_sets: tuple[CounterSet, ...] = ()
    node_name: str | None = None  # None means: every node reaches it


def _chunks(items: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def pool_slices(pools: Iterable[PoolModel], generation: int = 1) -> list[ResourceSlice]:
    """Return the slices that publish the pools, named so that their order is kept."""
    slices = []
    for pool in pools:
        limit = MOST_WITH_RICH_DEVICES if any(map(is_rich, pool.devices)) else MOST_DEVICES
        parts: list[tuple[Sequence[CounterSet], Sequence[Device]]] = [
            (sets, ()) for sets in _chunks(pool.counter_sets, MOST_COUNTER_SETS)
        ]
        parts += [((), devices) for devices in _chunks(pool.devices, limit)]
        for index, (sets, devices) in enumerate(parts or [((), ())]):
            spec = ResourceSliceSpec(
                driver=pool.driver,
                pool=ResourcePool(
                    name=pool.name, generation=generation, resource_slice_count=max(1, len(parts))
                ),
                node_name=pool.node_name,
                all_nodes=True if pool.node_name is None else None,
                devices=list(devices),
                shared_counters=list(sets),
            )
            name = f"{index:05x}-{pool.driver}-{pool.name}".replace("/", "-").lower()
            slices.append(ResourceSlice(metadata=ObjectMeta(name=name), spec=spec))
    return slices
