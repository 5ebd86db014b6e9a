"""Cover demands with the cheapest set of nodes: a linear programme over fillings, then a search for whole numbers.

A *filling* says how many pods of each kind one node of a type takes. There are far too many to list them all, so they
are generated: the linear programme over the fillings known so far gives every kind of pod a value (its dual price), the
caller looks for fillings whose pods are worth more than the node costs, and those are added, until there
are none (column generation; Gilmore and Gomory, 1961). Then whole nodes are taken from the solution, and what
is left over, a few nodes' worth, is decided by a depth-first search bounded by the same values.

Everything here is numbers: which fillings are possible is the caller's knowledge. Deterministic, no clock: work is
bounded by counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import floor
from typing import Final

_EPSILON: Final = 1e-7
_MOST_ROUNDS: Final = 60  # of generating fillings
_MOST_PIVOTS: Final = 4_000
_MOST_BRANCHES: Final = 400  # steps of the search for whole numbers
_WIDTH: Final = 4  # fillings tried per step
_REOPENED: Final = 3  # whole nodes of the linear programme that the search decides again
_GOOD_ENOUGH: Final = 1.002  # of the bound: then the search ends

Counts = tuple[int, ...]  # per kind


@dataclass(frozen=True, slots=True)
class Filling:
    """What one node takes."""

    price: float
    counts: Counts
    node_type: int  # the caller's number

    def worth(self, values: Sequence[float]) -> float:
        """Return the value of its pods."""
        return sum([value * count for value, count in zip(values, self.counts, strict=True) if count])


# (value per kind, most pods per kind) -> fillings worth considering, at most one or two per type
Generate = Callable[[Sequence[float], Counts], list[Filling]]


@dataclass(slots=True)
class _Basis:
    """A basis of the linear programme: min price·x, fillings·x ≥ demands."""

    columns: list[Filling | int]  # a filling, or the kind whose surplus it is
    inverse: list[list[float]]
    amounts: list[float]

    def prices(self) -> list[float]:
        return [column.price if isinstance(column, Filling) else 0.0 for column in self.columns]

    def values(self) -> list[float]:
        """Return the dual price of each kind."""
        size = len(self.columns)
        found = [0.0] * size
        for price, row in zip(self.prices(), self.inverse, strict=True):
            if price:
                for index in range(size):
                    found[index] += price * row[index]
        return found

    def enter(self, column: Filling | int) -> None:
        """Let a column enter; the one that reaches zero first leaves."""
        if isinstance(column, Filling):
            used = [(kind, count) for kind, count in enumerate(column.counts) if count]
        else:
            used = [(column, -1)]
        direction = [sum([row[kind] * count for kind, count in used]) for row in self.inverse]
        leaving, least = -1, float("inf")
        for index, step in enumerate(direction):
            if step > _EPSILON and self.amounts[index] / step < least - _EPSILON:
                leaving, least = index, self.amounts[index] / step
        if leaving < 0:
            return  # cannot happen with prices ≥ 0: the programme is bounded
        pivot = direction[leaving]
        row = self.inverse[leaving] = [each / pivot for each in self.inverse[leaving]]
        self.amounts[leaving] = least
        for index, step in enumerate(direction):
            if index != leaving and abs(step) > _EPSILON:
                self.inverse[index] = [a - step * b for a, b in zip(self.inverse[index], row, strict=True)]
                self.amounts[index] = max(0.0, self.amounts[index] - step * least)
        self.columns[leaving] = column


@dataclass(slots=True)
class _Programme:
    """The linear programme with the fillings known so far."""

    generate: Generate
    fillings: dict[tuple[int, Counts], Filling] = field(default_factory=dict)

    def learn(self, found: Sequence[Filling]) -> list[Filling]:
        new = [each for each in found if (each.node_type, each.counts) not in self.fillings]
        for each in new:
            self.fillings[each.node_type, each.counts] = each
        return new

    def solve(self, demands: Counts) -> tuple[_Basis, list[float]]:
        """Solve for these demands, generating fillings; every demand must be above 0."""
        basis = self._first_basis(demands)
        for _ in range(_MOST_ROUNDS):
            self._optimise(basis)
            values = basis.values()
            worth = [
                each
                for each in self.learn(self.generate(values, demands))
                if each.worth(values) > each.price * (1 + 1e-6) + _EPSILON
            ]
            if not worth:
                break
        return basis, [max(0.0, value) for value in basis.values()]

    def _first_basis(self, demands: Counts) -> _Basis:
        """Begin with every kind on nodes of its own."""
        size = len(demands)
        columns: list[Filling | int] = []
        for kind in range(size):
            values = [1.0 if index == kind else 0.0 for index in range(size)]
            alone = tuple(demands[kind] if index == kind else 0 for index in range(size))
            found = [each for each in self.generate(values, alone) if each.counts[kind]]
            best = min(found, key=lambda each: each.price / each.counts[kind])
            self.learn(found)
            columns.append(best)
        inverse = [[0.0] * size for _ in range(size)]
        amounts = [0.0] * size
        for kind, column in enumerate(columns):
            assert isinstance(column, Filling)
            inverse[kind][kind] = 1.0 / column.counts[kind]
            amounts[kind] = demands[kind] / column.counts[kind]
        return _Basis(columns, inverse, amounts)

    def _optimise(self, basis: _Basis) -> None:
        for _ in range(_MOST_PIVOTS):
            values = basis.values()
            best: Filling | int | None = None
            gain = _EPSILON
            for each in self.fillings.values():
                found = each.worth(values) - each.price
                if found > gain * max(1.0, each.price):
                    best, gain = each, found / max(1.0, each.price)
            for kind, value in enumerate(values):
                if -value > gain:
                    best, gain = kind, -value
            if best is None:
                return
            basis.enter(best)


def cover(demands: Counts, generate: Generate, most: dict[int, int]) -> list[Filling]:
    """Return the fillings of the nodes to buy, cheap in sum; together they take every demand.

    `generate` must find a filling for every kind alone while its type is not used up; `most` limits the nodes of
    a type. Kinds that no type left can take stay uncovered.
    """
    chosen: list[Filling] = []
    left = list(demands)
    limits = dict(most)

    def allowed(values: Sequence[float], caps: Counts) -> list[Filling]:
        return [each for each in generate(values, caps) if limits.get(each.node_type, 1) > 0]

    while True:
        kinds = [kind for kind, count in enumerate(left) if count and _is_possible(kind, left, allowed)]
        if not kinds:
            return chosen
        taken = _cover_some(tuple(left[kind] for kind in kinds), kinds, len(left), allowed, limits)
        if not taken:
            return chosen
        for each in taken:
            chosen.append(each)
            left = [max(0, have - count) for have, count in zip(left, each.counts, strict=True)]
            if each.node_type in limits:
                limits[each.node_type] -= 1


def _is_possible(kind: int, left: Sequence[int], generate: Generate) -> bool:
    values = [1.0 if index == kind else 0.0 for index in range(len(left))]
    caps = tuple(left[kind] if index == kind else 0 for index in range(len(left)))
    return any(each.counts[kind] for each in generate(values, caps))


def _cover_some(
    demands: Counts, kinds: list[int], size: int, generate: Generate, limits: dict[int, int]
) -> list[Filling]:
    """Cover demands of some kinds as far as the limits of the types allow; numbers of kinds are the caller's."""

    def inner(values: Sequence[float], caps: Counts) -> list[Filling]:
        wide_values, wide_caps = [0.0] * size, [0] * size
        for kind, value, cap in zip(kinds, values, caps, strict=True):
            wide_values[kind], wide_caps[kind] = value, cap
        return [
            Filling(each.price, tuple(each.counts[kind] for kind in kinds), each.node_type)
            for each in generate(wide_values, tuple(wide_caps))
        ]

    def outer(filling: Filling) -> Filling:
        counts = [0] * size
        for kind, count in zip(kinds, filling.counts, strict=True):
            counts[kind] = count
        return Filling(filling.price, tuple(counts), filling.node_type)

    programme = _Programme(inner)
    basis, values = programme.solve(demands)
    whole = _whole_nodes(basis, limits)
    if any(
        sum(each.node_type == number for each in whole) >= limit for number, limit in limits.items() if limit
    ):
        return list(map(outer, whole))  # a type is used up: what is left is another problem
    # The last whole nodes are decided again with the rest: rounding costs most where nodes are few.
    kept = whole[: max(0, len(whole) - _REOPENED)]
    left = _left(demands, kept)
    room = {
        number: limit - sum(each.node_type == number for each in kept) for number, limit in limits.items()
    }
    rest = _Search(programme, values, room).run(left) if any(left) else []
    return list(map(outer, [*kept, *rest]))


