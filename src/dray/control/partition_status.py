"""How many partitions of each type a pool has, and how many more still fit (alpha, gate DRAPartitionableDevicesType).

Partitions of one board draw from shared counters, so "free devices" says little: seven small
ones may be free and yet only three fit. A slice names the attribute that tells the types
apart (or, where no slice of the pool does, the request for the status does). Per type we
count the partitions that exist and those that the counters have room for *now*, each type for
itself: the room is not divided between types.

Partitions of one type must cost the same, else "how many fit" has no answer; that and a
partition without a type make the view an error text in place of a summary.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from dray.api.quantity import parse_quantity
from dray.api.resource import Device, ResourceSlice

MAX_TYPES = 32  # entries of a summary that the API accepts

Counter = tuple[str, str]  # counter set, counter
Cost = dict[Counter, int]  # in nanos
TypeKey = tuple[str, str]  # attribute, value


def partition_summary(
    driver: str, slices: Sequence[ResourceSlice], in_use: Collection[str], default_attribute: str | None
) -> list[dict[str, Any]] | str | None:
    """Summarise a complete pool; None when nothing tells the types apart, a text when the pool is at fault.

    `in_use` are names of devices that some claim holds.
    """
    declared = any(each.spec.partition_type_attribute for each in slices)
    attribute = None if declared else default_attribute
    if not declared and attribute is None:
        return None
    room = _room(slices, in_use)
    if not room:
        return "PartitionTypeMissing: the pool names a partition type attribute, but has no shared counters"
    try:
        groups = _groups(driver, slices, attribute)
    except _Unclear as problem:
        return str(problem)
    if len(groups) > MAX_TYPES:
        return f"PartitionSummaryOverCap: {len(groups)} partition types, at most {MAX_TYPES} can be reported"
    return [
        {
            "attribute": name,
            "type": kind,
            "total": len(devices),
            "allocatable": _how_many_fit(devices, room, in_use),
        }
        for (name, kind), devices in sorted(groups.items())
    ]


class _Unclear(Exception):
    """The pool's partitions cannot be summarised; the message says why."""


def _groups(
    driver: str, slices: Sequence[ResourceSlice], attribute: str | None
) -> dict[TypeKey, list[Device]]:
    groups: dict[TypeKey, list[Device]] = {}
    for found in slices:
        name = found.spec.partition_type_attribute or attribute
        for device in found.spec.devices:
            if name is None or not device.consumes_counters:
                continue
            kind = _type_of(driver, device, name)
            if kind is None:
                raise _Unclear(f"PartitionTypeMissing: device {device.name} has no text attribute {name}")
            group = groups.setdefault((name, kind), [])
            if group and _cost(group[0]) != _cost(device):
                raise _Unclear(f"PartitionCostMismatch: devices of type {kind} draw different amounts")
            group.append(device)
    return groups


def _type_of(driver: str, device: Device, name: str) -> str | None:
    attributes = device.attributes or {}
    domain, _, short = name.partition("/")
    value = attributes.get(name) or (attributes.get(short) if domain == driver else None)
    return value.string if value is not None else None


def _cost(device: Device) -> Cost:
    return dict(_draws(device))


def _draws(device: Device) -> Iterator[tuple[Counter, int]]:
    for consumption in device.consumes_counters:
        for name, counter in consumption.counters.items():
            yield (consumption.counter_set, name), parse_quantity(counter.value).nanos


def _room(slices: Iterable[ResourceSlice], in_use: Collection[str]) -> Cost:
    """Return what is left of the counters; a device draws once, however many claims share it."""
    slices = list(slices)
    room: Cost = {
        (counters.name, name): parse_quantity(counter.value).nanos
        for found in slices
        for counters in found.spec.shared_counters
        for name, counter in counters.counters.items()
    }
    for device in (each for found in slices for each in found.spec.devices if each.name in in_use):
        for counter, amount in _draws(device):
            if counter in room:
                room[counter] -= amount
    return room


def _how_many_fit(devices: Sequence[Device], room: Cost, in_use: Collection[str]) -> int:
    free = sum(device.name not in in_use for device in devices)
    limits = [max(0, room.get(counter, 0)) // amount for counter, amount in _draws(devices[0]) if amount > 0]
    return min([free, *limits])
