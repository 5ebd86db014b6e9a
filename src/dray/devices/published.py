"""What slices publish, reduced to what can be used up: shares, capacities, counters.

A pool may be published in several slices, and is replaced by slices of a higher generation; only the
newest generation counts (`newest_generation`), as everywhere in DRA. Whether it is complete is a question
of its own (`is_complete`): nothing new is allocated from an incomplete pool, but what is in use stays.

Theory of operation. Slices change rarely and are many, questions are about few devices: a pool is indexed
when it is asked for and the index is dropped when one of its slices changes; the amounts of a device are
parsed when somebody asks about that device. Slices are taken in any form that has the fields named here:
the scheduler follows whole ResourceSlices, the guard follows light views of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from dray.api.resource import CounterSet, DeviceCounterConsumption, ResourcePool
from dray.devices.identities import DeviceId, PoolId
from dray.devices.ledger import amount

# --- what is read of a slice ----------------------------------------------------


class PublishedAmount(Protocol):
    """How much of something there is."""

    @property
    def value(self) -> str | int | float:
        """A quantity."""


class PublishedDevice(Protocol):
    """A device, as far as it can be used up."""

    @property
    def name(self) -> str:
        """Its name within the pool."""

    @property
    def capacity(self) -> Mapping[str, PublishedAmount] | None:
        """What its shares are taken from."""

    @property
    def consumes_counters(self) -> Sequence[DeviceCounterConsumption]:
        """What it draws while it is in use."""

    @property
    def allow_multiple_allocations(self) -> bool | None:
        """Return whether it is given in shares."""


DeviceT = TypeVar("DeviceT", bound=PublishedDevice)
DeviceT_co = TypeVar("DeviceT_co", bound=PublishedDevice, covariant=True)


class PublishedPart(Protocol[DeviceT_co]):
    """The spec of a slice: some of a pool's devices, or its counters."""

    @property
    def driver(self) -> str:
        """Who publishes it."""

    @property
    def pool(self) -> ResourcePool:
        """Which pool, and which generation of it."""

    @property
    def devices(self) -> Sequence[DeviceT_co]:
        """The devices of this part."""

    @property
    def shared_counters(self) -> Sequence[CounterSet]:
        """The counters of this part."""


class Named(Protocol):
    """Metadata."""

    @property
    def name(self) -> str:
        """The object's name."""


class PublishedSlice(Protocol[DeviceT_co]):
    """A slice."""

    @property
    def metadata(self) -> Named:
        """Who it is."""

    @property
    def spec(self) -> PublishedPart[DeviceT_co]:
        """What it publishes."""


# --- generations ----------------------------------------------------------------


class PartOfPool(Protocol):
    """The spec of a slice, as far as it says which pool it belongs to."""

    @property
    def driver(self) -> str:
        """Who publishes it."""

    @property
    def pool(self) -> ResourcePool:
        """Which pool, and which generation of it."""


class SliceOfPool(Protocol):
    """A slice, as far as it says which pool it belongs to."""

    @property
    def spec(self) -> PartOfPool:
        """What it publishes."""


SliceT = TypeVar("SliceT", bound=SliceOfPool)


def pool_id_of(resource_slice: SliceOfPool) -> PoolId:
    """Return the pool that a slice belongs to."""
    return PoolId(resource_slice.spec.driver, resource_slice.spec.pool.name)


def slices_by_pool(slices: Iterable[SliceT]) -> dict[PoolId, list[SliceT]]:
    """Return the slices of each pool, of all generations."""
    found: dict[PoolId, list[SliceT]] = {}
    for each in slices:
        found.setdefault(pool_id_of(each), []).append(each)
    return found


def newest_generation(slices: Collection[SliceT]) -> list[SliceT]:
    """Return those slices of one pool that are of its newest generation, in the order given."""
    newest = max((each.spec.pool.generation for each in slices), default=0)
    return [each for each in slices if each.spec.pool.generation == newest]


def is_complete(generation: Sequence[SliceOfPool]) -> bool:
    """Return whether all slices of a generation are there, as many as the first one announces."""
    return bool(generation) and len(generation) == generation[0].spec.pool.resource_slice_count


# --- what is known of a pool ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Draw:
    """What a device takes of one counter set while it is in use."""

    counter_set: str
    counters: dict[str, int]
    groups: frozenset[str]  # compatibility groups


