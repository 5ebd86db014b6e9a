"""What-if: pods placed on a changed cluster, and how many more nodes they would need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dray.allocator import AllocationError, Policy
from dray.client import key_of
from dray.drivers.hardware import Profile
from dray.scheduler.policies import NodePolicy, policy_named
from dray.sim.cluster import OfflineCluster, Outcome
from dray.sim.snapshot import Snapshot

MAX_MORE_NODES = 256  # how far to look when asked how many nodes are missing


class ExperimentError(ValueError):
    """An experiment that cannot be made; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """A cluster, the pods to place on it, and what is changed first."""

    base: Snapshot
    wanted: Snapshot
    added: Sequence[tuple[Profile, int]] = ()
    drained: Sequence[str] = field(default=())
    policy: str | NodePolicy = "first-fit"

    def run(self, more: Sequence[tuple[Profile, int]] = ()) -> tuple[Outcome, list[str]]:
        """Place the wanted pods and those of drained nodes; return the outcome and the pods that were drained."""
        policy: NodePolicy | Policy | None = self.policy if isinstance(self.policy, NodePolicy) else None
        if isinstance(self.policy, str) and self.policy not in ("", "first-fit"):
            policy = policy_named(self.policy)
        cluster = OfflineCluster(self.base.merged(self.wanted), policy)
        made: dict[str, int] = {}
        for profile, count in (*self.added, *more):
            for _ in range(count):
                number = made[profile.name] = made.get(profile.name, 0) + 1
                cluster.add_hardware(profile, f"new-{profile.name}-{number}")
        known = sorted(cluster.state.nodes)
        moved = []
        for name in self.drained:
            if name not in cluster.state.nodes:
                raise ExperimentError(
                    f"there is no node {name!r} to drain; nodes: {', '.join(known[:10]) or 'none'}"
                )
            moved += cluster.remove_node(name)
        if not cluster.state.nodes:
            raise ExperimentError(
                "the cluster has no nodes: add some with --add-node PROFILE, or name a cluster with --against"
            )
        new_keys = {key_of(pod.metadata) for pod in self.wanted.pods}
        pods = [pod for key, pod in cluster.pods.items() if key in new_keys and not pod.spec.node_name]
        moved_keys = [key_of(pod.metadata) for pod in moved]
        pods += [cluster.pods[key] for key in moved_keys if key not in new_keys]
        if not pods and not self.drained:
            raise ExperimentError("the manifests have no pod to place")
        try:
            return cluster.place(pods), moved_keys
        except AllocationError as error:
            raise ExperimentError(f"a claim cannot be allocated on any node: {error}") from error

    def needed(self, profile: Profile) -> dict[str, Any]:
        """Return the smallest number of further nodes of a profile with which everything fits."""

        def fits(count: int) -> bool:
            return not self.run([(profile, count)])[0].refused

        low, high = 1, 1
        while not fits(high):
            low, high = high + 1, high * 2
            if high > MAX_MORE_NODES:
                return {
                    "profile": profile.name,
                    "nodes": None,
                    "note": f"not even {MAX_MORE_NODES} more would do",
                }
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(middle) else (middle + 1, high)
        return {"profile": profile.name, "nodes": low}
