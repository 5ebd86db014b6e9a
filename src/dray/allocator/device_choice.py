"""Device choice by policy: the same search, with the devices of the node in another order.

The search takes the first solution it meets. So a preference is an order: cheap devices
first, by the policy's cost of each. The order is made before the search and is the only
thing that differs from first-fit; every rule is still the search's own.

Whether claims fit is always decided by the first-fit search. Only where it found a
solution is a second search made in the preferred order; should that one end with an error
or use up its (small) budget, first-fit's solution stands. So with every policy exactly the
same claims fit on the same nodes (tests/property/test_allocator_policy_laws.py).

Results are remembered per group of equal nodes, like verdicts. The groups know what is
left of each device but not where it sits, so `topology` refines them by the attributes
for places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from dray.allocator.capacity import Need
from dray.allocator.device_facts import find_attribute
from dray.allocator.policies import WHOLE, NodeLoad, Policy
from dray.allocator.pool_matches import Value, value_set
from dray.allocator.pools import NodeView
from dray.allocator.problem import FatalFound, NodeSubrequest, Problem, positions
from dray.allocator.query_cache import CachedQuery
from dray.allocator.search import Pick, Search, SearchOutcome
from dray.allocator.supply import least_left
from dray.api.caching import BoundedCache
from dray.api.resource import DeviceAttribute
from dray.api.well_known import NUMA_NODE, PCIE_ROOT

_STEPS = 1_000  # of the second search; it rarely needs more than a step a device
_MORE_THAN_LOST = 1e6  # of two criteria for partitions the second decides between equals only


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """The solution a policy likes best on a node, and how it likes the node with it."""

    outcome: SearchOutcome
    score: float


def choose_devices(
    query: CachedQuery, view: NodeView, policy: Policy, first_fit: SearchOutcome
) -> PolicyChoice:
    """Choose devices by the policy, where `first_fit` has shown that the claims fit."""
    memory = query.choose_devices.setdefault(policy, BoundedCache(50_000))
    key: Hashable = query.node_classes.group(view)
    if policy.is_topological:
        key = (key, *[(pool.column(NUMA_NODE), pool.column(PCIE_ROOT)) for pool in view.pools])
    found = memory.get(key)
    if found is None:
        found = _prefer(query.problem(view), policy, first_fit)
        memory.add(key, found)
    assert isinstance(found, PolicyChoice)
    return found


def _prefer(problem: Problem, policy: Policy, first_fit: SearchOutcome) -> PolicyChoice:
    hardware = Hardware(problem)
    places = Places(problem, hardware.usable) if policy.is_topological else None
    outcome = first_fit
    if policy.device is not None:
        costs: list[tuple[float, ...]] = [
            (*(places.rank(position) if places else ()), cost)
            for position, cost in enumerate(hardware.costs(policy))
        ]
        order = sorted(range(problem.n_devices), key=costs.__getitem__)
        outcome = _searched(problem, order) or first_fit
    assert policy.node is not None and outcome.picks is not None
    picks = [pick for claim in outcome.picks for pick in claim]
    load = hardware.load(picks)
    if places is not None:
        load = replace(load, scattered=places.scattered(picks))
    return PolicyChoice(outcome, policy.node(load))


def _searched(problem: Problem, order: list[int]) -> SearchOutcome | None:
    if all(here <= there for here, there in pairwise(order)):
        return None  # upstream's order: first-fit has the answer
    try:
        found = Search(problem.reordered(order), _STEPS).run()
    except FatalFound:
        return None
    if found.picks is None:
        return None
    picks = tuple(
        tuple(Pick(pick.subrequest, order[pick.position], pick.need) for pick in claim)
        for claim in found.picks
    )
    return replace(found, picks=picks)


# --- room ---------------------------------------------------------------------


class Hardware:
    """The pieces of hardware behind the devices of a problem, and the room on each."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        wanted = taken = 0
        for subrequest in problem.subrequests:
            wanted |= subrequest.row_mask
            taken |= subrequest.ok
        self.usable = taken & ~problem.dedicated
        self._singles = {  # position -> index of its room
            position: index for index, position in enumerate(positions(wanted & ~_mask(problem.draws)))
        }
        self._rooms = [self._room(position) for position in self._singles]
        self._sets = Partitions(problem, [p for p in positions(wanted) if p in problem.draws])

    def _room(self, position: int) -> int:
        problem = self._problem
        if problem.dedicated >> position & 1:
            return 0
        if not problem.shared >> position & 1 or problem.facts(position).capacity is None:
            return WHOLE
        return least_left(*problem.capacity(position))

    def _loss(self, position: int, need: Need | None) -> int:
        """Return how much of its room a device loses."""
        room = self._rooms[self._singles[position]]
        if need is None or not self._problem.shared >> position & 1:
            return room
        return room - least_left(*self._problem.capacity(position), need.nanos)

    def costs(self, policy: Policy) -> list[float]:
        """Return the policy's cost of each position; where several subrequests may take it, the least."""
        assert policy.device is not None
        costs: dict[int, float] = {}
        known: dict[tuple[int, int], float] = {}  # devices alike in room and need cost the same
        for subrequest in self._problem.subrequests:
            for position in positions(subrequest.ok & self.usable):
                index = self._singles.get(position)
                if index is None:
                    costs[position] = self._sets.cost(position, policy)
                    continue
                parts = self._loss(position, subrequest.needs.get(position))
                key = (self._rooms[index], parts)
                if key not in known:
                    known[key] = policy.device(self._rooms, index, parts)
                costs[position] = min(costs.get(position, known[key]), known[key])
        return [costs.get(position, 0.0) for position in range(self._problem.n_devices)]

    def load(self, picks: Iterable[Pick]) -> NodeLoad:
        """Return what the picks do to the node."""
        after = list(self._rooms)
        cut = []
        for pick in picks:
            if self._problem.compiled.subrequests[pick.subrequest].admin:
                continue  # looks on, takes nothing
            index = self._singles.get(pick.position)
            if index is None:
                cut.append(pick.position)
            else:
                after[index] = max(0, after[index] - self._loss(pick.position, pick.need))
        broken = self._sets.broken(cut) if cut else 0.0
        return NodeLoad(tuple(self._rooms), tuple(after), self._sets.rooms(), broken)


