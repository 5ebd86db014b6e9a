"""Drive a DriverRollout: look, decide (`rollout_plan.advance`), write the status, act; again until it has ended.

The status is written at the resourceVersion that was read, and before anything is done. So two drivers of one rollout
do not decide differently (one of them gets a conflict and looks again), and one that is killed at any point is
continued by the next: what it had begun is seen in the cluster or done once more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib import resources

import msgspec

from dray.api import driver_rollouts as api
from dray.api.core import Pod
from dray.api.driver_rollouts import DriverRollout, DriverRolloutSpec, DriverTemplate
from dray.api.json_types import JsonObject
from dray.api.parsing import load_yaml
from dray.client import AlreadyExists, Client, ClientError, Conflict, NotFound
from dray.client.resources import CUSTOM_RESOURCE_DEFINITIONS, DAEMON_SETS, PODS, Resource
from dray.control.pod_templates import is_ready
from dray.host.clock import utc_now
from dray.sim.snapshot import Snapshot, capture
from dray.workbench.fleet import rollout_plan
from dray.workbench.fleet.draining import (
    DrainResult,
    announce,
    drains,
    evict,
    plan_drain,
    set_effect,
    undrain,
)
from dray.workbench.fleet.rollout_plan import Action, Observation
from dray.workbench.fleet.targets import Target, selectors_of
from dray.workbench.inventory import Inventory

ROLLOUTS = Resource(api.GROUP, api.VERSION, api.PLURAL, api.KIND, namespaced=False)
PAUSE = 1.0  # seconds between two looks
_DEFINITION_WAIT = 30.0  # seconds until a new kind must be served

Validate = Callable[[Snapshot, Target], Awaitable[list[str]]]  # returns what failed; empty means: all is well


class RolloutRefused(Exception):
    """A rollout that cannot begin; the message says why, `hint` what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


async def install_definition(client: Client) -> None:
    """Create the kind DriverRollout where it does not exist, and wait until it is served."""
    text = resources.files("dray.workbench.fleet").joinpath("crds", "driverrollouts.yaml").read_text("utf-8")
    with contextlib.suppress(AlreadyExists):
        await client.create(CUSTOM_RESOURCE_DEFINITIONS, load_yaml(text))
    deadline = asyncio.get_running_loop().time() + _DEFINITION_WAIT
    while True:
        try:
            await client.list(ROLLOUTS)
        except NotFound:
            if asyncio.get_running_loop().time() > deadline:
                raise RolloutRefused("the API server does not serve DriverRollouts") from None
            await asyncio.sleep(0.2)
        else:
            return


async def create_rollout(client: Client, name: str, spec: DriverRolloutSpec) -> None:
    """Store a rollout after checking that its DaemonSet can be driven; raises RolloutRefused."""
    reference = spec.daemon_set
    try:
        found = await client.get(DAEMON_SETS, reference.name, reference.namespace)
    except NotFound:
        raise RolloutRefused(f"there is no DaemonSet {reference.namespace}/{reference.name}") from None
    strategy = (found["spec"].get("updateStrategy") or {}).get("type", "RollingUpdate")
    if strategy != "OnDelete":
        raise RolloutRefused(
            f"DaemonSet {reference.name} has the update strategy {strategy}, so its controller would replace all pods by itself",
            "set spec.updateStrategy.type to OnDelete",
        )
    previous = current_template(found, reference.container)
    if previous.version == spec.to.version:
        raise RolloutRefused(f"DaemonSet {reference.name} has version {spec.to.version} already")
    nodes = sorted({pod.spec.node_name for pod in await _driver_pods(client, found) if pod.spec.node_name})
    if not nodes:
        raise RolloutRefused(f"DaemonSet {reference.name} has no pods on nodes")
    body = {
        "apiVersion": api.API_VERSION,
        "kind": api.KIND,
        "metadata": {"name": name},
        "spec": msgspec.to_builtins(spec),
    }
    await client.create(ROLLOUTS, body)


def current_template(daemon_set: JsonObject, container: str) -> DriverTemplate:
    """Return the version and the image of a DaemonSet's template; raises RolloutRefused for an unknown container."""
    template = daemon_set["spec"]["template"]
    marks = (template.get("metadata") or {}).get("annotations") or {}
    chosen = _container(template, container)
    return DriverTemplate(version=marks.get(api.VERSION_ANNOTATION, ""), image=chosen.get("image", ""))


def _container(template: JsonObject, name: str) -> JsonObject:
    containers: list[JsonObject] = template["spec"]["containers"]
    for each in containers:
        if name in ("", each["name"]):
            return each
    raise RolloutRefused(
        f"the DaemonSet has no container {name}", f"it has: {', '.join(each['name'] for each in containers)}"
    )


