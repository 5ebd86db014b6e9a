"""Try on an offline cluster whether the pods of a node fit elsewhere, and undo the trial when they do not."""

from __future__ import annotations

from msgspec.structs import replace

from dray.allocator import AllocationError
from dray.api.core import Pod
from dray.api.resource import ResourceClaim
from dray.client import key_of
from dray.sim.cluster import OfflineCluster, Placed


class Trial:
    """The pods of a node moved to others; `run`, then `accept` (the node goes) or nothing (all is as before)."""

    def __init__(self, cluster: OfflineCluster, node: str, keep: frozenset[str] = frozenset()) -> None:
        self.cluster = cluster
        self.node = node
        known = cluster.state.nodes[node]
        self._node = known.node
        self._keep = keep  # pods that go with the node and need no other place: those of DaemonSets
        self._pods = [cluster.pods[use.key] for use in known.pods.values() if use.key in cluster.pods]

    def run(self) -> list[Placed] | None:
        """Evict the node's pods and place them on other nodes; None (and no change) when one does not fit."""
        cluster = self.cluster
        claims: dict[str, ResourceClaim] = {}
        for pod in self._pods:
            for claim in cluster.scheduling.claims_reserved_for(pod.metadata.uid):
                claims.setdefault(key_of(claim.metadata), claim)
        cluster.add_node(replace(self._node, spec=replace(self._node.spec, unschedulable=True)))
        for pod in self._pods:
            cluster.evict(pod)
        placed: list[Placed] = []
        for pod in self._pods:
            key = key_of(pod.metadata)
            if key in self._keep or cluster.pods[key].spec.node_name:
                continue
            try:
                outcome = cluster.place([cluster.pods[key]], explains=False)
            except AllocationError:
                outcome = None
            # The node is cordoned, but a pod may tolerate that.
            if outcome is None or outcome.refused or any(each.node == self.node for each in outcome.placed):
                self._undo(claims)
                return None
            placed += outcome.placed
        return placed

    def _undo(self, claims: dict[str, ResourceClaim]) -> None:
        for pod in self._pods:
            self.cluster.evict(self.cluster.pods[key_of(pod.metadata)])
        for claim in claims.values():
            self.cluster.set_claim(claim)
        self.cluster.add_node(self._node)
        for pod in self._pods:
            self._put_back(pod)

    def _put_back(self, pod: Pod) -> None:
        self.cluster.pods[key_of(pod.metadata)] = pod
        self.cluster.scheduling.set_bound_pod(pod)

    def accept(self) -> None:
        """Take the node away for good."""
        self.cluster.remove_node(self.node)
