"""Claims + inventory + ledger → a plan, or the reasons why there is none.

Public interface:

    allocator = Allocator(features, new_share_id=...)
    allocator.set_slice(...); allocator.set_class(...); allocator.set_node(...); allocator.set_claim(...)
    answer = allocator.plan("node-1", claims)            # Plan | Unsatisfied; raises AllocationError
    answers = allocator.plan_nodes(claims, first=100)    # NodePlans
    undo = allocator.take(claim_uid, answer.allocations[0])

Semantics are those of Kubernetes v1.37, device for device. See docs/allocator.md.
"""

from dray.allocator.allocator import DEFAULT_BUDGET, Allocator
from dray.allocator.answers import (
    SHARED_WITH,
    Explanation,
    NodePlans,
    Plan,
    Reason,
    RequestReasons,
    Unsatisfied,
)
from dray.allocator.errors import (
    AllocationError,
    CapacityError,
    InvalidRequestError,
    PoolUpdatingError,
    SelectorError,
)
from dray.allocator.expressions import PendingSearch, PendingWork
from dray.allocator.policies import POLICIES, Demand, NodeLoad, Policy, frag_policy, policy_named
from dray.allocator.pool_matches import OPTIONAL_OPERATIONS
from dray.allocator.supply import RequestFootprint
from dray.devices import DeviceId, Undo

__all__ = [
    "DEFAULT_BUDGET",
    "OPTIONAL_OPERATIONS",
    "POLICIES",
    "SHARED_WITH",
    "AllocationError",
    "Allocator",
    "CapacityError",
    "Demand",
    "DeviceId",
    "Explanation",
    "InvalidRequestError",
    "NodeLoad",
    "NodePlans",
    "PendingSearch",
    "PendingWork",
    "Plan",
    "Policy",
    "PoolUpdatingError",
    "Reason",
    "RequestFootprint",
    "RequestReasons",
    "SelectorError",
    "Undo",
    "Unsatisfied",
    "frag_policy",
    "policy_named",
]
