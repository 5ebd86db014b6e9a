"""An offline cluster: a snapshot on which pods can be placed with the scheduler's own code.

Nothing is simulated here that the product decides elsewhere: fit, allocation and
explanations are `scheduler` and `allocator`. This module only does what the claim
controller would (claims from templates) and what commits would (the books), so
that what-if and explain give the answers that the real scheduler would give.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from dray.allocator import Explanation, Policy, World
from dray.api.core import Node, NodeStatus, Pod, PodResourceClaimStatus
from dray.api.meta import Condition, ObjectMeta, OwnerReference
from dray.api.resource import (
    AllocationResult,
    DeviceClass,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimStatus,
)
from dray.client import key_of
from dray.drivers.hardware import Profile, device_classes, pool_slices
from dray.scheduler import (
    ClusterState,
    Devices,
    ExtendedResources,
    NotReady,
    Placement,
    Placer,
    PodClaims,
    Unplaceable,
    gather_claims,
    shape_of,
    special_claim,
    variants,
)
from dray.sim.snapshot import Snapshot

_Object = TypeVar("_Object", Pod, ResourceClaim)


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
            metadata=ObjectMeta(name=name, labels={"kubernetes.io/hostname": name, **profile.labels}),
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
            if len(users) < len(claim.status.reserved_for) and not users:
                self.set_claim(msgspec.structs.replace(self.claims[claim_key], status=ResourceClaimStatus()))

    def _with_claims_made(self, pod: Pod) -> Pod:
        recorded = {status.name for status in pod.status.resource_claim_statuses}
        made = list(pod.status.resource_claim_statuses)
        for entry in pod.spec.resource_claims:
            if entry.resource_claim_template_name is None or entry.name in recorded:
                continue
            template = self.templates.get(f"{pod.metadata.namespace}/{entry.resource_claim_template_name}")
            if template is None:
                continue
            name = f"{pod.metadata.name}-{entry.name}"
            owner = OwnerReference(
                api_version="v1", kind="Pod", name=pod.metadata.name, uid=pod.metadata.uid, controller=True
            )
            meta = ObjectMeta(
                name=name,
                namespace=pod.metadata.namespace,
                uid=f"claim:{pod.metadata.uid}/{entry.name}",
                owner_references=[owner],
            )
            self.set_claim(ResourceClaim(metadata=meta, spec=template.spec.spec))
            made.append(PodResourceClaimStatus(name=entry.name, resource_claim_name=name))
        return msgspec.structs.replace(
            pod, status=msgspec.structs.replace(pod.status, resource_claim_statuses=made)
        )

    # --- questions ----------------------------------------------------------------

    def claims_of(self, pod: Pod) -> PodClaims | NotReady:
        """Return the pod's claims, or why it cannot be placed yet."""
        return gather_claims(pod, self.claims.get)

    def place(self, pods: Iterable[Pod]) -> Outcome:
        """Place pods one after the other, keeping what each one takes."""
        outcome = Outcome()
        for pod in pods:
            key = key_of(pod.metadata)
            claims = self.claims_of(self.pods.get(key, pod))
            if isinstance(claims, NotReady):
                outcome.refused.append(NotPlaced(key, claims.message))
                continue
            answer = self.decide(pod, claims)
            if isinstance(answer, Placement):
                outcome.placed.append(self._commit(pod, claims, answer))
            else:
                outcome.refused.append(NotPlaced(key, answer.explain()))
        return outcome

    def decide(self, pod: Pod, claims: PodClaims) -> Placement | Unplaceable:
        """Find a place for one pod, with the claim behind its extended resources if it has any."""
        asked = self.extended.asked_by(pod)
        if not asked:
            return self.placer.place(pod, shape_of(pod), claims)
        refusal: Unplaceable | None = None
        for nodes, by_devices in variants(self.state, asked):
            wanted = claims
            if by_devices:
                special, _mappings = special_claim(pod, by_devices, self.extended.class_of)
                wanted = PodClaims(claims.allocated, (*claims.pending, special), claims.of_group)
            answer = self.placer.place(pod, shape_of(pod, without=by_devices), wanted, within=nodes)
            if isinstance(answer, Placement):
                return answer
            refusal = answer
        return refusal or self.placer.place(pod, shape_of(pod), claims)

    def _commit(self, pod: Pod, claims: PodClaims, placement: Placement) -> Placed:
        bound = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=placement.node))
        self.pods[key_of(pod.metadata)] = bound
        self.state.assume(bound, placement.node)
        devices: dict[str, list[str]] = {}
        user = ResourceClaimConsumerReference(resource="pods", name=pod.metadata.name, uid=pod.metadata.uid)
        for claim, allocation in zip(placement.claims, placement.allocations, strict=True):
            status = ResourceClaimStatus(allocation=allocation, reserved_for=[user])
            self.set_claim(msgspec.structs.replace(claim, status=status))
            devices[key_of(claim.metadata)] = device_names(allocation)
        for claim in claims.allocated:
            if claim.status.allocation is not None:
                devices[key_of(claim.metadata)] = device_names(claim.status.allocation)
        return Placed(key_of(pod.metadata), placement.node, devices)

    def explain_claims(self, claims: Sequence[ResourceClaim]) -> Explanation:
        """Explain where claims fit and why not elsewhere."""
        return self.world.explain(claims)


def device_names(allocation: AllocationResult) -> list[str]:
    """Return `driver/pool/device` of every device of an allocation."""
    return [f"{result.driver}/{result.pool}/{result.device}" for result in allocation.devices.results]


def _with_meta(obj: _Object, **changes: str) -> _Object:
    meta = msgspec.structs.replace(obj.metadata, **changes)
    return msgspec.structs.replace(obj, metadata=meta)
