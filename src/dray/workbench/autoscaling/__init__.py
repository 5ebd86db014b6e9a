"""Nodes that come and go with the pods that need them: node groups, a controller, and cluster-autoscaler's protocol."""

from dray.workbench.autoscaling.controller import Autoscaler
from dray.workbench.autoscaling.decision import (
    Increase,
    Removal,
    ScalingOptions,
    ScalingPlan,
    plan_scaling,
    waiting_pods,
)
from dray.workbench.autoscaling.node_groups import (
    GroupState,
    NodeGroup,
    NodeGroupError,
    NodeGroups,
    groups_of,
)

__all__ = [
    "Autoscaler",
    "GroupState",
    "Increase",
    "NodeGroup",
    "NodeGroupError",
    "NodeGroups",
    "Removal",
    "ScalingOptions",
    "ScalingPlan",
    "groups_of",
    "plan_scaling",
    "waiting_pods",
]
