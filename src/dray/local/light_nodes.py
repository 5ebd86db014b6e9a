"""Thousands of simulated nodes in one loop, with the API objects that full nodes have.

A simulated full node is a node agent with one gRPC server per driver, sockets, a certificate and a folder: half a
second of CPU and megabytes each. To look at a large cluster, its nodes only have to be there: a Node, a Lease,
slices, pods whose claims get prepared. Light nodes are written by this module alone, with the credentials of one
user and a few connections. What is written is made by the same code as on a full node: `Membership` for the Node
and its lease, `plan_all_writes` for slices, and for pods see `light_pods`. tests/unit/local/test_light_nodes.py
compares the objects of a light and a full node.

Theory of operation. At the start a few workers register node after node: the Node, its lease, its slices. From then
on every loop serves all nodes:

  * leases are renewed in small batches, spread over a period that grows with the number of nodes, but stays well
    below the 50 s after which a node counts as lost;
  * one informer follows the nodes: who was deleted registers again, who is not Ready says that it is;
  * one informer follows the pods that are bound, and hands each to its node;
  * one watch follows the slices: those of a node whose slices somebody changed are brought back;
  * folders of nodes are looked at for faults (`dray fault`), as the simulated driver does.

What a light node has not: a port (no logs, no exec: nothing runs), a checkpoint, metrics, the PodResources socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import msgspec

from dray.api.conditions import is_true
from dray.api.core import Taint
from dray.api.meta import Condition, ObjectMeta
from dray.api.parsing import ParseError, load_json
from dray.api.podspec import RunPod
from dray.api.resource import ResourceSlice
from dray.api.well_known import HOSTNAME_LABEL, NOT_READY_KEY
from dray.client import Client, ClientError, Informer, NotFound
from dray.client.resources import NODES, PODS, SLICES
from dray.driver.slices import Owner, plan_all_writes, split_pools
from dray.drivers.changed_layouts import LAYOUTS_FILE
from dray.local.light_pods import ADDRESS, DriverAccess, Hardware, LightPods
from dray.local.node_plans import NodePlan, Places
from dray.node.membership import RENEW_SECONDS, STATUS_REPEAT_SECONDS, Membership, NodeFacts

log = logging.getLogger("dray.local")

NAMES_FILE = "light-nodes"  # in the nodes' folder: their names, one to a line; they have no folders

_WORKERS = 16  # nodes that are registered at the same time
_RENEWALS_PER_SECOND = 100
_LONGEST_RENEWAL = 30.0  # seconds; a node without a new lease for 50 s counts as lost
_STATUSES_PER_SECOND = 5
_TICK = 0.25  # seconds between two batches
_LOOK_SECONDS = 0.5  # between two looks for faults
_TIDY_SECONDS = 60.0
_RETRY_SECONDS = 1.0
_WATCH_SECONDS = 1800


class _NodeStatus(msgspec.Struct, frozen=True):
    conditions: list[Condition] = []


class _NodeSpec(msgspec.Struct, frozen=True):
    taints: list[Taint] = []


class NodeState(msgspec.Struct, frozen=True):
    """What is looked at of a node."""

    metadata: ObjectMeta
    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()

    @property
    def is_ready(self) -> bool:
        """Return whether the server's copy says that the node is Ready."""
        return is_true(self.status.conditions, "Ready")

    @property
    def is_to_be_untainted(self) -> bool:
        """Return whether the node has the taint of new nodes, though it is Ready."""
        return self.is_ready and any(taint.key == NOT_READY_KEY for taint in self.spec.taints)


class _SliceSpec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""
    driver: str = ""


class _ChangedSlice(msgspec.Struct, frozen=True):
    spec: _SliceSpec = _SliceSpec()


class _SliceEvent(msgspec.Struct, frozen=True):
    type: str
    object: _ChangedSlice


