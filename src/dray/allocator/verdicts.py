"""Answers that are remembered: one search for all nodes that are alike.

A question is asked of many nodes, and of the same nodes again for the next pod made from
the same template. Three memories, each cheaper than the one behind it:

  1. per node: nothing on the node changed since the question was last asked;
  2. per likeness: another node had equal pools (as far as the question can see) with
     the same left of them; a solution is a list of positions, so it fits here, too;
  3. the search itself.

Memories are bounded and dropped whole when they grow too large: hardware and workloads
have few distinct states, and what was dropped is searched again.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import count

from dray.allocator.parts import OPTIONAL_OPERATIONS, PoolPart
from dray.allocator.pools import NodeView, PoolView
from dray.allocator.problem import FatalFound, Problem
from dray.allocator.requests import Question
from dray.allocator.search import Outcome, Search

_MOST_LIKENESSES = 20_000
_MOST_PARTS_PER_POOL = 64
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


class Asked:
    """A question with its memories."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self._number = next(_numbers)
        self._parts: dict[Hashable, PoolPart] = {}
        self._by_likeness: dict[Hashable, Verdict] = {}
        self.by_node: dict[str, Verdict] = {}  # what is known of nodes that have not changed since
        self._journal: Journal | None = None
        self._page = 0

    def catch_up(self, journal: Journal) -> None:
        """Forget the nodes that changed since the question was last asked."""
        if journal is not self._journal:
            self._journal = journal
            self.by_node.clear()
        elif self._page < len(journal.nodes):
            for node in journal.nodes[self._page :]:
                self.by_node.pop(node, None)
        self._page = len(journal.nodes)

    def verdict(self, view: NodeView, budget: int) -> tuple[Verdict, int]:
        """Return the verdict and the search steps it cost just now."""
        verdict = self.by_node.get(view.name)
        if verdict is not None and verdict.budget >= budget:
            return verdict, 0
        steps = 0
        likeness = self._likeness(view)
        verdict = self._by_likeness.get(likeness)
        if verdict is None or verdict.budget < budget:
            verdict, steps = self._search(view, budget)
            if len(self._by_likeness) >= _MOST_LIKENESSES:
                self._by_likeness.clear()
            self._by_likeness[likeness] = verdict
        self.by_node[view.name] = verdict
        return verdict, steps

    def _likeness(self, view: NodeView) -> Hashable:
        pools = tuple([(self.part(pool).number, pool.ledger_key) for pool in view.pools])
        if self.question.gates.optional_operations:
            return (pools, OPTIONAL_OPERATIONS in view.node.status.declared_features)
        return pools

    def part(self, pool: PoolView) -> PoolPart:
        """Return what the pool means to the question, sharing equal ones."""
        found = pool.parts.get(self._number)
        if found is None:
            reads = self.question.reads
            columns = (
                (pool.all_attributes(),) if reads is None else tuple([pool.column(name) for name in reads])
            )
            key = (pool.structure, columns)
            found = self._parts.get(key)
            if found is None:
                found = self._parts[key] = PoolPart(len(self._parts), self.question, pool)
            if len(pool.parts) >= _MOST_PARTS_PER_POOL:
                pool.parts.clear()
            pool.parts[self._number] = found
        return found

    def problem(self, view: NodeView) -> Problem:
        """Join question and node. Raises FatalFound."""
        return Problem(self.question, view, [self.part(pool) for pool in view.pools])

    def _search(self, view: NodeView, budget: int) -> tuple[Verdict, int]:
        try:
            outcome = Search(self.problem(view), budget).run()
        except FatalFound as found:
            return Verdict(None, found.with_traceback(None), _ENOUGH), 0
        # A finished search is final whatever the budget.
        return Verdict(outcome, None, budget if outcome.gave_up else _ENOUGH), outcome.steps


_ENOUGH = 1 << 62
