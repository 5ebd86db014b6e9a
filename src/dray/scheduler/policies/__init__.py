"""Policies: which of the nodes that fit is best for a pod.

`NodePolicy` is what a policy implements, `NodeRanking` what the placer asks. `first-fit`, `pack` and `frag` are node policies;
the other names of `dray.allocator.POLICIES` order nodes by the allocator's plans.
"""

from dray.allocator import Policy as DevicePolicy
from dray.allocator import policy_named as device_policy_named
from dray.scheduler.policies.fragmentation import Fragmentation
from dray.scheduler.policies.packing import FirstFit, Pack
from dray.scheduler.policies.protocol import WHOLE, NodePolicy, NodeSupply, PodDemand
from dray.scheduler.policies.ranking import NodeRanking

NODE_POLICIES: dict[str, type[NodePolicy]] = {"first-fit": FirstFit, "pack": Pack, "frag": Fragmentation}


def policy_named(name: str) -> NodePolicy | DevicePolicy:
    """Return a new policy by name; raises ValueError that lists the known ones."""
    return NODE_POLICIES[name]() if name in NODE_POLICIES else device_policy_named(name)


__all__ = [
    "NODE_POLICIES",
    "WHOLE",
    "FirstFit",
    "Fragmentation",
    "NodePolicy",
    "NodeRanking",
    "NodeSupply",
    "Pack",
    "PodDemand",
    "policy_named",
]
