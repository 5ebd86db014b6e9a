"""Many nodes in one process: this machine with its real drivers, and simulated ones.

A full node is the real node agent with the real driver SDK, in a folder of its own;
only the hardware of simulated nodes is modelled. They talk to the API server with
their own credentials, over HTTPS, as nodes on other machines would. Light nodes
(`light_nodes`) stand in for thousands of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from dray.api.well_known import HOSTNAME_LABEL
from dray.client import Client
from dray.driver import Driver, DriverError, Settings, serving_driver
from dray.drivers.binding_conditions import has_conditions, satisfy_binding_conditions
from dray.drivers.shipped import drivers_with_hardware, make_driver
from dray.drivers.simulated import SimulatedDriver
from dray.drivers.simulated_node import simulated_drivers
from dray.host.private_files import make_private_folder
from dray.local.light_nodes import host_light_nodes
from dray.local.node_plans import NodePlan, Places
from dray.node import AgentSettings, running_agent

log = logging.getLogger("dray.local")


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
    light = [plan for plan in plans if plan.is_light]
    async with asyncio.TaskGroup() as group:
        if light:
            group.create_task(host_light_nodes(light, places, ready))
        for plan in plans:
            if not plan.is_light:
                group.create_task(host_node(plan, places, ready))
