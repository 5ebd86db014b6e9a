"""How full the GPUs could get at best: an upper bound, from a linear programme (HiGHS; `pip install highspy numpy`).

The programme knows all arrivals at once and may leave out any. It chooses how many pods of each kind go to each type of
node, in fractions. Within a type the cpu, memory and GPUs of all nodes count as one, but shares of a GPU are
cut as a GPU can be cut: in patterns of shares that fit together. The patterns are found as they are needed (column
generation); a round in which none is missing proves the optimum, and until then the bound adds what is missing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from dray.api.resource import ResourceClaim
from dray.scheduler.amounts import CPU, MEMORY
from dray.sim.simulation import Simulation
from dray.sim.trace import WHOLE

_ROUNDS: Final = 200
_ENOUGH: Final = 0.01  # GPUs between the bound and the programme

Pattern = tuple[tuple[int, int], ...]  # (thousandths, how many) on one GPU


@dataclass(frozen=True, slots=True)
class Kind:
    """Pods that ask for the same."""

    cpu: int
    memory: int
    number: int  # of arrivals
    on: dict[int, tuple[int, int]]  # type of node -> (GPUs, thousandths of each)


@dataclass(frozen=True, slots=True)
class NodeType:
    """Equal nodes."""

    cpu: int  # of one
    memory: int
    gpus: int
    number: int


def upper_bound(simulation: Simulation) -> float:
    """Return the most that could be allocated of what arrives, in percent of the capacity. Raises ImportError."""
    types, kinds = _instance(simulation)
    gpus = sum(each.gpus * each.number for each in types)
    return 100 * _Programme(types, kinds).solve() / gpus


def _instance(simulation: Simulation) -> tuple[list[NodeType], list[Kind]]:
    cluster = simulation.cluster
    allocator, state = cluster.snapshot.devices.allocator, cluster.snapshot.state
    members: dict[Any, list[str]] = {}
    for name, node in state.nodes.items():
        amounts = node.allocatable.get(CPU, 0), node.allocatable.get(MEMORY, 0)
        members.setdefault((*amounts, allocator.hardware_of(name, None)), []).append(name)
    types = [
        NodeType(cpu, memory, len(allocator.free_devices(names[0])), len(names))
        for (cpu, memory, _), names in members.items()
    ]
    kinds = []
    for number, arrivals in Counter(each.template for each in simulation.arrivals()).items():
        template = simulation.trace.templates[number]
        requests, on = dict(template.shape.requests), {}
        cpu, memory = requests.get(CPU, 0), requests.get(MEMORY, 0)
        claims = [ResourceClaim(spec=spec) for _, spec in template.claims]
        if not claims:
            continue  # takes nothing that counts
        for index, (key, names) in enumerate(members.items()):
            footprints = allocator.footprints(names[0], claims)
            if footprints is None or len(footprints) != 1:
                raise ValueError("the bound knows claims with one request for GPUs or equal shares only")
            [(count, amount, matching)] = footprints
            if count <= matching.bit_count() and cpu <= key[0] and memory <= key[1]:
                on[index] = count, amount
        kinds.append(Kind(cpu, memory, arrivals, on))
    return types, kinds


class _Programme:
    """Rows: arrivals of each kind; cpu, memory and GPUs of each type; shares of each size on each type."""

    def __init__(self, types: list[NodeType], kinds: list[Kind]) -> None:
        import highspy

        self._solver = highspy.Highs()
        self._solver.silent()
        self._infinity = highspy.kHighsInf
        self._types = types
        self._sizes = sorted({amount for kind in kinds for _, amount in kind.on.values()})
        self._gpu_row: list[int] = []
        self._share_row: dict[tuple[int, int], int] = {}  # (type, thousandths)
        self._rows = 0
        self._known: set[tuple[int, Pattern]] = set()
        arrival_rows = [self._row(kind.number) for kind in kinds]
        cpu_rows = [self._row(each.cpu * each.number / 1000) for each in types]
        memory_rows = [self._row(each.memory * each.number / 2**30) for each in types]
        for index, each in enumerate(types):
            self._gpu_row.append(self._row(each.gpus * each.number))
            for size in self._sizes:
                self._share_row[index, size] = self._row(0)
        for kind, arrivals in zip(kinds, arrival_rows, strict=True):
            for index, (count, amount) in kind.on.items():
                entries = {
                    arrivals: 1.0,
                    cpu_rows[index]: kind.cpu / 1000,
                    memory_rows[index]: kind.memory / 2**30,
                    self._share_row[index, amount]: float(count),
                }
                self._column(count * amount / WHOLE, entries)

    def _row(self, most: float) -> int:
        import numpy

        self._solver.addRow(
            -self._infinity, most, 0, numpy.array([], dtype=numpy.int32), numpy.array([], dtype=float)
        )
        self._rows += 1
        return self._rows - 1

    def _column(self, worth: float, entries: dict[int, float]) -> None:
        import numpy

        rows = sorted(row for row, value in entries.items() if value)
        self._solver.addCol(
            -worth,  # HiGHS minimises
            0,
            self._infinity,
            len(rows),
            numpy.array(rows, dtype=numpy.int32),
            numpy.array([entries[row] for row in rows]),
        )

    def _add(self, index: int, pattern: Pattern) -> None:
        if (index, pattern) not in self._known:
            self._known.add((index, pattern))
            shares = {self._share_row[index, size]: -float(count) for size, count in pattern}
            self._column(0.0, {self._gpu_row[index]: 1.0, **shares})

    def solve(self) -> float:
        """Return an upper bound of the GPUs that can be allocated."""
        for index in range(len(self._types)):
            for size in self._sizes:
                self._add(index, ((size, WHOLE // size),))
        bound = float("inf")
        for _ in range(_ROUNDS):
            self._solver.run()
            reached = -self._solver.getInfo().objective_function_value
            prices = [-each for each in self._solver.getSolution().row_dual]
            missing = 0.0
            for index, each in enumerate(self._types):
                pattern, value = best_pattern(
                    {size: prices[self._share_row[index, size]] for size in self._sizes}
                )
                gain = value - prices[self._gpu_row[index]]
                if gain > 1e-9:
                    missing += gain * each.gpus * each.number
                    self._add(index, pattern)
            bound = min(bound, reached + missing)
            if missing <= _ENOUGH:
                break
        return bound


def best_pattern(worth: dict[int, float]) -> tuple[Pattern, float]:
    """Return the shares of one GPU that are worth most together (a knapsack), and what they are worth."""
    best, last = [0.0] * (WHOLE + 1), [0] * (WHOLE + 1)
    items = [(size, value) for size, value in worth.items() if value > 0]
    for room in range(1, WHOLE + 1):
        best[room], last[room] = best[room - 1], 0
        for size, value in items:
            if size <= room and best[room - size] + value > best[room] + 1e-12:
                best[room], last[room] = best[room - size] + value, size
    taken: Counter[int] = Counter()
    room = WHOLE
    while room > 0:
        if last[room]:
            taken[last[room]] += 1
            room -= last[room]
        else:
            room -= 1
    return tuple(sorted(taken.items())), best[WHOLE]