def renewal_period(n_nodes: int) -> float:
    """Return how often, in seconds, each of so many nodes renews its lease.

    >>> [renewal_period(n) for n in (1, 2000, 5000, 100000)]
    [10.0, 20.0, 30.0, 30.0]
    """
    return min(max(RENEW_SECONDS, n_nodes / _RENEWALS_PER_SECOND), _LONGEST_RENEWAL)


def batches(names: Sequence[str], period: float) -> list[Sequence[str]]:
    """Spread names over a period, a batch for each tick.

    >>> batches("abcde", 0.5)
    ['abc', 'de']
    """
    n_batches = max(1, round(period / _TICK))
    size = math.ceil(len(names) / n_batches) or 1
    return [names[start : start + size] for start in range(0, len(names), size)] or [names]


class LightNodes:
    """All light nodes of this machine."""

    def __init__(self, client: Client, hardware: Hardware) -> None:
        self._client = client
        self._hardware = hardware
        self._pods = LightPods(client, hardware)
        self.members = {name: Membership(client, _facts(plan)) for name, plan in hardware.plans.items()}
        self._registered: dict[str, None] = {}
        self._is_new = True  # no slices are on the server yet
        self._missing: asyncio.Queue[str] = asyncio.Queue()  # nodes to register (again)
        self._unready: asyncio.Queue[str] = asyncio.Queue()
        self._publishing: dict[str, asyncio.Lock] = {}
        self._republish: dict[str, None] = {}
        self._must_publish = asyncio.Event()

    async def run(self, ready: asyncio.Semaphore | None = None) -> None:
        """Be all nodes until cancelled; `ready` is released once for each that is up."""
        pods = Informer(self._client, PODS, RunPod, field_selector="spec.nodeName!=")
        pods.add_handler(self._pods.see)
        try:
            async with asyncio.TaskGroup() as group:
                # Leases are renewed while others still register: that may take longer than a lease is valid.
                group.create_task(pods.run())
                group.create_task(self._renew_leases())
                await self._register_all(ready)
                nodes = Informer(self._client, NODES, NodeState)
                nodes.add_handler(self._see_node)
                for work in (
                    nodes.run(),
                    self._repeat_statuses(),
                    self._register_missing(),
                    self._correct_unready(),
                    self._watch_slices(),
                    self._publish_again(),
                    self._look_for_faults(),
                    self._tidy(),
                ):
                    group.create_task(work)
        finally:
            await self._pods.close()

    # --- starting ---------------------------------------------------------------

    async def _register_all(self, ready: asyncio.Semaphore | None) -> None:
        """Register all nodes, a few at a time."""
        self._is_new = not await self._has_slices()
        waiting = list(reversed(self.members))

        async def work() -> None:
            while waiting:
                name = waiting.pop()
                await self._register(name)
                if ready is not None:
                    ready.release()

        async with asyncio.TaskGroup() as group:
            for _ in range(min(_WORKERS, len(waiting))):
                group.create_task(work())
        self._is_new = False

    async def _has_slices(self) -> bool:
        while True:
            try:
                return bool((await self._client.list_page(SLICES, limit=1)).items)
            except ClientError as error:
                log.warning("slices not read: %s; again in %.0f s", error, _RETRY_SECONDS)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _register(self, name: str) -> None:
        member = self.members[name]
        # Its first taint is removed by the node lifecycle controller, at the same moment: two would only conflict.
        # Who still has it when all are there is seen by the nodes' informer.
        await member.register(untaint=False)
        await member.renew_lease()
        self._registered[name] = None
        while True:
            try:
                await self._publish(name)
                return
            except ClientError as error:
                log.warning(
                    "slices of node %s not published: %s; again in %.0f s", name, error, _RETRY_SECONDS
                )
            await asyncio.sleep(_RETRY_SECONDS)

    # --- slices -----------------------------------------------------------------

    async def _publish(self, name: str) -> None:
        """Bring the slices of a node to what its drivers have now; one caller at a time for each node."""
        async with self._publishing.setdefault(name, asyncio.Lock()):
            await self._publish_alone(name)

    async def _publish_alone(self, name: str) -> None:
        member = self.members[name]
        existing: dict[str, list[ResourceSlice]] = {}
        if not self._is_new:
            found = await self._client.list(SLICES, view=ResourceSlice, fieldSelector=f"spec.nodeName={name}")
            for there in found.items:
                if all(owner.uid != member.uid for owner in there.metadata.owner_references):
                    # Of an earlier Node of that name: the garbage collector will delete it.
                    await self._hardware.access[there.spec.driver].api.delete_slice(there)
                    continue
                existing.setdefault(there.spec.driver, []).append(there)
        for driver_name, driver in self._hardware.make_drivers(name).items():
            owner = Owner(driver_name, name, member.uid)
            wanted = split_pools(driver.discover(), owner)
            api = self._hardware.access[driver_name].api
            for write in plan_all_writes(wanted, existing.get(driver_name, ()), owner):
                if write.new is None:
                    assert write.old is not None
                    await api.delete_slice(write.old)
                else:
                    await (api.create_slice if write.old is None else api.update_slice)(write.new)

    def _publish_soon(self, name: str) -> None:
        self._republish[name] = None
        self._must_publish.set()

    async def _publish_again(self) -> None:
        while True:
            await self._must_publish.wait()
            self._must_publish.clear()
            names, self._republish = list(self._republish), {}
            for name in names:
                try:
                    await self._publish(name)
                except ClientError as error:
                    log.warning("slices of node %s not published: %s", name, error)
                    await asyncio.sleep(_RETRY_SECONDS)
                    self._publish_soon(name)

    async def _watch_slices(self) -> None:
        """Bring slices back that somebody changed or deleted; after a gap in the watch all nodes are looked at."""
        names, has_gap = set(self.members), False
        while True:
            try:
                listed = await self._client.list_page(SLICES, limit=1)
                if has_gap:
                    for name in self.members:
                        self._publish_soon(name)
                has_gap = True
                revision = listed.metadata.resource_version
                async for lines in self._client.watch_lines(
                    SLICES, resourceVersion=revision, timeoutSeconds=_WATCH_SECONDS
                ):
                    for line in lines:
                        name = _changed_node(line)
                        if name in names:
                            self._publish_soon(name)
            except ClientError as error:
                log.debug("watch of slices ended: %s", error)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _look_for_faults(self) -> None:
        """Publish the slices of nodes whose faults changed, and tell their pods."""
        before: dict[str, object] = {}
        while True:
            now = faults_by_node(self._hardware.places.root, self.members)
            for name in {**before, **now}:
                if before.get(name) != now.get(name):
                    self._publish_soon(name)
                    self._pods.report_devices(name)
            before = now
            await asyncio.sleep(_LOOK_SECONDS)

    # --- the nodes themselves -----------------------------------------------------

    def _see_node(self, old: NodeState | None, new: NodeState | None) -> None:
        node = new or old
        assert node is not None
        if node.metadata.name not in self.members:
            return
        if new is None:
            self._missing.put_nowait(node.metadata.name)
        elif (not new.is_ready and (old is None or old.is_ready)) or (old is None and new.is_to_be_untainted):
            self._unready.put_nowait(node.metadata.name)

    async def _register_missing(self) -> None:
        while True:
            name = await self._missing.get()
            log.info("node %s was deleted; registering it again", name)
            await self._register(name)

    async def _correct_unready(self) -> None:
        while True:
            await self._correct(await self._unready.get(), is_due=False)

    async def _correct(self, name: str, *, is_due: bool) -> None:
        try:
            node = await self._client.get(NODES, name)
            member = self.members[name]
            if not await member.correct_status(node.get("status") or {}, is_due=is_due):
                await member.untaint(node)
        except NotFound:
            self._missing.put_nowait(name)
        except ClientError as error:
            log.warning("status of node %s not written: %s", name, error)
            await asyncio.sleep(_RETRY_SECONDS)
            if not is_due:
                self._unready.put_nowait(name)

    async def _renew_leases(self) -> None:
        while True:
            names = list(self._registered)
            async for batch in _paced(names, renewal_period(len(names))):
                await asyncio.gather(*(self.members[name].renew_lease() for name in batch))

    async def _repeat_statuses(self) -> None:
        """Write every status now and then although nothing changed, as full nodes do."""
        period = max(STATUS_REPEAT_SECONDS, len(self.members) / _STATUSES_PER_SECOND)
        await asyncio.sleep(period)  # they were written when the nodes registered
        while True:
            async for batch in _paced(list(self.members), period):
                for name in batch:
                    await self._correct(name, is_due=True)

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(_TIDY_SECONDS)
            await self._pods.tidy()


