"""What a decision is based on: nodes, devices, claims, volumes, pods, and what decisions under way have reserved.

`decide(pod, snapshot)` reads a snapshot and changes nothing in it; whatever is tried on the way (the members of a gang one after the other, a
node without its less important pods) is undone before it returns. Between decisions a snapshot is brought up to date, change by change, because
copying a cluster of thousands of nodes for each pod would take longer than deciding: by informers in production, from a file in `whatif`, `explain` and the
simulator. Both use the same methods, so the same objects lead to the same decisions.

Committing has two steps: `reserve` lets later decisions see what this one takes, and `unreserve` ends that when the commit failed. When a
claim comes back allocated from the server, its own allocation stands in for the reservation.

Invariant (tests/unit/scheduler/test_scheduler_deciding.py): a decision leaves nodes, pods and devices in use as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from dray.allocator import Allocator, Policy
from dray.api.core import Node, NodeAffinity, Pod, PodDisruptionBudget, PodGroup
from dray.api.features import Features
from dray.api.resource import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from dray.scheduler.amounts import has_resources_in_status, pod_requests
from dray.scheduler.claims import NotReady, PodClaims, claim_keys, gather_claims
from dray.scheduler.devices import Devices, Reservation, claims_equivalence_key
from dray.scheduler.extended import IN_MEMORY_NAME, ExtendedResources, special_owner
from dray.scheduler.gangs import topology_key
from dray.scheduler.group_keys import group_key
from dray.scheduler.inter_pod_affinity import InterPodAffinity
from dray.scheduler.nodeallocatable import extra_in_status
from dray.scheduler.nominations import Nomination
from dray.scheduler.outcomes import Placement
from dray.scheduler.placing import Placer
from dray.scheduler.policies import NodePolicy
from dray.scheduler.shape import PodShape, shape_of
from dray.scheduler.state import ClusterState
from dray.scheduler.topology_spread import Selecting, TopologySpread
from dray.scheduler.verification import AllocationVerifier
from dray.scheduler.volumes import VolumeState

_NO_CLAIMS = PodClaims()


def _just_now(_: ResourceClaim) -> float:
    return 0.0


def _no_labels(_: str) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class SchedulerProfile:
    """How a scheduler decides."""

    features: Features = field(default_factory=Features.default)
    policy: Policy | NodePolicy | None = None
    prefers_closeness: bool = False  # devices of a claim behind one PCIe root, or on one NUMA node
    may_preempt: bool = True
    binding_timeout: float = 600.0  # seconds for binding conditions
    added_affinity: NodeAffinity | None = None  # beside the node affinity of every pod


class ClusterSnapshot:
    """See the module docstring."""

    def __init__(
        self,
        profile: SchedulerProfile,
        *,
        new_share_id: Callable[[], str],
        is_late: Callable[[], bool] | None = None,  # whether a decision has taken too long
        namespace_labels: Callable[[str], Mapping[str, str]] = _no_labels,
        seconds_allocated: Callable[[ResourceClaim], float] = _just_now,
    ) -> None:
        self.profile = profile
        self.features = profile.features
        self.seconds_allocated = seconds_allocated  # how long an allocation has waited for its drivers
        added = profile.added_affinity
        self.state = ClusterState(
            added.required_during_scheduling_ignored_during_execution if added is not None else None
        )
        self.devices = Devices(
            Allocator(profile.features, new_share_id=new_share_id, is_late=is_late), self.state
        )
        self.affinity = InterPodAffinity(self.state, namespace_labels)
        self.selecting = Selecting()  # Services and owners of pods, by which pods are spread
        self.volumes = VolumeState(self.state)
        self.placer = Placer(
            self.state,
            self.devices,
            self.affinity,
            self.volumes,
            spread=TopologySpread(self.state, self.affinity.counts, self.selecting),
            added_affinity=added,
            policy=profile.policy,
            prefers_closeness=profile.prefers_closeness,
        )
        self.extended = ExtendedResources()
        self.verifier = AllocationVerifier()
        self.claims: dict[str, ResourceClaim] = {}  # by namespace/name
        self.groups: dict[str, PodGroup] = {}  # by namespace/name
        self.budgets: dict[str, PodDisruptionBudget] = {}  # by namespace/name
        self.reserved: dict[str, Reservation] = {}  # claim uid -> its allocation, while that is being written
        self.nominated: dict[str, Nomination] = {}  # by pod uid
        self._slices: dict[str, ResourceSlice] = {}  # by name
        self._claims_by_consumer: dict[str, set[str]] = {}  # consumer uid -> claim keys
        self._special_by_pod: dict[str, set[str]] = {}  # pod uid -> keys of claims for its extended resources

    # --- nodes and devices ------------------------------------------------------

    def set_node(self, node: Node) -> None:
        """Add or replace a node."""
        self.state.set_node(node)
        self.devices.set_node(node)

    def delete_node(self, name: str) -> None:
        """Forget a node; pods on it wait for it in case it returns."""
        self.devices.delete_node(name)
        self.state.delete_node(name)

    def set_slice(self, resource_slice: ResourceSlice) -> None:
        """Publish devices."""
        name = resource_slice.metadata.name
        before, self._slices[name] = self._slices.get(name), resource_slice
        self.verifier.set_slice(before, resource_slice)
        self.devices.set_slice(resource_slice)

    def delete_slice(self, name: str) -> None:
        """Remove the devices of a slice."""
        before = self._slices.pop(name, None)
        if before is not None:
            self.verifier.set_slice(before, None)
        self.devices.delete_slice(name)

    def set_class(self, device_class: DeviceClass) -> None:
        """Add or replace a device class."""
        self.devices.set_class(device_class)
        self.extended.set_class(device_class)

    def delete_class(self, name: str) -> None:
        """Forget a device class."""
        self.devices.delete_class(name)
        self.extended.delete_class(name)

    def set_taint_rule(self, rule: DeviceTaintRule) -> None:
        """Add or replace a rule that taints devices."""
        self.devices.set_taint_rule(rule)

    def delete_taint_rule(self, name: str) -> None:
        """Forget a rule that taints devices."""
        self.devices.delete_taint_rule(name)

    # --- claims -----------------------------------------------------------------

    def set_claim(self, claim: ResourceClaim) -> bool:
        """Add or replace a claim; return whether devices were freed."""
        key = f"{claim.metadata.namespace}/{claim.metadata.name}"
        before = self.claims.get(key)
        freed = False
        if before is not None and before.metadata.uid != claim.metadata.uid:
            freed, before = self.delete_claim(key), None
        self.claims[key] = claim
        freed = self.devices.set_claim(claim, before) or freed
        self.verifier.set_claim(before, claim)
        if claim.status.allocation is not None:
            # The reservation and the claim's own allocation would both count: one must go.
            reservation = self.reserved.pop(claim.metadata.uid, None)
            if reservation is not None:
                freed = not reservation.settle(claim.status.allocation) or freed
        self._index(key, before, claim)
        return freed

    def delete_claim(self, key: str) -> bool:
        """Forget a claim; return whether devices were freed."""
        before = self.claims.pop(key, None)
        if before is None:
            return False
        freed = self.devices.delete_claim(before)
        self.verifier.set_claim(before, None)
        reservation = self.reserved.pop(before.metadata.uid, None)
        if reservation is not None:
            reservation.cancel()
            freed = True
        self._index(key, before, None)
        return freed

    def _index(self, key: str, before: ResourceClaim | None, after: ResourceClaim | None) -> None:
        """Keep the claims by consumer, and those for extended resources by pod."""
        old = before.status.reserved_for if before is not None else []
        new = after.status.reserved_for if after is not None else []
        if old != new:
            _reindex(self._claims_by_consumer, key, [each.uid for each in old], [each.uid for each in new])
        owner = special_owner(before) if before is not None else None
        owner_now = special_owner(after) if after is not None else None
        if owner != owner_now:
            _reindex(self._special_by_pod, key, [owner] if owner else [], [owner_now] if owner_now else [])

    def claims_reserved_for(self, uid: str) -> list[ResourceClaim]:
        """Return the claims that a consumer holds."""
        return [self.claims[key] for key in self._claims_by_consumer.get(uid, ())]

    def special_claims(self, pod: Pod) -> list[ResourceClaim]:
        """Return the claims that were made for the extended resources of a pod."""
        return [self.claims[key] for key in self._special_by_pod.get(pod.metadata.uid, ())]

    # --- pods -------------------------------------------------------------------

    def set_bound_pod(self, pod: Pod) -> bool:
        """Let a bound pod occupy its node, or take note of its change; return whether it needs less than before."""
        known = self.state.pods.get(pod.metadata.uid)
        if known is None or known.node != pod.spec.node_name:
            self.state.assume(pod, pod.spec.node_name, extra=extra_in_status(pod))
            return False
        if not _is_resized(known.pod, pod):
            self.state.refresh(pod)
            return False
        before = known.shape.requests
        # What devices provide instead of the node stays out of account.
        without = {name for name, _ in pod_requests(known.pod)} - {name for name, _ in before}
        use = self.state.assume(
            pod, pod.spec.node_name, shape_of(pod, without=frozenset(without)), known.extra
        )
        now = dict(use.shape.requests)
        return any(now.get(name, 0) < amount for name, amount in before)

    def forget_pod(self, uid: str) -> bool:
        """Let a pod leave its node; return whether it was on one."""
        return self.state.forget(uid) is not None

    # --- commits under way --------------------------------------------------------

    def reserve(self, pod: Pod, shape: PodShape, placement: Placement) -> None:
        """Let later decisions see what this placement takes."""
        self.state.assume(pod, placement.node, shape, placement.extra)
        self.volumes.reserve(pod.metadata.uid, placement.node, placement.volumes)
        self.placer.advance(placement.node)
        self.reserve_claims(pod, placement)

    def reserve_claims(self, pod: Pod, placement: Placement) -> None:
        """Let later decisions see the devices alone: the pod is on its node already."""
        for claim, allocation in zip(placement.claims, placement.allocations, strict=True):
            self.reserved[claim.metadata.uid] = self.devices.take(_holder(pod, claim), allocation)

    def unreserve(self, claims: Iterable[ResourceClaim]) -> list[ResourceClaim]:
        """End the reservations of claims whose allocation was not written; return those that had one."""
        ended = []
        for claim in claims:
            # Not there any more if the claim has come back allocated meanwhile.
            reservation = self.reserved.pop(claim.metadata.uid, None)
            if reservation is not None:
                reservation.cancel()
                ended.append(claim)
        return ended

    def move_reservation(self, uid: str, new_uid: str) -> None:
        """The claim that a reservation is for has another uid: it was created, or its creation was undone."""
        reservation = self.reserved.pop(uid, None)
        if reservation is not None:
            self.reserved[new_uid] = reservation

    # --- what a pod brings along ----------------------------------------------------

    def group_of(self, pod: Pod) -> PodGroup | None:
        """Return the PodGroup of a pod, if it has one and it exists."""
        key = group_key(pod)
        return self.groups.get(key) if key else None

    def gang_of(self, pod: Pod) -> PodGroup | None:
        """Return the pod's group if its pods are placed together: all or none, or all in one domain."""
        group = self.group_of(pod)
        if group is None or (group.spec.scheduling_policy.gang is None and topology_key(group) is None):
            return None
        return group

    def claim_group(self, pod: Pod) -> PodGroup | None:
        """Return the group whose claims the pod may share."""
        return self.group_of(pod) if "DRAWorkloadResourceClaims" in self.features else None

    def claims_of(self, pod: Pod) -> PodClaims | NotReady:
        """Return the pod's claims, or why it cannot be placed yet."""
        if not pod.spec.resource_claims:
            return _NO_CLAIMS
        return gather_claims(pod, self.claims.get, in_flight=self.reserved, group=self.claim_group(pod))

    def has_allocation(self, pod: Pod) -> bool:
        """Return whether a claim of the pod is allocated; quick, because gangs ask it of every member."""
        if not pod.spec.resource_claims:
            return False
        found = claim_keys(pod, self.claim_group(pod))
        claims = () if isinstance(found, NotReady) else map(self.claims.get, found)
        return any(claim is not None and claim.status.allocation is not None for claim in claims)

    def extended_resources_of(self, pod: Pod) -> frozenset[str]:
        """Return the extended resources of the pod that devices may provide."""
        return self.extended.asked_by(pod) if "DRAExtendedResource" in self.features else frozenset()

    def equivalence_key(self, pod: Pod, shape: PodShape, claims: PodClaims) -> bytes:
        """Return a key that is equal for pods which get equal answers; see the queue."""
        group = self.gang_of(pod)
        if group is not None:
            return f"gang:{group.metadata.uid}".encode()
        parts = [shape.key, str(pod.spec.priority or 0).encode()]
        if claims.pending:
            parts.append(claims_equivalence_key(claims.pending))
        parts += [claim.metadata.uid.encode() for claim in claims.allocated]
        if self.affinity.objects():
            parts.append(repr((pod.metadata.namespace, sorted((pod.metadata.labels or {}).items()))).encode())
        return b"\x00".join(parts)


def _is_resized(before: Pod, now: Pod) -> bool:
    """Return whether what the pod needs of its node may have changed."""
    if (
        before.spec.containers != now.spec.containers
        or before.spec.init_containers != now.spec.init_containers
        or before.spec.resources != now.spec.resources
    ):
        return True
    if before.status == now.status or not (has_resources_in_status(before) or has_resources_in_status(now)):
        return False
    return pod_requests(before) != pod_requests(now)


def _holder(pod: Pod, claim: ResourceClaim) -> str:
    """Name a claim whose allocation is being written, for people who ask who holds a device."""
    if claim.metadata.name == IN_MEMORY_NAME:
        return f"{pod.metadata.namespace}/{pod.metadata.name}'s extended resources (being allocated)"
    return f"{claim.metadata.namespace}/{claim.metadata.name} (being allocated)"


def _reindex(index: dict[str, set[str]], key: str, before: Iterable[str], after: Iterable[str]) -> None:
    for uid in before:
        keys = index.get(uid)
        if keys is not None:
            keys.discard(key)
            if not keys:
                del index[uid]
    for uid in after:
        index.setdefault(uid, set()).add(key)