async def _driver_pods(client: Client, daemon_set: JsonObject) -> list[Pod]:
    meta = daemon_set["metadata"]
    found = (await client.list(PODS, meta["namespace"], view=Pod)).items
    return [
        pod
        for pod in found
        if any(owner.uid == meta["uid"] and owner.controller for owner in pod.metadata.owner_references)
    ]


@dataclass(slots=True)
class RolloutDriver:
    """Brings one rollout to its end, or to a pause."""

    client: Client
    name: str
    validate: Validate
    report: Callable[[str], None] = lambda _text: None
    clock: Callable[[], datetime] = utc_now
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    _validations: dict[tuple[str, bool], asyncio.Future[list[str]]] = field(default_factory=dict)
    _shown: dict[str, str] = field(default_factory=dict)

    async def run(self) -> DriverRollout:
        """Go on until the rollout has ended or waits to be continued; returns it as it is then."""
        try:
            while True:
                rollout = await self.look()
                phase = rollout.status.phase
                at_work = any(node.step in rollout_plan.AT_WORK for node in rollout.status.nodes)
                if phase in rollout_plan.ENDED or (phase == rollout_plan.PAUSED and not at_work):
                    return rollout
                await self.pause(PAUSE)
        finally:
            for task in self._validations.values():
                task.cancel()
            await asyncio.gather(*self._validations.values(), return_exceptions=True)

    async def look(self) -> DriverRollout:
        """Do one round; a conflict with another writer is a reason to look again, not a failure."""
        rollout: DriverRollout = await self.client.get(ROLLOUTS, self.name, view=DriverRollout)
        spec = rollout.spec
        daemon_set = await self.client.get(DAEMON_SETS, spec.daemon_set.name, spec.daemon_set.namespace)
        pods = await _driver_pods(self.client, daemon_set)
        status = rollout.status
        if not status.phase:
            nodes = {pod.spec.node_name for pod in pods if pod.spec.node_name}
            previous = current_template(daemon_set, spec.daemon_set.container)
            status = rollout_plan.start(sorted(nodes), previous)
        snapshot = await capture(self.client)
        inventory = Inventory(snapshot)
        effects: dict[str, set[str]] = {}
        for each in await drains(self.client):
            effects.setdefault(each.target, set()).add(each.effect)
        targets = {node.name: driver_target(inventory, spec.driver, node.name) for node in status.nodes}
        observed = {
            node.name: self._observe(inventory, targets[node.name], effects, pods, node)
            for node in status.nodes
        }
        template = current_template(daemon_set, spec.daemon_set.container)
        after, actions = rollout_plan.advance(spec, status, observed, self.clock(), template)
        if after != rollout.status:
            try:
                await self._write(rollout, after)
            except Conflict:
                return rollout
        self._log(after)
        for action in actions:
            await self._act(action, spec, snapshot, targets, pods, daemon_set)
        return msgspec.structs.replace(rollout, status=after)

    def _observe(
        self,
        inventory: Inventory,
        target: Target,
        effects: Mapping[str, set[str]],
        pods: Sequence[Pod],
        node: api.NodeRollout,
    ) -> Observation:
        own = [
            pod for pod in pods if pod.spec.node_name == node.name and pod.metadata.deletion_timestamp is None
        ]
        newest = max(own, key=lambda pod: pod.metadata.creation_timestamp or "", default=None)
        marks = (newest.metadata.annotations or {}) if newest else {}
        versions = {row.attribute("driverVersion") for row in target.rows} - {""}
        key = (node.name, node.reverting)
        task = self._validations.get(key)
        if node.step != rollout_plan.VALIDATING and task is not None and task.done():
            del self._validations[key]  # a node may be validated again after it was reverted
            task = None
        names = {(row.driver, row.pool) for row in target.rows}
        complete = all(pool.is_complete for pool in inventory.pools if (pool.driver, pool.pool) in names)
        return Observation(
            users=tuple(holder.key for holder in plan_drain(inventory.snapshot, target).holders),
            is_tainted=effects.get(target.name) == {"NoSchedule"},
            has_taint_rules=target.name in effects,
            pod_version=marks.get(api.VERSION_ANNOTATION, "") if newest else "",
            is_ready=newest is not None and is_ready(newest),
            published_versions=frozenset(versions),
            is_published=bool(target.rows) and complete,
            failures=_failures(task) if task is not None and task.done() else None,
        )

    async def _write(self, rollout: DriverRollout, status: api.DriverRolloutStatus) -> None:
        body = {
            "apiVersion": api.API_VERSION,
            "kind": api.KIND,
            "metadata": {"name": self.name, "resourceVersion": rollout.metadata.resource_version},
            "spec": msgspec.to_builtins(rollout.spec),
            "status": msgspec.to_builtins(status),
        }
        await self.client.update(ROLLOUTS, self.name, body, subresource="status")

    def _log(self, status: api.DriverRolloutStatus) -> None:
        for node in status.nodes:
            text = f"{node.step}{' (reverting)' if node.reverting and node.step != rollout_plan.REVERTED else ''}"
            why = node.evidence if node.step == rollout_plan.FAILED or node.reverting else ""
            text += f": {node.message or why}" if node.message or why else ""
            if text != self._shown.get(node.name) and node.step != rollout_plan.PENDING:
                self.report(f"{node.name}: {text}")
            self._shown[node.name] = text
        if status.phase != self._shown.get(""):
            self.report(f"{self.name}: {status.phase}{': ' + status.message if status.message else ''}")
            self._shown[""] = status.phase

    async def _act(
        self,
        action: Action,
        spec: DriverRolloutSpec,
        snapshot: Snapshot,
        targets: Mapping[str, Target],
        pods: Sequence[Pod],
        daemon_set: JsonObject,
    ) -> None:
        target = targets.get(action.node)
        if action.verb == "set-template" and action.template is not None:
            await self._set_template(daemon_set, spec, action.template)
        elif action.verb == "untaint" and target is not None:
            await undrain(self.client, target.name)
        elif action.verb == "taint" and target is not None:
            reason = f"rollout {self.name} of {spec.driver}"
            await announce(self.client, target, reason)
            await set_effect(self.client, target, reason, "NoSchedule")
        elif action.verb == "evict" and target is not None:
            result = DrainResult(is_done=False)
            for holder in plan_drain(snapshot, target).holders:
                if not holder.is_bare:  # nobody would make it again: its end is waited for
                    await evict(self.client, holder, result)
        elif action.verb == "delete-pod":
            await self._delete_pods(action, pods)
        elif action.verb == "validate" and target is not None:
            key = (action.node, action.is_revert)
            if key not in self._validations:
                self._validations[key] = asyncio.ensure_future(self.validate(snapshot, target))

    async def _delete_pods(self, action: Action, pods: Sequence[Pod]) -> None:
        wanted = action.template.version if action.template else ""
        for pod in pods:
            marks = pod.metadata.annotations or {}
            if (
                pod.spec.node_name == action.node
                and pod.metadata.deletion_timestamp is None
                and marks.get(api.VERSION_ANNOTATION, "") != wanted
            ):
                with contextlib.suppress(NotFound, Conflict):
                    await self.client.delete(
                        PODS, pod.metadata.name, pod.metadata.namespace, uid=pod.metadata.uid
                    )

    async def _set_template(
        self, daemon_set: JsonObject, spec: DriverRolloutSpec, wanted: DriverTemplate
    ) -> None:
        have = current_template(daemon_set, spec.daemon_set.container)
        image = wanted.image or have.image
        if (have.version, have.image) == (wanted.version, image):
            return
        # Where the image stays the same only the annotation differs; null removes it.
        body: JsonObject = {
            "metadata": {"resourceVersion": daemon_set["metadata"]["resourceVersion"]},
            "spec": {
                "template": {
                    "metadata": {"annotations": {api.VERSION_ANNOTATION: wanted.version or None}},
                }
            },
        }
        if image != have.image:
            chosen = _container(daemon_set["spec"]["template"], spec.daemon_set.container)["name"]
            containers = [
                {**each, "image": image} if each["name"] == chosen else each
                for each in daemon_set["spec"]["template"]["spec"]["containers"]
            ]
            body["spec"]["template"]["spec"] = {"containers": containers}
        meta = daemon_set["metadata"]
        with contextlib.suppress(Conflict):
            await self.client.patch(DAEMON_SETS, meta["name"], body, meta["namespace"])


def _failures(task: asyncio.Future[list[str]]) -> tuple[str, ...]:
    error = task.exception()
    if isinstance(error, ClientError):
        return (f"the validation could not be run: {error}",)
    return tuple(task.result())


def driver_target(inventory: Inventory, driver: str, node: str) -> Target:
    """Return the devices of one driver on one node, named pool by pool where a pool lies on the node alone."""
    rows = [row for row in inventory.devices.values() if (row.driver, row.node) == (driver, node)]
    return Target(f"{driver}@{node}", selectors_of(rows, inventory), tuple(rows))
