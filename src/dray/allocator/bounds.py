"""Counting before searching: conditions that every solution must meet.

Each test here relaxes the problem until it can be decided in polynomial time: by
counting, by grouping, by matching. If the relaxed problem has no solution, neither has
the real one, and the search may leave the subtree out. The tests look at the requests
from the current one up to the first that could end the attempt with an error: beyond
that nothing may be left out (see `search`).

  * candidates: a request needs so many devices that are still free;
  * matching: all requests together need different devices (Hall's condition);
  * match constraint: some value must have enough devices for all requests it covers;
  * distinct constraint: all devices it covers need different values (again a matching);
  * counters and shared capacities: so many devices fit at most into what is left.

A request with alternatives counts as "any of their candidates, as many as the most
modest alternative wants".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dray.allocator.constraints import ConstraintState
from dray.allocator.pool_matches import Value
from dray.allocator.problem import PARTS, NodeSubrequest, Problem, positions


class SearchState(Protocol):
    """What the bounds read of a search under way."""

    problem: Problem
    taken: int  # devices taken by any claim of this attempt
    taken_by: list[int]  # claim -> devices
    left: list[int]  # counter -> nanos
    allocating: dict[int, dict[str, int]]  # position -> capacity taken in this attempt
    constraints: list[ConstraintState]


@dataclass(slots=True)
class Demand:
    """What one request still needs: so many of these devices."""

    wanted: int
    mask: int
    subrequests: list[
        tuple[NodeSubrequest, int]
    ]  # alternatives that are still possible, with their candidates
    admin: bool


def refuted(search: SearchState, number: int, subrequest: NodeSubrequest, wanted: int, scan: int) -> bool:
    """Return whether no solution can exist from here on.

    `scan` are the candidates of the current subrequest, which needs `wanted` more of them.
    """
    problem = search.problem
    if problem.may_fail and problem.can_exceed:
        # Upstream gives up such branches in its own order; keep to it.
        return False
    if problem.requests[number].may_fail:
        return False
    scan &= ~_overdrawing(search, scan)
    if scan.bit_count() < wanted:
        return True
    demands = [Demand(wanted, scan, [(subrequest, scan)], subrequest.subrequest.admin)]
    for request in problem.requests[number + 1 :]:
        if request.may_fail:
            break
        demand = _demand(search, request.subrequests)
        if demand is None or demand.mask.bit_count() < demand.wanted:
            return True
        demands.append(demand)
    return (
        _too_few_devices(search, demands)
        or _too_few_in_counters(search, demands)
        or _too_much_drawn(search, demands)
        or any(
            _constraint_fails(search, constraint, demands) for constraint in range(len(search.constraints))
        )
    )


def _demand(search: SearchState, subrequests: list[NodeSubrequest]) -> Demand | None:
    possible: list[tuple[NodeSubrequest, int]] = []
    mask = 0
    for subrequest in subrequests:
        free = ~search.taken_by[subrequest.subrequest.claim]
        if not subrequest.subrequest.admin:
            free = ~(search.problem.dedicated | search.taken)
        if subrequest.subrequest.wants_all:
            candidates = subrequest.row_mask
            if not subrequest.row or candidates & ~(free & subrequest.ok):
                continue
        else:
            candidates = subrequest.ok & free
            candidates &= ~_overdrawing(search, candidates)
            if candidates.bit_count() < subrequest.count:
                continue
        possible.append((subrequest, candidates))
        mask |= candidates
    if not possible:
        return None
    wanted = min(subrequest.count for subrequest, _ in possible)
    return Demand(wanted, mask, possible, any(subrequest.subrequest.admin for subrequest, _ in possible))


# --- devices ------------------------------------------------------------------


def _too_few_devices(search: SearchState, demands: list[Demand]) -> bool:
    """Hall's condition over devices that can be taken once."""
    shared = search.problem.shared
    needs: list[tuple[int, int]] = []
    for demand in demands:
        if demand.admin:
            continue
        # A shared device can serve every request, each once.
        wanted = demand.wanted - (demand.mask & shared).bit_count()
        if wanted > 0:
            needs.append((wanted, demand.mask & ~shared))
    total = sum(wanted for wanted, _ in needs)
    union = 0
    for _, mask in needs:
        union |= mask
    if union.bit_count() < total:
        return True
    if all(mask.bit_count() >= total for _, mask in needs):
        return False
    return not _matchable(needs)


