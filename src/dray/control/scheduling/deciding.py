"""One decision: what to do with a pod (or its gang), given the caches as they are.

Pure in spirit: reads the caches, changes nothing but the bookkeeping of the placer. The
answer is a value that the loop acts upon: place these pods, or refuse, or wait, or first
clear something out of the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from dray.allocator import AllocationError, Plan, Undo, World
from dray.api.core import ContainerExtendedResourceRequest, Pod, PodGroup
from dray.api.features import Features
from dray.api.resource import ResourceClaim
from dray.client import key_of
from dray.control.scheduling.caches import Caches
from dray.control.scheduling.withdrawing import is_withdrawn
from dray.scheduler import (
    Help,
    Member,
    NotReady,
    Placement,
    Placer,
    PodClaims,
    PodShape,
    Unplaceable,
    Way,
    choose_special,
    claim_keys,
    footprint,
    gather_claims,
    group_key,
    has_binding_conditions,
    is_bound_to_nodes,
    judge_binding,
    kind_of,
    may_deallocate,
    missing_members,
    place_by_ways,
    pods_to_start,
    serves,
    shape_of,
    special_claim,
    start_gang,
    variants,
)
from dray.scheduler.amounts import sum_requests

_NO_CLAIMS = PodClaims()
Mappings = tuple[ContainerExtendedResourceRequest, ...]


@dataclass(frozen=True, slots=True)
class Placed:
    """A pod with its place; ready to be booked and committed."""

    pod: Pod
    shape: PodShape
    claims: PodClaims
    placement: Placement
    group: PodGroup | None = None
    mappings: Mappings = ()  # of the claim for extended resources, if there is one
    node_statuses: tuple[dict[str, Any], ...] = ()  # what its devices cost of the node's own resources


@dataclass(frozen=True, slots=True)
class ClearFirst:
    """A claim stands in the way: an allocation that cannot be used, or a leftover."""

    claim: ResourceClaim
    message: str
    way: Literal["deallocate", "delete", "unreserve"] = "deallocate"
    consumer: str = ""  # uid of the one whose reservation is to be given up


@dataclass(frozen=True, slots=True)
class Later:
    """Other schedulers are at work on the only devices that fit: try again when they are done."""

    seconds: float
    message: str


Decision = list[Placed] | Unplaceable | NotReady | ClearFirst | Later

_NODES_BESIDE = 8  # nodes to try when room must be left for others
_NODES_WITH_COST = 16  # nodes to try when devices cost node resources
_QUIET = 1.0  # seconds without a foreign allocation after which the last devices may be taken


class Decider:
    """Decides about pods; see the module docstring."""

    def __init__(self, caches: Caches, placer: Placer, features: Features) -> None:
        self.caches = caches
        self.placer = placer
        self._features = features

    # --- what a pod brings along ------------------------------------------------

    def group_of(self, pod: Pod) -> PodGroup | None:
        """Return the PodGroup of a pod, if it has one and it exists."""
        key = group_key(pod)
        return self.caches.groups.get(key) if key else None

    def gang_of(self, pod: Pod) -> PodGroup | None:
        """Return the pod's group if its pods start together or not at all."""
        group = self.group_of(pod)
        return group if group is not None and group.spec.scheduling_policy.gang is not None else None

    def claims_of(self, pod: Pod) -> PodClaims | NotReady:
        """Gather the pod's claims."""
        if not pod.spec.resource_claims:
            return _NO_CLAIMS
        shares = self.group_of(pod) if "DRAWorkloadResourceClaims" in self._features else None
        return gather_claims(pod, self.caches.claims.get, in_flight=self.caches.bookings, group=shares)

    def kind_of(self, pod: Pod, shape: PodShape, claims: PodClaims) -> bytes:
        """Pods of equal kind get equal answers; see the queue."""
        group = self.gang_of(pod)
        if group is not None:
            return f"gang:{group.metadata.uid}".encode()
        parts = [shape.key, str(pod.spec.priority or 0).encode()]
        if claims.pending:
            parts.append(kind_of(claims.pending))
        parts += [claim.metadata.uid.encode() for claim in claims.allocated]
        if self.caches.neighbours.objects():
            parts.append(repr((pod.metadata.namespace, sorted((pod.metadata.labels or {}).items()))).encode())
        return b"\x00".join(parts)

    # --- deciding ---------------------------------------------------------------

    def decide(self, pod: Pod, shape: PodShape, waiting_members: list[Pod]) -> Decision:
        """Place the pod, alone or with its gang."""
        claims = self.claims_of(pod)
        if isinstance(claims, NotReady):
            return claims
        broken = self._broken(pod, claims)
        if broken is not None:
            return broken
        gang = self.gang_of(pod)
        if gang is not None:
            needed = pods_to_start(self.caches.state, gang)
            if needed > 1 or len(waiting_members) > 1:
                return self._decide_gang(gang, waiting_members, needed)
        if self._asked(pod):
            return self._decide_extended(pod, claims)
        within = self._within(pod)
        if claims.pending and self.caches.has_company():
            answer = self._place_beside(pod, shape, claims, within)
        else:
            answer = self.placer.place(pod, shape, claims, within=within)
        if isinstance(answer, Later):
            return answer
        if isinstance(answer, Unplaceable):
            return self._unusable(pod, claims) or answer
        if "DRANodeAllocatableResources" in self._features and claims.all:
            return self._with_footprint(pod, shape, claims, answer, within)
        return [Placed(pod, shape, claims, answer, self._claim_group(pod))]

    def _with_footprint(
        self, pod: Pod, shape: PodShape, claims: PodClaims, answer: Placement, within: int | None
    ) -> list[Placed] | Unplaceable:
        """Accept the placement if the node has room for what the devices cost, else look elsewhere."""
        nodes = self.caches.state.all_nodes if within is None else within
        problem = ""
        for _ in range(_NODES_WITH_COST):
            known = self.caches.state.nodes[answer.node]
            held = [(each, each.status.allocation) for each in claims.allocated if each.status.allocation]
            held += list(zip(answer.claims, answer.allocations, strict=True))
            cost = footprint(pod, held, self.caches.rivals.device_of)
            if not cost.problem and known.has_room(sum_requests([shape.requests, cost.extra])):
                answer = Placement(answer.node, answer.claims, answer.allocations, cost.extra)
                group = self._claim_group(pod)
                return [Placed(pod, shape, claims, answer, group, (), cost.statuses)]
            problem = cost.problem or f"the devices on {answer.node} cost more cpu or memory than it has left"
            nodes &= ~known.bit
            following = self.placer.place(pod, shape, claims, within=nodes)
            if isinstance(following, Unplaceable):
                break
            answer = following
        return Unplaceable(frozenset({Help.DEVICES, Help.ROOM, Help.NODES}), lambda: problem)

    def _place_beside(
        self, pod: Pod, shape: PodShape, claims: PodClaims, within: int | None
    ) -> Placement | Unplaceable | Later:
        """Place so that another scheduler which decides at this very moment picks other devices.

        It gives devices in the same order as we do. So on the node that we choose, what it may be giving
        away now is booked for it first, on paper, and we take what comes after. Even a short double
        booking must be avoided: kube-scheduler counts a device as free as soon as *one* of two
        claims that hold it lets go.
        """
        placer, world = self.placer, self.caches.devices.world
        nodes = self.caches.state.all_nodes if within is None else within
        wishes = self.caches.foreign_wishes()
        for _ in range(_NODES_BESIDE):
            answer = placer.place(pod, shape, claims, within=nodes)
            if isinstance(answer, Unplaceable):
                break
            bookings: list[Undo] = []
            try:
                for number, wish in enumerate(wishes):
                    theirs = _plan_or_none(world, answer.node, [wish])
                    if theirs is not None:
                        bookings.append(world.take(f"elsewhere-{number}", theirs.allocations[0]))
                ours = _plan_or_none(world, answer.node, claims.pending)
                if ours is not None:
                    return Placement(answer.node, claims.pending, ours.allocations, answer.extra)
            finally:
                while bookings:
                    bookings.pop()()
            nodes &= ~self.caches.state.nodes[answer.node].bit
        answer = placer.place(pod, shape, claims, within=within)
        if isinstance(answer, Unplaceable) or self.caches.seconds_alone() > _QUIET:
            return answer
        return Later(_QUIET / 2, "waiting for another scheduler that is allocating the same devices")

    def _claim_group(self, pod: Pod) -> PodGroup | None:
        return self.group_of(pod) if "DRAWorkloadResourceClaims" in self._features else None

    def _within(self, pod: Pod) -> int | None:
        """Keep off nodes that are being cleared for more important pods."""
        taken = 0
        for uid, (node, priority) in self.caches.nominated.items():
            known = self.caches.state.nodes.get(node)
            if known is not None and uid != pod.metadata.uid and priority > (pod.spec.priority or 0):
                taken |= known.bit
        return self.caches.state.all_nodes & ~taken if taken else None

    def _broken(self, pod: Pod, claims: PodClaims) -> ClearFirst | NotReady | None:
        """Find an allocation that was being cleared, or whose drivers have reported failure or let time run out."""
        for claim in claims.allocated:
            if is_withdrawn(pod, claim):
                consumer = self._consumer_of(pod, claim)
                if consumer:
                    text = f"claim {key_of(claim.metadata)} was being cleared for another attempt"
                    return ClearFirst(claim, text, "unreserve", consumer)
            if not has_binding_conditions(claim):
                continue
            waits = self.caches.waits
            verdict = judge_binding(claim, waits.seconds(claim), waits.timeout, self._features)
            if not verdict.failure:
                continue
            name = f"{claim.metadata.namespace}/{claim.metadata.name}"
            if may_deallocate(claim, {pod.metadata.uid}):
                return ClearFirst(claim, f"claim {name}: {verdict.failure}; it is allocated anew")
            return NotReady(f"claim {name}: {verdict.failure}, and other pods hold it", frozenset({name}))
        return None

    def _consumer_of(self, pod: Pod, claim: ResourceClaim) -> str:
        """Return the uid under which the pod holds a reservation, empty when it holds none."""
        group = self._claim_group(pod)
        uids = {pod.metadata.uid} | ({group.metadata.uid} if group is not None else set())
        return next((each.uid for each in claim.status.reserved_for if each.uid in uids), "")

    def _unless_fresh(self, decision: ClearFirst) -> ClearFirst | Later:
        """Let another scheduler finish what it has just begun, for the same pod maybe."""
        if self.caches.seconds_elsewhere(decision.claim) > _QUIET:
            return decision
        return Later(_QUIET, f"{decision.message}, unless the scheduler that allocated it goes on with it")

    def _unusable(self, pod: Pod, claims: PodClaims) -> ClearFirst | Later | None:
        """Find an allocation that pins the pod to nodes that do not take it, and that nobody else uses."""
        for claim in claims.allocated:
            allocation = claim.status.allocation
            if (
                allocation is not None
                and is_bound_to_nodes(allocation)
                and may_deallocate(claim, {pod.metadata.uid})
            ):
                name = f"{claim.metadata.namespace}/{claim.metadata.name}"
                return self._unless_fresh(
                    ClearFirst(claim, f"claim {name} was allocated where the pod cannot run")
                )
        return None

    # --- gangs --------------------------------------------------------------------

    def _decide_gang(self, group: PodGroup, pods: list[Pod], needed: int) -> Decision:
        name = key_of(group.metadata)
        if len(pods) < needed:
            gang = group.spec.scheduling_policy.gang
            wanted = gang.min_count if gang is not None else needed
            return self._kept_in_vain(pods) or missing_members(needed - len(pods), name, wanted)
        members = []
        for pod in pods:
            claims = self.claims_of(pod)
            if isinstance(claims, NotReady):
                return Unplaceable(
                    frozenset((f"group:{name}", *(f"claim:{key}" for key in claims.waits_for))),
                    lambda claims=claims: claims.message,  # type: ignore[misc]
                    about=claims.message,
                )
            ways = self._broken(pod, claims) or self._ways(pod, claims)
            if not isinstance(ways, list):
                return ways
            members.append(Member(pod, tuple(ways)))
        answer = start_gang(self.placer, members, needed)
        if isinstance(answer, Unplaceable):
            return self._kept_in_vain(pods) or replace(
                answer, wishes=answer.wishes | {f"group:{name}", Help.GROUP}
            )
        return [
            Placed(each.pod, way.shape, way.claims, placement, self._claim_group(each.pod), way.mappings)
            for each, way, placement in zip(answer.members, answer.ways, answer.placements, strict=True)
        ]

    def _kept_in_vain(self, pods: Sequence[Pod]) -> ClearFirst | Later | None:
        """Find what an earlier attempt has left to a gang that cannot start: it stands in the way, of others, too."""
        for pod in pods:
            unusable = None
            if pod.metadata.uid in self.caches.special_by_pod:
                unusable = self._special_in_vain(pod)
            if unusable is None and self._has_allocation(pod):
                claims = self.claims_of(pod)
                unusable = self._unusable(pod, claims) if isinstance(claims, PodClaims) else None
            if unusable is not None:
                return unusable
        return None

    def _has_allocation(self, pod: Pod) -> bool:
        """Whether a claim of the pod is allocated; asked about all that wait whenever one joins a gang, so quick."""
        if not pod.spec.resource_claims:
            return False
        found = claim_keys(pod, self._claim_group(pod))
        claims = () if isinstance(found, NotReady) else map(self.caches.claims.get, found)
        return any(claim is not None and claim.status.allocation is not None for claim in claims)

    # --- extended resources ---------------------------------------------------------

    def _asked(self, pod: Pod) -> frozenset[str]:
        """Return the extended resources of the pod that devices may provide."""
        return self.caches.extended.asked_by(pod) if "DRAExtendedResource" in self._features else frozenset()

    def _decide_extended(self, pod: Pod, claims: PodClaims) -> Decision:
        """Try each kind of node with the claim that the pod would need there."""
        ways = self._ways(pod, claims)
        if not isinstance(ways, list):
            return ways
        answer = place_by_ways(self.placer, pod, ways)
        if isinstance(answer, Unplaceable):
            return self._special_in_vain(pod) or replace(answer, wishes=answer.wishes | {Help.DEVICES})
        way, placement = answer
        return [Placed(pod, way.shape, way.claims, placement, self._claim_group(pod), way.mappings)]

    def _ways(self, pod: Pod, claims: PodClaims) -> list[Way] | ClearFirst | NotReady:
        """Return the ways to place a pod: one, or one for each kind of node if it asks for extended resources.

        If a claim for those exists, ours from an earlier attempt or another scheduler's, the pod goes on with it.
        Only when that leads nowhere it is deleted, and the pod starts anew.
        """
        within, asked = self._within(pod), self._asked(pod)
        if not asked:
            return [Way(shape_of(pod), claims, within)]
        made, leftovers = choose_special(pod, self.caches.special_claims(pod))
        if leftovers:
            name = leftovers[0].metadata.name
            return ClearFirst(leftovers[0], f"claim {name} is left over from an earlier attempt", "delete")
        if made is not None:
            unfit = self._broken(pod, PodClaims((made,)))
            if unfit is not None:
                return unfit
        ways = []
        for nodes, by_devices in variants(self.caches.state, asked):
            mappings: Mappings = ()
            wanted = claims
            if by_devices:
                special, mappings = special_claim(pod, by_devices, self.caches.extended.class_of)
                wanted = _with_special(claims, special, made)
            if made is not None and made not in wanted.all:
                continue  # it was made for another kind of nodes
            shape = shape_of(pod, without=by_devices)
            ways.append(Way(shape, wanted, nodes if within is None else nodes & within, mappings))
        return ways

    def _special_in_vain(self, pod: Pod) -> ClearFirst | Later | None:
        """Find the claim for extended resources with which a pod that was refused went on."""
        made, _ = choose_special(pod, self.caches.special_claims(pod))
        if made is None:
            return None
        return self._unless_fresh(
            ClearFirst(made, f"claim {made.metadata.name} leads nowhere; the pod starts anew", "delete")
        )


def _with_special(claims: PodClaims, wanted: ResourceClaim, made: ResourceClaim | None) -> PodClaims:
    """Add the claim for extended resources: the one that exists, if it asks for the same."""
    if made is None:
        return PodClaims(claims.allocated, (*claims.pending, wanted), claims.of_group)
    if not serves(made, wanted):
        return claims
    if made.status.allocation is None:
        return PodClaims(claims.allocated, (*claims.pending, made), claims.of_group)
    return PodClaims((*claims.allocated, made), claims.pending, claims.of_group)


def _plan_or_none(world: World, node: str, claims: Sequence[ResourceClaim]) -> Plan | None:
    try:
        answer = world.plan(node, claims)
    except AllocationError:
        return None  # reported to the pod that owns the claim, by whoever places it
    return answer if isinstance(answer, Plan) else None
