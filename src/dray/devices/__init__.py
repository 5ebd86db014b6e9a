"""What devices exist and who holds them: the one source of truth, for every package above.

  * `identities`: `DeviceId` and `PoolId`;
  * `published`: what slices publish; the newest generation of a pool and whether it is complete;
  * `taints`: taints, tolerations and taint rules;
  * `groups`: compatibility groups;
  * `ledger`: the one ledger of use (`take() -> Undo`);
  * `conflicts`: which claims may hold which devices side by side.

Pure: no clock, no I/O. The allocator keeps views of this (bit sets, classes of equal nodes); the guard, the
controllers and the tools use it directly.
"""

from dray.devices.conflicts import Conflict, Occupancy, Rule, exceeded, excludes
from dray.devices.groups import Groups, admits_groups, narrow_groups
from dray.devices.identities import DeviceId, PoolId, device_id_of
from dray.devices.ledger import Amounts, DeviceUse, Hold, Holds, Ledger, Undo, amount, holds_of
from dray.devices.published import (
    Pools,
    PublishedDevice,
    PublishedSlice,
    is_complete,
    newest_generation,
    pool_id_of,
    slices_by_pool,
)
from dray.devices.taints import rule_selects, tolerates_eviction

__all__ = [
    "Amounts",
    "Conflict",
    "DeviceId",
    "DeviceUse",
    "Groups",
    "Hold",
    "Holds",
    "Ledger",
    "Occupancy",
    "PoolId",
    "Pools",
    "PublishedDevice",
    "PublishedSlice",
    "Rule",
    "Undo",
    "admits_groups",
    "amount",
    "device_id_of",
    "exceeded",
    "excludes",
    "holds_of",
    "is_complete",
    "narrow_groups",
    "newest_generation",
    "pool_id_of",
    "rule_selects",
    "slices_by_pool",
    "tolerates_eviction",
]
