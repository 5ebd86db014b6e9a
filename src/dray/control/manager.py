"""The controllers by name, and which of them run where.

On dray's own server all of them run. On a real cluster kube-controller-manager
does these jobs, so there none runs unless it is named.
"""

from __future__ import annotations

from collections.abc import Iterable

from dray.control.compute_domains import ComputeDomainController
from dray.control.dependencies import JobDependencies
from dray.control.deployments import DeploymentController, ReplicaSetController
from dray.control.disruption_budgets import BudgetController
from dray.control.garbage_collection import GarbageCollector
from dray.control.jobs import DaemonSetController, JobController
from dray.control.namespaces import NamespaceController
from dray.control.node_lifecycle import NodeLifecycle, NodeMonitoring
from dray.control.pod_autoscaling import PodAutoscalerController
from dray.control.pod_groups import GroupProtection
from dray.control.pool_status import PoolStatusController
from dray.control.reconcile_loop import Caches, Clock, Controller
from dray.control.resource_claims import ClaimController
from dray.control.resource_quotas import QuotaController
from dray.control.taint_eviction import TaintEviction
from dray.host.clock import utc_now

CONTROLLERS: dict[str, type[Controller]] = {
    kind.name: kind
    for kind in (
        ClaimController,
        TaintEviction,
        PoolStatusController,
        GroupProtection,
        GarbageCollector,
        NamespaceController,
        NodeLifecycle,
        DeploymentController,
        ReplicaSetController,
        DaemonSetController,
        JobController,
        BudgetController,
        QuotaController,
        JobDependencies,
        ComputeDomainController,
        PodAutoscalerController,
    )
}


class UnknownController(ValueError):
    """A controller name that does not exist; the message lists those that do."""


def chosen_controllers(names: Iterable[str]) -> list[str]:
    """Resolve `*`, `name` and `-name`, in that spirit of kube-controller-manager's flag.

    >>> chosen_controllers(["*", "-jobs"])[:2]
    ['claims', 'device-taint-eviction']
    """
    chosen: list[str] = []
    dropped: set[str] = set()
    for name in names:
        plain = name.removeprefix("-")
        if plain != "*" and plain not in CONTROLLERS:
            raise UnknownController(f"no controller {plain!r}; there are: {', '.join(CONTROLLERS)}")
        if name.startswith("-"):
            dropped.add(plain)
        elif name == "*":
            chosen += [known for known in CONTROLLERS if known not in chosen]
        elif name not in chosen:
            chosen.append(name)
    return [name for name in chosen if name not in dropped]


def make_controllers(
    caches: Caches, names: Iterable[str], clock: Clock = utc_now, *, monitoring: NodeMonitoring | None = None
) -> list[Controller]:
    """Make the named controllers on shared caches."""
    return [
        NodeLifecycle(caches, clock, monitoring)
        if name == NodeLifecycle.name
        else CONTROLLERS[name](caches, clock)
        for name in names
    ]
