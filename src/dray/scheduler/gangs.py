"""All pods of a group, or none.

Placing a gang is placing its pods one after the other, tentatively: each
placement is reserved so that the next one sees it, and all reservations are undone
before the answer is returned. The order matters (a large pod placed last may find only
crumbs), so the pod that failed moves to the front and the gang is tried again, until an
order works, every pod has been at the front, or so many pods were placed in vain that others would wait for it.

Pods of a gang may share a claim that is not allocated yet: the first pod that is placed
decides, and for the others the claim counts as allocated there. Pods with extended resources
have several alternatives, of which the first that works is taken.

A PodGroup with a topology constraint has all its pods in one domain, the nodes with one value of a label.

A refusal is explained as the pod that failed has met it, with the others at their places:
the reservations are made once more for the explanation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from dray.api.core import Pod, PodGroup
from dray.api.resource import AllocationResult, ResourceClaim
from dray.scheduler.alternatives import Alternative, place_by_alternatives
from dray.scheduler.amounts import CPU, MEMORY, sum_requests
from dray.scheduler.claims import PodClaims
from dray.scheduler.group_keys import group_key
from dray.scheduler.outcomes import Placement, Unplaceable
from dray.scheduler.placing import Placer
from dray.scheduler.queue import QueueingHint
from dray.scheduler.state import ClusterState

_MAX_ORDERS = 32
_MAX_PLACEMENTS = 600  # after which no other order is tried; some tens of milliseconds
_EXACT = 8  # numbers up to this are told as they are


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One pod of the gang, ready to be placed."""

    pod: Pod
    alternatives: tuple[Alternative, ...]


@dataclass(frozen=True, slots=True)
class GangPlacement:
    """A place for every member; nothing is taken yet. All in the order of the members."""

    members: tuple[Member, ...]
    alternatives: tuple[Alternative, ...]  # by which they were placed
    placements: tuple[Placement, ...]  # a shared claim is in the first that needs it


@dataclass(slots=True)
class _Attempt:
    found: list[tuple[Member, Alternative, Placement]] = field(default_factory=list)
    decided: dict[str, AllocationResult] = field(default_factory=dict)  # claim uid -> what it gets
    undo: list[Callable[[], object]] = field(default_factory=list)

    def undo_all(self) -> None:
        while self.undo:
            self.undo.pop()()


def place_gang(placer: Placer, members: Sequence[Member]) -> GangPlacement | Unplaceable:
    """Place all members or none; leaves the state as it was.

    Members with more demanding claims go first: they have the fewest places.
    """
    order = sorted(members, key=lambda each: -_demand(each))
    been_first: set[str] = set()
    n_placed = 0
    for _ in range(_MAX_ORDERS):
        attempt = _Attempt()
        try:
            failed = _try_order(placer, order, attempt)
        finally:
            attempt.undo_all()
        if failed is None:
            return _gang_placement(attempt)
        member, refusal = failed
        n_placed += len(attempt.found)
        if member.pod.metadata.uid in been_first or order[0] is member or n_placed > _MAX_PLACEMENTS:
            break
        been_first.add(member.pod.metadata.uid)
        order = [member, *(each for each in order if each is not member)]
    return _gang_refusal(placer, member, refusal, attempt, len(members))


def pods_to_start(state: ClusterState, group: PodGroup) -> int:
    """Return how many more pods must be placed before the gang has what it starts with; 0 or less: it runs."""
    gang = group.spec.scheduling_policy.gang
    wanted = gang.min_count if gang is not None else 1
    placed = sum(
        group_key(use.pod) == f"{group.metadata.namespace}/{group.metadata.name}"
        for use in state.pods.values()
    )
    return wanted - placed


def start_gang(
    placer: Placer, members: Sequence[Member], needed: int, group: PodGroup | None = None
) -> GangPlacement | Unplaceable:
    """Place all members, or else as many as fit, if these are at least those that the gang starts with.

    With a group that has a topology constraint, all are placed in one domain: that of the pods that are placed already, or the
    one that takes the most members and is the fullest then.
    """
    key = topology_key(group) if group is not None else None
    if group is None or key is None:
        return _start_anywhere(placer, members, needed)
    domains = _domains(placer.state, group, key)
    if isinstance(domains, Unplaceable):
        return domains
    best: tuple[float, GangPlacement] | None = None
    nearest: Unplaceable | None = None
    for nodes in domains.values():
        within = [_restricted(member, nodes) for member in members]
        answer = _start_anywhere(placer, within, needed)
        if isinstance(answer, Unplaceable):
            nearest = nearest or answer
            continue
        score = 100.0 * len(answer.placements) / len(members) + _fullness(placer.state, nodes, answer)
        if best is None or score > best[0]:
            best = (score, answer)
    if best is not None:
        return best[1]
    return _no_domain(key, len(domains), nearest)