def _whole_nodes(basis: _Basis, limits: dict[int, int]) -> list[Filling]:
    """Return the nodes of which the solution takes whole ones, as far as the limits allow."""
    room = dict(limits)
    found: list[Filling] = []
    for column, amount in zip(basis.columns, basis.amounts, strict=True):
        if isinstance(column, Filling):
            count = min(floor(amount + _EPSILON), room.get(column.node_type, 1 << 30))
            found += [column] * count
            if column.node_type in room:
                room[column.node_type] -= count
    return found


def _left(demands: Counts, chosen: Sequence[Filling]) -> Counts:
    left = list(demands)
    for each in chosen:
        left = [max(0, have - count) for have, count in zip(left, each.counts, strict=True)]
    return tuple(left)


class _Search:
    """Depth-first search for the cheapest whole nodes, bounded by the values of the linear programme."""

    def __init__(self, programme: _Programme, values: list[float], room: dict[int, int]) -> None:
        self.programme = programme
        self.values = values
        self.room = dict(room)
        self.best: list[Filling] = []
        self.least = float("inf")
        self.steps = 0

    def run(self, demands: Counts) -> list[Filling]:
        self.floor = self.bound(demands)
        self._step(demands, 0.0, [])
        return self.best

    def bound(self, demands: Counts) -> float:
        return sum([value * count for value, count in zip(self.values, demands, strict=True)])

    def _step(self, demands: Counts, price: float, taken: list[Filling]) -> None:
        if not any(demands):
            if price < self.least - _EPSILON:
                self.least, self.best = price, list(taken)
            return
        if price + self.bound(demands) >= self.least - _EPSILON:
            return
        self.steps += 1
        options = self._options(demands)
        if not options:
            # The limits allow no more: what is covered so far is the answer of this branch.
            if self.least == float("inf"):
                self.best = list(taken)
            return
        width = _WIDTH if self.steps < _MOST_BRANCHES else 1
        for each in options[:width]:
            left = tuple(max(0, have - count) for have, count in zip(demands, each.counts, strict=True))
            if each.node_type in self.room:
                self.room[each.node_type] -= 1
            self._step(left, price + each.price, [*taken, each])
            if each.node_type in self.room:
                self.room[each.node_type] += 1
            if self.least <= self.floor * _GOOD_ENOUGH or (
                self.steps >= _MOST_BRANCHES and self.least < float("inf")
            ):
                return

    def _options(self, demands: Counts) -> list[Filling]:
        """Return fillings for what is left, those with the least loss first.

        The loss of a filling is what it costs beyond the value of the pods that it takes.
        """
        found = {
            (each.node_type, each.counts): each for each in self.programme.generate(self.values, demands)
        }
        for each in self.programme.fillings.values():
            counts = tuple(min(count, have) for count, have in zip(each.counts, demands, strict=True))
            if any(counts):
                found.setdefault((each.node_type, counts), Filling(each.price, counts, each.node_type))
        possible = [
            each for each in found.values() if any(each.counts) and self.room.get(each.node_type, 1) > 0
        ]
        # Where the loss is equal, larger nodes first: they leave less to search.
        possible.sort(
            key=lambda each: (
                round((each.price - each.worth(self.values)) / (each.price or 1), 6),
                -each.price,
            )
        )
        return possible
