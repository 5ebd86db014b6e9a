"""A change of the cluster's state that is tried and undone: pods that have left their nodes.

Preemption asks what would fit without some pods, backfill asks what will fit when some have ended. Both change the
live state and undo it before they return, because copying it would take longer than deciding. Undo in reverse
order: what was taken meanwhile must be released before the pod that had it is put back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dray.api.resource import ResourceClaim
from dray.scheduler.placing import Placer
from dray.scheduler.state import PodUse

ClaimsOf = Callable[[str], Iterable[ResourceClaim]]  # pod uid -> claims reserved for it
Undo = Callable[[], None]


def without_pod(placer: Placer, use: PodUse, claims_of: ClaimsOf) -> Undo:
    """Remove a pod and the devices that it alone holds; return what puts them back."""
    return without_pods(placer, (use,), claims_of)


def without_pods(placer: Placer, uses: Sequence[PodUse], claims_of: ClaimsOf) -> Undo:
    """Remove pods and the devices that they alone hold; return what puts them back."""
    uids = {use.uid for use in uses}
    held = {claim.metadata.uid: claim for uid in uids for claim in claims_of(uid)}
    released = [
        claim
        for claim in held.values()
        if claim.status.allocation is not None and all(each.uid in uids for each in claim.status.reserved_for)
    ]
    for use in uses:
        placer.state.forget(use.uid)
    for claim in released:
        placer.devices.allocator.delete_claim(claim.metadata.uid)
        allocation = claim.status.allocation
        if allocation is not None:
            placer.devices.freed(allocation)

    def put_back() -> None:
        for use in uses:
            placer.state.put_back(use)
        for claim in released:
            placer.devices.allocator.set_claim(claim)
            # Refusals found while it was away may be too optimistic the other way round: none is
            # recorded for fits, and a refusal with less in use is one with more in use, too.

    return put_back
