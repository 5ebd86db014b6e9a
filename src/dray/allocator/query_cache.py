"""Cached queries: one search for all nodes that are equivalent.

A query is asked of many nodes, and of the same nodes again for the next pod made from
the same template. Four levels of caching, each cheaper than the next:

  1. `BaselineClasses` and `NodeClasses`: equivalence classes of nodes that certain attributes do not
     distinguish and that have the same free devices. Queries that read the same attributes
     share them, so a new query about 5,000 known nodes costs two lookups a node.
  2. per query and node class: the result.
  3. per query and signature: classes that differ only in devices the query does not
     select have the same signature. A solution is a list of positions, so it fits all of them.
     Of a pool without a selected device only the number of devices counts.
  4. the search itself.

A change log of changed nodes says which nodes have to be grouped anew. Caches are bounded
and dropped whole when they grow too large: hardware and workloads have few distinct
states, and what was dropped is searched again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from itertools import count

from dray.allocator.compiled_claims import CompiledClaims
from dray.allocator.expressions import EvaluationBudget, PendingSearch, PendingWork
from dray.allocator.policies import Policy
from dray.allocator.pool_matches import (
    OPTIONAL_OPERATIONS,
    PoolMatches,
    evaluate_expressions,
    unevaluated_cost,
)
from dray.allocator.pools import NodeView, PoolView
from dray.allocator.problem import FatalFound, Problem
from dray.allocator.search import Search, SearchInterrupted, SearchOutcome
from dray.api.caching import BoundedCache

_MOST_GROUPS = 50_000
_MOST_MATCHES = 500_000  # pairs of device and subrequest in all queries, at 0.1 to 0.4 KB each
_MOST_POOL_CLASSES = 64
_ALL_HELD = -1  # instead of the class of a pool in which every device is held as a whole
_numbers = count()


MatchesCache = BoundedCache[tuple[int, int], PoolMatches]  # (number of a query, pool class) -> matches


def new_matches_cache() -> MatchesCache:
    """Return a cache that queries may share, bounded in sum."""
    return BoundedCache(_MOST_MATCHES)


@dataclass(frozen=True, slots=True)
class CachedResult:
    """The result of a query on nodes of one signature."""

    outcome: SearchOutcome | None
    fatal: FatalFound | None
    budget: int


class ChangeLog:
    """Which nodes changed, in order. A new change log means: any node may have changed."""

    __slots__ = ("nodes",)

    def __init__(self) -> None:
        self.nodes: list[str] = []


class BaselineClasses:
    """Nodes of equal structure with the same left, whatever their attributes are.

    The groups are made when the views of nodes are put together, so that queries find
    them ready; what a query reads only refines them.
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


class NodeClasses:
    """The baseline, refined by the values of certain attributes.

    Where queries do not look at devices in use, pools that have no others are not told apart by attributes: a
    cluster that is nearly full is settled by its few free nodes.
    """

    def __init__(
        self, baseline: BaselineClasses, reads: tuple[str, ...] | None, *, looks_at_used: bool = True
    ) -> None:
        self.reads = reads  # None: every attribute
        self._looks_at_used = looks_at_used
        self.by_node: dict[str, int] = {}  # node -> group, of nodes that have not changed since
        self._baseline = baseline
        self._number = next(_numbers)
        self._groups: dict[Hashable, int] = {}
        self._pool_classes: dict[Hashable, int] = {}
        self._names_by_driver: dict[str, list[tuple[str, str]]] = {}  # (domain/id, id) of what is read
        self._change_log: ChangeLog | None = None
        self._page = 0

    def catch_up(self, change_log: ChangeLog) -> None:
        """Forget the nodes that changed since the last query."""
        if change_log is not self._change_log:
            self._change_log = change_log
            self.by_node.clear()
        elif self._page < len(change_log.nodes):
            for node in change_log.nodes[self._page :]:
                self.by_node.pop(node, None)
        self._page = len(change_log.nodes)

    def group(self, view: NodeView) -> int:
        """Return the group of a node."""
        found = self.by_node.get(view.name)
        if found is None:
            found = self._baseline.group(view)
            if self.reads != ():
                found = _number_of(self._groups, (found, self._classes_of_pools(view)))
            self.by_node[view.name] = found
        return found

    def _classes_of_pools(self, view: NodeView) -> tuple[int, ...]:
        if not self._looks_at_used:
            return tuple(
                [
                    _ALL_HELD if pool.dedicated == pool.all_devices else self.pool_class(pool)
                    for pool in view.pools
                ]
            )
        found = view.pool_classes.get(self._number)
        if found is None:
            if len(view.pool_classes) >= _MOST_POOL_CLASSES:
                view.pool_classes.clear()
            found = tuple([self.pool_class(pool) for pool in view.pools])
            view.pool_classes[self._number] = found
        return found

    def pool_class(self, pool: PoolView) -> int:
        """Return a number that is equal for pools that look the same, apart from what is in use."""
        found = pool.pool_classes.get(self._number)
        if found is None:
            if self.reads is None:
                key: Hashable = (pool.structure, pool.all_attributes())
            else:
                names = self._names_by_driver.get(pool.id[0])
                if names is None:
                    names = self._names_by_driver[pool.id[0]] = _names_in(pool.id[0], self.reads)
                key = (pool.structure, *pool.columns(names))
            found = self._pool_classes.setdefault(key, len(self._pool_classes))
            if len(pool.pool_classes) >= _MOST_POOL_CLASSES:
                pool.pool_classes.clear()
            pool.pool_classes[self._number] = found
        return found


