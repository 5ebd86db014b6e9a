"""Pods + nodes + allocator → a placement, or the reasons why there is none.

The door of the room. All of it is pure: time comes in as an argument, nothing here
reads a clock, a socket or a file. docs/scheduler.md tells the story.
"""

from dray.api.well_known import CLAIM_FINALIZER as FINALIZER
from dray.scheduler.amounts import pod_requests
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
from dray.scheduler.devices import Booking, Devices, kind_of
from dray.scheduler.extended import (
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
    group_key,
    missing_members,
    place_gang,
    pods_to_start,
    start_gang,
)
from dray.scheduler.neighbours import Neighbours
from dray.scheduler.nodeallocatable import Footprint, extra_in_status, footprint
from dray.scheduler.placing import Placement, Placer, Unplaceable
from dray.scheduler.preemption import Preemption, may_preempt, plan_preemption
from dray.scheduler.queue import Entry, Help, SchedulingQueue, Wish
from dray.scheduler.shape import PodShape, shape_of
from dray.scheduler.state import ClusterState, NodeState, PodUse
from dray.scheduler.ways import Way, place_by_ways

__all__ = [
    "FINALIZER",
    "Binding",
    "Booking",
    "ClusterState",
    "Devices",
    "Entry",
    "ExtendedResources",
    "Footprint",
    "GangPlacement",
    "Help",
    "Member",
    "Neighbours",
    "NodeState",
    "NotReady",
    "Placement",
    "Placer",
    "PodClaims",
    "PodShape",
    "PodUse",
    "Preemption",
    "SchedulingQueue",
    "Unplaceable",
    "Way",
    "Wish",
    "choose_special",
    "claim_keys",
    "extra_in_status",
    "footprint",
    "gather_claims",
    "group_key",
    "has_binding_conditions",
    "is_bound_to_nodes",
    "is_reserved_for",
    "judge_binding",
    "kind_of",
    "may_deallocate",
    "may_have_conditions",
    "may_preempt",
    "missing_members",
    "place_by_ways",
    "place_gang",
    "plan_preemption",
    "pod_requests",
    "pods_to_start",
    "serves",
    "shape_of",
    "special_claim",
    "special_name",
    "special_owner",
    "start_gang",
    "variants",
]
