"""From pools to ResourceSlices, and the fewest writes that bring the server there.

A pool of any size becomes a row of slices: counter sets first (eight to a slice),
then devices in the driver's order (128 to a slice, 64 where a device has taints,
counters or list values). The order of slices is part of the meaning, since the
scheduler takes the first device that fits; it is kept by names that begin with
the index.

All slices of a pool must be seen together. A reader trusts only the highest
generation, and only when it has `resourceSliceCount` slices of it. So one changed
slice is written in place (a single write is atomic), and anything more gets a new
generation, under which the old slices count for nothing until all are replaced.

`plan_writes` is pure: what is wanted, what is there, what to do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from dray.api.meta import ObjectMeta, OwnerReference
from dray.api.quantity import canonical_quantity
from dray.api.resource import (
    CounterSet,
    Device,
    DeviceAttribute,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from dray.api.slice_limits import MOST_COUNTER_SETS, MOST_DEVICES, MOST_WITH_RICH_DEVICES, is_rich
from dray.api.well_known import ATTACHABLE_ATTRIBUTE
from dray.driver.contract import DriverError, Pool

INDEX_DIGITS = 5
_INDEXED_NAME = re.compile(r"([0-9a-f]{5,})-")


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose slices these are."""

    driver: str
    node_name: str = ""  # empty: a driver of the whole cluster
    node_uid: str = ""


@dataclass(frozen=True, slots=True)
class Write:
    """One call to make, in order: `delete` has only `old`, `create` only `new`, `update` both."""

    verb: str
    old: ResourceSlice | None = None
    new: ResourceSlice | None = None


def split_pool(pool: Pool, owner: Owner) -> list[ResourceSliceSpec]:
    """Return the specs of the pool's slices, without generation; at least one, so that an empty pool is complete."""
    name = pool.name or owner.node_name
    if not name:
        raise DriverError("a pool needs a name when the driver does not run for one node")
    names = [device.name for device in pool.devices]
    if len(set(names)) != len(names):
        twice = sorted({device for device in names if names.count(device) > 1})
        raise DriverError(
            f"pool {name}: device names must be unique, but these are there twice: {', '.join(twice)}"
        )
    parts: list[tuple[list[CounterSet], list[Device]]] = [
        (sets, []) for sets in _counter_parts(pool.counters)
    ]
    parts += [([], devices) for devices in _device_parts(pool.devices)]
    parts = parts or [([], [])]
    placement = _placement(pool, owner)
    return [
        ResourceSliceSpec(
            driver=owner.driver,
            pool=ResourcePool(name=name, resource_slice_count=len(parts)),
            devices=devices,
            shared_counters=sets,
            partition_type_attribute=pool.partition_type_attribute if devices else None,
            skip_node_operations=list(pool.skip_node_operations),
            **placement,
        )
        for sets, devices in parts
    ]


def attachable(pools: Iterable[Pool]) -> list[Pool]:
    """Return the pools with the attribute on each device which says that a running pod can be given it."""
    mark = {ATTACHABLE_ATTRIBUTE: DeviceAttribute(bool_value=True)}

    def marked(device: Device) -> Device:
        return msgspec.structs.replace(device, attributes={**(device.attributes or {}), **mark})

    return [replace(pool, devices=[marked(device) for device in pool.devices]) for pool in pools]


def _placement(pool: Pool, owner: Owner) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if pool.node_selector is not None:
        given["node_selector"] = pool.node_selector
    if pool.all_nodes:
        given["all_nodes"] = True
    if pool.per_device_node_selection:
        given["per_device_node_selection"] = True
    if pool.node_name:
        given["node_name"] = pool.node_name
    if len(given) > 1:
        raise DriverError(f"pool {pool.name}: choose one placement, not {' and '.join(given)}")
    if not given and not owner.node_name:
        raise DriverError(
            f"pool {pool.name}: say where the devices are (all_nodes, node_selector or node_name)"
        )
    return given or {"node_name": owner.node_name}


