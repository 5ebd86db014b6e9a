"""`frag`: the node that loses least for the pods that are expected.

Three terms, each for the node before and after, the difference counting:

  waste     Fragmentation as Weng et al. define it (FGD, USENIX ATC 2023): to a kind of pod, free capacity
            is wasted where it cannot use it, because a device has less left than it wants, or the node
            lacks devices, cpu or memory for it. Averaged over the mix of pods.
  leftover  Fixed samples of the mix are offered to the node, each pod placed best-fit if it fits; what is
            free in the end is left over. It sees combinations that the waste of single pods does not.
  scarcity  Capacity that many expected pods compete for, because they accept nothing else, costs more.

Waste is cheap and ranks all nodes; differences below 1/20 of a device do not count, since following them
scatters pods over nodes that are as good as equal, and the fullest node is taken then. Leftover is computed for
the nodes on the shortlist only. Both are functions of what is free on a node and are kept per such state.

The mix is learned (`request_mix`); before enough pods have arrived, `pack` decides. The weights below were chosen
by measuring on the openb traces (docs/policies.md).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dray.allocator import POLICIES
from dray.scheduler.policies.packing import Pack
from dray.scheduler.policies.protocol import WHOLE, NodePolicy, NodeSupply, PodDemand
from dray.scheduler.policies.request_mix import RequestMix

_COARSE: Final = WHOLE / 20
_LEFTOVER: Final = 10.0  # weight against waste
_SCARCITY: Final = 2.4  # weight against waste
_SAMPLES: Final = 8
_LENGTH: Final = 48  # pods in a sample: enough to fill a node
_MOST_STATES: Final = 200_000  # states whose waste and leftover are kept


@dataclass(frozen=True, slots=True)
class _Losses:
    """The waste of a node as a function of its free devices, for one level of cpu and memory."""

    sizes: list[int]  # amounts that kinds want, ascending
    weights: list[float]  # weight of the kinds that want more than sizes[i - 1]; one more than sizes
    several: list[tuple[float, int, int]]  # (weight, count, amount) of kinds that want several devices

    def waste(self, free: tuple[int, ...]) -> float:
        sizes, weights = self.sizes, self.weights
        total = 0.0
        for left in free:
            if left:
                total += left * weights[bisect_right(sizes, left)]
        for weight, count, amount in self.several:
            usable = [left for left in free if left >= amount]
            if len(usable) < count:
                total += weight * sum(usable)
        return total


class Fragmentation(NodePolicy):
    """Least growth of waste and leftover for the learned mix of pods."""

    name = "frag"
    devices = POLICIES["pack"]
    plans = POLICIES["frag"]
    shortlist = 16

    def __init__(self) -> None:
        self.version = 0
        self.mix = RequestMix()
        self._pack = Pack()
        self._samples: tuple[tuple[PodDemand, ...], ...] = ()
        self._losses: dict[tuple[int, int, int], _Losses] = {}
        self._waste: dict[NodeSupply, float] = {}
        self._leftover: dict[NodeSupply, float] = {}
        self._cpus: list[int] = []
        self._memories: list[int] = []
        self._pressure: dict[int, float] = {}  # hardware number -> pressure
        self._capacity: dict[int, int] = {}  # hardware number -> devices of that kind in the cluster

    def observe(self, pod: PodDemand) -> None:
        """Learn the mix."""
        if not self.mix.observe(pod):
            return
        self.version += 1
        self._samples = self.mix.samples(_SAMPLES, _LENGTH)
        self._cpus = sorted({each.cpu for each, _ in self.mix.current})
        self._memories = sorted({each.memory for each, _ in self.mix.current})
        for kept in (self._losses, self._waste, self._leftover, self._pressure):
            kept.clear()

    def describe(self, devices_by_hardware: Mapping[int, int]) -> None:
        """Take note of the capacity, for scarcity."""
        self._capacity = dict(devices_by_hardware)
        self._pressure.clear()

    def score(self, pod: PodDemand, before: NodeSupply, after: NodeSupply) -> float:
        """Score by waste and scarcity, in coarse steps; of equal nodes the fullest is best."""
        if not self._samples:
            return self._pack.score(pod, before, after)
        gain = self._wasted(before) - self._wasted(after)
        gain -= _SCARCITY * self._pressed(before.hardware) * pod.amount
        return round(gain / _COARSE) * _COARSE - before.free / WHOLE / 100

    def refine(self, pod: PodDemand, before: NodeSupply, after: NodeSupply) -> float:
        """Add the change of what is left over."""
        if not self._samples:
            return 0.0
        return _LEFTOVER * (self._left_over(before) - self._left_over(after))

    # --- waste -----------------------------------------------------------------

    def waste(self, supply: NodeSupply) -> float:
        """Return the free thousandths of a node's devices that the learned mix cannot use, on average over the mix."""
        return self._wasted(supply) if self._samples else 0.0

    def _wasted(self, supply: NodeSupply) -> float:
        key = supply._replace(devices=tuple(sorted(supply.devices)))
        found = self._waste.get(key)
        if found is None:
            if len(self._waste) >= _MOST_STATES:
                self._waste.clear()
            level = (
                supply.hardware,
                bisect_right(self._cpus, supply.cpu),
                bisect_right(self._memories, supply.memory),
            )
            losses = self._losses.get(level)
            if losses is None:
                losses = self._losses[level] = self._losses_on(supply)
            found = self._waste[key] = losses.waste(supply.devices)
        return found

    def _losses_on(self, supply: NodeSupply) -> _Losses:
        weight_by_size: dict[int, float] = {}
        several: list[tuple[float, int, int]] = []
        nowhere = 0.0
        for pod, weight in self.mix.current:
            footprints = pod.footprints.get(supply.hardware)
            if not footprints or pod.cpu > supply.cpu or pod.memory > supply.memory:
                nowhere += weight
                continue
            count, amount, _ = max(footprints, key=lambda each: each.n_devices * each.amount)
            weight_by_size[amount] = weight_by_size.get(amount, 0.0) + weight
            if count > 1:
                several.append((weight, count, amount))
        sizes = sorted(weight_by_size)
        weights = [nowhere]
        for size in reversed(sizes):
            weights.append(weights[-1] + weight_by_size[size])
        return _Losses(sizes, weights[::-1], several)

    # --- leftover --------------------------------------------------------------

    def _left_over(self, supply: NodeSupply) -> float:
        key = supply._replace(devices=tuple(sorted(supply.devices)))
        found = self._leftover.get(key)
        if found is None:
            if len(self._leftover) >= _MOST_STATES:
                self._leftover.clear()
            total = 0
            for sample in self._samples:
                left = supply
                for pod in sample:
                    left = left.after(pod) or left
                total += left.free
            found = self._leftover[key] = total / len(self._samples)
        return found

    # --- scarcity --------------------------------------------------------------

    def _pressed(self, hardware: int) -> float:
        """Return how much more of the expected demand falls on this hardware than its share of the capacity."""
        found = self._pressure.get(hardware)
        if found is None:
            total = sum(self._capacity.values()) or 1
            demand = sum(weight * pod.amount for pod, weight in self.mix.current) or 1.0
            found = 0.0
            for pod, weight in self.mix.current:
                if hardware not in pod.footprints:
                    continue
                reachable = sum(n for number, n in self._capacity.items() if number in pod.footprints)
                if reachable:
                    found += weight * pod.amount / demand * (total / reachable - 1.0)
            self._pressure[hardware] = found
        return found
