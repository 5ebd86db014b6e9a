"""The one book of what is in use.

Every allocation, written in a claim or still in flight, is entered here; nothing
else knows about occupancy. A device is used *dedicated* (nobody else may have it) or
in *shares* (others may have what is left of its capacities). Admin access is not use.

Theory of operation: `take` enters one allocation and returns the function that
strikes out exactly that entry, so entries may be undone in any order. After each
change the listener is told which device changed; pools keep their bit sets up to
date that way and are never recomputed.

Invariant (tests/property/test_allocator_ledger_laws.py): once every entry is undone,
the ledger equals an empty one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dray.allocator.answers import DeviceId, Undo
from dray.api.quantity import parse_quantity
from dray.api.resource import AllocationResult, DeviceRequestAllocationResult

PoolId = tuple[str, str]  # driver, pool
Amounts = dict[str, int]  # capacity -> nanos
Key = TypeVar("Key")


class DeviceUse:
    """Who uses one device, and how much of it."""

    __slots__ = ("consumed", "holders", "shares")

    def __init__(self) -> None:
        self.holders: dict[str, int] = {}  # owner -> how many dedicated entries
        self.shares: dict[tuple[str, str], int] = {}  # (owner, share id) -> entries
        self.consumed: Amounts = {}  # sum over the shares

    @property
    def is_dedicated(self) -> bool:
        """Say whether nobody else may have the device."""
        return bool(self.holders)

    @property
    def is_shared(self) -> bool:
        """Say whether somebody holds a share."""
        return bool(self.shares)

    def owners(self) -> list[str]:
        """Return who holds the device, for people."""
        return [*self.holders, *(owner for owner, _ in self.shares)]


class Ledger:
    """Occupancy of all devices, published or not."""

    def __init__(
        self, *, shares_count: bool, on_change: Callable[[PoolId, str, DeviceUse | None], None]
    ) -> None:
        """`shares_count` is the gate DRAConsumableCapacity: without it shares are dedicated use."""
        self._shares_count = shares_count
        self._on_change = on_change
        self.pools: dict[PoolId, dict[str, DeviceUse]] = {}

    def use_of(self, device: DeviceId) -> DeviceUse | None:
        """Return who uses the device; None when nobody does."""
        pool = self.pools.get((device.driver, device.pool))
        return pool.get(device.device) if pool else None

    def take(self, owner: str, allocation: AllocationResult) -> Undo:
        """Enter an allocation; the undo strikes it out (a second call does nothing)."""
        undos = [
            self._take_result(owner, result)
            for result in allocation.devices.results
            if not result.admin_access
        ]

        def undo() -> None:
            while undos:
                undos.pop()()

        return undo

    def take_dedicated(self, owner: str, device: DeviceId) -> Undo:
        """Enter dedicated use of one device."""
        use = self._entry(device)
        use.holders[owner] = use.holders.get(owner, 0) + 1
        self._changed(device, use)

        def undo() -> None:
            _decrement(use.holders, owner)
            self._changed(device, use)

        return undo

    def take_share(self, owner: str, device: DeviceId, share_id: str, amounts: Amounts) -> Undo:
        """Enter a share of one device."""
        use = self._entry(device)
        key = (owner, share_id)
        use.shares[key] = use.shares.get(key, 0) + 1
        for name, nanos in amounts.items():
            use.consumed[name] = use.consumed.get(name, 0) + nanos
        self._changed(device, use)

        def undo() -> None:
            _decrement(use.shares, key)
            for name, nanos in amounts.items():
                use.consumed[name] -= nanos
                if not use.consumed[name]:
                    del use.consumed[name]
            self._changed(device, use)

        return undo

    def _take_result(self, owner: str, result: DeviceRequestAllocationResult) -> Undo:
        device = DeviceId(result.driver, result.pool, result.device)
        if self._shares_count and result.share_id is not None:
            amounts = {
                name: parse_quantity(value).nanos for name, value in (result.consumed_capacity or {}).items()
            }
            return self.take_share(owner, device, result.share_id, amounts)
        return self.take_dedicated(owner, device)

    def _entry(self, device: DeviceId) -> DeviceUse:
        pool = self.pools.setdefault((device.driver, device.pool), {})
        use = pool.get(device.device)
        if use is None:
            use = pool[device.device] = DeviceUse()
        return use

    def _changed(self, device: DeviceId, use: DeviceUse) -> None:
        pool_id = (device.driver, device.pool)
        if use.holders or use.shares:
            # An undo may bring an entry back that had been dropped meanwhile.
            self.pools.setdefault(pool_id, {})[device.device] = use
            self._on_change(pool_id, device.device, use)
            return
        pool = self.pools.get(pool_id)
        if pool is not None:
            pool.pop(device.device, None)
            if not pool:
                del self.pools[pool_id]
        self._on_change(pool_id, device.device, None)


def _decrement(counts: dict[Key, int], key: Key) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
