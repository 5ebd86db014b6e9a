"""Find a node for a pod: narrow down, plan the devices, take the best of a few.

Theory of operation. The rules are sets (see `state`): nodes that pass the static rules,
nodes with room, nodes not known to refuse the claims. Their intersection is narrowed by
what the pod asks for specially (ports, neighbours, allocated claims). From what is left
a few nodes are looked at, beginning after the last one chosen, so that equal pods go
round; the devices are planned there, and the best score wins. kube-scheduler samples
too, only more.

A refusal says what it waits for (`wishes`) at once, and why in words only when asked
(`explain`), because words cost a walk over all nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from dray.allocator import AllocationError, Plan, Policy
from dray.api.core import Pod
from dray.api.resource import AllocationResult, ResourceClaim
from dray.scheduler import scoring, topology
from dray.scheduler.amounts import Requests
from dray.scheduler.claims import PodClaims, is_bound_to_nodes, refusal_of_allocation
from dray.scheduler.devices import Devices, kind_of
from dray.scheduler.explaining import explain_refusal
from dray.scheduler.neighbours import Neighbours
from dray.scheduler.queue import Help, Wish
from dray.scheduler.selecting import names_in
from dray.scheduler.shape import PodShape
from dray.scheduler.state import ClusterState, NodeState

DEFAULT_SAMPLE = 12  # nodes to compare
POLICY_SAMPLE = 128  # a device policy wants to compare more


@dataclass(frozen=True, slots=True)
class Placement:
    """A node for the pod, and the allocations of its pending claims there. Nothing is taken yet."""

    node: str
    claims: tuple[ResourceClaim, ...] = ()  # those that get an allocation
    allocations: tuple[AllocationResult, ...] = ()  # in the order of the claims
    extra: Requests = ()  # node resources that devices cost


@dataclass(frozen=True, slots=True)
class Unplaceable:
    """No node takes the pod now. Falsy."""

    wishes: frozenset[Wish]  # what can help
    explain: Callable[[], str] = field(repr=False)  # one line with the counts per reason
    stages: tuple[tuple[str, int], ...] = ()  # (stage, nodes still possible after it), in order
    is_fatal: bool = False  # an error that no node can cure
    gave_up: bool = False  # a search was cut short: there may be a place that we have no time to find
    about: str = ""  # what else of the situation is news when it changes

    @property
    def cause(self) -> str:
        """What people should know at once when it changes; mere counts per reason are not part of it."""
        return self.about + next((stage for stage, left in self.stages if not left), "")

    def __bool__(self) -> bool:
        return False


@dataclass(slots=True)
class _Stages:
    """How the set of possible nodes shrank; the raw material of explanations."""

    nodes: int
    steps: list[tuple[str, int]] = field(default_factory=list)
    wishes: set[Wish] = field(default_factory=set)

    def narrow(self, stage: str, nodes: int, *helps: Wish) -> None:
        left = self.nodes & nodes
        if left != self.nodes:
            self.wishes.update(helps)
        self.nodes = left
        self.steps.append((stage, left))


class Placer:
    """Places pods; remembers only where it left off."""

    def __init__(
        self,
        state: ClusterState,
        devices: Devices,
        neighbours: Neighbours | None = None,
        *,
        policy: Policy | None = None,
        prefers_closeness: bool = False,  # devices of a claim behind one PCIe root, or on one NUMA node
        sample: int | None = None,
    ) -> None:
        self.state = state
        self.devices = devices
        self.neighbours = neighbours if neighbours is not None else Neighbours(state)
        self.policy = policy
        self.sample = sample or (POLICY_SAMPLE if policy is not None else DEFAULT_SAMPLE)
        self.prefers_closeness = prefers_closeness
        self._start = 0

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
            node = self._best_node(pod, shape, stages.nodes)
            return Placement(node.name)
        return self._with_devices(pod, shape, claims, kind or kind_of(claims.pending), stages, within)

    def narrow(self, pod: Pod, shape: PodShape, claims: PodClaims, within: int | None = None) -> _Stages:
        """Apply every rule that is not about free devices."""
        state = self.state
        stages = _Stages(state.all_nodes if within is None else within & state.all_nodes)
        stages.narrow("static", state.passing_static(pod, shape.static_key), Help.NODES)
        stages.narrow("room", state.with_room(shape.requests), Help.NODES, Help.ROOM)
        if shape.ports:
            stages.narrow("ports", state.with_free_ports(shape.ports), Help.NODES, Help.ROOM)
        for claim in claims.allocated:
            allocation = claim.status.allocation
            if allocation is not None and is_bound_to_nodes(allocation):
                stages.narrow("claim", self._usable(claim, allocation), Help.NODES, _claim_wish(claim))
        if shape.affinity or shape.anti_affinity or shape.spread or self.neighbours.objects():
            judge = self.neighbours.refusal(pod, shape)
            allowed = sum(node.bit for node in state.in_set(stages.nodes) if judge(node) is None)
            stages.narrow("neighbours", allowed, Help.NODES, Help.NEIGHBOURS)
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
            plans = self._plans(claims.pending, kind, stages.nodes)
        except AllocationError as error:
            message = str(error)
            return Unplaceable(
                frozenset((Help.DEVICES, Help.NODES, *map(_claim_wish, claims.pending))),
                lambda: message,
                is_fatal=True,
            )
        if not plans:
            gave_up = self.devices.gave_up
            stages.narrow("devices", 0, Help.DEVICES, Help.NODES)
            refusal = self._refused(pod, shape, claims, stages, within)
            return replace(refusal, gave_up=True) if gave_up else refusal
        best = self._best_plan(pod, shape, claims.pending, plans)
        self._move_past(self.state.nodes[best.node])
        return Placement(best.node, claims.pending, best.allocations)

    def _move_past(self, node: NodeState) -> None:
        """Begin the next sample behind the node just taken, so that all nodes get their turn.

        A policy that gathers pods must keep seeing the nodes it has begun to fill, so it
        always begins where the first node is.
        """
        if self.policy is None or self.policy.name == "spread":
            self._start = node.index + 1

    def _plans(self, claims: Sequence[ResourceClaim], kind: bytes, nodes: int) -> tuple[Plan, ...]:
        for name, wished in topology.wishes(claims) if self.prefers_closeness else ((b"", claims),):
            try:
                plans = self.devices.plans(
                    wished, kind + name, nodes, self._start, first=self.sample, policy=self.policy
                )
            except AllocationError:
                if not name:
                    raise
                continue  # the tie was ours, not the user's: try without
            if plans:
                return plans
        return ()

    def _best_node(self, pod: Pod, shape: PodShape, nodes: int) -> NodeState:
        score = self._scorer(pod, shape)
        best: NodeState | None = None
        best_score = -1e300
        for position, node in enumerate(self.state.in_set(nodes, self._start)):
            found = score(node)
            if found > best_score:
                best, best_score = node, found
            if position + 1 >= self.sample:
                break
        assert best is not None
        self._move_past(best)
        return best

    def _best_plan(
        self, pod: Pod, shape: PodShape, claims: Sequence[ResourceClaim], plans: Sequence[Plan]
    ) -> Plan:
        if len(plans) == 1 or self.policy is not None:
            return plans[0]  # a policy has sorted them
        node_score = self._scorer(pod, shape)
        alternatives = scoring.has_alternatives(claims)
        best, best_score = plans[0], -1e300
        for plan in plans:
            found = node_score(self.state.nodes[plan.node])
            if alternatives:
                found += scoring.WEIGHT_DEVICES * scoring.alternatives_score(claims, plan.allocations)
            if found > best_score:
                best, best_score = plan, found
        return best

    def _scorer(self, pod: Pod, shape: PodShape) -> Callable[[NodeState], float]:
        neighbours = (
            self.neighbours.preference(pod, shape) if shape.preferred_affinity or shape.soft_spread else None
        )

        def score(node: NodeState) -> float:
            total = scoring.resource_score(shape, node)
            if node.node.spec.taints:
                total -= scoring.WEIGHT_TAINTS * (100.0 - scoring.taint_score(pod, node))
            if shape.has_preferences:
                total += scoring.WEIGHT_AFFINITY * scoring.affinity_score(pod, node)
            if neighbours is not None:
                total += scoring.WEIGHT_NEIGHBOURS * neighbours(node)
            return total

        return score

    def _refused(
        self, pod: Pod, shape: PodShape, claims: PodClaims, stages: _Stages, within: int | None
    ) -> Unplaceable:
        wishes = stages.wishes or {Help.NODES}
        return Unplaceable(
            frozenset(wishes),
            lambda: explain_refusal(self, pod, shape, claims, within),
            stages=tuple((stage, left.bit_count()) for stage, left in stages.steps),
        )


def _claim_wish(claim: ResourceClaim) -> str:
    return f"claim:{claim.metadata.namespace}/{claim.metadata.name}"
