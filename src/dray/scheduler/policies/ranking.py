"""Nodes in the order in which a policy likes them for a pod, kept up to date change by change.

Theory of operation. For each kind of pod the scores of all nodes are kept. A placement changes one node, so the
next pod of the kind costs the scores of the nodes that changed since the last one, a walk over the scores and
the refinement of the shortlist. Changes are heard from the cluster state (pods, nodes) and read from the
allocator's change log (devices). Scores are dropped when the policy's `version` changes.

Nodes are told apart for policies by a hardware number: nodes with equal numbers have the same devices in the same
positions, as far as the selectors of all known kinds of pods read them. A kind of pod that reads a new attribute
makes all numbers new.

Where no summary of the claims exists (partitions, "all devices") the score of a node is that of the allocator's plan
there, by the policy's `plans`; it is kept and renewed in the same way.

The order is a preference; the allocator has the last word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Final

from dray.allocator import AllocationError, PendingWork, Plan
from dray.api.caching import BoundedMap
from dray.api.core import Pod
from dray.api.resource import ResourceClaim
from dray.scheduler.amounts import CPU, MEMORY
from dray.scheduler.devices import Devices
from dray.scheduler.policies.protocol import NodePolicy, NodeSupply, PodDemand
from dray.scheduler.scoring import has_alternatives
from dray.scheduler.shape import PodShape
from dray.scheduler.state import ClusterState, NodeState, PodUse

_MOST_KINDS: Final = 1024
_MOST_ARRIVALS: Final = 10_000  # pods remembered as seen
_LONGEST_LOG: Final = 100_000

Claims = tuple[ResourceClaim, ...]


@dataclass(slots=True, eq=False)
class _Kind:
    """One kind of pod and the scores of the nodes for it."""

    demand: PodDemand
    claims: Claims
    is_summable: bool = True  # a summary of its claims exists on every node
    scores: dict[int, float] = field(default_factory=dict)  # index of the node -> score, where it fits
    page: int = -1  # changes that are in; -1: none
    version: int = -1


class NodeRanking:
    """Orders nodes by a policy; owned by the placer."""

    def __init__(self, policy: NodePolicy, state: ClusterState, devices: Devices) -> None:
        self.policy = policy
        self._state = state
        self._allocator = devices.allocator
        self._kinds: BoundedMap[tuple[Hashable, bytes], _Kind] = BoundedMap(_MOST_KINDS)
        self._seen: BoundedMap[str, None] = BoundedMap(_MOST_ARRIVALS)  # uids of pods that have arrived
        self._reads: tuple[str, ...] | None = ()  # attributes read by the claims of any kind
        self._numbers: dict[Hashable, int] = {}  # hardware -> number
        self._example: dict[int, str] = {}  # hardware number -> a node that has it
        self._supply: dict[int, NodeSupply | None] = {}  # index of the node -> what is free
        self._log: list[int] = []  # indexes of nodes that changed
        self._device_log = self._allocator.change_log
        self._device_page = 0
        self._nodes = {node.index: node for node in state.nodes.values()}
        self._described = -1  # version of the policy that has been told the hardware
        state.listeners.append(self._on_pod)
        state.node_listeners.append(self._on_node)

    # --- changes ---------------------------------------------------------------

    def _on_pod(self, use: PodUse, _sign: int) -> None:
        node = self._state.nodes.get(use.node)
        if node is not None:
            self._changed(node.index)

    def _on_node(self, node: NodeState) -> None:
        if self._state.nodes.get(node.name) is node:
            self._nodes[node.index] = node
        else:
            self._nodes.pop(node.index, None)
        self._described = -1
        self._changed(node.index)

    def _changed(self, index: int) -> None:
        self._supply.pop(index, None)
        self._log.append(index)

    def _catch_up(self) -> None:
        log = self._allocator.change_log
        if log is not self._device_log or len(self._log) > _LONGEST_LOG:
            self._device_log, self._device_page = log, 0
            self._forget()
        for name in log.nodes[self._device_page :]:
            node = self._state.nodes.get(name)
            if node is not None:
                self._changed(node.index)
        self._device_page = len(log.nodes)

    def _forget(self) -> None:
        self._supply.clear()
        self._log.clear()
        for kind in self._kinds.values():
            kind.page = -1

    # --- kinds and hardware ----------------------------------------------------

    def _kind_of(self, shape: PodShape, claims: Claims, key: bytes) -> _Kind:
        """Return the kind of a pod. Raises AllocationError and PendingWork as the allocator does."""
        found = self._kinds.use((shape.requests, key))
        if found is None:
            amounts = dict(shape.requests)
            demand = PodDemand(amounts.get(CPU, 0), amounts.get(MEMORY, 0), has_claims=bool(claims))
            found = _Kind(demand, claims)
            if claims:
                self._read(self._allocator.attributes_read(claims))
            for number, node in self._example.items():
                self._match(found, number, node)
            self._kinds[shape.requests, key] = found
        return found

    def _read(self, reads: tuple[str, ...] | None) -> None:
        known = self._reads
        if known is None or (reads is not None and set(reads) <= set(known)):
            return
        self._reads = None if reads is None else tuple(sorted({*known, *reads}))
        self._numbers.clear()
        self._example.clear()
        for kind in self._kinds.values():
            kind.demand.footprints.clear()
        self._forget()

    def _match(self, kind: _Kind, number: int, node: str) -> None:
        if not kind.claims:
            return
        try:
            footprints = self._allocator.footprints(node, kind.claims)
        except (AllocationError, PendingWork):
            return  # not known now; the allocator says why when the pod is placed
        if footprints is None:
            kind.is_summable, kind.page = False, -1
        elif all(each.matching.bit_count() >= each.n_devices for each in footprints):
            kind.demand.footprints[number] = footprints

    def _supply_of(self, index: int) -> NodeSupply | None:
        if index not in self._supply:
            self._supply[index] = self._summed(index)
        return self._supply[index]

    def _summed(self, index: int) -> NodeSupply | None:
        node = self._nodes.get(index)
        if node is None:
            return None
        key = self._allocator.hardware_of(node.name, self._reads)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._numbers)
            self._example[number] = node.name
            for kind in self._kinds.values():
                self._match(kind, number, node.name)
        devices = self._allocator.free_devices(node.name)
        return NodeSupply(node.free(CPU), node.free(MEMORY), devices, number, node.allocatable.get(CPU, 0))

    # --- ranking ---------------------------------------------------------------

    def order(
        self, pod: Pod, shape: PodShape, claims: Sequence[ResourceClaim], key: bytes, nodes: int
    ) -> Iterator[NodeState]:
        """Yield the nodes of the set on which the pod seems to fit, best first.

        Raises AllocationError and PendingWork as the allocator does.
        """
        self._catch_up()
        kind = self._kind_of(shape, tuple(claims), key)
        self._observe(pod, kind)
        self._renew(kind)
        return self._ordered(kind, nodes)

    def learn(self, pod: Pod, shape: PodShape, claims: Sequence[ResourceClaim], key: bytes) -> None:
        """Let the policy observe a pod without ranking nodes for it."""
        self._catch_up()
        self._observe(pod, self._kind_of(shape, tuple(claims), key))

    def may_fit(self, shape: PodShape, key: bytes, node: str) -> bool:
        """Return whether a pod of a kind may fit on a node now; True where the summary cannot tell."""
        kind, known = self._kinds.get((shape.requests, key)), self._state.nodes.get(node)
        if kind is None or known is None or not kind.is_summable or has_alternatives(kind.claims):
            return True
        self._catch_up()
        supply = self._supply_of(known.index)
        return supply is None or supply.after(kind.demand) is not None

    def supplies(self) -> Iterator[NodeSupply]:
        """Yield what is free on each node now."""
        self._catch_up()
        for index in list(self._nodes):
            supply = self._supply_of(index)
            if supply is not None:
                yield supply

    def _ordered(self, kind: _Kind, nodes: int) -> Iterator[NodeState]:
        scored = [(-score, index) for index, score in kind.scores.items() if nodes >> index & 1]
        best = nsmallest(4 * max(self.policy.shortlist, 1), scored)
        if self.policy.shortlist and kind.claims and kind.is_summable:
            best = self._refined(kind.demand, best)
        for _, index in best:
            yield self._nodes[index]
        told = {index for _, index in best}
        for _, index in sorted(scored):
            if index not in told:
                yield self._nodes[index]

    def _observe(self, pod: Pod, kind: _Kind) -> None:
        uid = pod.metadata.uid
        if uid in self._seen:
            return
        self._seen[uid] = None
        self.policy.observe(kind.demand)

    def _renew(self, kind: _Kind) -> None:
        if self._described != self.policy.version:
            self._describe()
        if kind.page < 0:
            kind.scores.clear()
            indexes = set(self._nodes)
        else:
            indexes = set(self._log[kind.page :])
            if kind.is_summable and kind.version != self.policy.version:
                # On the other nodes it did not fit, and nothing has changed there.
                indexes.update(kind.scores)
        if kind.is_summable:
            self._score(kind, indexes)
        else:
            self._score_plans(kind, indexes)
        kind.page, kind.version = len(self._log), self.policy.version

    def _score(self, kind: _Kind, indexes: Iterable[int]) -> None:
        demand, policy, scores = kind.demand, self.policy, kind.scores
        score = policy.score if demand.has_claims else policy.score_without_devices
        known: dict[NodeSupply, float | None] = {}  # equal nodes are scored once
        for index in indexes:
            before = self._supply_of(index)
            if before is None or before.cpu < demand.cpu or before.memory < demand.memory:
                scores.pop(index, None)
                continue
            if before in known:
                found = known[before]
            else:
                after = before.after(demand)
                found = known[before] = None if after is None else score(demand, before, after)
            if found is None:
                scores.pop(index, None)
            else:
                scores[index] = found

    def _score_plans(self, kind: _Kind, indexes: Iterable[int]) -> None:
        by_name = {self._nodes[index].name: index for index in sorted(indexes) if index in self._nodes}
        for index in indexes:
            kind.scores.pop(index, None)
        try:
            plans = self._plans(kind, list(by_name))
        except AllocationError:
            # On some node they cannot even be tried, perhaps not one of those that the pod may go to.
            plans = [plan for name in by_name for plan in self._plans_if_any(kind, name)]
        kind.scores.update((by_name[plan.node], plan.score) for plan in plans)

    def _plans(self, kind: _Kind, nodes: list[str]) -> Sequence[Plan]:
        return self._allocator.plan_nodes(kind.claims, nodes, policy=self.policy.plans).plans if nodes else ()

    def _plans_if_any(self, kind: _Kind, node: str) -> Sequence[Plan]:
        try:
            return self._plans(kind, [node])
        except AllocationError:
            return ()

    def _describe(self) -> None:
        devices: Counter[int] = Counter()
        for index in self._nodes:
            supply = self._supply_of(index)
            if supply is not None:
                devices[supply.hardware] += len(supply.devices)
        self.policy.describe(devices)
        self._described = self.policy.version

    def _refined(self, demand: PodDemand, ranked: list[tuple[float, int]]) -> list[tuple[float, int]]:
        """Compare the best nodes once more; equal nodes count once."""
        refined: list[tuple[float, int]] = []
        seen: set[Hashable] = set()
        rest: list[tuple[float, int]] = []
        for number, (score, index) in enumerate(ranked):
            if len(refined) >= self.policy.shortlist:
                rest += ranked[number:]
                break
            before = self._supply_of(index)
            assert before is not None
            cpu, memory, devices, hardware, cpu_total = before
            state = cpu, memory, tuple(sorted(devices)), hardware, cpu_total
            if state in seen:
                rest.append((score, index))
                continue
            seen.add(state)
            after = before.after(demand)
            assert after is not None
            refined.append((score - self.policy.refine(demand, before, after), index))
        return [*sorted(refined), *rest]
