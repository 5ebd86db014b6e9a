"""Many nodes in one process: this machine with its real drivers, and simulated ones.

Each node is the real node agent with the real driver SDK, in a folder of its own;
only the hardware of simulated nodes is modelled. They talk to the API server with
their own credentials, over HTTPS, as nodes on other machines would.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dray.api.well_known import HOSTNAME_LABEL
from dray.client import Client
from dray.driver import Driver, DriverError, Settings, serving_driver
from dray.drivers.binding_conditions import has_conditions, satisfy_binding_conditions
from dray.drivers.hardware import PoolModel, Profile
from dray.drivers.shipped import drivers_with_hardware, make_driver
from dray.drivers.simulated import SimulatedDriver
from dray.drivers.simulated_node import simulated_drivers
from dray.host.private_files import make_private_folder
from dray.node import AgentSettings, running_agent
from dray.sim.twin import Twin

log = logging.getLogger("dray.local")


@dataclass(frozen=True, slots=True)
class NodePlan:
    """A node to host."""

    name: str
    profile: Profile | None = None  # None means: this machine, with the hardware found
    runtime: str = "process"
    labels: dict[str, str] = field(default_factory=dict)
    reachable: tuple[PoolModel, ...] = ()  # pools of several nodes whose devices are prepared here
    provider_id: str = ""  # the node's spec.providerID


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

    def node_root(self, name: str) -> Path:
        """Return a node's folder."""
        return self.root / name


def planned_nodes(
    simulated: Sequence[tuple[Profile, int]],
    host: str | None,
    runtime: str,
    sim_runtime: str,
    twin: Twin | None = None,
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
    return plans


def drivers_of(plan: NodePlan, places: Places) -> list[Driver]:
    """Return the drivers of a node."""
    root = places.node_root(plan.name)
    if plan.profile is not None:
        return list(
            simulated_drivers(plan.profile, plan.name, root / "faults", root / "files", plan.reachable)
        )
    drivers: list[Driver] = []
    for name in drivers_with_hardware():
        try:
            drivers.append(make_driver(name, plan.name, root / "plugins" / f"dray-{name}"))
        except DriverError as error:
            log.warning("driver %s does not run: %s", name, error)
    return drivers


async def host_node(plan: NodePlan, places: Places, ready: asyncio.Semaphore | None = None) -> None:
    """Be one node with its drivers until cancelled; `ready` is released once it is up."""
    root = places.node_root(plan.name)
    cdi = root / "cdi"
    make_private_folder(cdi)
    settings = AgentSettings(
        name=plan.name,
        root=root,
        runtime=plan.runtime,
        cdi_dirs=[cdi],
        labels={HOSTNAME_LABEL: plan.name, **plan.labels},
        capacity=plan.profile.allocatable if plan.profile is not None else None,
        taints=plan.profile.taints if plan.profile is not None else (),
        client_ca=places.client_ca,
        provider_id=plan.provider_id,
    )
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            Client.connect(places.node_kubeconfig(plan.name), user_agent="dray-node")
        )
        await stack.enter_async_context(running_agent(client, settings))
        for driver in drivers_of(plan, places):
            access = await stack.enter_async_context(
                Client.connect(places.driver_kubeconfig(driver.name), user_agent=f"{driver.name}/dray")
            )
            driver_settings = Settings(node_name=plan.name, kubelet_dir=root, cdi_dir=cdi)
            await stack.enter_async_context(serving_driver(driver, access, driver_settings))
            for model in driver.models if isinstance(driver, SimulatedDriver) else ():
                if has_conditions(model):
                    work = satisfy_binding_conditions(access, driver.name, model.name)
                    stack.callback(asyncio.create_task(work).cancel)
        if ready is not None:
            ready.release()
        await asyncio.Event().wait()


async def host_nodes(
    plans: Sequence[NodePlan], places: Places, ready: asyncio.Semaphore | None = None
) -> None:
    """Be all nodes until cancelled."""
    async with asyncio.TaskGroup() as group:
        for plan in plans:
            group.create_task(host_node(plan, places, ready))
