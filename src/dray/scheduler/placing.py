"""Find a node for a pod: narrow down, plan the devices, take the best of a few.

Theory of operation. The rules are sets (see `state`): nodes that pass the static rules,
nodes with free resources, nodes not known to refuse the claims. Their intersection is narrowed by
what the pod asks for specially (ports, affinity, allocated claims). From what is left
a few nodes are looked at, beginning after the last one chosen, so that equal pods go
round; the devices are planned there, and the best score wins. kube-scheduler samples
too, only more.

A refusal says what it waits for (`hints`) at once, and why in words only when asked
(`explain`), because words cost a walk over all nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from dray.allocator import AllocationError, Plan, Policy
from dray.api.core import NodeAffinity, Pod
from dray.api.resource import AllocationResult, ResourceClaim
from dray.scheduler import scoring, topology
from dray.scheduler.claims import PodClaims, is_bound_to_nodes, refusal_of_allocation
from dray.scheduler.devices import Devices, claims_equivalence_key
from dray.scheduler.explaining import explain_refusal
from dray.scheduler.image_locality import ImageLocality
from dray.scheduler.inter_pod_affinity import InterPodAffinity
from dray.scheduler.outcomes import Placement, Unplaceable
from dray.scheduler.policies import NODE_POLICIES, NodePolicy, NodeRanking
from dray.scheduler.queue import Hint, QueueingHint
from dray.scheduler.selecting import names_in
from dray.scheduler.shape import PodShape
from dray.scheduler.state import ClusterState, NodeState
from dray.scheduler.topology_spread import TopologySpread
from dray.scheduler.volume_matching import PodVolumes, volumes_of
from dray.scheduler.volumes import VolumeBindings, VolumeState

DEFAULT_SAMPLE = 12  # nodes to compare
PREFERENCE_SAMPLE = (
    100  # nodes to compare for a pod with preferences; kube-scheduler compares at least as many
)
EVERY_NODE = 1 << 30


@dataclass(slots=True)
class _Stages:
    """How the set of possible nodes shrank; the raw material of explanations."""

    nodes: int
    steps: list[tuple[str, int]] = field(default_factory=list)
    hints: set[Hint] = field(default_factory=set)
    volumes: PodVolumes | None = None  # None when nothing depends on them

    def narrow(self, stage: str, nodes: int, *hints_if_smaller: Hint) -> None:
        left = self.nodes & nodes
        if left != self.nodes:
            self.hints.update(hints_if_smaller)
        self.nodes = left
        self.steps.append((stage, left))


class Placer:
    """Places pods. Placing changes nothing; `advance` is for those who take what was placed."""

    def __init__(
        self,
        state: ClusterState,
        devices: Devices,
        affinity: InterPodAffinity | None = None,
        volumes: VolumeState | None = None,
        *,
        spread: TopologySpread | None = None,
        added_affinity: NodeAffinity | None = None,  # of the profile, beside that of every pod
        policy: Policy | NodePolicy | None = None,
        prefers_closeness: bool = False,  # devices of a claim behind one PCIe root, or on one NUMA node
        sample: int | None = None,
    ) -> None:
        self.state = state
        self.devices = devices
        self.affinity = affinity if affinity is not None else InterPodAffinity(state)
        self.spread = spread if spread is not None else TopologySpread(state, self.affinity.counts)
        self.added_affinity = added_affinity
        self.volumes = volumes if volumes is not None else VolumeState(state)
        if isinstance(policy, Policy) and policy.name in NODE_POLICIES:
            policy = NODE_POLICIES[policy.name]()
        self.ranking: NodeRanking | None = None
        self.policy = policy if isinstance(policy, Policy) else None  # by which the allocator compares plans
        if isinstance(policy, NodePolicy):
            self.ranking = NodeRanking(policy, state, devices)
            self.policy = policy.plans
        # A device policy without a ranking compares the plans of all nodes.
        self.sample = sample or (EVERY_NODE if policy is not None else DEFAULT_SAMPLE)
        self.images = ImageLocality(state)
        self.prefers_closeness = prefers_closeness
        self.start = 0  # index of the node at which samples begin

    def place(
        self,
        pod: Pod,
        shape: PodShape,
        claims: PodClaims,
        *,
        kind: bytes | None = None,
        within: int | None = None,
    ) -> Placement | Unplaceable:
        """Find the best node now; `within` restricts the choice to a set of nodes."""
        stages = self.narrow(pod, shape, claims, within)
        if not stages.nodes:
            return self._refused(pod, shape, claims, stages, within)
        if not claims.pending:
            node = None
            if self.ranking is not None:
                node = next(self.ranking.order(pod, shape, (), b"", stages.nodes), None)
            chosen = node or self._best_node(pod, shape, stages.nodes)
            return self._with_volumes(Placement(chosen.name), stages.volumes)
        answer = self._with_devices(
            pod, shape, claims, kind or claims_equivalence_key(claims.pending), stages, within
        )
        return answer if isinstance(answer, Unplaceable) else self._with_volumes(answer, stages.volumes)

    def _with_volumes(self, placement: Placement, volumes: PodVolumes | None) -> Placement:
        """Add what must be written for the pod's volumes on the node that was chosen."""
        if volumes is None or not volumes.delayed:
            return placement
        found = volumes.bindings(self.state.nodes[placement.node])
        assert isinstance(found, VolumeBindings)  # else the node would have been left out
        return replace(placement, volumes=found)

    def narrow(self, pod: Pod, shape: PodShape, claims: PodClaims, within: int | None = None) -> _Stages:
        """Apply every rule that is not about free devices."""
        state = self.state
        stages = _Stages(state.all_nodes if within is None else within & state.all_nodes)
        stages.narrow("static", state.passing_static(pod, shape.static_key), QueueingHint.NODES)
        stages.narrow(
            "resources", state.with_free_resources(shape.requests), QueueingHint.NODES, QueueingHint.RESOURCES
        )
        if shape.ports:
            stages.narrow(
                "ports", state.with_free_ports(shape.ports), QueueingHint.NODES, QueueingHint.RESOURCES
            )
        volumes = stages.volumes = volumes_of(self.volumes, pod, shape)
        if volumes is not None:
            stages.narrow("volumes", volumes.nodes(stages.nodes), *volumes.hints)
        for claim in claims.allocated:
            allocation = claim.status.allocation
            if allocation is not None and is_bound_to_nodes(allocation):
                stages.narrow(
                    "claim", self._usable(claim, allocation), QueueingHint.NODES, _claim_hint(claim)
                )
        if shape.affinity or shape.anti_affinity or self.affinity.objects():
            judge = self.affinity.refusal(pod, shape)
            allowed = sum(node.bit for node in state.in_set(stages.nodes) if judge(node) is None)
            stages.narrow("affinity", allowed, QueueingHint.NODES, QueueingHint.AFFINITY)
        if shape.spread and stages.nodes:
            judge = self.spread.refusal(pod, shape)
            allowed = sum(node.bit for node in state.in_set(stages.nodes) if judge(node) is None)
            stages.narrow("spread", allowed, QueueingHint.NODES, QueueingHint.AFFINITY)
        return stages

    def _usable(self, claim: ResourceClaim, allocation: AllocationResult) -> int:
        """Return the nodes that can use a claim that is allocated."""
        names = names_in(allocation.node_selector) if allocation.node_selector is not None else None
        state = self.state
        pool = (
            state.nodes.values()
            if names is None
            else [state.nodes[name] for name in names if name in state.nodes]
        )
        return sum(node.bit for node in pool if refusal_of_allocation(claim, node.node) is None)

    def _with_devices(
        self,
        pod: Pod,
        shape: PodShape,
        claims: PodClaims,
        kind: bytes,
        stages: _Stages,
        within: int | None,
    ) -> Placement | Unplaceable:
        try:
            ranked = None
            if self.ranking is not None:
                ranked = self.ranking.order(pod, shape, claims.pending, kind, stages.nodes)
            plans = self._plans(claims.pending, kind, stages.nodes, ranked, self._sample_for(pod, shape))
        except AllocationError as error:
            message = str(error)
            return Unplaceable(
                frozenset((QueueingHint.DEVICES, QueueingHint.NODES, *map(_claim_hint, claims.pending))),
                lambda: message,
                is_fatal=True,
            )
        if not plans:
            gave_up = self.devices.gave_up
            stages.narrow("devices", 0, QueueingHint.DEVICES, QueueingHint.NODES)
            refusal = self._refused(pod, shape, claims, stages, within)
            return replace(refusal, gave_up=True) if gave_up else refusal
        best = self._best_plan(pod, shape, claims.pending, plans)
        return Placement(best.node, claims.pending, best.allocations)

    def advance(self, name: str) -> int:
        """Begin the next sample behind a node that was taken, so that all nodes get their turn; return the former start.

        A policy that gathers pods must keep seeing the nodes it has begun to fill, so it
        always begins where the first node is.
        """
        before = self.start
        node = self.state.nodes.get(name)
        if node is not None and (self.policy is None or self.policy.name == "spread"):
            self.start = node.index + 1
        return before

    def _plans(
        self,
        claims: Sequence[ResourceClaim],
        kind: bytes,
        nodes: int,
        ranked: Iterator[NodeState] | None,
        sample: int,
    ) -> tuple[Plan, ...]:
        """Plan the devices, on the best nodes first where they are ranked."""
        order = list(ranked) if ranked is not None and self.prefers_closeness else ranked
        for name, constrained in (
            topology.with_closeness(claims) if self.prefers_closeness else ((b"", claims),)
        ):
            try:
                if order is not None:
                    plans = self._ranked_plans(constrained, kind + name, nodes, iter(order))
                else:
                    plans = self.devices.plans(
                        constrained, kind + name, nodes, self.start, first=sample, policy=self.policy
                    )
            except AllocationError:
                if not name:
                    raise
                continue  # the tie was ours, not the user's: try without
            if plans:
                return plans
        return ()

    def _ranked_plans(
        self, claims: Sequence[ResourceClaim], kind: bytes, nodes: int, ranked: Iterator[NodeState]
    ) -> tuple[Plan, ...]:
        """Return a plan on the best node that the allocator accepts.

        A ranking knows less than the allocator (constraints, alternatives), so the nodes are asked a few at a
        time, and in the end those that it left out.
        """
        assert self.ranking is not None
        left, policy = nodes, self.ranking.policy.devices
        for size in (1, 15, len(self.state.nodes)):
            chunk = list(islice(ranked, size))
            bits = sum([node.bit for node in chunk])
            left &= ~bits
            plans = self.devices.plans(claims, kind, bits, 0, first=size, policy=policy) if bits else ()
            if plans:
                plan_by_node = {plan.node: plan for plan in plans}
                return (next(plan_by_node[node.name] for node in chunk if node.name in plan_by_node),)
        return self.devices.plans(claims, kind, left, 0, first=self.sample, policy=self.policy)

    def _best_node(self, pod: Pod, shape: PodShape, nodes: int) -> NodeState:
        compared = list(islice(self.state.in_set(nodes, self.start), self._sample_for(pod, shape)))
        scores = self._scores(pod, shape, compared)
        return compared[scores.index(max(scores))]

    def _best_plan(
        self, pod: Pod, shape: PodShape, claims: Sequence[ResourceClaim], plans: Sequence[Plan]
    ) -> Plan:
        if len(plans) == 1 or self.policy is not None:
            return plans[0]  # a policy has sorted them
        scores = self._scores(pod, shape, [self.state.nodes[plan.node] for plan in plans])
        if scoring.has_alternatives(claims):
            scores = [
                score + scoring.WEIGHT_DEVICES * scoring.alternatives_score(claims, plan.allocations)
                for score, plan in zip(scores, plans, strict=True)
            ]
        return plans[scores.index(max(scores))]

    def _sample_for(self, pod: Pod, shape: PodShape) -> int:
        """Return how many nodes to compare: more where the pod has preferences that only some nodes may meet."""
        if (
            shape.has_preferences
            or self.added_affinity is not None
            or self.affinity.prefers(shape)
            or self.spread.soft_rules(pod, shape)
        ):
            return max(self.sample, PREFERENCE_SAMPLE)
        return self.sample

    def _scores(self, pod: Pod, shape: PodShape, nodes: Sequence[NodeState]) -> list[float]:
        """Score nodes, higher is better."""
        totals = [scoring.resource_score(shape, node) for node in nodes]
        if len(nodes) == 1:
            return totals
        parts: list[tuple[float, list[float]]] = []
        if any(node.node.spec.taints for node in nodes):
            parts.append((scoring.WEIGHT_TAINTS, scoring.taint_scores(pod, nodes)))
        if shape.has_preferences or self.added_affinity is not None:
            terms = scoring.preferred_terms(pod, self.added_affinity)
            parts.append((scoring.WEIGHT_AFFINITY, scoring.affinity_scores(terms, nodes)))
        if self.images:
            parts.append((1.0, [self.images.score(pod, node) for node in nodes]))
        if self.affinity.prefers(shape):
            parts.append((scoring.WEIGHT_INTER_POD_AFFINITY, self.affinity.preference(pod, shape, nodes)))
        rules = self.spread.soft_rules(pod, shape)
        if rules:
            parts.append((scoring.WEIGHT_SPREAD, self.spread.preference(pod, shape, rules, nodes)))
        for weight, scores in parts:
            totals = [total + weight * score for total, score in zip(totals, scores, strict=True)]
        return totals

    def _refused(
        self, pod: Pod, shape: PodShape, claims: PodClaims, stages: _Stages, within: int | None
    ) -> Unplaceable:
        hints = stages.hints or {QueueingHint.NODES}
        return Unplaceable(
            frozenset(hints),
            lambda: explain_refusal(self, pod, shape, claims, within),
            stages=tuple((stage, left.bit_count()) for stage, left in stages.steps),
            about=stages.volumes.problem if stages.volumes is not None else "",
        )


def _claim_hint(claim: ResourceClaim) -> str:
    return f"claim:{claim.metadata.namespace}/{claim.metadata.name}"