def _counter_parts(counters: Sequence[CounterSet]) -> Iterator[list[CounterSet]]:
    for start in range(0, len(counters), MOST_COUNTER_SETS):
        yield list(counters[start : start + MOST_COUNTER_SETS])


def _device_parts(devices: Iterable[Device]) -> Iterator[list[Device]]:
    part: list[Device] = []
    limit = MOST_DEVICES
    for device in devices:
        limit_with = min(limit, MOST_WITH_RICH_DEVICES if is_rich(device) else MOST_DEVICES)
        if len(part) + 1 > limit_with:
            yield part
            part, limit_with = [], MOST_WITH_RICH_DEVICES if is_rich(device) else MOST_DEVICES
        part.append(device)
        limit = limit_with
    if part:
        yield part


def plan_writes(
    wanted: Sequence[ResourceSliceSpec],
    existing: Sequence[ResourceSlice],
    owner: Owner,
    *,
    is_same: Callable[[ResourceSliceSpec, ResourceSliceSpec], bool] | None = None,
) -> list[Write]:
    """Return the writes that turn a pool's existing slices into the wanted ones; none if all is well.

    `wanted` comes from `split_pool` and is empty when the pool is gone. `is_same(wanted, there)` replaces
    `same_content` for a caller that knows what the server made of a spec.
    """
    is_same = is_same or same_content
    if not wanted:
        return [Write("delete", old=there) for there in existing]
    generation = max((there.spec.pool.generation for there in existing), default=0)
    matched, obsolete = _match(existing, len(wanted), generation)
    changed = [index for index, there in matched.items() if not is_same(wanted[index], there.spec)]
    missing = [index for index in range(len(wanted)) if index not in matched]
    is_new_generation = bool(missing) or len(changed) > 1
    if is_new_generation:
        generation += 1
        changed = sorted(matched)
    writes = [Write("delete", old=there) for there in obsolete]
    for index in sorted(changed):
        there = matched[index]
        spec = _final(_with_taint_times(wanted[index], there.spec), generation)
        writes.append(Write("update", there, msgspec.structs.replace(there, spec=spec)))
    for index in missing:
        metadata = ObjectMeta(
            generate_name=_name_prefix(index, owner), owner_references=_owner_references(owner)
        )
        writes.append(
            Write("create", new=ResourceSlice(metadata=metadata, spec=_final(wanted[index], generation)))
        )
    return writes


def split_pools(pools: Iterable[Pool], owner: Owner) -> dict[str, list[ResourceSliceSpec]]:
    """Return the specs of the slices of several pools, by the pools' names."""
    return {pool.name or owner.node_name: split_pool(pool, owner) for pool in pools}


def plan_all_writes(
    wanted: Mapping[str, Sequence[ResourceSliceSpec]],
    existing: Iterable[ResourceSlice],
    owner: Owner,
    *,
    is_same: Callable[[ResourceSliceSpec, ResourceSliceSpec], bool] | None = None,
) -> list[Write]:
    """Return the writes for all pools of a driver, those that it no longer has included.

    `wanted` comes from `split_pools`; of `existing`, what is neither wanted nor the owner's is left alone.
    """
    by_pool: dict[str, list[ResourceSlice]] = {name: [] for name in wanted}
    for there in existing:
        if there.spec.pool.name in wanted or _is_owned(there, owner):
            by_pool.setdefault(there.spec.pool.name, []).append(there)
    return [
        write
        for name, slices in by_pool.items()
        for write in plan_writes(wanted.get(name, ()), slices, owner, is_same=is_same)
    ]


def _is_owned(there: ResourceSlice, owner: Owner) -> bool:
    """Return whether a slice of a pool that the owner no longer has is its to delete."""
    if owner.node_name:
        is_owned = any(reference.uid == owner.node_uid for reference in there.metadata.owner_references)
        return is_owned or there.spec.node_name == owner.node_name
    return not there.metadata.owner_references