def _names_in(driver: str, reads: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return attributes with the names under which a driver may publish them; empty: only the full one."""
    split = [(name, name.partition("/")) for name in reads]
    return [(name, identifier if domain == driver else "") for name, (domain, _, identifier) in split]


def _number_of(groups: dict[Hashable, int], key: Hashable) -> int:
    found = groups.get(key)
    if found is None:
        if len(groups) >= _MOST_GROUPS:
            groups.clear()
        # Numbers are never used twice, so that a dropped group cannot be mistaken for a new one.
        found = groups[key] = next(_numbers)
    return found


class CachedQuery:
    """Compiled claims with their cached results."""

    def __init__(
        self,
        compiled: CompiledClaims,
        node_classes: NodeClasses,
        is_late: Callable[[], bool] | None = None,
        evaluation_budget: EvaluationBudget | None = None,
        matches: MatchesCache | None = None,
    ) -> None:
        self.compiled = compiled
        self.node_classes = node_classes
        self._is_late = is_late
        self.budget = evaluation_budget or EvaluationBudget()
        self.by_group: dict[int, CachedResult] = {}
        self.choose_devices: dict[Policy, BoundedCache[Hashable, object]] = {}  # see `device_choice`
        self.helpful: BoundedCache[Hashable, frozenset[tuple[str, int]]] = BoundedCache(
            10_000
        )  # what equal nodes have in common -> changes; see `relaxation`
        self._number = next(_numbers)
        self._matches = new_matches_cache() if matches is None else matches
        self._by_signature: dict[Hashable, CachedResult] = {}

    def result(self, view: NodeView, budget: int) -> tuple[CachedResult, int]:
        """Return the verdict and the search steps it cost just now. Raises PendingWork."""
        group = self.node_classes.group(view)
        result = self.by_group.get(group)
        if result is not None and result.budget >= budget:
            return result, 0
        steps = 0
        signature = self._signature(view)
        result = self._by_signature.get(signature)
        if result is None or result.budget < budget:
            result, steps = self._search(view, signature, budget)
            self._remember(signature, result)
        self.by_group[group] = result
        return result, steps

    def _remember(self, signature: Hashable, result: CachedResult) -> None:
        if len(self._by_signature) >= _MOST_GROUPS:
            self._by_signature.clear()
            self.by_group.clear()
        self._by_signature[signature] = result

    def _signature(self, view: NodeView) -> Hashable:
        pools: list[Hashable] = []
        for pool in view.pools:
            matches = self.matches(pool)
            if not matches.wanted:
                # Nothing of it can be part of a solution, whatever it is; it only takes its place in the row.
                pools.append((-1, len(pool.devices), pool.is_incomplete, bool(pool.invalid_reason)))
            elif pool.shared or pool.counter_sets:
                pools.append((matches.number, pool.ledger_key))
            else:
                pools.append((matches.number, pool.dedicated & matches.wanted))
        if self.compiled.gates.optional_operations:
            pools.append(OPTIONAL_OPERATIONS in view.node.status.declared_features)
        return tuple(pools)

    def matches(self, pool: PoolView) -> PoolMatches:
        """Return what the pool means to the query, sharing equal ones. Raises PendingWork."""
        pool_class = self.node_classes.pool_class(pool)
        found = self._matches.get((self._number, pool_class))
        if found is None:
            if self.budget.cost_left is not None and not self.budget.allows(
                unevaluated_cost(self.compiled, pool)
            ):
                raise PendingWork(partial(self._match, pool_class, pool))
            found = self._match(pool_class, pool)
        return found

    def _match(self, pool_class: int, pool: PoolView) -> PoolMatches:
        """Evaluate the expressions, in whatever thread: nothing of the result depends on the ledger."""
        if self.compiled.has_slow_expressions:
            evaluate_expressions(self.compiled, pool)
        found = PoolMatches(pool_class, self.compiled, pool)
        size = min((1 + len(pool.devices)) * len(self.compiled.subrequests), _MOST_MATCHES // 4)
        self._matches.add((self._number, pool_class), found, size)
        return found

    def problem(self, view: NodeView) -> Problem:
        """Join query and node. Raises FatalFound."""
        return Problem(self.compiled, view, [self.matches(pool) for pool in view.pools])

    def _search(self, view: NodeView, signature: Hashable, budget: int) -> tuple[CachedResult, int]:
        try:
            problem = self.problem(view)
        except FatalFound as found:
            return CachedResult(None, found.with_traceback(None), _ENOUGH), 0
        try:
            return _searched(problem, budget, self._is_late, self.budget.is_over)
        except SearchInterrupted:
            problem.detach()
            raise PendingSearch(partial(self._search_elsewhere, problem, signature, budget)) from None

    def _search_elsewhere(self, problem: Problem, signature: Hashable, budget: int) -> None:
        """Search in whatever thread, and keep the result for the state of the node in which it was asked."""
        self._remember(signature, _searched(problem, budget, self._is_late)[0])


def _searched(
    problem: Problem,
    budget: int,
    is_late: Callable[[], bool] | None,
    is_over: Callable[[], bool] | None = None,
) -> tuple[CachedResult, int]:
    try:
        outcome = Search(problem, budget, is_late, is_over).run()
    except FatalFound as found:
        return CachedResult(None, found.with_traceback(None), _ENOUGH), 0
    # A finished search is final whatever the budget.
    return CachedResult(outcome, None, budget if outcome.gave_up else _ENOUGH), outcome.steps


_ENOUGH = 1 << 62
