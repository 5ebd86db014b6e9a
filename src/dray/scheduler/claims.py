"""The claims of a pod: which they are, and whether the pod may go ahead with them.

A pod names claims directly or through templates; a controller makes the latter and
notes their names in the pod's status. Before a pod can be placed every claim must
exist, must not be on its way out, and a template's claim must belong to this very pod
(a new pod of the same name does not inherit). What remains falls in two: claims that
are allocated (they pin the pod to nodes) and claims that still want devices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from dray.allocator import OPTIONAL_OPERATIONS
from dray.api.core import Node, Pod, PodGroup, PodResourceClaim
from dray.api.features import Features
from dray.api.resource import (
    AllocatedDeviceStatus,
    AllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
)
from dray.scheduler.selecting import matches_node

MAX_RESERVATIONS = 256  # entries of status.reservedFor

Lookup = Callable[[str], ResourceClaim | None]  # by namespace/name


@dataclass(frozen=True, slots=True)
class PodClaims:
    """The claims a pod brings along, ready to be placed."""

    allocated: tuple[ResourceClaim, ...] = ()
    pending: tuple[ResourceClaim, ...] = ()
    of_group: frozenset[str] = frozenset()  # uids of claims that are reserved for the pod's group

    @property
    def all(self) -> tuple[ResourceClaim, ...]:
        """Both kinds together."""
        return self.allocated + self.pending


@dataclass(frozen=True, slots=True)
class NotReady:
    """The pod must wait: for its claims to be made, or for another pod to finish with one."""

    message: str
    waits_for: frozenset[str]  # keys of claims whose change can help; empty means: a change of the pod itself

    def __bool__(self) -> bool:
        return False


def required_features(allocation: AllocationResult) -> frozenset[str]:
    """Return the features that a node must declare so that its kubelet can handle the allocation."""
    if any(result.skip_node_operations for result in allocation.devices.results):
        return frozenset({OPTIONAL_OPERATIONS})
    return frozenset()


def is_bound_to_nodes(allocation: AllocationResult) -> bool:
    """Return whether the allocation cannot be used on every node."""
    return allocation.node_selector is not None or bool(required_features(allocation))


def refusal_of_allocation(claim: ResourceClaim, node: Node) -> str | None:
    """Return why the node cannot use a claim that is allocated; None when it can, or when the claim is not.

    The words follow a number of nodes, see `explaining`.
    """
    allocation = claim.status.allocation
    if allocation is None:
        return None
    name = f"{claim.metadata.namespace}/{claim.metadata.name}"
    if not matches_node(allocation.node_selector, node.metadata.name, node.metadata.labels or {}):
        return f"{{are}} not where claim {name} is allocated"
    missing = required_features(allocation) - set(node.status.declared_features)
    if missing:
        return (
            f"{{do}} not declare {', '.join(sorted(missing))}, which the allocation of claim {name} requires"
        )
    return None


def claim_keys(pod: Pod, group: PodGroup | None = None) -> tuple[str, ...] | NotReady:
    """Return `namespace/name` of every claim the pod needs."""
    if not pod.spec.resource_claims:
        return ()
    made = {entry.name: entry.resource_claim_name for entry in pod.status.resource_claim_statuses}
    if group is not None:
        shared = {entry.name for entry in pod.spec.resource_claims if _is_of_group(entry, group)}
        for status in group.status.resource_claim_statuses:
            if status.name in shared:
                made[status.name] = status.resource_claim_name
    keys = []
    for entry in pod.spec.resource_claims:
        name = entry.resource_claim_name
        if name is None:
            if entry.name not in made:
                return NotReady(f"waiting for the claim of {entry.name!r} to be created", frozenset())
            name = made[entry.name]
            if name is None:
                continue  # the controller decided that none is needed
        keys.append(f"{pod.metadata.namespace}/{name}")
    return tuple(dict.fromkeys(keys))


def _is_of_group(entry: PodResourceClaim, group: PodGroup) -> bool:
    """Return whether the pod's entry is the group's own: equal in name, claim and template."""
    return entry in group.spec.resource_claims


def _keys_by_rule(pod: Pod, group: PodGroup | None) -> tuple[set[str], set[str]]:
    """Return the keys of claims made from templates, and of those that belong to the group."""
    namespace = pod.metadata.namespace
    statuses = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
    if group is not None:
        statuses |= {each.name: each.resource_claim_name for each in group.status.resource_claim_statuses}
    templates, of_group = set(), set()
    for entry in pod.spec.resource_claims:
        key = f"{namespace}/{entry.resource_claim_name or statuses.get(entry.name)}"
        if entry.resource_claim_template_name is not None:
            templates.add(key)
        if group is not None and _is_of_group(entry, group):
            of_group.add(key)
    return templates, of_group


def gather_claims(
    pod: Pod,
    lookup: Lookup,
    *,
    in_flight: Collection[str] = (),  # uids of claims that another pod is being placed with
    group: PodGroup | None = None,  # whose claims the pod may share
) -> PodClaims | NotReady:
    """Find the pod's claims and say whether it can be placed now."""
    keys = claim_keys(pod, group)
    if isinstance(keys, NotReady):
        return keys
    if not keys:
        return PodClaims()
    templates, of_group = _keys_by_rule(pod, group)
    consumers = {pod.metadata.uid} | ({group.metadata.uid} if group is not None else set())
    allocated, pending, shared = [], [], set()
    for key in keys:
        claim = lookup(key)
        if claim is None:
            return NotReady(f"claim {key} does not exist", frozenset({key}))
        if claim.metadata.deletion_timestamp is not None:
            return NotReady(f"claim {key} is being deleted", frozenset({key}))
        if key in templates and not _is_owned(claim, consumers):
            return NotReady(f"claim {key} was not made for this pod", frozenset({key}))
        if key in of_group:
            shared.add(claim.metadata.uid)
        if claim.status.allocation is None:
            if claim.metadata.uid in in_flight:
                return NotReady(f"claim {key} is being allocated for another pod", frozenset({key}))
            pending.append(claim)
            continue
        if is_full(claim) and not is_reserved_for(claim, consumers):
            return NotReady(
                f"claim {key} is in use by {MAX_RESERVATIONS} consumers, the limit", frozenset({key})
            )
        allocated.append(claim)
    return PodClaims(tuple(allocated), tuple(pending), frozenset(shared))


