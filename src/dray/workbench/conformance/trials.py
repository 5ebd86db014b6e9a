"""The objects of a check: claims and pods in a namespace of its own, and waiting for what becomes of them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

from dray.api.conditions import is_true
from dray.api.core import Node
from dray.api.json_types import JsonObject
from dray.api.well_known import MANAGED_BY_LABEL, TERMINAL_PHASES
from dray.client import Client, ClientError, NotFound, Request
from dray.client.resources import CLAIMS, NAMESPACES, NODES, POD_GROUPS, PODS
from dray.workbench.object_events import events_of

MANAGER = "dray-conformance"
MOST_LOG = 64 << 10  # bytes
_PAUSE = 0.3


class Trials:
    """Makes objects for the checks, and removes all of them at the end."""

    def __init__(self, client: Client, namespace: str, *, image: str, scheduler: str, seconds: float) -> None:
        self.client, self.namespace = client, namespace
        self.image, self.scheduler, self.seconds = image, scheduler, seconds

    async def begin(self) -> None:
        """Make the namespace."""
        labels = {MANAGED_BY_LABEL: MANAGER}
        await self.client.create(NAMESPACES, {"metadata": {"name": self.namespace, "labels": labels}})

    async def end(self) -> None:
        """Delete everything; pods first, so that claims are released also where no controller removes namespaces."""
        for resource in (PODS, CLAIMS):
            with contextlib.suppress(ClientError):
                for each in (await self.client.list(resource, self.namespace)).items:
                    with contextlib.suppress(NotFound):
                        await self.client.delete(resource, each["metadata"]["name"], self.namespace)
        with contextlib.suppress(ClientError):
            await self.client.delete(NAMESPACES, self.namespace)

    async def claim(self, name: str, class_name: str, **exactly: object) -> None:
        """Make a claim for one request of a class."""
        request = {"name": "device", "exactly": {"deviceClassName": class_name, **exactly}}
        body = {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}
        await self.client.create(CLAIMS, body, self.namespace)

    async def pod(
        self,
        name: str,
        claims: Sequence[str],
        *,
        command: str = "sleep 3600",
        bystander: bool = False,
        group: str = "",
    ) -> None:
        """Make a pod whose first container uses the claims; a bystander beside it uses none."""
        container: JsonObject = {
            "name": "holder",
            "image": self.image,
            "command": ["sh", "-c", command],
            "resources": {"claims": [{"name": claim} for claim in claims]},
        }
        other = {"name": "bystander", "image": self.image, "command": ["sh", "-c", command]}
        spec: JsonObject = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [container, *([other] if bystander else [])],
            "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in claims],
        }
        if self.scheduler:
            spec["schedulerName"] = self.scheduler
        if group:
            spec["schedulingGroup"] = {"podGroupName": group}
        await self.client.create(PODS, {"metadata": {"name": name}, "spec": spec}, self.namespace)

    async def group(self, name: str, members: int) -> None:
        """Make a PodGroup that is scheduled as a gang."""
        spec = {"schedulingPolicy": {"gang": {"minCount": members}}}
        await self.client.create(POD_GROUPS, {"metadata": {"name": name}, "spec": spec}, self.namespace)

    async def until(
        self, name: str, holds: Callable[[JsonObject], bool], seconds: float | None = None
    ) -> JsonObject | None:
        """Return a pod as soon as something holds of it; None when time is over."""
        deadline = time.monotonic() + (self.seconds if seconds is None else seconds)
        while True:
            found = await self.client.get(PODS, name, self.namespace)
            if holds(found):
                return found
            if time.monotonic() > deadline:
                return None
            await asyncio.sleep(_PAUSE)

    async def until_nodes(
        self, holds: Callable[[frozenset[str]], bool], seconds: float
    ) -> frozenset[str] | None:
        """Return the names of the nodes that are ready as soon as something holds of them; None when time is over."""
        deadline = time.monotonic() + seconds
        while True:
            found = (await self.client.list(NODES, view=Node)).items
            ready = frozenset(
                node.metadata.name for node in found if is_true(node.status.conditions, "Ready")
            )
            if holds(ready):
                return ready
            if time.monotonic() > deadline:
                return None
            await asyncio.sleep(_PAUSE)

    async def devices(self, claim: str) -> list[JsonObject]:
        """Return the devices that a claim was given."""
        found = await self.client.get(CLAIMS, claim, self.namespace)
        allocation = (found.get("status") or {}).get("allocation") or {}
        results: list[JsonObject] = (allocation.get("devices") or {}).get("results") or []
        return results

    async def log(self, pod: str, container: str) -> str:
        """Return the output of a container."""
        target = f"{PODS.path(self.namespace, pod, 'log')}?container={container}&limitBytes={MOST_LOG}"
        return (await self.client.answer(Request("GET", target))).body[:MOST_LOG].decode("utf-8", "replace")

    async def why(self, pod: str) -> str:
        """Return the last event of a pod, of warnings if there are any."""
        events = await events_of(self.client, pod, self.namespace)
        return events[-1][:300] if events else "no event"

    async def drop(self, *pods: str) -> None:
        """Delete pods and wait until they are gone, so that their devices are free for the next check."""
        for name in pods:
            with contextlib.suppress(NotFound):
                await self.client.delete(PODS, name, self.namespace)
        deadline = time.monotonic() + self.seconds
        for name in pods:
            with contextlib.suppress(NotFound):
                while time.monotonic() < deadline:
                    await self.client.get(PODS, name, self.namespace)
                    await asyncio.sleep(_PAUSE)


def is_running(pod: JsonObject) -> bool:
    """Return whether all containers of a pod run or have ended well."""
    return (pod.get("status") or {}).get("phase") in ("Running", "Succeeded")


def has_ended(pod: JsonObject) -> bool:
    """Return whether a pod has ended."""
    return (pod.get("status") or {}).get("phase") in TERMINAL_PHASES


def is_bound(pod: JsonObject) -> bool:
    """Return whether a pod has a node."""
    return bool((pod.get("spec") or {}).get("nodeName"))
