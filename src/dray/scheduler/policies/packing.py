"""`first-fit`: nodes in order. `pack`: the fullest node that fits, so that whole nodes and devices stay free.

`pack` takes the least free devices first. Devices that stay free while the
cpu beside them is used up are lost, so devices beyond the share of the cpu that is left count twice.
"""

from __future__ import annotations

from dray.allocator import POLICIES
from dray.scheduler.policies.protocol import WHOLE, NodePolicy, NodeSupply, PodDemand


class FirstFit(NodePolicy):
    """Take the first node that fits, and its first devices."""

    name = "first-fit"
    devices = plans = POLICIES["first-fit"]

    def score(self, pod: PodDemand, before: NodeSupply, after: NodeSupply) -> float:
        """Leave the order as it is."""
        return 0.0

    score_without_devices = score


class Pack(NodePolicy):
    """Fill nodes one after the other."""

    name = "pack"

    def score(self, pod: PodDemand, before: NodeSupply, after: NodeSupply) -> float:
        """Prefer what leaves the fewest devices free, with cpu to match."""
        capacity = len(after.devices) * WHOLE
        free = after.free
        if not after.cpu_total or not capacity:
            return -free
        return -free - max(0.0, free - after.cpu / after.cpu_total * capacity)
