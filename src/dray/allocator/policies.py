"""Preferences: which node, and which of its devices, to take when several would do.

The search knows no preference: it returns upstream's first solution for a node. A policy
puts the devices of a node into another order before the search (`device`: the cost of
a device, cheapest first) and orders the nodes by what the plan would do to them
(`node`: higher is better; equal nodes keep the order in which they were asked).

  first-fit   upstream's order, for nodes and devices
  pack        the fullest node, the fullest device that still fits
  spread      the emptiest node, the emptiest device
  frag        the node and device whose loss hurts the expected demand least
  topology    devices behind one PCIe root, or on one NUMA node; whole groups stay whole

Amounts are *rooms*: what is left of a piece of hardware, in thousandths of the whole. A
piece is a device, or the counter set that the partitions of a GPU draw from.

Theory of `frag`: fragmentation gradient descent (Weng et al., USENIX ATC 2023). Room is
wasted for a kind of request if that request cannot use it: it is smaller than one share
of the request, or the node has too few pieces for all of them. Averaged over the expected
mix of requests (`Demand`) this is what a node is expected to waste; the choice that makes
it grow least is the best one. With partitions the same idea is counted exactly: each
profile that was possible on the GPU and is not any more is a loss, by its size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

WHOLE: Final = 1000  # the room of an untouched device
Rooms = Sequence[int]

_COARSE: Final = WHOLE // 20  # differences of waste below this do not count


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of request that is expected."""

    weight: float
    count: int  # devices
    parts: int  # of each, in thousandths


@dataclass(frozen=True)
class Demand:
    """A mix of expected requests, and the waste it sees in a node's rooms."""

    kinds: tuple[Kind, ...]

    @classmethod
    def of(cls, kinds: Iterable[tuple[float, int, int]]) -> Demand:
        """Make a demand from (weight, count, parts). Raises ValueError for a kind that no device can serve."""
        found = tuple(Kind(*kind) for kind in kinds)
        for kind in found:
            if kind.count < 1 or not 0 < kind.parts <= WHOLE or kind.weight < 0:
                raise ValueError(
                    f"expected request {kind}: count must be at least 1, parts 1 to {WHOLE} (thousandths of a"
                    " device), weight not negative"
                )
        return cls(found)

    @cached_property
    def lost(self) -> list[float]:
        """Return by room (0..WHOLE) what a single piece with that much left wastes on average."""
        weights = [0.0] * (WHOLE + 1)
        for kind in self.kinds:
            weights[kind.parts] += kind.weight
        larger = sum(weights)  # weight of the kinds that want more than the room
        table = []
        for room, weight in enumerate(weights):
            larger -= weight
            table.append(room * larger)
        return table

    @cached_property
    def _several(self) -> list[Kind]:
        return [kind for kind in self.kinds if kind.count > 1]

    def waste(self, rooms: Rooms) -> float:
        """Return the room that an average request of the demand cannot use."""
        lost = self.lost
        total = sum([lost[room] for room in rooms])
        for kind in self._several:
            usable = [room for room in rooms if room >= kind.parts]
            if len(usable) < kind.count:
                # `lost` has counted the pieces that are too small one by one; the others are too few.
                total += kind.weight * sum(usable)
        return total

    def growth(self, rooms: Rooms, index: int, parts: int) -> float:
        """Return how much the waste grows when one piece loses so much of its room."""
        after = list(rooms)
        after[index] = max(0, after[index] - parts)
        return self.waste(after) - self.waste(rooms)


# What to expect where nobody has measured: many small requests, fewer large ones.
USUAL_DEMAND: Final = Demand.of(
    [
        *((0.10, 1, 125), (0.15, 1, 250), (0.15, 1, 500), (0.30, 1, WHOLE)),
        *((0.12, 2, WHOLE), (0.10, 4, WHOLE), (0.08, 8, WHOLE)),
    ]
)


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """What a plan does to the hardware that the requests could use."""

    before: tuple[int, ...]  # rooms of devices that can be taken one by one
    after: tuple[int, ...]
    sets_before: tuple[int, ...] = ()  # rooms of counter sets that partitions draw from
    broken: float = 0.0  # partitions that stop being possible, each by its size
    scattered: tuple[int, ...] = ()  # NUMA nodes, PCIe roots used, free devices left beside; for topology

    @property
    def room(self) -> int:
        """Return the room on the node before the plan."""
        return sum(self.before) + sum(self.sets_before)


NodeScore = Callable[[NodeLoad], float]
DeviceCost = Callable[[Rooms, int, int], float]  # rooms, index of the piece, parts to take from it


@dataclass(frozen=True, slots=True)
class Policy:
    """A named preference over nodes and devices."""

    name: str
    node: NodeScore | None  # None: the order in which nodes were asked
    device: DeviceCost | None = None  # None: upstream's order
    counts_broken: bool = False  # partitions cost what they make impossible, instead of `device`
    is_topological: bool = False  # devices of one group first, whatever their room


def _fullest(rooms: Rooms, index: int, parts: int) -> float:
    return rooms[index]


def _emptiest(rooms: Rooms, index: int, parts: int) -> float:
    return -rooms[index]


def _scatter(load: NodeLoad) -> float:
    numas, roots, beside = load.scattered or (0, 0, 0)
    return -(numas * 1_000_000 + roots * 1_000 + beside)


def frag_score(gain: float, room: int) -> float:
    """Score a node by how much its waste shrinks, in coarse steps; of equal ones the fullest is best.

    Finer steps would spread pods over nodes that differ by next to nothing. Measured on the
    openb trace (docs/policies.md): exact differences fill 3 % less of the GPUs.
    """
    return round(gain / _COARSE) - room / (1 + room)


def frag_policy(demand: Demand) -> Policy:
    """Return the fragmentation-aware policy for a demand that is known."""

    def node(load: NodeLoad) -> float:
        gain = demand.waste(load.before) - demand.waste(load.after) - load.broken
        return frag_score(gain, load.room)

    return Policy("frag", node, demand.growth, counts_broken=True)


POLICIES: dict[str, Policy] = {
    "first-fit": Policy("first-fit", None),
    "pack": Policy("pack", lambda load: -1e6 * load.broken - load.room, _fullest, counts_broken=True),
    "spread": Policy("spread", lambda load: load.room, _emptiest),
    "frag": frag_policy(USUAL_DEMAND),
    "topology": Policy("topology", _scatter, _fullest, is_topological=True),
}


def policy_named(name: str) -> Policy:
    """Return a policy by name; raises ValueError that lists the known ones."""
    try:
        return POLICIES[name]
    except KeyError:
        raise ValueError(f"unknown policy {name!r}; known: {', '.join(POLICIES)}") from None
