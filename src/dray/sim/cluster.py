"""An offline cluster: a snapshot on which pods can be placed with the scheduler's own code.

Nothing is simulated here that the product decides elsewhere: fit, allocation, gangs
and explanations are `scheduler` and `allocator`. This module only does what the claim
controller would (claims from templates, for pods and for their groups) and what commits
would (the books), so that what-if and explain give the answers that the real scheduler
would give: pods of a gang are placed together or not at all.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from dray.allocator import Explanation, Policy, World
from dray.api.core import Node, NodeStatus, Pod, PodGroup, PodResourceClaim, PodResourceClaimStatus
from dray.api.meta import Condition, ObjectMeta, OwnerReference
from dray.api.resource import (
    AllocationResult,
    DeviceClass,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimStatus,
)
from dray.api.well_known import HOSTNAME_LABEL
from dray.client import key_of
from dray.drivers.hardware import Profile, device_classes, pool_slices
from dray.scheduler import (
    ClusterState,
    Devices,
    ExtendedResources,
    Member,
    NotReady,
    Placement,
    Placer,
    PodClaims,
    Unplaceable,
    Way,
    gather_claims,
    group_key,
    missing_members,
    place_by_ways,
    pods_to_start,
    shape_of,
    special_claim,
    start_gang,
    variants,
)
from dray.sim.snapshot import Snapshot

_Object = TypeVar("_Object", Pod, PodGroup, ResourceClaim)


@dataclass(frozen=True, slots=True)
class Placed:
    """A pod that found a place."""

    pod: str  # namespace/name
    node: str
    devices: dict[str, list[str]]  # claim key -> driver/pool/device


@dataclass(frozen=True, slots=True)
class NotPlaced:
    """A pod that did not, and why."""

    pod: str
    reason: str


@dataclass(frozen=True, slots=True)
class Decided:
    """A place that was found for a pod; nothing is taken yet."""

    pod: Pod
    way: Way
    placement: Placement


@dataclass(frozen=True, slots=True)
class Bound:
    """The pod has a place already."""

    node: str


@dataclass(slots=True)
class Outcome:
    """What became of a list of pods."""

    placed: list[Placed] = field(default_factory=list)
    refused: list[NotPlaced] = field(default_factory=list)


class OfflineCluster:
    """Snapshot + scheduler, in memory."""

    def __init__(self, snapshot: Snapshot, policy: Policy | None = None) -> None:
        numbers = itertools.count(1)
        self._numbers = numbers
        self.world = World(
            snapshot.features, new_share_id=lambda: f"00000000-0000-4000-8000-{next(numbers):012x}"
        )
        self.state = ClusterState()
        self.devices = Devices(self.world, self.state)
        self.extended = ExtendedResources()
        self.placer = Placer(self.state, self.devices, policy=policy)
        self.claims: dict[str, ResourceClaim] = {}
        self.pods: dict[str, Pod] = {}
        self.groups: dict[str, PodGroup] = {}
        self.templates = {key_of(template.metadata): template for template in snapshot.templates}
        self.snapshot = snapshot
        for node in snapshot.nodes:
            self.add_node(node)
        for found in snapshot.slices:
            self.devices.set_slice(found)
        for device_class in snapshot.classes:
            self.set_class(device_class)
        for rule in snapshot.taint_rules:
            self.world.set_taint_rule(rule)
        for claim in snapshot.claims:
            self.set_claim(claim)
        for group in snapshot.pod_groups:
            self.add_group(group)
        for pod in snapshot.pods:
            self.add_pod(pod)

    # --- what there is ----------------------------------------------------------

    def add_node(self, node: Node) -> None:
        """Add or replace a node."""
        self.state.set_node(node)
        self.world.set_node(node)

    def set_class(self, device_class: DeviceClass) -> None:
        """Add or replace a class."""
        self.world.set_class(device_class)
        self.extended.set_class(device_class)

    def set_claim(self, claim: ResourceClaim) -> None:
        """Add or replace a claim; without a uid (manifests have none) its name identifies it."""
        if not claim.metadata.uid:
            claim = _with_meta(claim, uid=f"claim:{key_of(claim.metadata)}")
        self.claims[key_of(claim.metadata)] = claim
        self.world.set_claim(claim)

    def add_group(self, group: PodGroup) -> None:
        """Add a group of pods, and make its claims from templates."""
        if not group.metadata.uid:
            group = _with_meta(group, uid=f"group:{key_of(group.metadata)}")
        made = list(group.status.resource_claim_statuses)
        if self._groups_share_claims:
            owner = _owner("PodGroup", group.api_version, group.metadata)
            made += self._claims_from_templates(group.metadata, owner, group.spec.resource_claims, made)
        status = msgspec.structs.replace(group.status, resource_claim_statuses=made)
        self.groups[key_of(group.metadata)] = msgspec.structs.replace(group, status=status)

    @property
    def _groups_share_claims(self) -> bool:
        return "DRAWorkloadResourceClaims" in self.snapshot.features

    def add_pod(self, pod: Pod) -> Pod:
        """Add a pod; make its claims from templates; occupy its node if it has one."""
        if not pod.metadata.uid:
            pod = _with_meta(pod, uid=f"pod:{key_of(pod.metadata)}")
        pod = self._with_claims_made(pod)
        self.pods[key_of(pod.metadata)] = pod
        if pod.spec.node_name in self.state.nodes and pod.status.phase not in ("Succeeded", "Failed"):
            self.state.assume(pod, pod.spec.node_name)
        return pod

    def add_hardware(self, profile: Profile, name: str) -> Node:
        """Add a node with a profile's hardware, as it would join the cluster."""
        node = Node(
            metadata=ObjectMeta(name=name, labels={HOSTNAME_LABEL: name, **profile.labels}),
            status=NodeStatus(
                capacity=dict(profile.allocatable),
                allocatable=dict(profile.allocatable),
                conditions=[Condition(type="Ready", status="True")],
            ),
        )
        self.add_node(node)
        pools = profile.pools(name)
        for found in pool_slices(pools):
            self.devices.set_slice(found)
        known = self.world.classes
        for device_class in device_classes(frozenset(pool.driver for pool in pools)):
            if device_class.metadata.name not in known:
                self.set_class(device_class)
        return node

    def remove_node(self, name: str) -> list[Pod]:
        """Take a node away with its local devices; return the pods that lose their place."""
        lost = [
            pod
            for pod in self.pods.values()
            if pod.spec.node_name == name and pod.status.phase not in ("Succeeded", "Failed")
        ]
        for pod in lost:
            self.evict(pod)
        for found in self.snapshot.slices:
            if found.spec.node_name == name:
                self.devices.delete_slice(found.metadata.name)
        self.state.delete_node(name)
        self.world.delete_node(name)
        return [self.pods[key_of(pod.metadata)] for pod in lost]

    def evict(self, pod: Pod) -> None:
        """Take a pod off its node and release what only it reserved."""
        self.state.forget(pod.metadata.uid)
        key = key_of(pod.metadata)
        freed = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=""))
        self.pods[key] = freed
        for claim_key, claim in list(self.claims.items()):
            users = [user for user in claim.status.reserved_for if user.uid != pod.metadata.uid]
            if len(users) < len(claim.status.reserved_for):
                status = msgspec.structs.replace(claim.status, reserved_for=users)
                status = status if users else ResourceClaimStatus()
                self.set_claim(msgspec.structs.replace(self.claims[claim_key], status=status))

    def _with_claims_made(self, pod: Pod) -> Pod:
        made = list(pod.status.resource_claim_statuses)
        group = self.group_of(pod) if self._groups_share_claims else None
        entries = [
            entry
            for entry in pod.spec.resource_claims
            if group is None or entry not in group.spec.resource_claims
        ]
        made += self._claims_from_templates(pod.metadata, _owner("Pod", "v1", pod.metadata), entries, made)
        return msgspec.structs.replace(
            pod, status=msgspec.structs.replace(pod.status, resource_claim_statuses=made)
        )

    def _claims_from_templates(
        self,
        meta: ObjectMeta,
        owner: OwnerReference,
        entries: Iterable[PodResourceClaim],
        recorded: Iterable[PodResourceClaimStatus],
    ) -> list[PodResourceClaimStatus]:
        """Make the claims that the controller would make for a pod or a group."""
        known = {status.name for status in recorded}
        made = []
        for entry in entries:
            if entry.resource_claim_template_name is None or entry.name in known:
                continue
            template = self.templates.get(f"{meta.namespace}/{entry.resource_claim_template_name}")
            if template is None:
                continue
            name = f"{meta.name}-{entry.name}"
            claim_meta = ObjectMeta(
                name=name,
                namespace=meta.namespace,
                uid=f"claim:{meta.uid}/{entry.name}",
                owner_references=[owner],
            )
            self.set_claim(ResourceClaim(metadata=claim_meta, spec=template.spec.spec))
            made.append(PodResourceClaimStatus(name=entry.name, resource_claim_name=name))
        return made

    # --- questions ----------------------------------------------------------------

    def group_of(self, pod: Pod) -> PodGroup | None:
        """Return the pod's group, if it exists."""
        return self.groups.get(group_key(pod))

    def gang_of(self, pod: Pod) -> PodGroup | None:
        """Return the pod's group if its pods start together or not at all."""
        group = self.group_of(pod)
        return group if group is not None and group.spec.scheduling_policy.gang is not None else None

    def claims_of(self, pod: Pod) -> PodClaims | NotReady:
        """Return the pod's claims, or why it cannot be placed yet."""
        group = self.group_of(pod) if self._groups_share_claims else None
        return gather_claims(pod, self.claims.get, group=group)

    def place(self, pods: Iterable[Pod]) -> Outcome:
        """Place pods one after the other, those of a gang together, keeping what each one takes."""
        outcome = Outcome()
        wanted = {key_of(pod.metadata): pod for pod in pods}
        for key, pod in wanted.items():
            # Again after a gang has started without this one: then it is placed beside it.
            while isinstance(answer := self.decide_pod(self.pods.get(key, pod), wanted), list):
                placed = [self._commit(each.pod, each.way.claims, each.placement) for each in answer]
                outcome.placed += [each for each in placed if each.pod in wanted]
                if any(each.pod == key for each in placed):
                    break
            if isinstance(answer, Unplaceable | NotReady):
                reason = answer.message if isinstance(answer, NotReady) else answer.explain()
                outcome.refused.append(NotPlaced(key, reason))
        return outcome

    def decide_pod(
        self, pod: Pod, first: Collection[str] = ()
    ) -> list[Decided] | Bound | Unplaceable | NotReady:
        """Find a place for a pod, and for those of its gang that must start with it (`first` come first)."""
        if pod.spec.node_name:
            return Bound(pod.spec.node_name)
        gang = self.gang_of(pod)
        if gang is not None:
            needed = pods_to_start(self.state, gang)
            waiting = self._waiting(gang, first)
            if needed > 1 or len(waiting) > 1:
                return self._decide_gang(gang, waiting, needed)
        claims = self.claims_of(pod)
        if isinstance(claims, NotReady):
            return claims
        answer = place_by_ways(self.placer, pod, self._ways(pod, claims))
        return answer if isinstance(answer, Unplaceable) else [Decided(pod, *answer)]

    def _waiting(self, gang: PodGroup, first: Collection[str]) -> list[Pod]:
        """Return the pods of a gang that are not placed, those that the caller asks for first."""
        found = [
            (key not in first, pod)
            for key, pod in self.pods.items()
            if group_key(pod) == key_of(gang.metadata)
            and not pod.spec.node_name
            and pod.metadata.deletion_timestamp is None
            and pod.status.phase not in ("Succeeded", "Failed")
        ]
        return [pod for _, pod in sorted(found, key=lambda each: each[0])]

    def _decide_gang(
        self, gang: PodGroup, pods: Sequence[Pod], needed: int
    ) -> list[Decided] | Unplaceable | NotReady:
        policy = gang.spec.scheduling_policy.gang
        assert policy is not None
        if len(pods) < needed:
            return missing_members(needed - len(pods), key_of(gang.metadata), policy.min_count)
        members = []
        for pod in pods:
            claims = self.claims_of(pod)
            if isinstance(claims, NotReady):
                return NotReady(f"pod {pod.metadata.name} of its group: {claims.message}", claims.waits_for)
            members.append(Member(pod, tuple(self._ways(pod, claims))))
        answer = start_gang(self.placer, members, needed)
        if isinstance(answer, Unplaceable):
            return answer
        return [
            Decided(member.pod, way, placement)
            for member, way, placement in zip(answer.members, answer.ways, answer.placements, strict=True)
        ]

    def decide(self, pod: Pod, claims: PodClaims) -> Placement | Unplaceable:
        """Find a place for one pod alone, with the claim behind its extended resources if it has any."""
        answer = place_by_ways(self.placer, pod, self._ways(pod, claims))
        return answer if isinstance(answer, Unplaceable) else answer[1]

    def _ways(self, pod: Pod, claims: PodClaims) -> list[Way]:
        asked = self.extended.asked_by(pod)
        if not asked:
            return [Way(shape_of(pod), claims)]
        ways = []
        for nodes, by_devices in variants(self.state, asked):
            wanted = claims
            if by_devices:
                special, _mappings = special_claim(pod, by_devices, self.extended.class_of)
                wanted = PodClaims(claims.allocated, (*claims.pending, special), claims.of_group)
            ways.append(Way(shape_of(pod, without=by_devices), wanted, nodes))
        return ways or [Way(shape_of(pod), claims)]

    def _commit(self, pod: Pod, claims: PodClaims, placement: Placement) -> Placed:
        bound = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=placement.node))
        self.pods[key_of(pod.metadata)] = bound
        self.state.assume(bound, placement.node)
        devices: dict[str, list[str]] = {}
        for claim, allocation in zip(placement.claims, placement.allocations, strict=True):
            status = ResourceClaimStatus(allocation=allocation)
            self.set_claim(msgspec.structs.replace(claim, status=status))
            devices[key_of(claim.metadata)] = device_names(allocation)
        for claim in claims.all:
            # A claim that pods of a gang share was allocated by the one that was placed first.
            known = self.claims.get(key_of(claim.metadata))
            if known is None or known.status.allocation is None:
                continue
            devices[key_of(claim.metadata)] = device_names(known.status.allocation)
        for key in devices:
            self._reserve(key, pod)
        return Placed(key_of(pod.metadata), placement.node, devices)

    def _reserve(self, key: str, pod: Pod) -> None:
        claim = self.claims[key]
        if any(user.uid == pod.metadata.uid for user in claim.status.reserved_for):
            return
        user = ResourceClaimConsumerReference(resource="pods", name=pod.metadata.name, uid=pod.metadata.uid)
        status = msgspec.structs.replace(claim.status, reserved_for=[*claim.status.reserved_for, user])
        self.set_claim(msgspec.structs.replace(claim, status=status))

    def explain_claims(self, claims: Sequence[ResourceClaim]) -> Explanation:
        """Explain where claims fit and why not elsewhere."""
        return self.world.explain(claims)


def device_names(allocation: AllocationResult) -> list[str]:
    """Return `driver/pool/device` of every device of an allocation."""
    return [f"{result.driver}/{result.pool}/{result.device}" for result in allocation.devices.results]


def _owner(kind: str, version: str, meta: ObjectMeta) -> OwnerReference:
    return OwnerReference(api_version=version, kind=kind, name=meta.name, uid=meta.uid, controller=True)


def _with_meta(obj: _Object, **changes: str) -> _Object:
    meta = msgspec.structs.replace(obj.metadata, **changes)
    return msgspec.structs.replace(obj, metadata=meta)
