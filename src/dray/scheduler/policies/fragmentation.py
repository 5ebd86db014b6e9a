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

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from dray.allocator import POLICIES
from dray.scheduler.policies.packing import Pack
from dray.scheduler.policies.protocol import WHOLE, NodePolicy, NodeSupply, PodDemand
from dray.scheduler.policies.request_mix import RequestMix
from dray.scheduler.policies.scarcity import Scarcity

_COARSE: Final = WHOLE / 20
_LEFTOVER: Final = 10.0  # weight against waste
_SCARCITY: Final = 2.4  # weight against waste
_SAMPLES: Final = 8
_LENGTH: Final = 48  # pods in a sample: enough to fill a node
_MOST_STATES: Final = 200_000  # states whose waste and leftover are kept

_Level = tuple[int, int, int]  # hardware number, and how many kinds want no more cpu and memory than there is
_Offer = tuple[int, int, int, int, int]  # number of the kind, cpu, memory, devices, amount on each
_Want = tuple[int, int, float, int, int]  # cpu, memory, weight, devices, amount on each


@dataclass(frozen=True, slots=True)
class _Offers:
    """The samples as they are on one hardware, and what the most modest pod of them takes."""

    samples: list[list[_Offer]]
    cpu: int
    memory: int
    amount: int


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
        self._wants: dict[int, list[_Want]] = {}  # by hardware number: the kinds that can be there
        self._losses: dict[_Level, _Losses] = {}
        self._waste: dict[tuple[_Level, tuple[int, ...]], float] = {}
        self._leftover: dict[NodeSupply, float] = {}
        self._offers: dict[int, _Offers | None] = {}  # by hardware number; None: only `after` can tell
        self._cpus: list[int] = []
        self._memories: list[int] = []
        self._scarcity = Scarcity(self.mix)

    def observe(self, pod: PodDemand) -> None:
        """Learn the mix."""
        if not self.mix.observe(pod):
            return
        self.version += 1
        self._samples = self.mix.samples(_SAMPLES, _LENGTH)
        self._cpus = sorted({each.cpu for each, _ in self.mix.current})
        self._memories = sorted({each.memory for each, _ in self.mix.current})
        for kept in (self._wants, self._losses, self._waste, self._leftover, self._offers):
            kept.clear()
        self._scarcity.forget()

    def describe(self, devices_by_hardware: Mapping[int, int]) -> None:
        """Take note of the capacity, for scarcity."""
        self._scarcity.describe(devices_by_hardware)

    def score(self, pod: PodDemand, before: NodeSupply, after: NodeSupply) -> float:
        """Score by waste and scarcity, in coarse steps; of equal nodes the fullest is best."""
        if not self._samples:
            return self._pack.score(pod, before, after)
        gain = self._wasted(before) - self._wasted(after)
        gain -= _SCARCITY * self._scarcity.pressure(before.hardware) * pod.amount
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
        cpu, memory, devices, hardware, _ = supply
        # All that waste depends on: which kinds have enough cpu and memory, and how much is left on the devices.
        level = hardware, bisect_right(self._cpus, cpu), bisect_right(self._memories, memory)
        key = level, tuple(sorted(devices))
        found = self._waste.get(key)
        if found is None:
            if len(self._waste) >= _MOST_STATES:
                self._waste.clear()
            losses = self._losses.get(level)
            if losses is None:
                losses = self._losses[level] = self._losses_on(supply)
            found = self._waste[key] = losses.waste(supply.devices)
        return found

    def _losses_on(self, supply: NodeSupply) -> _Losses:
        wants = self._wants.get(supply.hardware)
        if wants is None:
            wants = self._wants[supply.hardware] = list(self._wants_on(supply.hardware))
        weight_by_size: dict[int, float] = {}
        several: list[tuple[float, int, int]] = []
        cpu, memory = supply.cpu, supply.memory
        somewhere = 0.0
        for wanted_cpu, wanted_memory, weight, count, amount in wants:
            if wanted_cpu > cpu or wanted_memory > memory:
                continue
            somewhere += weight
            weight_by_size[amount] = weight_by_size.get(amount, 0.0) + weight
            if count > 1:
                several.append((weight, count, amount))
        sizes = sorted(weight_by_size)
        weights = [1.0 - somewhere]
        for size in reversed(sizes):
            weights.append(weights[-1] + weight_by_size[size])
        return _Losses(sizes, weights[::-1], several)

    def _wants_on(self, hardware: int) -> Iterator[_Want]:
        for pod, weight in self.mix.current:
            footprints = pod.footprints.get(hardware)
            if footprints:
                count, amount, _ = max(footprints, key=lambda each: each.n_devices * each.amount)
                yield pod.cpu, pod.memory, weight, count, amount

    # --- leftover --------------------------------------------------------------

    def _left_over(self, supply: NodeSupply) -> float:
        cpu, memory, devices, hardware, cpu_total = supply
        key = NodeSupply(cpu, memory, tuple(sorted(devices)), hardware, cpu_total)
        found = self._leftover.get(key)
        if found is None:
            if len(self._leftover) >= _MOST_STATES:
                self._leftover.clear()
            offers = self._offers_on(supply)
            if offers is not None:
                total = sum([_left_of(key, sample, offers) for sample in offers.samples])
            else:
                total = 0
                for sample in self._samples:
                    left = supply
                    for pod in sample:
                        left = left.after(pod) or left
                    total += left.free
            found = self._leftover[key] = total / len(self._samples)
        return found

    def _offers_on(self, supply: NodeSupply) -> _Offers | None:
        """Return the samples as they are on this hardware; None where devices are not all alike to every pod."""
        if supply.hardware not in self._offers:
            self._offers[supply.hardware] = self._plain_offers(supply)
        return self._offers[supply.hardware]

    def _plain_offers(self, supply: NodeSupply) -> _Offers | None:
        every = (1 << len(supply.devices)) - 1
        plain: dict[PodDemand, _Offer] = {}
        for pod, _ in self.mix.current:
            footprints = pod.footprints.get(supply.hardware)
            if footprints is None:
                continue  # it fits on no such node
            if len(footprints) != 1 or footprints[0].matching & every != every:
                return None
            [(count, amount, _matching)] = footprints
            plain[pod] = len(plain), pod.cpu, pod.memory, count, amount
        samples = [[plain[pod] for pod in sample if pod in plain] for sample in self._samples]
        _, cpus, memories, _, amounts = zip(*plain.values(), strict=True) if plain else ((0,),) * 5
        return _Offers(samples, min(cpus), min(memories), min(amounts))


def _left_of(supply: NodeSupply, sample: list[_Offer], least: _Offers) -> int:
    """Return what is free (`supply` has it in ascending order) after each pod was placed best-fit, if it fits.

    The same as `NodeSupply.after` again and again, for devices that are all alike: then only the amounts count,
    and a kind that did not fit once will not fit later.
    """
    cpu, memory, devices, _, _ = supply
    free = list(devices)
    refused = 0  # bit set of kinds
    for kind, wanted_cpu, wanted_memory, count, amount in sample:
        if refused >> kind & 1:
            continue
        first = bisect_left(free, amount)
        if wanted_cpu > cpu or wanted_memory > memory or len(free) - first < count:
            refused |= 1 << kind
            continue
        cpu -= wanted_cpu
        memory -= wanted_memory
        if count == 1:
            insort(free, free.pop(first) - amount)
        else:
            free[first : first + count] = [left - amount for left in free[first : first + count]]
            free.sort()
        if free[-1] < least.amount or cpu < least.cpu or memory < least.memory:
            break  # for everyone
    return sum(free)
