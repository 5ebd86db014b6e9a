"""Playing the tour: apply a scene, wait until its pods are where they should be, tell what happened."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dray.api.core import Pod
from dray.api.json_types import JsonObject
from dray.api.resource import DeviceTaint, ResourceClaim
from dray.client import AlreadyExists, Client, NotFound
from dray.client.resources import (
    CLAIM_TEMPLATES,
    CLAIMS,
    DEPLOYMENTS,
    NAMESPACES,
    POD_GROUPS,
    PODS,
    Resource,
)
from dray.drivers.faults import DeviceFault, FaultFile
from dray.local.demo_scenes import Scene, Tour

RESOURCES: dict[str, Resource] = {
    resource.kind: resource
    for resource in (NAMESPACES, PODS, CLAIMS, CLAIM_TEMPLATES, DEPLOYMENTS, POD_GROUPS)
}
PATIENCE = 60.0  # seconds for one scene; a loaded machine is slow, not broken
LOOK = 0.1

Tell = Callable[[str], None]


class SceneFailure(Exception):
    """A scene that did not end as it should."""


@dataclass(slots=True)
class Result:
    """How one scene went."""

    title: str
    seconds: float
    ok: bool
    lines: list[str] = field(default_factory=list)


class Player:
    """Plays scenes on a running system."""

    def __init__(self, client: Client, data: Path, tell: Tell) -> None:
        self.client = client
        self.data = data
        self.tell = tell

    async def play(self, tour: Tour) -> list[Result]:
        """Play everything; a scene that fails does not stop the next."""
        for obj in tour.before:
            await self.apply(obj)
        return [
            await self._play_one(index, scene, len(tour.scenes)) for index, scene in enumerate(tour.scenes, 1)
        ]

    async def _play_one(self, index: int, scene: Scene, total: int) -> Result:
        self.tell(f"\n[{index}/{total}] {scene.title}")
        self.tell(f"    {scene.text}")
        began = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE):
                for obj in scene.objects:
                    await self.apply(obj)
                lines = await self._watch_end(scene)
        except TimeoutError:
            lines = [f"not done after {PATIENCE:.0f} s", *await self._pending_reasons(scene)]
            result = Result(scene.title, time.monotonic() - began, False, lines)
        except SceneFailure as error:
            result = Result(scene.title, time.monotonic() - began, False, [str(error)])
        else:
            result = Result(scene.title, time.monotonic() - began, True, lines)
        for line in result.lines:
            self.tell(f"    {'✓' if result.ok else '✗'} {line}")
        return result

    async def apply(self, obj: JsonObject) -> None:
        """Create an object; one that exists stays."""
        resource = RESOURCES[obj["kind"]]
        try:
            await self.client.create(resource, obj, obj["metadata"].get("namespace"))
        except AlreadyExists:
            pass

    async def _watch_end(self, scene: Scene) -> list[str]:
        lines = []
        for name in scene.runs:
            lines.append(await self._until_running(name, scene.namespace))
        for name in scene.waits:
            lines.append(await self._until_explained(name, scene.namespace))
        if scene.fault is not None:
            lines += await self._break_and_watch(scene)
        return lines

    async def _find(self, name: str, namespace: str) -> Pod | None:
        if not name.endswith("*"):
            try:
                return await self.client.get(PODS, name, namespace, view=Pod)
            except NotFound:
                return None
        pods = (await self.client.list(PODS, namespace, view=Pod)).items
        found = [
            pod
            for pod in pods
            if pod.metadata.name.startswith(name[:-1]) and pod.metadata.deletion_timestamp is None
        ]
        return found[0] if found else None

    async def _until_running(self, name: str, namespace: str, other_than: str = "") -> str:
        while True:
            pod = await self._find(name, namespace)
            if pod is not None and pod.metadata.uid != other_than:
                if pod.status.phase == "Failed":
                    raise SceneFailure(
                        f"pod {pod.metadata.name} failed: {pod.status.message or pod.status.reason}"
                    )
                if pod.status.phase == "Running":
                    devices = await self._devices_of(pod)
                    return f"{pod.metadata.name} runs on {pod.spec.node_name}: {devices}"
            await asyncio.sleep(LOOK)

    async def _until_explained(self, name: str, namespace: str) -> str:
        while True:
            pod = await self._find(name, namespace)
            for condition in pod.status.conditions if pod is not None else ():
                if condition.type == "PodScheduled" and condition.status == "False" and condition.message:
                    return f"{name} waits: {condition.message}"
            await asyncio.sleep(LOOK)

    async def _claims_of(self, pod: Pod) -> list[ResourceClaim]:
        names = [entry.resource_claim_name for entry in pod.spec.resource_claims]
        names += [status.resource_claim_name for status in pod.status.resource_claim_statuses]
        if pod.status.extended_resource_claim_status is not None:
            names.append(pod.status.extended_resource_claim_status.resource_claim_name)
        return [
            await self.client.get(CLAIMS, name, pod.metadata.namespace, view=ResourceClaim)
            for name in names
            if name
        ]

    async def _devices_of(self, pod: Pod) -> str:
        found = []
        for claim in await self._claims_of(pod):
            if claim.status.allocation is None:
                continue
            for result in claim.status.allocation.devices.results:
                share = "".join(
                    f" ({amount} of {name})" for name, amount in (result.consumed_capacity or {}).items()
                )
                found.append(f"{result.device}{share}")
        return ", ".join(found) if len(found) <= 4 else f"{', '.join(found[:3])}, … ({len(found)} devices)"

    async def _break_and_watch(self, scene: Scene) -> list[str]:
        assert scene.fault is not None
        driver, taint_key = scene.fault
        pod = await self._find(scene.runs[0], scene.namespace)
        assert pod is not None
        claims = await self._claims_of(pod)
        allocation = claims[0].status.allocation if claims else None
        if allocation is None:
            raise SceneFailure(f"pod {pod.metadata.name} has no device that could fail")
        device = allocation.devices.results[0].device
        faults = FaultFile(self.data / "nodes" / pod.spec.node_name / "faults" / f"{driver}.yaml")
        faults.change(device, DeviceFault(health="Unhealthy", message="simulated XID 79",
                                          taint=DeviceTaint(key=taint_key, value="79", effect="NoExecute")))  # fmt: skip
        moved = await self._until_running(scene.runs[0], scene.namespace, other_than=pod.metadata.uid)
        return [f"{device} on {pod.spec.node_name} was broken on purpose (XID 79)", moved]

    async def _pending_reasons(self, scene: Scene) -> list[str]:
        reasons = []
        for name in (*scene.runs, *scene.waits):
            pod: Any = await self._find(name, scene.namespace)
            if pod is None:
                reasons.append(f"pod {name} does not exist")
            elif pod.status.phase != "Running":
                words = [c.message for c in pod.status.conditions if c.message]
                reasons.append(
                    f"pod {pod.metadata.name} is {pod.status.phase or 'new'}: {'; '.join(words) or 'no condition yet'}"
                )
        return reasons
