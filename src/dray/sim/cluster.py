"""An offline cluster: a snapshot on which pods can be placed with the scheduler's own code.

Nothing is decided here: what-if, explain and the simulator call `scheduler.decide`, on the same kind of snapshot as the
production loop. This module only does what others would do around it: the claim controller (claims from templates, for
pods and for their groups), and the committer and the server (bind, allocate, reserve, release).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from dray.allocator import Explanation, Policy
from dray.api.core import Node, Pod, PodGroup, PodResourceClaim, PodResourceClaimStatus
from dray.api.meta import ObjectMeta, OwnerReference
from dray.api.resource import (
    AllocationResult,
    DeviceClass,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimStatus,
    ResourceSlice,
)
from dray.api.well_known import TERMINAL_PHASES
from dray.client import key_of
from dray.drivers.hardware import Profile, device_classes, pool_slices
from dray.scheduler import (
    IN_MEMORY_NAME,
    ClusterSnapshot,
    NotReady,
    PodClaims,
    ReleaseFirst,
    SchedulerProfile,
    Unplaceable,
    decide,
    group_key,
    special_name,
)
from dray.scheduler import Placed as Decided
from dray.scheduler.policies import NodePolicy
from dray.sim.hardware import hardware_node
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

    def __init__(self, snapshot: Snapshot, policy: Policy | NodePolicy | None = None) -> None:
        numbers = itertools.count(1)
        self.scheduling = ClusterSnapshot(
            SchedulerProfile(features=snapshot.features, policy=policy),
            new_share_id=lambda: f"00000000-0000-4000-8000-{next(numbers):012x}",
        )
        self.state = self.scheduling.state
        self.allocator = self.scheduling.devices.allocator
        self.placer = self.scheduling.placer
        self.claims = self.scheduling.claims
        self.groups = self.scheduling.groups
        self.pods: dict[str, Pod] = {}
        self._local_slices: dict[str, list[str]] = {}  # node -> names of the slices with its own devices
        self.templates = {key_of(template.metadata): template for template in snapshot.templates}
        self.snapshot = snapshot
        for node in snapshot.nodes:
            self.add_node(node)
        for found in snapshot.slices:
            self.add_slice(found)
        for device_class in snapshot.classes:
            self.set_class(device_class)
        for rule in snapshot.taint_rules:
            self.scheduling.set_taint_rule(rule)
        for budget in snapshot.budgets:
            self.scheduling.budgets[key_of(budget.metadata)] = budget
        for claim in snapshot.claims:
            self.set_claim(claim)
        for group in snapshot.pod_groups:
            self.add_group(group)
        for pod in snapshot.pods:
            self.add_pod(pod)

    # --- what there is ----------------------------------------------------------

    def add_node(self, node: Node) -> None:
        """Add or replace a node."""
        self.scheduling.set_node(node)

    def add_slice(self, found: ResourceSlice) -> None:
        """Publish devices."""
        self.scheduling.set_slice(found)
        if found.spec.node_name:
            self._local_slices.setdefault(found.spec.node_name, []).append(found.metadata.name)

    def add_node_with_devices(self, node: Node, slices: Iterable[ResourceSlice]) -> None:
        """Add a node and the devices that its drivers publish; classes of known drivers that are missing are added."""
        self.add_node(node)
        drivers = set()
        for found in slices:
            self.add_slice(found)
            drivers.add(found.spec.driver)
        self.add_missing_classes(drivers)

    def add_missing_classes(self, drivers: Iterable[str]) -> None:
        """Add the usual classes of modelled drivers, where they are not there."""
        known = self.allocator.classes
        for device_class in device_classes(frozenset(drivers)):
            if device_class.metadata.name not in known:
                self.set_class(device_class)

    def set_class(self, device_class: DeviceClass) -> None:
        """Add or replace a class."""
        self.scheduling.set_class(device_class)

    def set_claim(self, claim: ResourceClaim) -> None:
        """Add or replace a claim; without a uid (manifests have none) its name identifies it."""
        if not claim.metadata.uid:
            claim = _with_meta(claim, uid=f"claim:{key_of(claim.metadata)}")
        self.scheduling.set_claim(claim)

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
        if pod.spec.node_name in self.state.nodes and pod.status.phase not in TERMINAL_PHASES:
            self.scheduling.set_bound_pod(pod)
        return pod

    def add_hardware(self, profile: Profile, name: str) -> Node:
        """Add a node with a profile's hardware, as it would join the cluster."""
        node = hardware_node(profile, name)
        self.add_node_with_devices(node, pool_slices(profile.pools(name)))
        return node

    def remove_node(self, name: str) -> list[Pod]:
        """Take a node away with its local devices; return the pods that lose their place."""
        lost = [
            pod
            for pod in self.pods.values()
            if pod.spec.node_name == name and pod.status.phase not in TERMINAL_PHASES
        ]
        for pod in lost:
            self.evict(pod)
        for slice_name in self._local_slices.pop(name, ()):
            self.scheduling.delete_slice(slice_name)
        self.scheduling.delete_node(name)
        return [self.pods[key_of(pod.metadata)] for pod in lost]

    def remove_pod(self, key: str) -> None:
        """Delete a pod and the claims that were made for it."""
        pod = self.pods.get(key)
        if pod is None:
            return
        self.evict(pod)
        del self.pods[key]
        made = [each.resource_claim_name for each in pod.status.resource_claim_statuses]
        names = [name for name in made if name] + [special_name(pod)]
        for name in names:
            claim = self.claims.get(f"{pod.metadata.namespace}/{name}")
            if claim is not None and any(
                owner.uid == pod.metadata.uid for owner in claim.metadata.owner_references
            ):
                self.scheduling.delete_claim(key_of(claim.metadata))

    def evict(self, pod: Pod) -> None:
        """Take a pod off its node and release what only it reserved."""
        uid = pod.metadata.uid
        self.scheduling.forget_pod(uid)
        freed = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=""))
        self.pods[key_of(pod.metadata)] = freed
        for claim in self.scheduling.claims_reserved_for(uid):
            users = [user for user in claim.status.reserved_for if user.uid != uid]
            status = msgspec.structs.replace(claim.status, reserved_for=users)
            self.set_claim(msgspec.structs.replace(claim, status=status if users else ResourceClaimStatus()))

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
        return self.scheduling.group_of(pod)

    def gang_of(self, pod: Pod) -> PodGroup | None:
        """Return the pod's group if its pods start together or not at all."""
        return self.scheduling.gang_of(pod)

    def claims_of(self, pod: Pod) -> PodClaims | NotReady:
        """Return the pod's claims, or why it cannot be placed yet."""
        return self.scheduling.claims_of(pod)

    def place(self, pods: Iterable[Pod], *, explains: bool = True) -> Outcome:
        """Place pods one after the other, those of a gang together, keeping what each one takes.

        Reasons of refusals take longer than the decisions: without `explains` they are left out.
        """
        outcome = Outcome()
        wanted = {key_of(pod.metadata): pod for pod in pods}
        for key, pod in wanted.items():
            # Again after a gang has started without this one: then it is placed beside it.
            while isinstance(answer := self.decide_pod(self.pods.get(key, pod), wanted), list):
                placed = [self._commit(each) for each in answer]
                outcome.placed += [each for each in placed if each.pod in wanted]
                if any(each.pod == key for each in placed):
                    break
            if isinstance(answer, Unplaceable | NotReady):
                outcome.refused.append(NotPlaced(key, _reason(answer) if explains else ""))
        return outcome

    def decide_pod(
        self, pod: Pod, first: Collection[str] = ()
    ) -> list[Decided] | Bound | Unplaceable | NotReady:
        """Find a place for a pod, and for those of its gang that must start with it (`first` come first)."""
        if pod.spec.node_name:
            return Bound(pod.spec.node_name)
        gang = self.gang_of(pod)
        return self._decide(pod, self._waiting(gang, first) if gang is not None else ())

    def decide(self, pod: Pod) -> list[Decided] | Unplaceable | NotReady:
        """Find a place for one pod alone, as if it were in no gang."""
        return self._decide(pod, is_alone=True)

    def _decide(
        self, pod: Pod, waiting: Sequence[Pod] = (), *, is_alone: bool = False
    ) -> list[Decided] | Unplaceable | NotReady:
        """Ask the scheduler; a claim that it would release first is released."""
        while isinstance(answer := decide(pod, self.scheduling, waiting, is_alone=is_alone), ReleaseFirst):
            if answer.action == "delete":
                self.scheduling.delete_claim(key_of(answer.claim.metadata))
            else:
                self.set_claim(msgspec.structs.replace(answer.claim, status=ResourceClaimStatus()))
        return answer

    def _waiting(self, gang: PodGroup, first: Collection[str]) -> list[Pod]:
        """Return the pods of a gang that are not placed, those that the caller asks for first."""
        found = [
            (key not in first, pod)
            for key, pod in self.pods.items()
            if group_key(pod) == key_of(gang.metadata)
            and not pod.spec.node_name
            and pod.metadata.deletion_timestamp is None
            and pod.status.phase not in TERMINAL_PHASES
        ]
        return [pod for _, pod in sorted(found, key=lambda each: each[0])]

    def _commit(self, decided: Decided) -> Placed:
        """Do what the committer and the server would: bind, allocate, reserve."""
        pod, placement = decided.pod, decided.placement
        bound = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=placement.node))
        self.pods[key_of(pod.metadata)] = bound
        self.scheduling.reserve(bound, decided.shape, placement)
        for claim, allocation in zip(placement.claims, placement.allocations, strict=True):
            status = ResourceClaimStatus(allocation=allocation)
            self.set_claim(_created(pod, msgspec.structs.replace(claim, status=status)))
        devices: dict[str, list[str]] = {}
        for claim in decided.claims.all:
            key = key_of(_created(pod, claim).metadata)
            # A claim that pods of a gang share was allocated by the one that was placed first.
            known = self.claims.get(key)
            if known is not None and known.status.allocation is not None:
                devices[key] = device_names(known.status.allocation)
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
        return self.allocator.explain(claims)


