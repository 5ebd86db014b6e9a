"""All pods of a group, or none.

Placing a gang is placing its pods one after the other on a copy of the world: each
placement is booked so that the next one sees it, and when one pod finds no place all
bookings are taken back. The order matters (a large pod placed last may find only
crumbs), so the pod that failed moves to the front and the gang is tried again, until an
order works or every pod has been at the front.

Pods of a gang may share a claim that is not allocated yet: the first pod that is placed
decides, and for the others the claim counts as allocated there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from dray.api.core import Pod
from dray.api.resource import AllocationResult, ResourceClaim
from dray.scheduler.claims import PodClaims
from dray.scheduler.devices import Booking
from dray.scheduler.placing import Placement, Placer, Unplaceable
from dray.scheduler.shape import PodShape

_MAX_ORDERS = 32


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One pod of the gang, ready to be placed."""

    pod: Pod
    shape: PodShape
    claims: PodClaims


@dataclass(frozen=True, slots=True)
class GangPlacement:
    """A place for every member; nothing is taken yet."""

    members: tuple[Member, ...]
    placements: tuple[
        Placement, ...
    ]  # in the order of the members; a shared claim is in the first that needs it


@dataclass(slots=True)
class _Attempt:
    placements: dict[str, Placement] = field(default_factory=dict)  # pod uid -> where
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
            found = tuple(attempt.placements[each.pod.metadata.uid] for each in order)
            return GangPlacement(tuple(order), found)
        member, refusal = failed
        if member.pod.metadata.uid in been_first or order[0] is member:
            return _gang_refusal(member, refusal, len(attempt.placements), len(members))
        been_first.add(member.pod.metadata.uid)
        order = [member, *(each for each in order if each is not member)]
    return _gang_refusal(member, refusal, len(attempt.placements), len(members))


def _try_order(
    placer: Placer, order: Sequence[Member], attempt: _Attempt
) -> tuple[Member, Unplaceable] | None:
    state, devices = placer.state, placer.devices
    for member in order:
        claims = _with_decisions(member.claims, attempt.decided)
        answer = placer.place(member.pod, member.shape, claims)
        if isinstance(answer, Unplaceable):
            return member, answer
        uid = member.pod.metadata.uid
        attempt.placements[uid] = answer
        state.assume(member.pod, answer.node, member.shape, answer.extra)
        attempt.undo.append(lambda uid=uid: state.forget(uid))  # type: ignore[misc]
        for claim, allocation in zip(answer.claims, answer.allocations, strict=True):
            attempt.decided[claim.metadata.uid] = allocation
            booking: Booking = devices.take(claim.metadata.uid, allocation)
            attempt.undo.append(booking.cancel)
    return None


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
    devices = sum(
        request.exactly.count or 1 if request.exactly else 1
        for claim in member.claims.pending
        for request in claim.spec.devices.requests
    )
    return devices * 1_000_000 + sum(1 for _ in member.shape.requests)


def _gang_refusal(member: Member, refusal: Unplaceable, placed: int, total: int) -> Unplaceable:
    name = member.pod.metadata.name
    return Unplaceable(
        refusal.wishes,
        lambda: f"only {placed} of the {total} pods of the group fit together; {name}: {refusal.explain()}",
        stages=refusal.stages,
    )
