"""Views of the core objects that DRA touches: Pod, Node, and what a scheduler reads.

Views, not models: decoding keeps what decisions need and skips the rest (see
`meta`). To change such an object, patch it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dray.api.meta import Condition, LabelSelector, NodeSelector, NodeSelectorTerm, ObjectMeta, View
from dray.api.resource import QuantityValue

ResourceList = dict[str, QuantityValue]


# --- Pod ----------------------------------------------------------------------


class ContainerClaim(View, frozen=True):
    """A claim entry of the pod that the container uses, whole or one request of it."""

    name: str = ""
    request: str = ""  # empty means: the whole claim


class ResourceRequirements(View, frozen=True):
    """What a container asks of the node."""

    requests: ResourceList | None = None
    limits: ResourceList | None = None
    claims: list[ContainerClaim] = []


class ContainerPort(View, frozen=True):
    """A port the container listens on."""

    name: str = ""
    container_port: int = 0
    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = "TCP"


class Container(View, frozen=True):
    """One container, as far as placing it needs to know."""

    name: str = ""
    image: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    ports: list[ContainerPort] = []
    restart_policy: str | None = None  # Always on an init container makes it a sidecar


class PodResourceClaim(View, frozen=True):
    """A claim the pod uses: by name, or made from a template."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class Toleration(View, frozen=True):
    """A node taint the pod can live with."""

    key: str = ""
    operator: str = ""  # Equal (also when empty), Exists, Lt, Gt
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class PreferredSchedulingTerm(View, frozen=True):
    """A node preference with its weight."""

    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(View, frozen=True):
    """Nodes the pod needs or prefers."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: list[PreferredSchedulingTerm] = []


class PodAffinityTerm(View, frozen=True):
    """Near (or away from) pods that match, per value of the topology key."""

    label_selector: LabelSelector | None = None
    namespaces: list[str] = []
    topology_key: str = ""
    namespace_selector: LabelSelector | None = None
    match_label_keys: list[str] = []
    mismatch_label_keys: list[str] = []


class WeightedPodAffinityTerm(View, frozen=True):
    """A pod affinity preference with its weight."""

    weight: int = 0
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(View, frozen=True):
    """Pod affinity or anti-affinity: the shape is the same."""

    required_during_scheduling_ignored_during_execution: list[PodAffinityTerm] = []
    preferred_during_scheduling_ignored_during_execution: list[WeightedPodAffinityTerm] = []


class Affinity(View, frozen=True):
    """All affinities of a pod."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class TopologySpreadConstraint(View, frozen=True):
    """Spread pods over topology domains."""

    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: list[str] = []


class SchedulingGate(View, frozen=True):
    """A name that keeps the pod from being scheduled while it is there."""

    name: str = ""


class PodSchedulingGroup(View, frozen=True):
    """The PodGroup this pod belongs to."""

    pod_group_name: str | None = None


class ClaimVolumeSource(View, frozen=True):
    """A volume by its PersistentVolumeClaim."""

    claim_name: str = ""


class EphemeralVolumeSource(View, frozen=True):
    """A volume whose PersistentVolumeClaim is made for the pod, and deleted with it."""


class PodVolume(View, frozen=True):
    """A volume of the pod, as far as placing it needs to know."""

    name: str = ""
    persistent_volume_claim: ClaimVolumeSource | None = None
    ephemeral: EphemeralVolumeSource | None = None


class PodSpec(View, frozen=True):
    """What the pod wants."""

    node_name: str = ""
    scheduler_name: str = "default-scheduler"
    containers: list[Container] = []
    init_containers: list[Container] = []
    overhead: ResourceList | None = None
    resources: ResourceRequirements | None = None  # pod-level
    resource_claims: list[PodResourceClaim] = []
    volumes: list[PodVolume] = []
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] = []
    topology_spread_constraints: list[TopologySpreadConstraint] = []
    scheduling_gates: list[SchedulingGate] = []
    scheduling_group: PodSchedulingGroup | None = None
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: str | None = None
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    host_network: bool = False
    restart_policy: str = "Always"


class PodResourceClaimStatus(View, frozen=True):
    """Which claim was made for a claim entry; no name means none is needed."""

    name: str = ""
    resource_claim_name: str | None = None


class ContainerExtendedResourceRequest(View, frozen=True):
    """Which request of the scheduler-made claim serves a container's extended resource."""

    container_name: str = ""
    resource_name: str = ""
    request_name: str = ""


class PodExtendedResourceClaimStatus(View, frozen=True):
    """The scheduler-made claim behind the pod's extended resources."""

    request_mappings: list[ContainerExtendedResourceRequest] = []
    resource_claim_name: str = ""


class ContainerStatus(View, frozen=True):
    """What a container has been given."""

    name: str = ""
    allocated_resources: ResourceList | None = None  # that the node has accepted
    resources: ResourceRequirements | None = None  # with which it runs