def _mask(members: Iterable[int]) -> int:
    mask = 0
    for position in members:
        mask |= 1 << position
    return mask


class Partitions:
    """Devices that draw from counters: slices of a GPU, each possible while enough is left."""

    def __init__(self, problem: Problem, wanted: list[int]) -> None:
        self._problem = problem
        self._room_by_set: dict[int, int] = {}
        if not wanted:
            return
        members = Counter(problem.counter_set_of)
        parts = dict.fromkeys(members, 0.0)
        scale: list[float] = []  # counter -> what one nano of it is of its set
        counters = zip(problem.counter_set_of, problem.counters, _counter_totals(problem), strict=True)
        for counter_set, left, total in counters:
            scale.append(1.0 / (total * members[counter_set]) if total > 0 else 0.0)
            parts[counter_set] += left * scale[-1]
        touched = {problem.counter_set_of[c] for p in wanted for c, _ in problem.draws[p]}
        self._room_by_set = {s: max(0, round(parts[s] * WHOLE)) for s in sorted(touched)}
        # Counter -> (nanos, position) of the devices that are possible.
        self._possible: dict[int, list[tuple[int, int]]] = {}
        self._size: dict[int, float] = {}
        for position, draws in problem.draws.items():
            if problem.dedicated >> position & 1:
                continue
            size = 0.0
            for counter, nanos in draws:
                if problem.counters[counter] < nanos:
                    break
                size += nanos * scale[counter]
            else:
                self._size[position] = size
                for counter, nanos in draws:
                    self._possible.setdefault(counter, []).append((nanos, position))
        self._blocked: dict[tuple[int, int], int] = {}  # (counter, left) -> devices that want more

    def rooms(self) -> tuple[int, ...]:
        """Return the rooms of the counter sets that wanted devices draw from."""
        return tuple(self._room_by_set.values())

    def cost(self, position: int, policy: Policy) -> float:
        """Return the policy's cost of cutting a partition."""
        sets = {self._problem.counter_set_of[c] for c, _ in self._problem.draws[position]}
        room = min([self._room_by_set[s] for s in sets], default=0)
        if policy.counts_broken:
            return self.broken([position]) + room / _MORE_THAN_LOST  # of equal losses on the fullest GPU
        assert policy.device is not None
        # On one GPU all placements have the same room: that which makes least impossible is best.
        return policy.device([room], 0, 0) + self.broken([position]) / _MORE_THAN_LOST

    def broken(self, cut: list[int]) -> float:
        """Return the total size of the devices that stop being possible, in thousandths of a set."""
        drawn: dict[int, int] = {}
        for position in cut:
            for counter, nanos in self._problem.draws[position]:
                drawn[counter] = drawn.get(counter, 0) + nanos
        lost = _mask(cut)
        for counter, nanos in drawn.items():
            lost |= self._wanting_more(counter, self._problem.counters[counter] - nanos)
        return WHOLE * sum(self._size.get(position, 0.0) for position in positions(lost))

    def _wanting_more(self, counter: int, left: int) -> int:
        key = (counter, left)
        found = self._blocked.get(key)
        if found is None:
            found = _mask(p for nanos, p in self._possible.get(counter, ()) if nanos > left)
            self._blocked[key] = found
        return found


