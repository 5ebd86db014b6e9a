"""What the slices publish, reduced to what can be used up: shares, capacities, counters.

A pool may be published in several slices, and is replaced by slices of a higher generation; only
the highest generation seen counts, as everywhere in DRA. Pools are worked out when they are
asked for and forgotten when one of their slices changes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from dray.api.quantity import parse_quantity
from dray.control.guarding.views import Slice

DeviceKey = tuple[str, str, str]  # driver, pool, device
PoolKey = tuple[str, str]  # driver, pool


def amount(value: str | int | float) -> int:
    """Read a quantity as a whole number of nanos."""
    return parse_quantity(value).nanos


@dataclass(frozen=True, slots=True)
class Draw:
    """What a device takes of one counter set while it is in use."""

    counter_set: str
    counters: dict[str, int]
    groups: frozenset[str]


@dataclass(frozen=True, slots=True)
class KnownDevice:
    """A device, as far as it can be used up."""

    is_shareable: bool
    capacity: dict[str, int]
    draws: tuple[Draw, ...]


@dataclass(slots=True)
class _Pool:
    devices: dict[str, KnownDevice] = field(default_factory=dict)
    limits: dict[tuple[str, str], int] = field(default_factory=dict)  # (counter set, counter) -> value


_NOTHING = _Pool()


class Inventory:
    """Follows slices and answers what a device has."""

    def __init__(self) -> None:
        self._slices: dict[PoolKey, dict[str, Slice]] = defaultdict(dict)
        self._pools: dict[PoolKey, _Pool] = {}

    def set_slice(self, old: Slice | None, new: Slice | None) -> None:
        """Take note of a slice that came, changed or went."""
        if old is not None:
            pool = (old.spec.driver, old.spec.pool.name)
            self._slices[pool].pop(old.metadata.name, None)
            self._pools.pop(pool, None)
            if not self._slices[pool]:
                del self._slices[pool]
        if new is not None:
            pool = (new.spec.driver, new.spec.pool.name)
            self._slices[pool][new.metadata.name] = new
            self._pools.pop(pool, None)

    def device(self, key: DeviceKey) -> KnownDevice | None:
        """Return a device as it is published now."""
        return self._pool(key[:2]).devices.get(key[2])

    def limits(self, pool: PoolKey) -> dict[tuple[str, str], int]:
        """Return the counters of a pool."""
        return self._pool(pool).limits

    def _pool(self, key: PoolKey) -> _Pool:
        found = self._pools.get(key)
        if found is None:
            slices = self._slices.get(key)
            found = self._pools[key] = _worked_out(list(slices.values())) if slices else _NOTHING
            if found is _NOTHING:
                del self._pools[key]  # names that nobody publishes must not pile up
        return found


def _worked_out(slices: list[Slice]) -> _Pool:
    pool = _Pool()
    newest = max(each.spec.pool.generation for each in slices)
    for each in slices:
        if each.spec.pool.generation != newest:
            continue
        for device in each.spec.devices:
            draws = tuple(
                Draw(
                    draw.counter_set,
                    {name: amount(counter.value) for name, counter in draw.counters.items()},
                    frozenset(draw.compatibility_groups),
                )
                for draw in device.consumes_counters
            )
            capacity = {name: amount(value.value) for name, value in device.capacity.items()}
            pool.devices[device.name] = KnownDevice(bool(device.allow_multiple_allocations), capacity, draws)
        for counters in each.spec.shared_counters:
            for name, counter in counters.counters.items():
                pool.limits[counters.name, name] = amount(counter.value)
    return pool