def _start_anywhere(placer: Placer, members: Sequence[Member], needed: int) -> GangPlacement | Unplaceable:
    answer = place_gang(placer, members)
    if not isinstance(answer, Unplaceable) or needed >= len(members):
        return answer
    attempt = _Attempt()
    try:
        for member in members:
            _try_order(placer, [member], attempt)
    finally:
        attempt.undo_all()
    if len(attempt.found) >= max(needed, 1):
        return _gang_placement(attempt)
    return place_gang(placer, members[:needed]) if needed > 0 else answer


def still_fits(placer: Placer, found: GangPlacement) -> bool:
    """Return whether every member fits at its place, beside the members before it."""
    attempt = _Attempt()
    pinned = [
        Member(member.pod, (replace(alternative, nodes=placer.state.nodes[placement.node].bit),))
        for member, alternative, placement in zip(
            found.members, found.alternatives, found.placements, strict=True
        )
    ]
    try:
        return _try_order(placer, pinned, attempt) is None
    finally:
        attempt.undo_all()


def topology_key(group: PodGroup) -> str | None:
    """Return the node label whose value all pods of the group share, if there is one."""
    constraints = group.spec.scheduling_constraints
    return constraints.topology[0].key if constraints is not None and constraints.topology else None


def _domains(state: ClusterState, group: PodGroup, key: str) -> dict[str, int] | Unplaceable:
    """Return value -> nodes of the domains that may take the group."""
    name = f"{group.metadata.namespace}/{group.metadata.name}"
    placed = {
        state.nodes[use.node].labels.get(key)
        for use in state.pods.values()
        if group_key(use.pod) == name and use.node in state.nodes
    }
    if len(placed) > 1 or None in placed:
        text = f"pods of group {name} run in more than one domain of {key}, or outside of any"
        return Unplaceable(frozenset((QueueingHint.RESOURCES, QueueingHint.NODES)), lambda: text, about=text)
    domains: dict[str, int] = {}
    for node in state.nodes.values():
        value = node.labels.get(key)
        if value is not None and (not placed or value in placed):
            domains[value] = domains.get(value, 0) | node.bit
    return domains


def _restricted(member: Member, nodes: int) -> Member:
    alternatives = tuple(
        replace(each, nodes=nodes if each.nodes is None else each.nodes & nodes)
        for each in member.alternatives
    )
    return Member(member.pod, alternatives)


def _fullness(state: ClusterState, nodes: int, answer: GangPlacement) -> float:
    """Return from 0 to 100 how much cpu and memory of a domain is in use with the gang."""
    asked = dict(sum_requests(alternative.shape.requests for alternative in answer.alternatives))
    parts = []
    for resource in (CPU, MEMORY):
        there = list(state.in_set(nodes))
        total = sum(node.allocatable.get(resource, 0) for node in there)
        used = sum(node.used.get(resource, 0) for node in there) + asked.get(resource, 0)
        parts.append(100.0 * used / total if total else 0.0)
    return sum(parts) / len(parts)


def _no_domain(key: str, n_domains: int, nearest: Unplaceable | None) -> Unplaceable:
    if nearest is None:
        text = f"no node has the label {key} of the group's topology constraint"
        return Unplaceable(frozenset({QueueingHint.NODES}), lambda: text, about=text)
    domains = "domain" if n_domains == 1 else "domains"
    return replace(
        nearest,
        hints=nearest.hints | {QueueingHint.NODES},
        explain=lambda: (
            f"none of the {n_domains} {domains} of {key} takes the group; in one of them {nearest.explain()}"
        ),
    )


def _gang_placement(attempt: _Attempt) -> GangPlacement:
    return GangPlacement(
        tuple(member for member, _, _ in attempt.found),
        tuple(alternative for _, alternative, _ in attempt.found),
        tuple(placement for _, _, placement in attempt.found),
    )


