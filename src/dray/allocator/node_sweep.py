"""One query, many nodes: the loop that runs over 5,000 nodes for every pod.

Nodes come in groups of equal ones (see `query_cache`), so the loop looks up the group of every
node, settles every group once, and then only sorts names. Refusals stay a pair of lists
until somebody looks at them: most callers only want the feasible nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from dray.allocator.answers import Plan, Unsatisfied
from dray.allocator.errors import AllocationError
from dray.allocator.pools import NodeView
from dray.allocator.query_cache import CachedQuery, CachedResult
from dray.allocator.results import AllocationBuilder

_LEAST_CHUNK = 128  # nodes looked at together when only the first feasible ones are wanted
_LEAST_STEPS = 1_000  # for every node, however many steps the nodes before it have cost

Chunk = tuple[
    Sequence[str], list[int], dict[int, CachedResult]
]  # nodes, their groups, what is known of those


class NodeSweep:
    """Collects the answers for many nodes; use once."""

    def __init__(
        self,
        query: CachedQuery,
        view_of: Callable[[str], NodeView],
        new_share_id: Callable[[], str],
        *,
        first: int | None,
        budget: int,
        total: int,
    ) -> None:
        self.plans: list[Plan] = []
        self.steps = 0
        self._query = query
        self._view_of = view_of
        self._new_share_id = new_share_id
        self._first = first
        self._budget = budget
        self._total = total
        self._chunks: list[Chunk] = []
        self._builders: dict[int, AllocationBuilder] = {}  # group -> builder
        self._spent: dict[int, int] = {}  # group -> steps of its search, until a plan has told them

    def ask_all(self, names: Sequence[str], fail: Callable[[str, CachedResult], AllocationError]) -> None:
        """Ask nodes in order until enough are found. `fail` makes the error of a fatal verdict."""
        size = len(names) if self._first is None else max(self._first, _LEAST_CHUNK)
        for start in range(0, len(names), max(size, 1)):
            self._ask_chunk(names[start : start + size], fail)
            if self.is_full:
                return

    def ask_each(self, names: Iterable[str], fail: Callable[[str, CachedResult], AllocationError]) -> None:
        """Ask nodes one by one, taking no more names than needed from somebody who hands them out."""
        group_of, result_of = self._query.node_classes.by_node.get, self._query.by_group.get
        seen: list[str] = []
        groups: list[int] = []
        results: dict[int, CachedResult] = {}
        for name in names:
            group = group_of(name)
            if group is None:
                group = self._query.node_classes.group(self._view_of(name))
            result = results.get(group)
            if result is None:
                result = result_of(group)
                if result is None or result.budget < self._allowance():
                    result = self._settle(group, {group: name}.__getitem__)
                results[group] = result
            seen.append(name)
            groups.append(group)
            outcome = result.outcome
            if outcome is None:
                raise fail(name, result)
            if outcome.picks is not None:
                builder = self._builder(group, result)
                self.plans.append(Plan(name, self._spent.pop(group, 0), self._view_of(name), builder.build))
                if self.is_full:
                    break
        self._chunks.append((seen, groups, results))

    def _allowance(self) -> int:
        """Return the steps that the next search may take; easy nodes are answered even when all are spent."""
        return min(self._budget, max(self._total - self.steps, _LEAST_STEPS))

    @property
    def is_full(self) -> bool:
        """Return whether enough feasible nodes are found."""
        return self._first is not None and len(self.plans) >= self._first

    def _ask_chunk(self, names: Sequence[str], fail: Callable[[str, CachedResult], AllocationError]) -> None:
        node_classes = self._query.node_classes
        looked_up = [*map(node_classes.by_node.get, names)]
        if None in looked_up:
            groups = [
                node_classes.group(self._view_of(name)) if group is None else group
                for name, group in zip(names, looked_up, strict=True)
            ]
        else:
            groups = looked_up  # type: ignore[assignment]  # no None among them
        distinct = set(groups)
        is_known = self._query.by_group.keys() >= distinct
        if is_known:
            results = {group: self._settle(group, lambda g: names[groups.index(g)]) for group in distinct}
        else:
            # What has to be searched is searched in the order of the nodes, should the steps run out.
            first_of: dict[int, str] = {}
            for name, group in zip(names, groups, strict=True):
                first_of.setdefault(group, name)
            results = {group: self._settle(group, first_of.__getitem__) for group in first_of}
        if any(result.fatal is not None for result in results.values()):
            self._sort_until_fatal(names, groups, results, fail)
        elif any(v.outcome is not None and v.outcome.picks is not None for v in results.values()):
            self._sort(names, groups, results)
        else:
            self._chunks.append((names, groups, results))

    def _settle(self, group: int, name_of: Callable[[int], str]) -> CachedResult:
        """Return the result of a group; `name_of` returns one of its nodes."""
        result = self._query.by_group.get(group)
        allowance = self._allowance()
        if result is None or result.budget < allowance:
            view = self._view_of(name_of(group))
            result, steps = self._query.result(view, allowance)
            self._spent[group] = steps
            self.steps += steps
        return result

    def _sort(self, names: Sequence[str], groups: list[int], results: dict[int, CachedResult]) -> None:
        """Make plans for the feasible nodes; stop when there are enough."""
        feasible = {
            group: self._builder(group, result)
            for group, result in results.items()
            if result.outcome is not None and result.outcome.picks is not None
        }
        spent = self._spent
        n_seen = 0
        for name, group in zip(names, groups, strict=True):
            n_seen += 1
            builder = feasible.get(group)
            if builder is not None:
                self.plans.append(Plan(name, spent.pop(group, 0), self._view_of(name), builder.build))
                if self.is_full:
                    break
        self._chunks.append((names[:n_seen], groups[:n_seen], results))

    def _sort_until_fatal(
        self,
        names: Sequence[str],
        groups: list[int],
        results: dict[int, CachedResult],
        fail: Callable[[str, CachedResult], AllocationError],
    ) -> None:
        """Raise the error of the first node that has one, unless enough nodes come before it."""
        end = next(i for i, group in enumerate(groups) if results[group].fatal is not None)
        self._sort(names[:end], groups[:end], {g: v for g, v in results.items() if v.fatal is None})
        if not self.is_full:
            raise fail(names[end], results[groups[end]])

    def _builder(self, group: int, result: CachedResult) -> AllocationBuilder:
        found = self._builders.get(group)
        if found is None:
            assert result.outcome is not None
            found = AllocationBuilder(self._query.compiled, result.outcome, self._new_share_id)
            self._builders[group] = found
        return found

    def refused(self) -> dict[str, CachedResult]:
        """Return the verdicts of the nodes that were asked in vain."""
        found: dict[str, CachedResult] = {}
        for names, groups, results in self._chunks:
            refusing = {g for g, v in results.items() if v.outcome is not None and v.outcome.picks is None}
            found.update(
                (name, results[group]) for name, group in zip(names, groups, strict=True) if group in refusing
            )
        return found

    def gave_up(self) -> frozenset[str]:
        """Return the nodes whose search ran out of steps."""
        found: list[str] = []
        for names, groups, results in self._chunks:
            unsure = {g for g, v in results.items() if v.outcome is not None and v.outcome.gave_up}
            if unsure:
                found += [name for name, group in zip(names, groups, strict=True) if group in unsure]
        return frozenset(found)


class Refusals(Mapping[str, Unsatisfied]):
    """The refusals of many nodes, each made when somebody looks at it."""

    def __init__(self, sweep: NodeSweep, make: Callable[[str, CachedResult], Unsatisfied]) -> None:
        self._sweep = sweep
        self._make = make
        self._found: dict[str, CachedResult] | None = None

    def _results(self) -> dict[str, CachedResult]:
        if self._found is None:
            self._found = self._sweep.refused()
        return self._found

    def __getitem__(self, node: str) -> Unsatisfied:
        return self._make(node, self._results()[node])

    def __contains__(self, node: object) -> bool:
        return node in self._results()

    def __iter__(self) -> Iterator[str]:
        return iter(self._results())

    def __len__(self) -> int:
        return len(self._results())