class PodStatus(View, frozen=True):
    """What became of the pod."""

    phase: str = ""
    observed_generation: int = 0  # of the pod, up to which the node has acted on it
    conditions: list[Condition] = []
    nominated_node_name: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    start_time: str | None = None
    reason: str = ""
    message: str = ""
    container_statuses: list[ContainerStatus] = []
    init_container_statuses: list[ContainerStatus] = []
    allocated_resources: ResourceList | None = None  # of the pod as a whole
    resources: ResourceRequirements | None = None
    resource_claim_statuses: list[PodResourceClaimStatus] = []
    extended_resource_claim_status: PodExtendedResourceClaimStatus | None = None
    node_allocatable_resource_claim_statuses: list[Any] = []


class Pod(View, frozen=True):
    """A pod."""

    api_version: str = "v1"
    kind: str = "Pod"
    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


# --- Node ---------------------------------------------------------------------


class Taint(View, frozen=True):
    """A reason to keep pods off a node."""

    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class NodeSpec(View, frozen=True):
    """What an administrator says of a node."""

    unschedulable: bool = False
    taints: list[Taint] = []


class ContainerImage(View, frozen=True):
    """An image that a node has."""

    names: list[str] = []
    size_bytes: int = 0


class NodeStatus(View, frozen=True):
    """What a node says of itself."""

    capacity: ResourceList | None = None
    allocatable: ResourceList | None = None
    conditions: list[Condition] = []
    declared_features: list[str] = []
    images: list[ContainerImage] = []


class Node(View, frozen=True):
    """A node."""

    api_version: str = "v1"
    kind: str = "Node"
    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


# --- others -------------------------------------------------------------------


class NamespaceSpec(View, frozen=True):
    """Who must agree before the namespace is deleted."""

    finalizers: list[str] = []


class Namespace(View, frozen=True):
    """A namespace."""

    api_version: str = "v1"
    kind: str = "Namespace"
    metadata: ObjectMeta = ObjectMeta()
    spec: NamespaceSpec = NamespaceSpec()


class ResourceQuotaSpec(View, frozen=True):
    """What may be used at most."""

    hard: ResourceList | None = None


class ResourceQuotaStatus(View, frozen=True):
    """What is used."""

    hard: ResourceList | None = None
    used: ResourceList | None = None


class ResourceQuota(View, frozen=True):
    """The limits of a namespace."""

    api_version: str = "v1"
    kind: str = "ResourceQuota"
    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceQuotaSpec = ResourceQuotaSpec()
    status: ResourceQuotaStatus = ResourceQuotaStatus()


class LeaseSpec(View, frozen=True):
    """Who holds the lease, and since when."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(View, frozen=True):
    """A heartbeat, or the right to lead."""

    api_version: str = "coordination.k8s.io/v1"
    kind: str = "Lease"
    metadata: ObjectMeta = ObjectMeta()
    spec: LeaseSpec = LeaseSpec()


class PodDisruptionBudgetSpec(View, frozen=True):
    """How many pods must stay."""

    selector: LabelSelector | None = None
    min_available: str | int | None = None
    max_unavailable: str | int | None = None


class PodDisruptionBudgetStatus(View, frozen=True):
    """How many may go now."""

    disruptions_allowed: int = 0
    disrupted_pods: dict[str, Any] | None = None


class PodDisruptionBudget(View, frozen=True):
    """Protects pods from voluntary disruption."""

    api_version: str = "policy/v1"
    kind: str = "PodDisruptionBudget"
    metadata: ObjectMeta = ObjectMeta()
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


class GangSchedulingPolicy(View, frozen=True):
    """All of at least this many pods, or none."""

    min_count: int = 1


class PodGroupSchedulingPolicy(View, frozen=True):
    """How the pods of a group are scheduled."""

    basic: dict[str, Any] | None = None
    gang: GangSchedulingPolicy | None = None


class TopologyConstraint(View, frozen=True):
    """The pods of a group share the value of this node label."""

    key: str = ""


class PodGroupSchedulingConstraints(View, frozen=True):
    """Where the pods of a group may be, seen together."""

    topology: list[TopologyConstraint] = []


class DisruptionMode(View, frozen=True):
    """Return whether the pods of a group are evicted one by one or all together."""

    single: dict[str, Any] | None = None
    all: dict[str, Any] | None = None


class PodGroupSpec(View, frozen=True):
    """A group of pods that belong together."""

    scheduling_policy: PodGroupSchedulingPolicy = PodGroupSchedulingPolicy()
    scheduling_constraints: PodGroupSchedulingConstraints | None = None
    resource_claims: list[PodResourceClaim] = []
    disruption_mode: DisruptionMode | None = None
    priority: int | None = None
    preemption_policy: str | None = None


class PodGroupStatus(View, frozen=True):
    """What became of the group."""

    conditions: list[Condition] = []
    resource_claim_statuses: list[PodResourceClaimStatus] = []


class PodGroup(View, frozen=True):
    """scheduling.k8s.io PodGroup."""

    api_version: str = "scheduling.k8s.io/v1beta1"
    kind: str = "PodGroup"
    metadata: ObjectMeta = ObjectMeta()
    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()
