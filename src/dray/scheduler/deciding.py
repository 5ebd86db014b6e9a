"""Decide what to do with a pod, or with its gang: `decide(pod, snapshot) -> Decision`.

The production loop, `whatif`, `explain` and the simulator call this function on different snapshots. It reads the snapshot and takes
nothing: the answer is a value. To take what was decided is a step of its own (`ClusterSnapshot.reserve`), and writing it to a server
another one (`control.scheduling.committing`).

A decision is one of four: these pods are placed (one, or the members of a gang); the pod is unplaceable, with what can help, the reasons on demand, and
the evictions that would make room; it is not ready, because a claim is missing; or a claim must be released first, because its
allocation cannot be used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

from dray.api.core import ContainerExtendedResourceRequest, Pod, PodGroup
from dray.api.resource import ResourceClaim
from dray.scheduler.alternatives import Alternative, place_by_alternatives
from dray.scheduler.amounts import sum_requests
from dray.scheduler.claims import (
    NotReady,
    PodClaims,
    has_binding_conditions,
    is_bound_to_nodes,
    judge_binding,
    may_deallocate,
)
from dray.scheduler.cluster_snapshot import ClusterSnapshot
from dray.scheduler.extended import choose_special, serves, special_claim, variants
from dray.scheduler.gang_preemption import plan_gang_preemption
from dray.scheduler.gangs import Member, missing_members, pods_to_start, start_gang, topology_key
from dray.scheduler.nodeallocatable import footprint
from dray.scheduler.nominations import closed_for, counted, kept_from, node_of
from dray.scheduler.outcomes import Placement, Preemption, Unplaceable
from dray.scheduler.preemption import plan_preemption
from dray.scheduler.queue import QueueingHint
from dray.scheduler.shape import PodShape, shape_of

Mappings = tuple[ContainerExtendedResourceRequest, ...]


@dataclass(frozen=True, slots=True)
class Placed:
    """A pod with its placement, ready to be reserved and committed."""

    pod: Pod
    shape: PodShape
    claims: PodClaims
    placement: Placement
    group: PodGroup | None = None
    mappings: Mappings = ()  # of the claim for extended resources, if there is one
    node_statuses: tuple[dict[str, Any], ...] = ()  # what its devices cost of the node's own resources


@dataclass(frozen=True, slots=True)
class ReleaseFirst:
    """A claim must be released first: its allocation cannot be used, or it is left over."""

    claim: ResourceClaim
    message: str
    action: Literal["deallocate", "delete"] = "deallocate"


Decision = list[Placed] | Unplaceable | NotReady | ReleaseFirst

_NODES_BESIDE = 16  # nodes to try that are kept for others
_NODES_WITH_COST = 16  # nodes to try when devices cost node resources


def decide(
    pod: Pod,
    snapshot: ClusterSnapshot,
    waiting: Sequence[Pod] = (),
    *,
    shape: PodShape | None = None,
    is_alone: bool = False,
    plans_preemption: bool = True,
) -> Decision:
    """Place the pod, alone or with its gang; `waiting` are the pods of its group that are not placed, in the order to try.

    With `is_alone` the pod is placed as if it were in no gang; without `plans_preemption` nobody's eviction is considered. Raises PendingWork (see `dray.allocator`) when expressions would take longer than the snapshot's budget allows.
    """
    shape = shape if shape is not None else shape_of(pod)
    members = waiting or (pod,)
    decision = _decide_placement(snapshot, pod, shape, () if is_alone else members)
    if isinstance(decision, Unplaceable) and kept_from(snapshot.nominated, snapshot.state, pod):
        # When nodes are no longer kept for others, what they have is free.
        decision = replace(decision, hints=decision.hints | {QueueingHint.RESOURCES})
    may_preempt = plans_preemption and snapshot.profile.may_preempt
    if isinstance(decision, Unplaceable) and may_preempt:
        gang = None if is_alone else _gang_to_start(snapshot, pod, members)
        if gang is None:
            return replace(decision, preemption=_plan_preemption(snapshot, pod, shape))
        group, needed = gang
        return replace(decision, preemption=_plan_gang_preemption(snapshot, group, members, needed))
    return decision


def _gang_to_start(
    snapshot: ClusterSnapshot, pod: Pod, members: Sequence[Pod]
) -> tuple[PodGroup, int] | None:
    """Return the group whose pods are placed together, and how many of them it still needs; None for a pod on its own."""
    group = snapshot.gang_of(pod)
    if group is None:
        return None
    needed = pods_to_start(snapshot.state, group)
    if needed <= 1 and len(members) <= 1 and topology_key(group) is None:
        return None
    return group, needed


def _plan_preemption(snapshot: ClusterSnapshot, pod: Pod, shape: PodShape) -> Preemption | None:
    """Find less important pods whose eviction would make room, unless some are on their way out already."""
    claims = snapshot.claims_of(pod)
    if isinstance(claims, NotReady) or is_being_preempted_for(snapshot, pod):
        return None
    return plan_preemption(
        snapshot.placer,
        pod,
        shape,
        claims,
        snapshot.claims_reserved_for,
        list(snapshot.budgets.values()),
        snapshot.groups,
        snapshot.nominated,
    )


def _plan_gang_preemption(
    snapshot: ClusterSnapshot, group: PodGroup, pods: Sequence[Pod], needed: int
) -> Preemption | None:
    """Find evictions that make room for a gang; nobody is evicted for one that is not complete."""
    if len(pods) < needed or any(is_being_preempted_for(snapshot, pod) for pod in pods):
        return None
    members = _gang_members(snapshot, pods, f"{group.metadata.namespace}/{group.metadata.name}")
    if not isinstance(members, list):
        return None
    return plan_gang_preemption(
        snapshot.placer,
        group,
        members,
        needed,
        snapshot.claims_reserved_for,
        list(snapshot.budgets.values()),
        snapshot.groups,
    )


def is_being_preempted_for(snapshot: ClusterSnapshot, pod: Pod) -> bool:
    """Return whether pods that were evicted for this one have not left their node yet."""
    own = snapshot.nominated.get(pod.metadata.uid)
    known = snapshot.state.nodes.get(own.node) if own is not None else None
    return known is not None and any(use.is_terminating for use in known.pods.values())


def _decide_placement(
    snapshot: ClusterSnapshot, pod: Pod, shape: PodShape, waiting_members: Sequence[Pod]
) -> Decision:
    """Place the pod, alone or with its gang."""
    claims = snapshot.claims_of(pod)
    if isinstance(claims, NotReady):
        return claims
    broken = _failed_binding(snapshot, pod, claims)
    if broken is not None:
        return broken
    gang = _gang_to_start(snapshot, pod, waiting_members) if waiting_members else None
    if gang is not None:
        return _decide_gang(snapshot, gang[0], waiting_members, gang[1])
    if snapshot.extended_resources_of(pod):
        return _decide_extended(snapshot, pod, claims)
    within = _within(snapshot, pod)
    answer = _place(snapshot, pod, shape, claims, within)
    if isinstance(answer, Unplaceable):
        return _unusable(snapshot, pod, claims) or answer
    if "DRANodeAllocatableResources" in snapshot.features and claims.all:
        return _with_footprint(snapshot, pod, shape, claims, answer, within)
    return [Placed(pod, shape, claims, answer, snapshot.claim_group(pod))]


def _with_footprint(
    snapshot: ClusterSnapshot,
    pod: Pod,
    shape: PodShape,
    claims: PodClaims,
    answer: Placement,
    within: int | None,
) -> list[Placed] | Unplaceable:
    """Accept the placement if the node has room for what the devices cost, else look elsewhere."""
    nodes = snapshot.state.all_nodes if within is None else within
    problem = ""
    for _ in range(_NODES_WITH_COST):
        known = snapshot.state.nodes[answer.node]
        held = [(each, each.status.allocation) for each in claims.allocated if each.status.allocation]
        held += list(zip(answer.claims, answer.allocations, strict=True))
        cost = footprint(pod, held, snapshot.verifier.device_of)
        if not cost.problem and known.fits(sum_requests([shape.requests, cost.extra])):
            answer = replace(answer, extra=cost.extra)
            group = snapshot.claim_group(pod)
            return [Placed(pod, shape, claims, answer, group, (), cost.statuses)]
        problem = cost.problem or f"the devices on {answer.node} cost more cpu or memory than it has left"
        nodes &= ~known.bit
        following = snapshot.placer.place(pod, shape, claims, within=nodes)
        if isinstance(following, Unplaceable):
            break
        answer = following
    return Unplaceable(
        frozenset({QueueingHint.DEVICES, QueueingHint.RESOURCES, QueueingHint.NODES}), lambda: problem
    )


def _within(snapshot: ClusterSnapshot, pod: Pod) -> int | None:
    """Return the nodes that may be used: not those that are kept for others; None means all."""
    kept = kept_from(snapshot.nominated, snapshot.state, pod)
    return snapshot.state.all_nodes & ~kept if kept else None


def _place(
    snapshot: ClusterSnapshot, pod: Pod, shape: PodShape, claims: PodClaims, within: int | None
) -> Placement | Unplaceable:
    """Place one pod: on the node that is kept for it, else anywhere, else beside those for whom a node is kept."""
    place, state = snapshot.placer.place, snapshot.state
    own = node_of(snapshot.nominated, state, pod) & (state.all_nodes if within is None else within)
    answer = place(pod, shape, claims, within=own) if own else None
    if not isinstance(answer, Placement):
        answer = place(pod, shape, claims, within=within)
    if within is None or isinstance(answer, Placement):
        return answer
    shared = state.all_nodes & ~within & ~closed_for(snapshot.nominated, state, pod)
    for node in islice(state.in_set(shared), _NODES_BESIDE):
        # What a pod may use must not depend on others that are not there yet: it has to fit with and without them.
        if isinstance(place(pod, shape, claims, within=node.bit), Unplaceable):
            continue
        with counted(snapshot.nominated, state, pod, node.name):
            beside = place(pod, shape, claims, within=node.bit)
        if isinstance(beside, Placement):
            return beside
    if within:
        return answer
    message = f"0/{len(state.nodes)} nodes: all that could take the pod are kept for more important pods"
    return Unplaceable(answer.hints, lambda: message, about=message)


def _failed_binding(snapshot: ClusterSnapshot, pod: Pod, claims: PodClaims) -> ReleaseFirst | NotReady | None:
    """Find an allocation whose drivers have reported failure or let time run out."""
    for claim in claims.allocated:
        if not has_binding_conditions(claim):
            continue
        verdict = judge_binding(
            claim, snapshot.seconds_allocated(claim), snapshot.profile.binding_timeout, snapshot.features
        )
        if not verdict.failure:
            continue
        name = f"{claim.metadata.namespace}/{claim.metadata.name}"
        if may_deallocate(claim, {pod.metadata.uid}):
            return ReleaseFirst(
                claim, f"claim {name}: {verdict.failure}; it is deallocated and allocated again"
            )
        return NotReady(f"claim {name}: {verdict.failure}, and other pods hold it", frozenset({name}))
    return None


def _unusable(snapshot: ClusterSnapshot, pod: Pod, claims: PodClaims) -> ReleaseFirst | None:
    """Find an allocation that pins the pod to nodes that do not take it, and that nobody else uses."""
    for claim in claims.allocated:
        allocation = claim.status.allocation
        if (
            allocation is not None
            and is_bound_to_nodes(allocation)
            and may_deallocate(claim, {pod.metadata.uid})
        ):
            name = f"{claim.metadata.namespace}/{claim.metadata.name}"
            return ReleaseFirst(
                claim, f"claim {name} is allocated on nodes that cannot run the pod; it is deallocated"
            )
    return None


# --- gangs --------------------------------------------------------------------


def _decide_gang(snapshot: ClusterSnapshot, group: PodGroup, pods: Sequence[Pod], needed: int) -> Decision:
    name = f"{group.metadata.namespace}/{group.metadata.name}"
    if len(pods) < needed:
        gang = group.spec.scheduling_policy.gang
        wanted = gang.min_count if gang is not None else needed
        return _leftover_of_gang(snapshot, pods) or missing_members(needed - len(pods), name, wanted)
    members = _gang_members(snapshot, pods, name)
    if not isinstance(members, list):
        return members
    answer = start_gang(snapshot.placer, members, needed, group)
    if isinstance(answer, Unplaceable):
        return _leftover_of_gang(snapshot, pods) or replace(
            answer, hints=answer.hints | {f"group:{name}", QueueingHint.GROUP}
        )
    return [
        Placed(
            each.pod,
            alternative.shape,
            alternative.claims,
            placement,
            snapshot.claim_group(each.pod),
            alternative.mappings,
        )
        for each, alternative, placement in zip(
            answer.members, answer.alternatives, answer.placements, strict=True
        )
    ]


def _gang_members(
    snapshot: ClusterSnapshot, pods: Sequence[Pod], name: str
) -> list[Member] | Unplaceable | ReleaseFirst | NotReady:
    """Return the pods with the ways to place them, or what keeps one of them."""
    members = []
    for pod in pods:
        claims = snapshot.claims_of(pod)
        if isinstance(claims, NotReady):
            return Unplaceable(
                frozenset((f"group:{name}", *(f"claim:{key}" for key in claims.waits_for))),
                lambda claims=claims: claims.message,  # type: ignore[misc]
                about=claims.message,
            )
        alternatives = _failed_binding(snapshot, pod, claims) or _alternatives(snapshot, pod, claims)
        if not isinstance(alternatives, list):
            return alternatives
        members.append(Member(pod, tuple(alternatives)))
    return members


def _leftover_of_gang(snapshot: ClusterSnapshot, pods: Sequence[Pod]) -> ReleaseFirst | None:
    """Find what an earlier attempt has left to a gang that cannot start: it stands in the alternative, of others, too."""
    for pod in pods:
        unusable = _leftover_special_claim(snapshot, pod)
        if unusable is None and snapshot.has_allocation(pod):
            claims = snapshot.claims_of(pod)
            unusable = _unusable(snapshot, pod, claims) if isinstance(claims, PodClaims) else None
        if unusable is not None:
            return unusable
    return None


# --- extended resources ---------------------------------------------------------


def _decide_extended(snapshot: ClusterSnapshot, pod: Pod, claims: PodClaims) -> Decision:
    """Try each kind of node with the claim that the pod would need there."""
    alternatives = _alternatives(snapshot, pod, claims)
    if not isinstance(alternatives, list):
        return alternatives
    answer = place_by_alternatives(snapshot.placer, pod, alternatives)
    if isinstance(answer, Unplaceable):
        return _leftover_special_claim(snapshot, pod) or replace(
            answer, hints=answer.hints | {QueueingHint.DEVICES}
        )
    alternative, placement = answer
    return [
        Placed(
            pod,
            alternative.shape,
            alternative.claims,
            placement,
            snapshot.claim_group(pod),
            alternative.mappings,
        )
    ]


def _alternatives(
    snapshot: ClusterSnapshot, pod: Pod, claims: PodClaims
) -> list[Alternative] | ReleaseFirst | NotReady:
    """Return the alternatives to place a pod: one, or one for each kind of node if it asks for extended resources.

    If a claim for those exists, ours from an earlier attempt or another scheduler's, the pod goes on with it.
    Only when that leads nowhere it is deleted, and the pod starts anew.
    """
    within, asked = _within(snapshot, pod), snapshot.extended_resources_of(pod)
    if not asked:
        return [Alternative(shape_of(pod), claims, within)]
    made, leftovers = choose_special(pod, snapshot.special_claims(pod))
    if leftovers:
        name = leftovers[0].metadata.name
        return ReleaseFirst(leftovers[0], f"claim {name} is left over from an earlier attempt", "delete")
    if made is not None:
        unfit = _failed_binding(snapshot, pod, PodClaims((made,)))
        if unfit is not None:
            return unfit
    alternatives = []
    for nodes, by_devices in variants(snapshot.state, asked):
        mappings: Mappings = ()
        wanted = claims
        if by_devices:
            special, mappings = special_claim(pod, by_devices, snapshot.extended.class_of)
            wanted = _with_special(claims, special, made)
        if made is not None and made not in wanted.all:
            continue  # it was made for another kind of nodes
        shape = shape_of(pod, without=by_devices)
        alternatives.append(Alternative(shape, wanted, nodes if within is None else nodes & within, mappings))
    return alternatives


def _leftover_special_claim(snapshot: ClusterSnapshot, pod: Pod) -> ReleaseFirst | None:
    """Find the claim for extended resources with which a pod that was refused went on."""
    found = snapshot.special_claims(pod)
    made = choose_special(pod, found)[0] if found else None
    if made is None:
        return None
    return ReleaseFirst(
        made, f"claim {made.metadata.name} cannot be used; it is deleted and the pod is tried again", "delete"
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
