"""Claims + inventory + ledger → a plan, or the reasons why there is none.

The door of the room:

    world = World(features, new_share_id=...)
    world.set_slice(...); world.set_class(...); world.set_node(...); world.set_claim(...)
    answer = world.plan("node-1", claims)            # Plan | Unsatisfied; raises AllocationError
    answers = world.plan_nodes(claims, first=100)    # NodePlans
    undo = world.take(claim_uid, answer.allocations[0])

Semantics are those of Kubernetes v1.37, device for device. See docs/allocator.md.
"""

from dray.allocator.answers import Explanation, NodePlans, Plan, Reason, RequestReasons, Unsatisfied
from dray.allocator.errors import (
    AllocationError,
    CapacityError,
    InvalidRequestError,
    PoolUpdatingError,
    SelectorError,
)
from dray.allocator.parts import OPTIONAL_OPERATIONS
from dray.allocator.policies import POLICIES, Demand, NodeLoad, Policy, frag_policy, policy_named
from dray.allocator.selection import PendingWork
from dray.allocator.world import DEFAULT_BUDGET, World
from dray.devices import DeviceId, Undo

__all__ = [
    "DEFAULT_BUDGET",
    "OPTIONAL_OPERATIONS",
    "POLICIES",
    "AllocationError",
    "CapacityError",
    "Demand",
    "DeviceId",
    "Explanation",
    "InvalidRequestError",
    "NodeLoad",
    "NodePlans",
    "PendingWork",
    "Plan",
    "Policy",
    "PoolUpdatingError",
    "Reason",
    "RequestReasons",
    "SelectorError",
    "Undo",
    "Unsatisfied",
    "World",
    "frag_policy",
    "policy_named",
]