def _match(
    existing: Sequence[ResourceSlice], n_wanted: int, generation: int
) -> tuple[dict[int, ResourceSlice], list[ResourceSlice]]:
    matched: dict[int, ResourceSlice] = {}
    obsolete: list[ResourceSlice] = []
    for there in sorted(existing, key=lambda resource_slice: resource_slice.metadata.name):
        found = _INDEXED_NAME.match(there.metadata.name)
        index = int(found.group(1), 16) if found else -1
        if there.spec.pool.generation < generation or index in matched or not 0 <= index < n_wanted:
            obsolete.append(there)
        else:
            matched[index] = there
    return matched, obsolete


def _final(spec: ResourceSliceSpec, generation: int) -> ResourceSliceSpec:
    return msgspec.structs.replace(spec, pool=msgspec.structs.replace(spec.pool, generation=generation))


def _name_prefix(index: int, owner: Owner) -> str:
    prefix = f"{index:0{INDEX_DIGITS}x}-{owner.driver}-"
    return f"{prefix}{owner.node_name}-" if owner.node_name else prefix


def _owner_references(owner: Owner) -> list[OwnerReference]:
    if not owner.node_uid:
        return []
    return [
        OwnerReference(
            api_version="v1", kind="Node", name=owner.node_name, uid=owner.node_uid, controller=True
        )
    ]


def same_content(wanted: ResourceSliceSpec, there: ResourceSliceSpec) -> bool:
    """Return whether a stored slice needs no write: same devices in the same order, whatever the generation.

    The server rewrites quantities in their canonical form and dates taints; neither is a difference.
    """
    return bool(_comparable(wanted) == _comparable(there))


def _comparable(spec: ResourceSliceSpec) -> Any:
    plain = msgspec.to_builtins(_final(spec, 0))
    for device in plain.get("devices", ()):
        for taint in device.get("taints", ()):
            taint.pop("timeAdded", None)
    return _with_exact_quantities(plain)


# Everything under these keys that is text (or a number) is a quantity.
_QUANTITY_KEYS = {
    "value",
    "default",
    "min",
    "max",
    "step",
    "perPod",
    "perContainer",
    "capacityMultiplier",
    "deviceMultiplier",
}
_QUANTITY_PARENTS = {"capacity", "counters", "nodeAllocatableResources"}


def _with_exact_quantities(node: Any, inside: bool = False) -> Any:
    if isinstance(node, Mapping):
        return {
            key: _exact(value)
            if inside and key in _QUANTITY_KEYS and not isinstance(value, Mapping)
            else [_exact(item) for item in value]
            if inside and key == "validValues"
            else _with_exact_quantities(value, inside or key in _QUANTITY_PARENTS)
            for key, value in node.items()
        }
    if isinstance(node, list):
        return [_with_exact_quantities(item, inside) for item in node]
    return node


def _exact(value: Any) -> Any:
    try:
        return canonical_quantity(value)
    except ValueError:
        return value  # the server will refuse it, with a better message than ours


def _with_taint_times(wanted: ResourceSliceSpec, there: ResourceSliceSpec) -> ResourceSliceSpec:
    """Keep the time at which the server first saw a taint; the driver does not know it."""
    known = {
        (device.name, taint.key, taint.value, taint.effect): taint.time_added
        for device in there.devices
        for taint in device.taints
    }
    devices = [
        msgspec.structs.replace(
            device,
            taints=[
                taint
                if taint.time_added
                else msgspec.structs.replace(
                    taint, time_added=known.get((device.name, taint.key, taint.value, taint.effect))
                )
                for taint in device.taints
            ],
        )
        if device.taints
        else device
        for device in wanted.devices
    ]
    return msgspec.structs.replace(wanted, devices=devices)