def _try_order(
    placer: Placer, order: Sequence[Member], attempt: _Attempt
) -> tuple[Member, Unplaceable] | None:
    for member in order:
        answer = place_by_alternatives(
            placer, member.pod, member.alternatives, lambda claims: _with_decisions(claims, attempt.decided)
        )
        if isinstance(answer, Unplaceable):
            return member, answer
        alternative, placement = answer
        attempt.found.append((member, alternative, placement))
        _occupy(placer, member, alternative, placement, attempt.undo)
        for claim, allocation in zip(placement.claims, placement.allocations, strict=True):
            attempt.decided[claim.metadata.uid] = allocation
            attempt.undo.append(placer.devices.take(claim.metadata.uid, allocation).cancel)
    return None


def _occupy(
    placer: Placer,
    member: Member,
    alternative: Alternative,
    placement: Placement,
    undo: list[Callable[[], object]],
) -> None:
    uid = member.pod.metadata.uid
    placer.state.assume(member.pod, placement.node, alternative.shape, placement.extra)
    undo.append(lambda: placer.state.forget(uid))
    placer.volumes.reserve(uid, placement.node, placement.volumes)
    undo.append(lambda: placer.volumes.release(uid))
    start = placer.advance(placement.node)
    undo.append(lambda: setattr(placer, "start", start))


def _with_decisions(claims: PodClaims, decided: dict[str, AllocationResult]) -> PodClaims:
    """Treat pending claims that an earlier member decided as allocated."""
    if not any(claim.metadata.uid in decided for claim in claims.pending):
        return claims
    allocated, pending = list(claims.allocated), []
    for claim in claims.pending:
        allocation = decided.get(claim.metadata.uid)
        if allocation is None:
            pending.append(claim)
        else:
            allocated.append(_allocated(claim, allocation))
    return PodClaims(tuple(allocated), tuple(pending))


def _allocated(claim: ResourceClaim, allocation: AllocationResult) -> ResourceClaim:
    status = msgspec.structs.replace(claim.status, allocation=allocation)
    return msgspec.structs.replace(claim, status=status)


def _demand(member: Member) -> int:
    """Estimate how hard a pod is to place: devices first, then requests."""
    return max((_demand_of(alternative) for alternative in member.alternatives), default=0)


def _demand_of(alternative: Alternative) -> int:
    devices = sum(
        request.exactly.count or 1 if request.exactly else 1
        for claim in alternative.claims.pending
        for request in claim.spec.devices.requests
    )
    return devices * 1_000_000 + len(alternative.shape.requests)


# --- refusals -----------------------------------------------------------------


def _gang_refusal(
    placer: Placer, member: Member, refusal: Unplaceable, attempt: _Attempt, total: int
) -> Unplaceable:
    placed = len(attempt.found)

    def explain() -> str:
        reason = _explain_among(placer, refusal, attempt)
        return f"only {placed} of the {total} pods of the group fit together; {member.pod.metadata.name}: {reason}"

    return Unplaceable(
        refusal.hints,
        explain,
        stages=refusal.stages,
        is_fatal=refusal.is_fatal,
        about=f"{roughly(total)} pods: ",
    )


def _explain_among(placer: Placer, refusal: Unplaceable, attempt: _Attempt) -> str:
    """Explain while the members that were placed before are at their places."""
    if any(member.pod.metadata.uid in placer.state.pods for member, _, _ in attempt.found):
        return refusal.explain()  # asked late: they have found other places meanwhile
    undo: list[Callable[[], object]] = []
    try:
        for member, alternative, placement in attempt.found:
            _occupy(placer, member, alternative, placement, undo)
            meta = member.pod.metadata
            for allocation in placement.allocations:
                owner = f"{meta.namespace}/{meta.name} of the same group"
                undo.append(placer.devices.allocator.take(owner, allocation))
        return refusal.explain()
    finally:
        while undo:
            undo.pop()()


def missing_members(missing: int, name: str, min_count: int) -> Unplaceable:
    """Refuse a gang that has too few pods yet.

    The number is rounded when it is large: so the text is true for a while, and a gang of a hundred that comes
    pod by pod does not have each of them told a hundred times.
    """
    pods = "pod" if missing == 1 else "pods"
    message = f"waiting for {roughly(missing)} more {pods} of group {name} (it starts with {min_count})"
    return Unplaceable(frozenset((QueueingHint.GROUP, f"group:{name}")), lambda: message, about=message)


def roughly(number: int) -> str:
    """Format a number so that large ones change seldom: `5`, `more than 64`."""
    if number <= _EXACT:
        return str(number)
    return f"more than {1 << ((number - 1).bit_length() - 1)}"
