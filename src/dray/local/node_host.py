"""Simulated nodes that come and go while a system runs: the machines behind `dray autoscale`.

Each node is the node agent with its drivers, as `dray up --sim` starts them (`dray.local.nodes`); here they are
tasks of this process, started and stopped one by one. What a node consists of comes as a Node and ResourceSlices,
which become the profile of its simulated hardware, as in a copy of a cluster (`dray.sim.twin`).

Theory of operation. The Node objects with the label `dray.dev/node-group` are the list of what there is; `adopt` starts the
nodes of an earlier process again, and their containers are found as after any restart of an agent. A machine is
removed in the order: its agent ends, its containers end, its slices, lease and Node go, then its credentials and its folder.
Each step may be repeated: a Node with the mark of its removal, and a folder without a Node, are what an
interrupted removal leaves, and `adopt` finishes it.

Invariants (tests/unit/local/test_node_host.py):
  * two machines never have one name;
  * what is removed leaves no Node, slice, lease, credentials or folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from dray.api.core import Node
from dray.api.resource import ResourceSlice
from dray.client import Client, ClientError, NotFound
from dray.client.resources import LEASES, NODES, SLICES
from dray.drivers.binding_conditions import has_conditions
from dray.drivers.hardware import Profile
from dray.local.containers import end_containers
from dray.local.driver_access import grant_drivers, install_drivers
from dray.local.node_plans import NodePlan, Places
from dray.local.nodes import host_node
from dray.sim.machines import CREATING, DELETING, FAILED, GROUP_LABEL, RUNNING, Instance, provider_id
from dray.sim.twin import node_profile

log = logging.getLogger("dray.local")

LEASE_NAMESPACE: Final = "kube-node-lease"
REMOVAL_ANNOTATION: Final = "dray.dev/removal"  # of a node whose machine is being removed
_AT_ONCE: Final = 4  # agents that start at the same time
_RETRY_SECONDS: Final = 2.0

Host = Callable[[NodePlan, Places, asyncio.Semaphore], Awaitable[None]]
MakeParts = Callable[
    [str, str], tuple[Node, list[ResourceSlice]] | None
]  # (group, name) -> what it is made of


@dataclass(slots=True)
class _Machine:
    instance: Instance
    task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class NodeHost:
    """Hosts nodes in this process; needs the administrator's rights and the CA of the system."""

    client: Client
    data: Path  # folder of the system
    places: Places
    runtime: str = "process"
    clock: Callable[[], float] = time.monotonic
    host: Host = host_node
    _machines: dict[str, _Machine] = field(default_factory=dict)
    _granted: set[str] = field(default_factory=set)  # drivers that have their rights and credentials
    _granting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _starting: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def instances(self) -> Sequence[Instance]:
        """Return all machines that were started and are not gone."""
        return [each.instance for each in self._machines.values()]

    async def start(self, name: str, group: str, node: Node, slices: Sequence[ResourceSlice]) -> None:
        """Begin to start a machine whose node is to look like this."""
        if name in self._machines:
            raise ValueError(f"there is a machine {name} already")
        machine = _Machine(Instance(name, group, CREATING, self.clock()))
        self._machines[name] = machine
        machine.task = self._spawn(self._run(machine, node_profile(node, slices)))

    async def stop(self, name: str) -> None:
        """Begin to remove a machine with its node."""
        machine = self._machines.get(name)
        if machine is None or machine.instance.state == DELETING:
            return
        machine.instance = replace(machine.instance, state=DELETING)
        self._spawn(self._remove(machine))

    async def adopt(self, parts_of: MakeParts) -> None:
        """Start the nodes of an earlier process again, and finish its removals. Raises errors of the client."""
        nodes = (await self.client.list(NODES, view=Node, labelSelector=GROUP_LABEL)).items
        for node in nodes:
            name = node.metadata.name
            group = (node.metadata.labels or {})[GROUP_LABEL]
            parts = parts_of(group, name)
            if name in self._machines:
                continue
            if REMOVAL_ANNOTATION in (node.metadata.annotations or {}):
                self._machines[name] = _Machine(Instance(name, group))
                await self.stop(name)
            elif parts is None:
                log.warning("node %s: the catalogue has no group %s (anymore); it is left alone", name, group)
            else:
                await self.start(name, group, *parts)
        known = {node.metadata.name for node in nodes}
        for path in self.places.credentials.glob("node-*.kubeconfig"):
            name = path.name.removeprefix("node-").removesuffix(".kubeconfig")
            if name not in known:
                await self._delete_files(name)

    async def close(self) -> None:
        """Stop hosting; nodes, containers and files stay for the next process."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        assert isinstance(task, asyncio.Task)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- starting -----------------------------------------------------------------

    async def _run(self, machine: _Machine, profile: Profile) -> None:
        """Be one node until cancelled; a node that ends by itself has failed."""
        name = machine.instance.name
        try:
            async with self._starting:
                plan = await self._prepare(machine.instance, profile)
                ready = asyncio.Semaphore(0)
                hosting = asyncio.ensure_future(self.host(plan, self.places, ready))
                joined = asyncio.ensure_future(ready.acquire())
                try:
                    await asyncio.wait((hosting, joined), return_when=asyncio.FIRST_COMPLETED)
                except asyncio.CancelledError:
                    await _cancelled(hosting, joined)
                    raise
            if joined.done() and machine.instance.state == CREATING:
                machine.instance = replace(machine.instance, state=RUNNING)
            try:
                await hosting
            finally:
                await _cancelled(hosting, joined)
        except (OSError, ValueError, ClientError, ExceptionGroup) as error:
            log.warning("node %s: %s", name, error)
            if machine.instance.state != DELETING:
                machine.instance = replace(machine.instance, state=FAILED, message=str(error)[:500])

    async def _prepare(self, instance: Instance, profile: Profile) -> NodePlan:
        """Make the credentials of the node, and those of its drivers at their first node."""
        from dray.local.credentials import write_driver_kubeconfig, write_node_kubeconfig

        pools = profile.pools(instance.name)
        async with self._granting:
            self.places.credentials.mkdir(mode=0o700, parents=True, exist_ok=True)
            new = {pool.driver for pool in pools} - self._granted
            if new:
                conditions = {pool.driver for pool in pools if has_conditions(pool)}
                await grant_drivers(self.client, sorted(new), conditions)
                await install_drivers(self.client, sorted(new))
            for driver in sorted(new):
                write_driver_kubeconfig(self.data, driver, self.places.driver_kubeconfig(driver))
            self._granted |= new
        write_node_kubeconfig(self.data, instance.name, self.places.node_kubeconfig(instance.name))
        return NodePlan(
            instance.name,
            profile,
            self.runtime,
            dict(profile.labels),
            provider_id=provider_id(instance.group, instance.name),
        )

    # --- removing -----------------------------------------------------------------

    async def _remove(self, machine: _Machine) -> None:
        name = machine.instance.name
        while True:
            try:
                await self._remove_once(machine)
                break
            except (ClientError, OSError) as error:
                log.warning("node %s is not removed yet: %s", name, error)
            await asyncio.sleep(_RETRY_SECONDS)
        self._machines.pop(name, None)

    async def _remove_once(self, machine: _Machine) -> None:
        name = machine.instance.name
        mark = {"metadata": {"annotations": {REMOVAL_ANNOTATION: "true"}}, "spec": {"unschedulable": True}}
        with contextlib.suppress(NotFound):
            await self.client.patch(NODES, name, mark)
        if machine.task is not None:
            await _cancelled(machine.task)
        root = self.places.node_root(name)
        if root.exists():
            await end_containers(root.parent, self.runtime, only=name)
        slices = (await self.client.list(SLICES, fieldSelector=f"spec.nodeName={name}")).items
        for each in slices:
            with contextlib.suppress(NotFound):
                await self.client.delete(SLICES, each["metadata"]["name"])
        with contextlib.suppress(NotFound):
            await self.client.delete(LEASES, name, LEASE_NAMESPACE)
        with contextlib.suppress(NotFound):
            await self.client.delete(NODES, name)
        await self._delete_files(name)

    async def _delete_files(self, name: str) -> None:
        root = self.places.node_root(name)
        await asyncio.to_thread(shutil.rmtree, root, True)  # ignore_errors
        self.places.node_kubeconfig(name).unlink(missing_ok=True)


async def _cancelled(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