def _matchable(needs: list[tuple[int, int]]) -> bool:
    """Return whether every need gets so many elements of its set, each element once.

    Augmenting paths, breadth first: a full need may give an element to another one if
    it finds a replacement.
    """
    owner: dict[int, int] = {}  # element -> need
    for need, (wanted, _) in enumerate(needs):
        for _ in range(wanted):
            if not _augment(needs, owner, need):
                return False
    return True


def _augment(needs: list[tuple[int, int]], owner: dict[int, int], start: int) -> bool:
    """Give the need one more element, rearranging the others; False when that is impossible."""
    taken = 0
    for element in owner:
        taken |= 1 << element
    wanted_by: dict[int, int] = {}  # element -> need that would take it
    entered_by: dict[int, int] = {}  # need -> its element that would be taken away
    seen = 0
    queue = [start]
    for need in queue:
        fresh = needs[need][1] & ~seen
        free = fresh & ~taken
        if free:
            element = (free & -free).bit_length() - 1
            while True:
                owner[element] = need
                if need == start:
                    return True
                element = entered_by[need]
                need = wanted_by[element]  # walking back along the path
        seen |= fresh
        for element in positions(fresh):
            wanted_by[element] = need
            holder = owner[element]
            if holder != start and holder not in entered_by:
                entered_by[holder] = element
                queue.append(holder)
    return False


# --- constraints --------------------------------------------------------------


def _constraint_fails(search: SearchState, number: int, demands: list[Demand]) -> bool:
    constraint = search.constraints[number]
    covered = []
    for demand in demands:
        columns = [_by_value(search, number, subrequest, mask) for subrequest, mask in demand.subrequests]
        if all(column is not None for column in columns):
            covered.append((demand, [column for column in columns if column is not None]))
    if not covered:
        return False
    return (
        _no_distinct(constraint.value, covered) if constraint.distinct else _no_match(search, number, covered)
    )


Covered = list[tuple[Demand, list[dict[Value, int]]]]


def _by_value(
    search: SearchState, number: int, subrequest: NodeSubrequest, mask: int
) -> dict[Value, int] | None:
    """Group candidates by the value they bring to a constraint; None when it does not cover the subrequest."""
    for constraint, column in subrequest.columns:
        if constraint == number:
            groups: dict[Value, int] = {}
            for position in positions(mask):
                value = column[position]
                if isinstance(value, frozenset):
                    groups[value] = groups.get(value, 0) | 1 << position
            return groups
    return None


def _no_match(search: SearchState, number: int, covered: Covered) -> bool:
    """Return whether no single element is carried by enough devices for every covered request."""
    constraint = search.constraints[number]
    masks = [_by_element(columns) for _, columns in covered]
    elements = constraint.value if constraint.members else masks[0].keys()
    shared = search.problem.shared
    for element in elements:
        union, total = 0, 0
        for (demand, _), by_element in zip(covered, masks, strict=True):
            mask = by_element.get(element, 0)
            if mask.bit_count() < demand.wanted:
                break
            if not demand.admin:
                union |= mask
                total += demand.wanted
        else:
            if union & shared or union.bit_count() >= total:
                return False
    return True


def _by_element(columns: list[dict[Value, int]]) -> dict[object, int]:
    masks: dict[object, int] = {}
    for column in columns:
        for value, mask in column.items():
            for element in value:
                masks[element] = masks.get(element, 0) | mask
    return masks


def _no_distinct(used: Value, covered: Covered) -> bool:
    """Return whether the covered requests cannot all get devices with values of their own."""
    numbers: dict[object, int] = {}
    needs: list[tuple[int, int]] = []
    plain = True
    for demand, columns in covered:
        mask = 0
        for column in columns:
            for value in column:
                if not used.isdisjoint(value):
                    continue
                plain = plain and len(value) == 1
                for element in value:
                    mask |= 1 << numbers.setdefault(element, len(numbers))
        needs.append((demand.wanted, mask))
    # Disjoint values use at least one element each, so counting elements is sound for lists too.
    if sum(wanted for wanted, _ in needs) > len(numbers):
        return True
    return plain and not _matchable(needs)


