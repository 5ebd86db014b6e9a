"""All pods of a group, or none.

Placing a gang is placing its pods one after the other on a copy of the world: each
placement is booked so that the next one sees it, and when one pod finds no place all
bookings are taken back. The order matters (a large pod placed last may find only
crumbs), so the pod that failed moves to the front and the gang is tried again, until an
order works or every pod has been at the front.

Pods of a gang may share a claim that is not allocated yet: the first pod that is placed
decides, and for the others the claim counts as allocated there. Pods with extended resources
bring several ways along (see `ways`), of which the first that works is taken.

A refusal is explained as the pod that failed has met it, with the others at their places:
the bookings are made once more for the explanation, on the same copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from dray.api.core import Pod, PodGroup
from dray.api.resource import AllocationResult, ResourceClaim
from dray.scheduler.claims import PodClaims
from dray.scheduler.placing import Placement, Placer, Unplaceable
from dray.scheduler.queue import Help
from dray.scheduler.state import ClusterState
from dray.scheduler.ways import Way, place_by_ways

_MAX_ORDERS = 32
_EXACT = 8  # numbers up to this are told as they are


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One pod of the gang, ready to be placed."""

    pod: Pod
    ways: tuple[Way, ...]


@dataclass(frozen=True, slots=True)
class GangPlacement:
    """A place for every member; nothing is taken yet. All in the order of the members."""

    members: tuple[Member, ...]
    ways: tuple[Way, ...]  # by which they were placed
    placements: tuple[Placement, ...]  # a shared claim is in the first that needs it


@dataclass(slots=True)
class _Attempt:
    found: list[tuple[Member, Way, Placement]] = field(default_factory=list)
    decided: dict[str, AllocationResult] = field(default_factory=dict)  # claim uid -> what it gets
    undo: list[Callable[[], object]] = field(default_factory=list)

    def take_back(self) -> None:
        while self.undo:
            self.undo.pop()()


def place_gang(placer: Placer, members: Sequence[Member]) -> GangPlacement | Unplaceable:
    """Place all members or none; leaves the state as it was.

    Members with more demanding claims go first: they have the fewest places.
    """
    order = sorted(members, key=lambda each: -_demand(each))
    been_first: set[str] = set()
    for _ in range(_MAX_ORDERS):
        attempt = _Attempt()
        try:
            failed = _try_order(placer, order, attempt)
        finally:
            attempt.take_back()
        if failed is None:
            found = attempt.found
            return GangPlacement(
                tuple(order), tuple(way for _, way, _ in found), tuple(placement for _, _, placement in found)
            )
        member, refusal = failed
        if member.pod.metadata.uid in been_first or order[0] is member:
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


def group_key(pod: Pod) -> str:
    """Return `namespace/name` of the pod's group, empty when it has none."""
    reference = pod.spec.scheduling_group
    if reference is None or not reference.pod_group_name:
        return ""
    return f"{pod.metadata.namespace}/{reference.pod_group_name}"


def start_gang(placer: Placer, members: Sequence[Member], needed: int) -> GangPlacement | Unplaceable:
    """Place all members, or else as many as the gang starts with."""
    answer = place_gang(placer, members)
    if isinstance(answer, Unplaceable) and 0 < needed < len(members):
        answer = place_gang(placer, members[:needed])
    return answer


def _try_order(
    placer: Placer, order: Sequence[Member], attempt: _Attempt
) -> tuple[Member, Unplaceable] | None:
    for member in order:
        answer = place_by_ways(
            placer, member.pod, member.ways, lambda claims: _with_decisions(claims, attempt.decided)
        )
        if isinstance(answer, Unplaceable):
            return member, answer
        way, placement = answer
        attempt.found.append((member, way, placement))
        _occupy(placer, member, way, placement, attempt.undo)
        for claim, allocation in zip(placement.claims, placement.allocations, strict=True):
            attempt.decided[claim.metadata.uid] = allocation
            attempt.undo.append(placer.devices.take(claim.metadata.uid, allocation).cancel)
    return None


def _occupy(
    placer: Placer, member: Member, way: Way, placement: Placement, undo: list[Callable[[], object]]
) -> None:
    uid = member.pod.metadata.uid
    placer.state.assume(member.pod, placement.node, way.shape, placement.extra)
    undo.append(lambda: placer.state.forget(uid))


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
    return max((_demand_of(way) for way in member.ways), default=0)


def _demand_of(way: Way) -> int:
    devices = sum(
        request.exactly.count or 1 if request.exactly else 1
        for claim in way.claims.pending
        for request in claim.spec.devices.requests
    )
    return devices * 1_000_000 + len(way.shape.requests)


# --- refusals -----------------------------------------------------------------


def _gang_refusal(
    placer: Placer, member: Member, refusal: Unplaceable, attempt: _Attempt, total: int
) -> Unplaceable:
    placed = len(attempt.found)

    def explain() -> str:
        reason = _explain_among(placer, refusal, attempt)
        return f"only {placed} of the {total} pods of the group fit together; {member.pod.metadata.name}: {reason}"

    return Unplaceable(
        refusal.wishes,
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
        for member, way, placement in attempt.found:
            _occupy(placer, member, way, placement, undo)
            meta = member.pod.metadata
            for allocation in placement.allocations:
                owner = f"{meta.namespace}/{meta.name} of the same group"
                undo.append(placer.devices.world.take(owner, allocation))
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
    return Unplaceable(frozenset((Help.GROUP, f"group:{name}")), lambda: message, about=message)


def roughly(number: int) -> str:
    """Spell a number so that large ones change seldom: `5`, `more than 64`."""
    if number <= _EXACT:
        return str(number)
    return f"more than {1 << ((number - 1).bit_length() - 1)}"
