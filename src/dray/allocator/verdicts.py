"""Answers that are remembered: one search for all nodes that are alike.

A question is asked of many nodes, and of the same nodes again for the next pod made from
the same template. Four memories, each cheaper than the one behind it:

  1. `Ground` and `Grouping`: nodes that cannot be told apart by certain attributes and have
     the same left are one group, with a number. Questions that read the same attributes
     share the grouping, so a new question about 5,000 known nodes costs two lookups a node.
  2. per question and group: the verdict.
  3. per question and likeness: groups that differ only in devices the question does not
     want are alike, too. A solution is a list of positions, so it fits all of them.
  4. the search itself.

A journal of changed nodes says which nodes have to be grouped anew. Memories are bounded
and dropped whole when they grow too large: hardware and workloads have few distinct
states, and what was dropped is searched again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from itertools import count

from dray.allocator.parts import (
    OPTIONAL_OPERATIONS,
    PoolPart,
    evaluate_expressions,
    unevaluated_cost,
)
from dray.allocator.policies import Policy
from dray.allocator.pools import NodeView, PoolView
from dray.allocator.problem import FatalFound, Problem
from dray.allocator.requests import Question
from dray.allocator.search import Outcome, Search
from dray.allocator.selection import Pace, PendingWork

_MOST_GROUPS = 50_000
_MOST_FACES = 64
_numbers = count()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known about a question on nodes of one likeness."""

    outcome: Outcome | None
    fatal: FatalFound | None
    budget: int


class Journal:
    """Which nodes changed, in order. A new journal means: any node may have changed."""

    __slots__ = ("nodes",)

    def __init__(self) -> None:
        self.nodes: list[str] = []


class Ground:
    """Nodes of equal structure with the same left, whatever their attributes are.

    The groups are made when the views of nodes are put together, so that questions find
    them ready; what a question reads only refines them.
    """

    def __init__(self, *, sees_operations: bool) -> None:
        self._by_node: dict[str, int] = {}  # node -> group, of nodes that have not changed since
        self._sees_operations = sees_operations  # whether what the node can skip matters
        self._groups: dict[Hashable, int] = {}

    def forget(self, node: str) -> None:
        """Forget a node that changed."""
        self._by_node.pop(node, None)

    def forget_all(self) -> None:
        """Forget all nodes."""
        self._by_node.clear()

    def group(self, view: NodeView) -> int:
        """Return the group of a node."""
        found = self._by_node.get(view.name)
        if found is None:
            key: Hashable = tuple([(pool.structure, pool.ledger_key) for pool in view.pools])
            if self._sees_operations:
                key = (key, OPTIONAL_OPERATIONS in view.node.status.declared_features)
            found = _number_of(self._groups, key)
            self._by_node[view.name] = found
        return found


class Grouping:
    """The ground, refined by the values of certain attributes."""

    def __init__(self, ground: Ground, reads: tuple[str, ...] | None) -> None:
        self.reads = reads  # None: every attribute
        self.by_node: dict[str, int] = {}  # node -> group, of nodes that have not changed since
        self._ground = ground
        self._number = next(_numbers)
        self._groups: dict[Hashable, int] = {}
        self._faces: dict[Hashable, int] = {}
        self._journal: Journal | None = None
        self._page = 0

    def catch_up(self, journal: Journal) -> None:
        """Forget the nodes that changed since the last question."""
        if journal is not self._journal:
            self._journal = journal
            self.by_node.clear()
        elif self._page < len(journal.nodes):
            for node in journal.nodes[self._page :]:
                self.by_node.pop(node, None)
        self._page = len(journal.nodes)

    def group(self, view: NodeView) -> int:
        """Return the group of a node."""
        found = self.by_node.get(view.name)
        if found is None:
            found = self._ground.group(view)
            if self.reads != ():
                looks = view.looks.get(self._number)
                if looks is None:
                    if len(view.looks) >= _MOST_FACES:
                        view.looks.clear()
                    looks = view.looks[self._number] = tuple([self.face(pool) for pool in view.pools])
                found = _number_of(self._groups, (found, looks))
            self.by_node[view.name] = found
        return found

    def face(self, pool: PoolView) -> int:
        """Return a number that is equal for pools that look the same, apart from what is in use."""
        found = pool.faces.get(self._number)
        if found is None:
            if self.reads is None:
                columns: tuple[int, ...] = (pool.all_attributes(),)
            else:
                columns = tuple([pool.column(name) for name in self.reads])
            found = self._faces.setdefault((pool.structure, columns), len(self._faces))
            if len(pool.faces) >= _MOST_FACES:
                pool.faces.clear()
            pool.faces[self._number] = found
        return found


