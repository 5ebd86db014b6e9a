"""Slices and devices as the search wants them: parsed once, equal parts shared.

A ResourceSlice arrives as an API object and stays one; beside it stand the facts
that the allocator asks for again and again: amounts as integers (nanos), counter
consumption as tuples, taints that matter. Equal content becomes the same object
(`Interner`), so that comparing two devices is comparing two small integers and
5,000 equal nodes keep one copy.

Invariant: facts never change after they are made; a changed slice makes new facts.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import lru_cache
from typing import NamedTuple

import msgspec

from dray.api.quantity import Quantity, parse_quantity
from dray.api.resource import (
    CapacityRequestPolicy,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceTaint,
    DeviceTaintRule,
    ResourceSlice,
)
from dray.api.semver import SemverError, parse_semver
from dray.api.tolerations import BLOCKING_EFFECTS
from dray.devices import rule_selects


class Interner:
    """Gives equal keys the same small integer, for the life of an allocator."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: dict[Hashable, int] = {}

    def __call__(self, key: Hashable) -> int:
        """Return the number of a key."""
        ids = self._ids
        found = ids.get(key)
        if found is None:
            found = ids[key] = len(ids)
        return found


class Consumption(NamedTuple):
    """What a device draws from one counter set."""

    counter_set: str
    counters: tuple[tuple[str, int], ...]  # (counter, nanos)
    groups: frozenset[str]  # compatibility groups; empty means: only with others that have none


class CapacityFacts:
    """The capacities of a device, shared by all devices with the same ones."""

    __slots__ = ("capacities", "id", "policies", "values")

    def __init__(self, id: int, capacities: dict[str, DeviceCapacity]) -> None:
        self.id = id
        self.capacities = capacities
        self.values: dict[str, Quantity] = {name: parse_quantity(c.value) for name, c in capacities.items()}
        self.policies: dict[str, CapacityRequestPolicy | None] = {
            name: c.request_policy for name, c in capacities.items()
        }


class DeviceFacts:
    """One device of one slice."""

    __slots__ = ("capacity", "consumes", "device", "is_odd", "name", "resource_slice", "shape", "taints")

    def __init__(
        self,
        device: Device,
        resource_slice: SliceFacts,
        capacity: CapacityFacts | None,
        consumes: tuple[Consumption, ...],
        taints: tuple[DeviceTaint, ...],
        shape: int,
        *,
        is_odd: bool = False,
    ) -> None:
        self.device = device
        self.name = device.name
        self.resource_slice = resource_slice
        self.capacity = capacity
        self.consumes = consumes
        self.taints = taints  # only those that can block, rules included
        self.shape = shape  # equal for devices that differ in name, attributes and node only
        self.is_odd = is_odd  # has an attribute without a plain value

    @property
    def is_shared(self) -> bool:
        """Return whether several claims may hold the device (if the gate is on)."""
        return bool(self.device.allow_multiple_allocations)


class SliceFacts:
    """One ResourceSlice and the facts about it that pools need."""

    __slots__ = (
        "devices",
        "driver",
        "generation",
        "has_counters",
        "key",
        "name",
        "node_name",
        "per_device",
        "pool",
        "selects_nodes",
        "shape",
        "slice_count",
        "spec",
        "uses_groups",
    )

    def __init__(self, key: str, resource_slice: ResourceSlice) -> None:
        spec = resource_slice.spec
        self.key = key
        self.name = resource_slice.metadata.name
        self.spec = spec
        self.driver = spec.driver
        self.pool = spec.pool.name
        self.generation = spec.pool.generation
        self.slice_count = spec.pool.resource_slice_count
        self.node_name = spec.node_name or ""
        self.selects_nodes = bool(self.node_name or spec.all_nodes or spec.node_selector is not None)
        self.per_device = bool(spec.per_device_node_selection)
        self.has_counters = bool(spec.shared_counters)
        self.uses_groups = any(
            consumption.compatibility_groups
            for device in spec.devices
            for consumption in device.consumes_counters
        )
        self.devices: tuple[DeviceFacts, ...] = ()
        self.shape: Hashable = ()


