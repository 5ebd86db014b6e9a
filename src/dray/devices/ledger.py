"""The one ledger of what is in use.

Every allocation, stored in a claim or still in flight, is entered here; nothing else knows about
occupancy. A device is used *whole* (nobody else may have it) or in *shares* (others may have what is
left of its capacities). Admin access is not use.

Theory of operation: `holds_of` adds up what one allocation takes of each device. `take` enters it for an
owner and returns the function that removes exactly that entry, so entries may be undone in any order.
An owner may have several entries for one device: an allocation that is in flight and the same one read
back, or the alternatives that the guard does not yet know the outcome of. After each change the listener
is told which device changed; pools keep their bit sets up to date that way and are never recomputed.

Invariant (tests/property/test_devices_ledger_laws.py): once every entry is undone, the ledger equals an
empty one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Protocol

import msgspec

from dray.api.quantity import parse_quantity
from dray.devices.identities import DeviceId, NamesDevice, PoolId

Undo = Callable[[], None]
Amounts = dict[str, int]  # capacity -> nanos


@lru_cache(maxsize=65536)
def amount(value: str | int | float) -> int:
    """Return a quantity in nanos. Raises QuantityError (a ValueError) for what is not one.

    A negative amount counts as zero: it would leave more to others than there is.
    """
    return max(0, parse_quantity(value).nanos)


class AllocatedDevice(NamesDevice, Protocol):
    """One result of an allocation: a device, or a share of one."""

    @property
    def admin_access(self) -> bool | None:
        """Return whether the device is administered rather than used."""

    @property
    def share_id(self) -> str | None:
        """Which share; None means the whole device."""

    @property
    def consumed_capacity(self) -> Mapping[str, str | int | float] | None:
        """What the share takes of the device's capacities."""


class Hold(msgspec.Struct, frozen=True, gc=False):
    """What one entry takes of one device."""

    shares: tuple[str, ...]  # share ids, sorted, each once; empty means: the whole device
    consumed: Amounts


Holds = dict[DeviceId, Hold]

WHOLE = Hold((), {})  # nearly all holds are this one


def holds_of(results: Iterable[AllocatedDevice], *, with_shares: bool = True) -> Holds:
    """Add up what the results of an allocation take of each device.

    `with_shares` is the gate DRAConsumableCapacity: without it a share is the whole device.
    """
    holds: Holds = {}
    for result in results:
        if result.admin_access:
            continue
        device = DeviceId(result.driver, result.pool, result.device)
        share, consumed = result.share_id, result.consumed_capacity
        hold = WHOLE
        if with_shares and (share is not None or consumed):
            amounts = {name: amount(value) for name, value in consumed.items()} if consumed else {}
            hold = Hold(() if share is None else (share,), amounts)
        earlier = holds.setdefault(device, hold)
        if earlier is not hold:
            holds[device] = _together(earlier, hold)
    return holds


def _together(one: Hold, other: Hold) -> Hold:
    consumed = {
        name: one.consumed.get(name, 0) + other.consumed.get(name, 0)
        for name in one.consumed | other.consumed
    }
    if not one.shares or not other.shares:  # one entry for the whole device makes all of it taken
        return Hold((), consumed)
    return Hold(tuple(sorted({*one.shares, *other.shares})), consumed)


class DeviceUse:
    """Who uses one device, and how much of it."""

    __slots__ = ("_n_shared", "_n_whole", "consumed", "holds_by_owner")

    def __init__(self) -> None:
        self.holds_by_owner: dict[str, tuple[Hold, ...]] = {}
        self.consumed: Amounts = {}  # sum over all entries
        self._n_whole = 0
        self._n_shared = 0

    @property
    def is_whole(self) -> bool:
        """Return whether somebody has the whole device."""
        return self._n_whole > 0

    @property
    def is_shared(self) -> bool:
        """Return whether somebody has a share."""
        return self._n_shared > 0

    def owners(self) -> list[str]:
        """Return who uses the device."""
        return list(self.holds_by_owner)

    def add(self, owner: str, hold: Hold) -> None:
        """Enter a hold."""
        self.holds_by_owner[owner] = (*self.holds_by_owner.get(owner, ()), hold)
        if not hold.shares:
            self._n_whole += 1
        else:
            self._n_shared += 1
        for name, nanos in hold.consumed.items():
            if nanos:
                self.consumed[name] = self.consumed.get(name, 0) + nanos

    def remove(self, owner: str, hold: Hold) -> None:
        """Remove a hold that was entered."""
        holds = self.holds_by_owner[owner]
        if len(holds) == 1:
            del self.holds_by_owner[owner]
        else:
            place = holds.index(hold)
            self.holds_by_owner[owner] = holds[:place] + holds[place + 1 :]
        if not hold.shares:
            self._n_whole -= 1
        else:
            self._n_shared -= 1
        for name, nanos in hold.consumed.items():
            if nanos:
                left = self.consumed[name] - nanos
                if left:
                    self.consumed[name] = left
                else:
                    del self.consumed[name]


def _ignore(_pool: PoolId, _device: str, _use: DeviceUse | None) -> None:
    """Stand in where nobody listens."""


class Ledger:
    """Occupancy of all devices, published or not. Not for several threads."""

    def __init__(self, on_change: Callable[[PoolId, str, DeviceUse | None], None] = _ignore) -> None:
        self._on_change = on_change
        self.pools: dict[PoolId, dict[str, DeviceUse]] = {}

    def use_of(self, device: DeviceId) -> DeviceUse | None:
        """Return who uses the device; None when nobody does."""
        pool = self.pools.get(device[:2])  # type: ignore[call-overload]  # equal to the PoolId, and quicker
        return pool.get(device.device) if pool else None

    def devices(self) -> Iterator[DeviceId]:
        """Yield every device that is in use."""
        for pool, uses in self.pools.items():
            for name in uses:
                yield DeviceId(*pool, name)

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is in use."""
        return not self.pools

    def take(self, owner: str, holds: Mapping[DeviceId, Hold]) -> Undo:
        """Enter what an owner has; the undo removes exactly that (a second call does nothing)."""
        entered = list(holds.items())
        for device, hold in entered:
            pool = self.pools.setdefault(PoolId(device.driver, device.pool), {})
            use = pool.get(device.device)
            if use is None:
                use = pool[device.device] = DeviceUse()
            use.add(owner, hold)
            self._on_change(PoolId(device.driver, device.pool), device.device, use)

        def undo() -> None:
            while entered:
                self._remove(owner, *entered.pop())

        return undo

    def _remove(self, owner: str, device: DeviceId, hold: Hold) -> None:
        pool_id = PoolId(device.driver, device.pool)
        pool = self.pools[pool_id]
        use = pool[device.device]
        use.remove(owner, hold)
        if use.holds_by_owner:
            self._on_change(pool_id, device.device, use)
            return
        del pool[device.device]
        if not pool:
            del self.pools[pool_id]
        self._on_change(pool_id, device.device, None)