def _number_of(groups: dict[Hashable, int], key: Hashable) -> int:
    found = groups.get(key)
    if found is None:
        if len(groups) >= _MOST_GROUPS:
            groups.clear()
        # Numbers are never used twice, so that a dropped group cannot be mistaken for a new one.
        found = groups[key] = next(_numbers)
    return found


class Asked:
    """A question with its memories."""

    def __init__(
        self,
        question: Question,
        grouping: Grouping,
        is_late: Callable[[], bool] | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.question = question
        self.grouping = grouping
        self._is_late = is_late
        self._pace = pace or Pace()
        self.by_group: dict[int, Verdict] = {}
        self.preferred: dict[Policy, dict[Hashable, object]] = {}  # see `preferring`
        self.helpful: dict[int, frozenset[tuple[str, int]]] = {}  # group -> changes; see `relaxing`
        self._parts: dict[int, PoolPart] = {}  # face -> part
        self._by_likeness: dict[Hashable, Verdict] = {}

    def verdict(self, view: NodeView, budget: int) -> tuple[Verdict, int]:
        """Return the verdict and the search steps it cost just now."""
        group = self.grouping.group(view)
        verdict = self.by_group.get(group)
        if verdict is not None and verdict.budget >= budget:
            return verdict, 0
        steps = 0
        likeness = self._likeness(view)
        verdict = self._by_likeness.get(likeness)
        if verdict is None or verdict.budget < budget:
            verdict, steps = self._search(view, budget)
            if len(self._by_likeness) >= _MOST_GROUPS:
                self._by_likeness.clear()
                self.by_group.clear()
            self._by_likeness[likeness] = verdict
        self.by_group[group] = verdict
        return verdict, steps

    def _likeness(self, view: NodeView) -> Hashable:
        pools: list[Hashable] = []
        for pool in view.pools:
            part = self.part(pool)
            if pool.shared or pool.counter_sets:
                pools.append((part.number, pool.ledger_key))
            else:
                pools.append((part.number, pool.dedicated & part.wanted))
        if self.question.gates.optional_operations:
            pools.append(OPTIONAL_OPERATIONS in view.node.status.declared_features)
        return tuple(pools)

    def part(self, pool: PoolView) -> PoolPart:
        """Return what the pool means to the question, sharing equal ones. Raises PendingWork."""
        face = self.grouping.face(pool)
        found = self._parts.get(face)
        if found is None:
            if self._pace.room is not None and not self._pace.allows(unevaluated_cost(self.question, pool)):
                raise PendingWork(partial(evaluate_expressions, self.question, pool))
            found = self._parts[face] = PoolPart(face, self.question, pool)
        return found

    def problem(self, view: NodeView) -> Problem:
        """Join question and node. Raises FatalFound."""
        return Problem(self.question, view, [self.part(pool) for pool in view.pools])

    def _search(self, view: NodeView, budget: int) -> tuple[Verdict, int]:
        try:
            outcome = Search(self.problem(view), budget, self._is_late).run()
        except FatalFound as found:
            return Verdict(None, found.with_traceback(None), _ENOUGH), 0
        # A finished search is final whatever the budget.
        return Verdict(outcome, None, budget if outcome.gave_up else _ENOUGH), outcome.steps


_ENOUGH = 1 << 62