def _is_owned(claim: ResourceClaim, owners: Collection[str]) -> bool:
    return any(owner.controller and owner.uid in owners for owner in claim.metadata.owner_references)


def is_reserved_for(claim: ResourceClaim, uids: Collection[str]) -> bool:
    """Return whether one of the consumers holds a reservation."""
    return any(entry.uid in uids for entry in claim.status.reserved_for)


def is_full(claim: ResourceClaim) -> bool:
    """Return whether no further consumer fits into reservedFor."""
    return len(claim.status.reserved_for) >= MAX_RESERVATIONS


def may_deallocate(claim: ResourceClaim, uids: Collection[str]) -> bool:
    """Return whether nobody but these consumers would miss the claim's allocation."""
    return claim.status.allocation is not None and all(each.uid in uids for each in claim.status.reserved_for)


# --- binding conditions -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Binding:
    """How far the drivers are with making devices usable: ready, still waiting, or failed."""

    is_ready: bool
    failure: str = ""  # a failure condition that is true, or a timeout


def has_binding_conditions(claim: ResourceClaim) -> bool:
    """Return whether the pod must wait for a driver before it is bound."""
    allocation = claim.status.allocation
    return allocation is not None and any(each.binding_conditions for each in allocation.devices.results)


def may_have_conditions(features: Features) -> bool:
    """Return whether devices may have binding conditions; then allocations say when they were made."""
    return {"DRADeviceBindingConditions", "DRAResourceClaimDeviceStatus"} <= features


def judge_binding(
    claim: ResourceClaim, seconds_since_allocation: float, timeout: float, features: Features
) -> Binding:
    """Return whether all binding conditions are met, one has failed, or the time is over."""
    allocation = claim.status.allocation
    if allocation is None or not may_have_conditions(features):
        return Binding(is_ready=allocation is not None)
    waiting = False
    for result in allocation.devices.results:
        if not result.binding_conditions:
            continue
        status = _status_of(claim, result)
        true = {each.type for each in status.conditions if each.status == "True"} if status else set()
        failed = next((name for name in result.binding_failure_conditions if name in true), None)
        if failed:
            device = f"{result.driver}/{result.pool}/{result.device}"
            return Binding(is_ready=False, failure=f"device {device} reports {failed}")
        waiting = waiting or not true.issuperset(result.binding_conditions)
    if waiting and seconds_since_allocation > timeout:
        return Binding(is_ready=False, failure=f"binding conditions were not met within {timeout:.0f} s")
    return Binding(is_ready=not waiting)


def _status_of(claim: ResourceClaim, result: DeviceRequestAllocationResult) -> AllocatedDeviceStatus | None:
    # Upstream looks up by device and ignores the share id; so do we, to agree with drivers.
    wanted = (result.driver, result.pool, result.device)
    return next(
        (each for each in claim.status.devices if (each.driver, each.pool, each.device) == wanted), None
    )
