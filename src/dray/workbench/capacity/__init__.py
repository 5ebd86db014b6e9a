"""Capacity: which nodes to add for pods that wait, and which can go.

`plan_capacity(snapshot, pending, catalogue) -> CapacityPlan` is a pure function; the command `dray capacity` and
autoscalers call it.
"""

from dray.workbench.capacity.catalogue import (
    Catalogue,
    CatalogueError,
    ComputeClass,
    NodeType,
    copy_of_node,
    parse_catalogue,
)
from dray.workbench.capacity.planning import (
    Addition,
    CapacityError,
    CapacityPlan,
    Comparison,
    NewNode,
    Unserved,
    plan_capacity,
)
from dray.workbench.capacity.removal import Kept, Removal, RemovalPlan, plan_removal

__all__ = [
    "Addition",
    "CapacityError",
    "CapacityPlan",
    "Catalogue",
    "CatalogueError",
    "Comparison",
    "ComputeClass",
    "Kept",
    "NewNode",
    "NodeType",
    "Removal",
    "RemovalPlan",
    "Unserved",
    "copy_of_node",
    "parse_catalogue",
    "plan_capacity",
    "plan_removal",
]