# --- counters and capacities --------------------------------------------------


def _too_few_in_counters(search: SearchState, demands: list[Demand]) -> bool:
    """Return whether what is left of counters and shared capacities holds too few devices.

    Every counter set holds at most `left / smallest draw` devices of any kind; devices
    that draw from nothing hold themselves; shared devices as many shares as there is room.
    """
    problem = search.problem
    relevant = [demand for demand in demands if not demand.admin]
    union = 0
    for demand in relevant:
        union |= demand.mask
    if not union & (problem.consumers | problem.shared) or not (problem.draws or problem.shared):
        return False
    total = sum(demand.wanted for demand in relevant)
    places = (union & ~problem.consumers & ~problem.shared).bit_count()
    least: dict[int, dict[int, int]] = {}  # first counter set -> counter -> smallest draw
    members: dict[int, int] = {}
    for position in positions(union & problem.consumers & ~problem.shared):
        draws = problem.draws.get(position)
        if not draws:
            places += 1
            continue
        counter_set = problem.counter_set_of[draws[0][0]]
        members[counter_set] = members.get(counter_set, 0) + 1
        own = {c: n for c, n in draws if problem.counter_set_of[c] == counter_set and n > 0}
        smallest = least.get(counter_set)
        if smallest is None:
            least[counter_set] = own
        else:
            # A counter that some device does not draw from does not bound the number of devices.
            least[counter_set] = {c: min(n, own[c]) for c, n in smallest.items() if c in own}
    for counter_set, smallest in least.items():
        bound = members[counter_set]
        for counter, nanos in smallest.items():
            bound = min(bound, search.left[counter] // nanos)
        places += bound
        if places >= total:
            return False
    # Each request takes a shared device at most once.
    for position in positions(union & problem.shared):
        places += _shares(search, relevant, position)
        if places >= total:
            return False
    return places < total


def _overdrawing(search: SearchState, mask: int) -> int:
    """Return the devices among these that would, each alone, draw more than is left."""
    problem = search.problem
    found = 0
    if problem.draws:
        left = search.left
        exempt = problem.shared & problem.held
        for position in positions(mask & problem.consumers & ~exempt):
            if position not in search.allocating:
                for counter, nanos in problem.draws[position]:
                    if nanos > left[counter]:
                        found |= 1 << position
                        break
    return found


def _too_much_drawn(search: SearchState, demands: list[Demand]) -> bool:
    """Return whether even the smallest candidates together draw more than is left of all counters.

    Counters of different units are added up as parts per million of what there was.
    """
    problem = search.problem
    if not problem.draws:
        return False
    drawn = 0
    for demand in demands:
        wanted = demand.wanted
        for volume, mask in problem.volumes:
            n_devices = (mask & demand.mask).bit_count()
            drawn += volume * min(wanted, n_devices)
            wanted -= min(wanted, n_devices)
            if not wanted:
                break
    left = sum(-(-nanos * PARTS // problem.counters[c]) for c, nanos in enumerate(search.left) if nanos > 0)
    return drawn > left


def _shares(search: SearchState, demands: list[Demand], position: int) -> int:
    """Return how many more shares of a device can be given at most: one per request, room permitting."""
    askers = [demand for demand in demands if demand.mask >> position & 1]
    smallest: dict[str, int] | None = None
    for demand in askers:
        for subrequest, mask in demand.subrequests:
            if mask >> position & 1:
                need = subrequest.needs.get(position)
                amounts = need.nanos if need else {}
                smallest = (
                    dict(amounts)
                    if smallest is None
                    else {n: min(v, smallest.get(n, 0)) for n, v in amounts.items()}
                )
    bound = len(askers)
    if smallest:
        capacity, used = search.problem.capacity(position)
        allocating = search.allocating.get(position) or {}
        for name, nanos in smallest.items():
            if nanos > 0:
                left = capacity.values[name].nanos - (used or {}).get(name, 0) - allocating.get(name, 0)
                bound = min(bound, max(0, left // nanos))
    return bound
