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

MAX_PLAIN_DEVICES = 128
MAX_ELABORATE_DEVICES = 64
MAX_COUNTER_SETS = 8

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class PoolModel:
    """The devices one driver offers under one pool name."""

    driver: str
    name: str
    devices: tuple[Device, ...]
    counter_sets: tuple[CounterSet, ...] = ()
    node_name: str | None = None  # None means: every node reaches it


def is_elaborate(device: Device) -> bool:
    """Return whether the device makes its slice fall under the lower limit."""
    if device.taints or device.consumes_counters:
        return True
    return any(
        value.ints is not None
        or value.strings is not None
        or value.bools is not None
        or value.versions is not None
        for value in (device.attributes or {}).values()
    )


def _chunks(items: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def pool_slices(pools: Iterable[PoolModel], generation: int = 1) -> list[ResourceSlice]:
    """Return the slices that publish the pools, named so that their order is kept."""
    slices = []
    for pool in pools:
        limit = MAX_ELABORATE_DEVICES if any(map(is_elaborate, pool.devices)) else MAX_PLAIN_DEVICES
        parts: list[tuple[Sequence[CounterSet], Sequence[Device]]] = [
            (sets, ()) for sets in _chunks(pool.counter_sets, MAX_COUNTER_SETS)
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