def device_names(allocation: AllocationResult) -> list[str]:
    """Return `driver/pool/device` of every device of an allocation."""
    return [f"{result.driver}/{result.pool}/{result.device}" for result in allocation.devices.results]


def _reason(answer: Unplaceable | NotReady) -> str:
    if isinstance(answer, NotReady):
        return answer.message
    reason, plan = answer.explain(), answer.preemption
    if plan is None:
        return reason
    victims = ", ".join(victim.key for victim in plan.victims)
    if not victims:
        return f"{reason}; it waits for pods that are ending on node {plan.node}"
    return f"{reason}; preemption would evict {victims} from node {plan.node}"


def _created(pod: Pod, claim: ResourceClaim) -> ResourceClaim:
    """Return the claim under the name that it has on the server: one for extended resources is made by the scheduler."""
    return _with_meta(claim, name=special_name(pod)) if claim.metadata.name == IN_MEMORY_NAME else claim


def _owner(kind: str, version: str, meta: ObjectMeta) -> OwnerReference:
    return OwnerReference(api_version=version, kind=kind, name=meta.name, uid=meta.uid, controller=True)


def _with_meta(obj: _Object, **changes: str) -> _Object:
    meta = msgspec.structs.replace(obj.metadata, **changes)
    return msgspec.structs.replace(obj, metadata=meta)