def _counter_totals(problem: Problem) -> list[int]:
    """Return what each counter holds when nothing is in use, in the order of `Problem.counters`."""
    totals: list[int] = []
    for _, pool, matches in problem.pools:
        if matches.consumers:
            totals += [nanos for counters in pool.counter_sets.values() for nanos in counters.values()]
    return totals


# --- places -------------------------------------------------------------------

Place = Value | None


class Places:
    """Where devices sit, and which place suits the query best.

    The best PCIe root is the one that holds everything asked for and has the least besides,
    so that larger groups stay whole for others. Where no root is large enough the same is
    asked of NUMA nodes, and where none of those is, large groups come first: fewer of them
    are needed then.
    """

    def __init__(self, problem: Problem, usable: int) -> None:
        self._usable = usable
        facts = [problem.facts(position) for position in range(problem.n_devices)]
        self._root = [_place(find_attribute(each, PCIE_ROOT)) for each in facts]
        self._numa = [_place(find_attribute(each, NUMA_NODE)) for each in facts]
        self._in_root, self._in_numa = _by_place(self._root), _by_place(self._numa)
        needs = [
            request.subrequests[0]
            for request in problem.requests
            if not request.subrequests[0].subrequest.admin
        ]
        best_root = self._tightest(self._in_root, needs)
        best_numa = self._tightest(self._in_numa, needs)
        if best_root:
            numas = {self._numa[position] for position in positions(best_root)} - {None}
            best_numa = _mask(p for numa in numas for p in positions(self._in_numa[numa])) or best_root
        self._best_root, self._best_numa = best_root, best_numa
        self._rank_of_numa = {place: number for number, place in enumerate(self._in_numa)}
        self._rank_of_root = {place: number for number, place in enumerate(self._in_root)}

    def _tightest(self, groups: dict[Place, int], needs: list[NodeSubrequest]) -> int:
        best, least = 0, 1 << 62
        for place, members in groups.items():
            free = members & self._usable
            if place is None or free.bit_count() >= least:
                continue
            union = 0
            for subrequest in needs:
                union |= subrequest.ok & free
            enough = all((subrequest.ok & free).bit_count() >= subrequest.count for subrequest in needs)
            if enough and union.bit_count() >= sum(subrequest.count for subrequest in needs):
                best, least = members, free.bit_count()
        return best

    def rank(self, position: int) -> tuple[float, ...]:
        """Return the place of a device in the order: the best groups, then the large ones."""
        numa, root = self._numa[position], self._root[position]
        return (
            not self._best_root >> position & 1,
            not self._best_numa >> position & 1,
            numa is None,
            -(self._in_numa[numa] & self._usable).bit_count(),
            self._rank_of_numa[numa],
            root is None,
            -(self._in_root[root] & self._usable).bit_count(),
            self._rank_of_root[root],
        )

    def scattered(self, picks: list[Pick]) -> tuple[int, ...]:
        """Return over how many NUMA nodes and roots the picks lie, and what stays free beside them."""
        taken = _mask(pick.position for pick in picks)
        numas = {self._numa[pick.position] for pick in picks}
        roots = {self._root[pick.position] for pick in picks}
        beside = sum((self._in_root[r] & self._usable & ~taken).bit_count() for r in roots if r is not None)
        return len(numas), len(roots), beside


def _place(attribute: DeviceAttribute | None) -> Place:
    return value_set(attribute) if attribute is not None else None


def _by_place(places: list[Place]) -> dict[Place, int]:
    groups: dict[Place, int] = {}
    for position, place in enumerate(places):
        groups[place] = groups.get(place, 0) | 1 << position
    return groups