class DeviceFacts:
    """A device, as far as it can be used up."""

    __slots__ = ("_capacity", "_device", "draws", "is_shareable")

    def __init__(self, device: PublishedDevice) -> None:
        self._device = device
        self._capacity: dict[str, int] | None = None
        self.is_shareable = bool(device.allow_multiple_allocations)
        self.draws = tuple([_draw_of(each) for each in device.consumes_counters])

    @property
    def capacity(self) -> dict[str, int]:
        """What its shares are taken from; most devices are held whole, and nobody asks."""
        if self._capacity is None:
            capacity = self._device.capacity or {}
            self._capacity = {name: amount(each.value) for name, each in capacity.items()}
        return self._capacity


def _draw_of(consumption: DeviceCounterConsumption) -> Draw:
    counters = {name: amount(counter.value) for name, counter in consumption.counters.items()}
    return Draw(consumption.counter_set, counters, frozenset(consumption.compatibility_groups))


class PoolFacts(Generic[DeviceT]):
    """The newest generation of one pool."""

    __slots__ = ("_drawers", "_facts", "_limits", "_parts", "devices")

    def __init__(self, slices: Collection[PublishedSlice[DeviceT]]) -> None:
        self._parts = [each.spec for each in newest_generation(slices)]
        self.devices = {device.name: device for part in self._parts for device in part.devices}
        self._facts: dict[str, DeviceFacts] = {}
        self._limits: dict[tuple[str, str], int] | None = None
        self._drawers: dict[str, list[str]] | None = None

    def facts(self, name: str) -> DeviceFacts | None:
        """Return what a device has, None when it is not published."""
        found = self._facts.get(name)
        if found is None:
            device = self.devices.get(name)
            if device is None:
                return None
            found = self._facts[name] = DeviceFacts(device)
        return found

    @property
    def limits(self) -> Mapping[tuple[str, str], int]:
        """How much there is, by counter set and counter."""
        if self._limits is None:
            self._limits = {
                (counters.name, name): amount(counter.value)
                for part in self._parts
                for counters in part.shared_counters
                for name, counter in counters.counters.items()
            }
        return self._limits

    def drawers(self, counter_set: str) -> Sequence[str]:
        """Return the devices that draw from a counter set when they are in use."""
        if self._drawers is None:
            found: dict[str, dict[str, None]] = defaultdict(dict)  # each device once
            for name, device in self.devices.items():
                for draw in device.consumes_counters:
                    found[draw.counter_set][name] = None
            self._drawers = {key: list(names) for key, names in found.items()}
        return self._drawers.get(counter_set, ())


class Pools(Generic[DeviceT]):
    """Follows slices and answers what a pool has."""

    def __init__(self) -> None:
        self._slices: dict[PoolId, dict[str, PublishedSlice[DeviceT]]] = {}
        self._pools: dict[PoolId, PoolFacts[DeviceT]] = {}

    def set_slice(self, old: PublishedSlice[DeviceT] | None, new: PublishedSlice[DeviceT] | None) -> None:
        """Take note of a slice that came, changed or went."""
        before = pool_id_of(old) if old is not None else None
        after = pool_id_of(new) if new is not None else None
        if old is not None and before is not None and before != after:
            self._pools.pop(before, None)
            slices = self._slices.get(before, {})
            slices.pop(old.metadata.name, None)
            if not slices:
                self._slices.pop(before, None)  # names that nobody publishes must not pile up
        if new is not None and after is not None:
            self._pools.pop(after, None)
            self._slices.setdefault(after, {})[new.metadata.name] = new

    def pool(self, key: PoolId) -> PoolFacts[DeviceT] | None:
        """Return a pool as it is published now."""
        found = self._pools.get(key)
        if found is None:
            slices = self._slices.get(key)
            if slices is None:
                return None
            found = self._pools[key] = PoolFacts(slices.values())
        return found

    def published(self) -> Iterator[DeviceId]:
        """Yield every device that is published now."""
        for key in self._slices:
            pool = self.pool(key)
            for name in pool.devices if pool is not None else ():
                yield DeviceId(*key, name)

    def device(self, key: DeviceId) -> DeviceT | None:
        """Return a device as it is published now."""
        pool = self.pool(key.pool_id)
        return pool.devices.get(key.device) if pool is not None else None

    def facts(self, key: DeviceId) -> DeviceFacts | None:
        """Return what a device has, None when it is not published."""
        pool = self._pools.get(key.pool_id) or self.pool(key.pool_id)
        return pool.facts(key.device) if pool is not None else None

    def drawers(self, pool: PoolId, counter_set: str) -> Sequence[str]:
        """Return the devices that draw from a counter set when they are in use."""
        found = self.pool(pool)
        return found.drawers(counter_set) if found is not None else ()
