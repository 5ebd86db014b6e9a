"""Decide which claims a running pod gets, beside those it started with (docs/adr/0023-devices-after-pod-start.md).

A pod that runs has its node; what is left to decide is the devices. Each claim is judged alone, in the order of the
pod's list: one that does not fit does not keep the next from being attached. At most one is placed per decision,
because the next must see what the first has taken.

A claim that is attached belongs to its pod alone, and each of its devices must say that it can be given to a running
pod (`dray.dev/attachable`, which the SDK publishes for drivers that can).
"""

from __future__ import annotations

from dataclasses import dataclass

from dray.allocator import AllocationError
from dray.api.core import Pod
from dray.api.resource import AllocationResult, ResourceClaim
from dray.api.well_known import ATTACHABLE_ATTRIBUTE
from dray.scheduler.claims import NotReady, PodClaims, claim_keys, is_reserved_for, refusal_of_allocation
from dray.scheduler.cluster_snapshot import ClusterSnapshot
from dray.scheduler.deciding import Placed
from dray.scheduler.devices import claims_equivalence_key
from dray.scheduler.explaining import explain_devices
from dray.scheduler.outcomes import Placement
from dray.scheduler.shape import shape_of


@dataclass(frozen=True, slots=True)
class AttachmentDecision:
    """What to do for the claims of a running pod that are not reserved for it."""

    placed: Placed | None = None  # one claim: to be reserved, and allocated if `placement` has it
    refusals: tuple[str, ...] = ()  # of the claims that cannot be attached now, one sentence each

    @property
    def is_settled(self) -> bool:
        """Return whether the pod has all its claims."""
        return self.placed is None and not self.refusals


def may_lack_claims(pod: Pod) -> bool:
    """Return whether claims may have to be attached: the pod runs, and its claims changed since it was made."""
    meta = pod.metadata
    return (
        pod.status.phase == "Running"
        and bool(pod.spec.node_name and pod.spec.resource_claims)
        and meta.generation > 1
        and meta.deletion_timestamp is None
    )


def decide_attachment(pod: Pod, snapshot: ClusterSnapshot) -> AttachmentDecision:
    """Find the first claim of a running pod that can be attached to it; takes nothing.

    Raises PendingWork (see `dray.allocator`) when expressions would take longer than the snapshot's budget allows.
    """
    group = snapshot.claim_group(pod)
    keys = claim_keys(pod, group)
    if isinstance(keys, NotReady):
        return AttachmentDecision(refusals=(keys.message,))
    owners = {pod.metadata.uid} | ({group.metadata.uid} if group is not None else set())
    refusals: list[str] = []
    for key in keys:
        claim = snapshot.claims.get(key)
        if claim is not None and is_reserved_for(claim, owners):
            continue
        answer = _place(pod, key, claim, snapshot)
        if isinstance(answer, Placed):
            return AttachmentDecision(answer, tuple(refusals))
        refusals.append(f"claim {key} cannot be attached: {answer}")
    return AttachmentDecision(refusals=tuple(refusals))


def _place(pod: Pod, key: str, claim: ResourceClaim | None, snapshot: ClusterSnapshot) -> Placed | str:
    """Return how the claim is attached, or why it is not."""
    if claim is None:
        return "it does not exist"
    if claim.metadata.deletion_timestamp is not None:
        return "it is being deleted"
    if claim.status.reserved_for:
        users = ", ".join(each.name for each in claim.status.reserved_for[:3])
        return f"it is in use by {users}, and a claim that is attached to a running pod is not shared"
    node, shape = snapshot.state.nodes.get(pod.spec.node_name), shape_of(pod)
    if node is None:
        return f"node {pod.spec.node_name} does not exist"
    if claim.status.allocation is not None:
        refusal = refusal_of_allocation(claim, node.node)
        if refusal is not None:
            return f"node {node.name} is not where it is allocated, or lacks a feature that it needs"
        unable = _unattachable(claim.status.allocation, snapshot)
        return unable or Placed(pod, shape, PodClaims(allocated=(claim,)), Placement(node.name))
    if claim.metadata.uid in snapshot.reserved:
        return "it is being allocated for another pod"
    try:
        plans = snapshot.devices.plans([claim], claims_equivalence_key([claim]), node.bit, 0, first=1)
    except AllocationError as error:
        return str(error)
    if not plans:
        return f"node {node.name} {explain_devices(snapshot.devices, [claim], node, pod.metadata.namespace)}"
    allocations = plans[0].allocations
    unable = next((text for each in allocations if (text := _unattachable(each, snapshot))), "")
    return unable or Placed(
        pod, shape, PodClaims(pending=(claim,)), Placement(node.name, (claim,), tuple(allocations))
    )


def _unattachable(allocation: AllocationResult, snapshot: ClusterSnapshot) -> str:
    """Return which device cannot be given to a running pod; "" when all can."""
    for result in allocation.devices.results:
        device = snapshot.verifier.device_of(result)
        attribute = (device.attributes or {}).get(ATTACHABLE_ATTRIBUTE) if device is not None else None
        if attribute is None or attribute.bool_value is not True:
            return (
                f"driver {result.driver} cannot give {result.device} to a running pod"
                f" (its devices have no attribute {ATTACHABLE_ATTRIBUTE})"
            )
    return ""
