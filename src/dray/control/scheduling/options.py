"""How the scheduler behaves, and the profile that decisions are made by."""

from __future__ import annotations

from dataclasses import dataclass, field

from dray.allocator import POLICIES
from dray.api.core import NodeAffinity
from dray.api.features import Features
from dray.scheduler import SchedulerProfile
from dray.scheduler.policies import NodePolicy, policy_named

TOPOLOGY = "topology"  # the policy that keeps the devices of a claim close together


@dataclass(slots=True)
class SchedulerOptions:
    """How the scheduler behaves; the defaults are those of the command."""

    name: str = "dray"
    policy: str | NodePolicy = ""  # empty means: kube-scheduler's way
    features: Features = field(default_factory=Features.default)
    max_commits: int = 16
    binding_timeout: float = 600.0
    filter_timeout: float = 5.0  # seconds for one decision's searches (kube-scheduler: 10 for each node)
    may_preempt: bool = True
    added_affinity: NodeAffinity | None = None  # beside the node affinity of every pod
    is_guarded: bool = False  # a guard refuses what would be allocated twice: no warning of other schedulers
    shares_fairly: bool = False  # users by what they had lately, with limits and a reservation for the head
    records_bindings: bool = False  # an event for every bound pod, at the cost of a write

    def profile(self) -> SchedulerProfile:
        """Return the profile that decisions are made by."""
        name = self.policy if isinstance(self.policy, str) else ""
        # Closeness is a preference added to the claims; the allocator may have an order of devices for it, too.
        has_order = bool(name) and (name != TOPOLOGY or name in POLICIES)
        chosen = self.policy if isinstance(self.policy, NodePolicy) else None
        return SchedulerProfile(
            features=self.features,
            policy=chosen or (policy_named(name) if has_order else None),
            prefers_closeness=name == TOPOLOGY,
            may_preempt=self.may_preempt,
            binding_timeout=self.binding_timeout,
            added_affinity=self.added_affinity,
        )
