"""Which nodes are to be hosted on this machine, under which names, and which of them are light.

A full node is a node agent with its drivers: processes of containers, sockets, files. A light node is an entry
in one loop that writes the same API objects (see `light_nodes`). Where containers run in name only and there are
more nodes than `MOST_FULL_NODES`, light ones are chosen, unless the caller says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dray.drivers.binding_conditions import has_conditions
from dray.drivers.hardware import PoolModel, Profile
from dray.sim.twin import Twin

AUTO = "auto"
LIGHT = "light"
FULL = "full"
WEIGHTS = (AUTO, LIGHT, FULL)  # what a caller may ask for
MOST_FULL_NODES = 50  # simulated nodes; beyond it they are light, if they can be
LIGHT_KUBECONFIG = "light-nodes.kubeconfig"


@dataclass(frozen=True, slots=True)
class NodePlan:
    """A node to host."""

    name: str
    profile: Profile | None = None  # None means: this machine, with the hardware found
    runtime: str = "process"
    labels: dict[str, str] = field(default_factory=dict)
    reachable: tuple[PoolModel, ...] = ()  # pools of several nodes whose devices are prepared here
    provider_id: str = ""  # the node's spec.providerID
    is_light: bool = False  # hosted by the loop that all light nodes share


@dataclass(frozen=True, slots=True)
class Places:
    """Where nodes keep their things and find their credentials."""

    root: Path  # one folder per node below
    credentials: Path  # node-<name>.kubeconfig and driver-<driver>.kubeconfig
    client_ca: Path | None = None

    def node_kubeconfig(self, name: str) -> Path:
        """Return the credentials of a node."""
        return self.credentials / f"node-{name}.kubeconfig"

    def driver_kubeconfig(self, driver: str) -> Path:
        """Return the credentials of a driver."""
        return self.credentials / f"driver-{driver}.kubeconfig"

    @property
    def light_kubeconfig(self) -> Path:
        """Return the credentials that all light nodes share."""
        return self.credentials / LIGHT_KUBECONFIG

    def node_root(self, name: str) -> Path:
        """Return a node's folder."""
        return self.root / name


def planned_nodes(
    simulated: Sequence[tuple[Profile, int]],
    host: str | None,
    runtime: str,
    sim_runtime: str,
    twin: Twin | None = None,
    weight: str = AUTO,
) -> list[NodePlan]:
    """Name the nodes: those of a copied cluster, `<profile>-1`, `<profile>-2`, ..., and the host's own name."""
    plans = [] if host is None else [NodePlan(host, runtime=runtime)]
    if twin is not None:
        plans += [
            NodePlan(name, profile, sim_runtime, dict(profile.labels), twin.reachable)
            for name, profile in twin.nodes
        ]
    numbers: dict[str, int] = {}
    for profile, count in simulated:
        for _ in range(count):
            number = numbers[profile.name] = numbers.get(profile.name, 0) + 1
            name = f"{profile.name}-{number}"
            plans.append(NodePlan(name, profile, sim_runtime, profile.node_labels(name)))
    return with_weight(plans, weight)


def with_weight(plans: Sequence[NodePlan], weight: str) -> list[NodePlan]:
    """Make simulated nodes light where they can be and it is asked for, or there are many of them."""
    n_simulated = sum(plan.profile is not None for plan in plans)
    if weight == FULL or (weight == AUTO and n_simulated <= MOST_FULL_NODES):
        return list(plans)
    heavy_by_profile = {
        id(plan.profile): why_not_light(plan) for plan in plans
    }  # one answer for all nodes of a profile
    return [plan if heavy_by_profile[id(plan.profile)] else replace(plan, is_light=True) for plan in plans]


def why_not_light(plan: NodePlan) -> str:
    """Say why a node must be a full one; empty: it can be light.

    A light node runs no containers, and nobody sets the binding conditions of its devices.
    """
    if plan.profile is None:
        return "it is this machine"
    if plan.runtime != "none":
        return f"its containers run (runtime {plan.runtime})"
    if any(map(has_conditions, plan.profile.pools(plan.name))):
        return "its devices have binding conditions"
    return ""


def refuse_heavy(plans: Iterable[NodePlan]) -> None:
    """Raise ValueError when a simulated node of the plans is not light, and say why."""
    for plan in plans:
        if plan.profile is not None and not plan.is_light:
            raise ValueError(f"node {plan.name} cannot be light: {why_not_light(plan)}")
