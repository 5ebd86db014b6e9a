"""How many pods that match a selector are in each topology domain, kept up to date pod by pod.

Rules about other pods (affinity, spreading) all ask this question. For each distinct one a `Census` keeps the counts per value of a
node label, or per node, and is told of every pod that comes or goes, so asking is a dictionary lookup and not a walk over all pods.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dray.api.caching import BoundedMap
from dray.scheduler.state import ClusterState, NodeState, PodUse

_MAX_CENSUSES = 128


@dataclass(slots=True, eq=False)
class Census:
    """How many matching pods there are per value of a node label."""

    counts_pod: Callable[[PodUse], bool]
    topology_key: str | None  # None means: counts per node name
    by_value: dict[str, int] = field(default_factory=dict)
    total: int = 0

    def add(self, node: NodeState, use: PodUse, sign: int) -> None:
        """Count a pod that came (+1) or went (-1), if it matches."""
        value = node.name if self.topology_key is None else node.labels.get(self.topology_key)
        if value is not None and self.counts_pod(use):
            self.by_value[value] = self.by_value.get(value, 0) + sign
            self.total += sign


class PodCounts:
    """All censuses; the least used are given up."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._censuses: BoundedMap[bytes, Census] = BoundedMap(_MAX_CENSUSES)
        state.listeners.append(self._count)
        state.node_listeners.append(self._recount)

    def census(self, key: bytes, topology_key: str | None, counts_pod: Callable[[PodUse], bool]) -> Census:
        """Return the counts for a question; `key` must differ where the answer may."""
        found = self._censuses.use(key)
        if found is None:
            found = Census(counts_pod, topology_key)
            for use in self._state.pods.values():
                node = self._state.nodes.get(use.node)
                if node is not None:
                    found.add(node, use, +1)
            self._censuses[key] = found
        return found

    def _count(self, use: PodUse, sign: int) -> None:
        if not self._censuses:
            return
        node = self._state.nodes.get(use.node)
        if node is None:
            return
        for census in self._censuses.values():
            census.add(node, use, sign)

    def _recount(self, _: NodeState) -> None:
        # Labels of nodes change rarely; counting anew is simpler than moving counts.
        self._censuses.clear()
