"""`first-fit`: nodes in order. `pack`: the fullest node that fits, so that whole nodes and devices stay free.

`pack` takes the least free devices first. Devices that stay free while the
cpu beside them is used up are lost, so devices beyond the share of the cpu that is left count twice. Hardware that
other pods ask for by name, or for its size, is left to them while there is other room (`scarcity`): the fullest node
is often a small one of a rare model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dray.allocator import POLICIES
from dray.scheduler.policies.protocol import WHOLE, NodePolicy, NodeSupply, PodDemand
from dray.scheduler.policies.request_mix import RequestMix
from dray.scheduler.policies.scarcity import Scarcity

# Weight of the pressure against free thousandths: the rarest model of the openb traces costs more than an empty node.
_SCARCITY: Final = 30.0


class FirstFit(NodePolicy):
    """Take the first node that fits, and its first devices."""

    name = "first-fit"
    devices = plans = POLICIES["first-fit"]

    def score(self, pod: PodDemand, before: NodeSupply, after: NodeSupply) -> float:
        """Leave the order as it is."""
        return 0.0

    score_without_devices = score


class Pack(NodePolicy):
    """Fill nodes one after the other, those that only some pods can use last."""

    name = "pack"

    def __init__(self) -> None:
        self.version = 0
        self._mix = RequestMix()
        self._scarcity = Scarcity(self._mix)

    def observe(self, pod: PodDemand) -> None:
        """Learn which hardware is asked for."""
        if self._mix.observe(pod):
            self.version += 1
            self._scarcity.forget()

    def describe(self, devices_by_hardware: Mapping[int, int]) -> None:
        """Take note of the capacity."""
        self._scarcity.describe(devices_by_hardware)

    def score(self, pod: PodDemand, before: NodeSupply, after: NodeSupply) -> float:
        """Prefer what leaves the fewest devices free, with cpu to match."""
        capacity = len(after.devices) * WHOLE
        free = after.free
        cost = free + _SCARCITY * self._scarcity.pressure(before.hardware) * pod.amount
        if not after.cpu_total or not capacity:
            return -cost
        return -cost - max(0.0, free - after.cpu / after.cpu_total * capacity)
