"""What is free on a node, and what claims take of it, as plain numbers: the input of node policies.

A policy compares thousands of nodes, so it gets summaries instead of plans: the free thousandths of every
device, and for each request how many devices of which positions it takes how much of. A summary says nothing
about constraints and counters; whether claims fit is decided by the search alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dray.allocator.capacity import Need
from dray.allocator.device_facts import CapacityFacts
from dray.allocator.policies import WHOLE
from dray.allocator.pool_matches import PoolMatches
from dray.allocator.pools import NodeView, PoolView
from dray.allocator.query_cache import CachedQuery


class RequestFootprint(NamedTuple):
    """What one request takes on a node."""

    n_devices: int
    amount: int  # thousandths of each device
    matching: int  # positions of the devices it selects, as a bit set


def least_left(
    facts: CapacityFacts, used: Mapping[str, int] | None, more: Mapping[str, int] | None = None
) -> int:
    """Return the free thousandths of a device that is shared: what is left of its scarcest capacity."""
    free = WHOLE
    for name, value in facts.values.items():
        if value.nanos > 0:
            gone = (used.get(name, 0) if used else 0) + (more.get(name, 0) if more else 0)
            free = min(free, (value.nanos - gone) * WHOLE // value.nanos)
    return max(0, free)


def free_devices(view: NodeView) -> tuple[int, ...]:
    """Return the free thousandths of all devices of a node, by position."""
    found: list[int] = []
    for pool in view.pools:
        if pool.is_usable:
            found += _free_in(pool)
    return tuple(found)


def _free_in(pool: PoolView) -> list[int]:
    found: list[int] = []
    for bit, facts in enumerate(pool.devices):
        if pool.dedicated >> bit & 1:
            found.append(0)
        elif facts.capacity is None or not pool.shared >> bit & 1:
            found.append(WHOLE)
        else:
            found.append(least_left(facts.capacity, pool.consumed.get(bit)))
    return found


def footprints(query: CachedQuery, view: NodeView) -> tuple[RequestFootprint, ...] | None:
    """Return what each request takes on a node, its first alternative.

    None where a summary cannot tell: partitions, "all devices", different amounts on different devices.
    """
    found: list[RequestFootprint] = []
    for request in query.compiled.requests:
        subrequest = request.subrequests[0]
        if subrequest.admin:
            continue  # takes nothing
        if subrequest.wants_all:
            return None
        matching, offset = 0, 0
        amounts: set[int] = set()
        for pool in view.pools:
            if not pool.is_usable:
                continue
            matches = query.matches(pool)
            row = matches.subrequests[subrequest.number]
            usable = row.matched & ~(row.tainted | row.uncountable | row.unsuitable)
            if usable & matches.consumers:
                return None
            matching |= usable << offset
            offset += len(pool.devices)
            for bit in range(len(pool.devices)):
                if usable >> bit & 1:
                    amounts.add(_amount(pool, matches, bit, row.needs.get(bit)))
        if len(amounts) > 1:
            return None
        found.append(RequestFootprint(subrequest.count, max(amounts, default=WHOLE), matching))
    return tuple(found)


def _amount(pool: PoolView, matches: PoolMatches, bit: int, need: Need | None) -> int:
    capacity = pool.devices[bit].capacity
    if need is None or capacity is None or not matches.shared >> bit & 1:
        return WHOLE
    return WHOLE - least_left(capacity, None, need.nanos)
