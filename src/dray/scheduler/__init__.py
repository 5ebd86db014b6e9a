"""`decide(pod, snapshot) -> Decision`: where a pod goes, with which devices, or why not.

The package is pure: time comes in as an argument, nothing here reads a clock, a socket or a file. Use it through the names
exported here; docs/scheduler.md explains how it works.
"""

from dray.api.well_known import CLAIM_FINALIZER as FINALIZER
from dray.scheduler.alternatives import Alternative, place_by_alternatives
from dray.scheduler.amounts import CPU, MEMORY, pod_requests
from dray.scheduler.attaching import AttachmentDecision, decide_attachment, may_lack_claims
from dray.scheduler.claims import (
    Binding,
    NotReady,
    PodClaims,
    claim_keys,
    gather_claims,
    has_binding_conditions,
    is_bound_to_nodes,
    is_reserved_for,
    judge_binding,
    may_deallocate,
    may_have_conditions,
)
from dray.scheduler.cluster_snapshot import ClusterSnapshot, SchedulerProfile
from dray.scheduler.deciding import Decision, Placed, ReleaseFirst, decide, is_being_preempted_for
from dray.scheduler.devices import Devices, Reservation, claims_equivalence_key
from dray.scheduler.explaining import public_name
from dray.scheduler.extended import (
    IN_MEMORY_NAME,
    ExtendedResources,
    choose_special,
    serves,
    special_claim,
    special_name,
    special_owner,
    variants,
)
from dray.scheduler.gangs import (
    GangPlacement,
    Member,
    missing_members,
    place_gang,
    pods_to_start,
    start_gang,
)
from dray.scheduler.group_keys import group_key
from dray.scheduler.inter_pod_affinity import InterPodAffinity
from dray.scheduler.nodeallocatable import Footprint, extra_in_status, footprint
from dray.scheduler.nominations import Nomination
from dray.scheduler.outcomes import Placement, Preemption, Unplaceable
from dray.scheduler.placing import Placer
from dray.scheduler.preemption import may_preempt, plan_preemption
from dray.scheduler.queue import Entry, Hint, QueueingHint, SchedulingQueue
from dray.scheduler.selecting import matches_node
from dray.scheduler.shape import PodShape, claim_volumes, shape_of
from dray.scheduler.state import ClusterState, NodeState, PodUse
from dray.scheduler.topology_spread import Selecting
from dray.scheduler.verification import AllocationVerifier

__all__ = [
    "CPU",
    "FINALIZER",
    "IN_MEMORY_NAME",
    "MEMORY",
    "AllocationVerifier",
    "Alternative",
    "AttachmentDecision",
    "Binding",
    "ClusterSnapshot",
    "ClusterState",
    "Decision",
    "Devices",
    "Entry",
    "ExtendedResources",
    "Footprint",
    "GangPlacement",
    "Hint",
    "InterPodAffinity",
    "Member",
    "NodeState",
    "Nomination",
    "NotReady",
    "Placed",
    "Placement",
    "Placer",
    "PodClaims",
    "PodShape",
    "PodUse",
    "Preemption",
    "QueueingHint",
    "ReleaseFirst",
    "Reservation",
    "SchedulerProfile",
    "SchedulingQueue",
    "Selecting",
    "Unplaceable",
    "choose_special",
    "claim_keys",
    "claim_volumes",
    "claims_equivalence_key",
    "decide",
    "decide_attachment",
    "extra_in_status",
    "footprint",
    "gather_claims",
    "group_key",
    "has_binding_conditions",
    "is_being_preempted_for",
    "is_bound_to_nodes",
    "is_reserved_for",
    "judge_binding",
    "matches_node",
    "may_deallocate",
    "may_have_conditions",
    "may_lack_claims",
    "may_preempt",
    "missing_members",
    "place_by_alternatives",
    "place_gang",
    "plan_preemption",
    "pod_requests",
    "pods_to_start",
    "public_name",
    "serves",
    "shape_of",
    "special_claim",
    "special_name",
    "special_owner",
    "start_gang",
    "variants",
]