class SliceInterner:
    """Makes facts out of API objects, sharing equal parts across all slices of an allocator."""

    def __init__(self) -> None:
        self.intern = Interner()
        self._capacities: dict[bytes, CapacityFacts] = {}
        self._consumptions: dict[bytes, tuple[Consumption, ...]] = {}

    def slice_facts(
        self, key: str, resource_slice: ResourceSlice, rules: Iterable[DeviceTaintRule]
    ) -> SliceFacts:
        """Parse a slice. Raises QuantityError (a ValueError) for an amount that is none."""
        facts = SliceFacts(key, resource_slice)
        spec = resource_slice.spec
        matching = [rule for rule in rules if rule_selects(rule, facts.driver, facts.pool, None)]
        oddities = _oddities(spec.devices)
        odd = {position for position, *_ in oddities}
        facts.devices = tuple(
            [
                self._device_facts(facts, device, matching, is_odd=position in odd)
                for position, device in enumerate(spec.devices)
            ]
        )
        counters = tuple(
            (
                counter_set.name,
                tuple(sorted((n, parse_quantity(c.value).nanos) for n, c in counter_set.counters.items())),
            )
            for counter_set in spec.shared_counters
        )
        # Whether a result would be local is not part of the shape: it does not decide feasibility.
        facts.shape = (
            facts.driver,
            counters,
            tuple(spec.skip_node_operations),
            facts.per_device,
            oddities,
        )
        return facts

    def _device_facts(
        self, facts: SliceFacts, device: Device, rules: list[DeviceTaintRule], *, is_odd: bool
    ) -> DeviceFacts:
        capacity = self._capacity_facts(device.capacity) if device.capacity else None
        consumes = self._consumption(device) if device.consumes_counters else ()
        taints: tuple[DeviceTaint, ...] = ()
        if device.taints or rules:
            from_rules = [
                rule.spec.taint for rule in rules if rule_selects(rule, facts.driver, facts.pool, device.name)
            ]
            taints = tuple(t for t in [*device.taints, *from_rules] if t.effect in BLOCKING_EFFECTS)
        shape = self.intern(
            (
                capacity.id if capacity else -1,
                consumes,
                tuple((t.key, t.value, t.effect) for t in taints),
                bool(device.binding_conditions),
                device.binding_conditions is not None,
                bool(device.allow_multiple_allocations),
            )
        )
        return DeviceFacts(device, facts, capacity, consumes, taints, shape, is_odd=is_odd)

    def _capacity_facts(self, capacity: dict[str, DeviceCapacity]) -> CapacityFacts:
        # Sorted, so that the order of the JSON object does not make a new shape.
        key = msgspec.json.encode(sorted(capacity.items()))
        found = self._capacities.get(key)
        if found is None:
            found = self._capacities[key] = CapacityFacts(len(self._capacities), capacity)
        return found

    def _consumption(self, device: Device) -> tuple[Consumption, ...]:
        key = msgspec.json.encode(device.consumes_counters)
        found = self._consumptions.get(key)
        if found is None:
            found = self._consumptions[key] = tuple(
                Consumption(
                    consumption.counter_set,
                    tuple((name, parse_quantity(c.value).nanos) for name, c in consumption.counters.items()),
                    frozenset(consumption.compatibility_groups),
                )
                for consumption in device.consumes_counters
            )
        return found


def is_odd(attribute: DeviceAttribute) -> bool:
    """Return whether an attribute has no plain readable value: then every selector may fail on its device."""
    if attribute.string is not None or attribute.int_value is not None or attribute.bool_value is not None:
        return False
    return attribute.version is None or not _is_version(attribute.version)


def _oddities(devices: list[Device]) -> tuple[tuple[int, str, bytes], ...]:
    """List the odd attributes: devices are alike only if they are odd in the same way."""
    found = []
    for position, device in enumerate(devices):
        for name, attribute in (device.attributes or {}).items():
            # Most attributes are texts: ask that first, here, without a call.
            if attribute.string is None and is_odd(attribute):
                found.append((position, name, msgspec.json.encode(attribute)))
    return tuple(found)


@lru_cache(maxsize=4096)
def _is_version(text: str) -> bool:
    try:
        parse_semver(text)
    except SemverError:
        return False
    return True


def find_attribute(device: DeviceFacts, name: str) -> DeviceAttribute | None:
    """Look an attribute up by its full name; a driver's own may be published without the domain."""
    return attribute_of(device.device.attributes, device.resource_slice.driver, name)


def attribute_of(
    attributes: dict[str, DeviceAttribute] | None, driver: str, name: str
) -> DeviceAttribute | None:
    """Look up `domain/id`, falling back to the bare id in the driver's own domain."""
    if not attributes:
        return None
    found = attributes.get(name)
    if found is not None:
        return found
    domain, slash, identifier = name.partition("/")
    if slash and domain == driver:
        return attributes.get(identifier)
    return None