async def _paced(names: Sequence[str], period: float) -> AsyncIterator[Sequence[str]]:
    """Yield names in batches, spread over a period; never faster than that, slower if the caller is."""
    began = time.monotonic()
    parts = batches(names, period)
    for index, batch in enumerate(parts):
        yield batch
        due = began + period * (index + 1) / len(parts)
        await asyncio.sleep(max(0.0, due - time.monotonic()))


def _facts(plan: NodePlan) -> NodeFacts:
    assert plan.profile is not None
    return NodeFacts(
        plan.name,
        ADDRESS,
        0,
        {HOSTNAME_LABEL: plan.name, **plan.labels},
        plan.profile.allocatable,
        plan.runtime,
        plan.profile.taints,
        provider_id=plan.provider_id,
    )


def _changed_node(line: bytes) -> str:
    """Return whose slice was changed or deleted; empty: nobody's."""
    if line.startswith((b'{"type":"ADDED"', b'{"type":"BOOKMARK"')):
        return ""
    try:
        event = load_json(line, _SliceEvent)
    except (ParseError, msgspec.MsgspecError):
        return ""
    return str(event.object.spec.node_name)


def faults_by_node(root: Path, names: Mapping[str, object]) -> dict[str, object]:
    """Return when the faults and the layouts of GPUs of each node changed last; only nodes with a folder have any."""
    found: dict[str, object] = {}
    with contextlib.suppress(FileNotFoundError):
        for folder in root.iterdir():
            if folder.name in names:
                stamps = []
                for path in sorted((*folder.glob("faults/*.yaml"), *folder.glob(f"files/*/{LAYOUTS_FILE}"))):
                    with contextlib.suppress(FileNotFoundError):
                        stat = path.stat()
                        stamps.append((path.name, stat.st_mtime_ns, stat.st_size))
                if stamps:
                    found[folder.name] = stamps
    return found


async def host_light_nodes(
    plans: Sequence[NodePlan], places: Places, ready: asyncio.Semaphore | None = None
) -> None:
    """Be light nodes until cancelled; `ready` is released once for each that is up."""
    places.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    (places.root / NAMES_FILE).write_text("".join(f"{plan.name}\n" for plan in plans), "utf-8")
    profiles = {id(plan.profile): plan for plan in plans}.values()
    names = {pool.driver for plan in profiles if plan.profile for pool in plan.profile.pools(plan.name)}
    names |= {pool.driver for plan in profiles for pool in plan.reachable}
    async with contextlib.AsyncExitStack() as stack:
        access = {}
        for name in sorted(names):
            connection = Client.connect(places.driver_kubeconfig(name), user_agent=f"{name}/dray")
            access[name] = DriverAccess(name, await stack.enter_async_context(connection))
        client = await stack.enter_async_context(
            Client.connect(places.light_kubeconfig, user_agent="dray-node")
        )
        hardware = Hardware({plan.name: plan for plan in plans}, places, access)
        await LightNodes(client, hardware).run(ready)
