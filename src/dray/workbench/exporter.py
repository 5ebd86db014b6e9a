"""The exporter: follows a cluster and serves its device series to Prometheus.

Informers keep the objects; `device_metrics` makes the text. What may not be listed is left out: of claims those of
one namespace may remain. `permitted` asks for that before the informers begin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from dray.api.core import Node
from dray.api.resource import DeviceTaintRule, ResourceClaim, ResourceSlice
from dray.client import Client, Forbidden, Informer, NotFound
from dray.client.resources import CLAIMS, NODES, SLICES, TAINT_RULES, Resource
from dray.host.metrics_text import CONTENT_TYPE
from dray.sim.snapshot import Snapshot
from dray.workbench.device_metrics import MAX_DEVICES, REFRESH, DeviceMetrics

_FOLLOWED: dict[Resource, Any] = {
    NODES: Node,
    SLICES: ResourceSlice,
    CLAIMS: ResourceClaim,
    TAINT_RULES: DeviceTaintRule,
}


@dataclass(frozen=True, slots=True)
class Scope:
    """What the user may list."""

    namespaces: dict[
        Resource, str | None
    ]  # resource -> None: everywhere; those that are missing are left out
    forbidden: dict[str, str] = field(default_factory=dict)  # resource -> why not all of it is known


async def permitted(client: Client, namespace: str = "") -> Scope:
    """Find out what may be listed: everywhere, or in one namespace (the kubeconfig's, if none is given).

    Raises Forbidden when neither slices nor claims may be.
    """
    scope = Scope({})
    refusals: list[Forbidden] = []
    namespace = namespace or client.namespace
    for resource in _FOLLOWED:
        try:
            await _look(client, resource)
            scope.namespaces[resource] = None
        except NotFound:
            continue  # not served here; not an error of the user
        except Forbidden as error:
            reason = error.status.message or str(error)
            if resource.namespaced and await _may_list(client, resource, namespace):
                scope.namespaces[resource] = namespace
                reason += f"; only those of namespace {namespace} are known"
            elif resource in (SLICES, CLAIMS):
                refusals.append(error)
            scope.forbidden[resource.plural] = reason
    if len(refusals) == 2:
        raise refusals[0]
    return scope


async def _look(client: Client, resource: Resource, namespace: str | None = None) -> None:
    """List one object."""
    await client.call("GET", resource.path(namespace), view=None, query={"limit": 1})


async def _may_list(client: Client, resource: Resource, namespace: str) -> bool:
    try:
        await _look(client, resource, namespace)
    except Forbidden:
        return False
    return True


class Exporter:
    """Serves the series of one cluster."""

    def __init__(
        self,
        client: Client,
        max_devices: int = MAX_DEVICES,
        refresh: float = REFRESH,
        scope: Scope | None = None,  # None: everything may be listed
    ) -> None:
        namespaces = scope.namespaces if scope is not None else dict.fromkeys(_FOLLOWED)
        self._informers: dict[Resource, Informer[Any]] = {
            resource: Informer(
                client,
                resource,
                _FOLLOWED[resource],
                namespace=namespace,
                optional=resource in (NODES, TAINT_RULES),
            )
            for resource, namespace in namespaces.items()
        }
        self.metrics = DeviceMetrics(self._gather, max_devices, refresh)
        if CLAIMS in self._informers:
            self._informers[CLAIMS].add_handler(self.metrics.claim_waits.see)

    async def run(self) -> None:
        """Follow the cluster until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for informer in self._informers.values():
                tasks.create_task(informer.run())

    @property
    def is_ready(self) -> bool:
        """Return whether every collection has been listed once."""
        return all(informer.has_synced for informer in self._informers.values())

    def _gather(self) -> Callable[[], Snapshot]:
        snapshot = Snapshot(
            nodes=self._known(NODES),
            slices=self._known(SLICES),
            claims=self._known(CLAIMS),
            taint_rules=self._known(TAINT_RULES),
        )
        return lambda: snapshot

    def _known(self, resource: Resource) -> list[Any]:
        informer = self._informers.get(resource)
        return list(informer.items.values()) if informer is not None else []

    def application(self) -> web.Application:
        """Return the pages: /metrics, /healthz, /readyz."""

        async def metrics(_: web.Request) -> web.Response:
            if not self.is_ready:
                return web.Response(status=503, text="the first list is not complete yet\n")
            return web.Response(body=await self.metrics.text(), headers={"Content-Type": CONTENT_TYPE})

        async def healthz(_: web.Request) -> web.Response:
            return web.Response(text="ok\n")

        async def readyz(_: web.Request) -> web.Response:
            return web.Response(
                status=200 if self.is_ready else 503, text="ok\n" if self.is_ready else "listing\n"
            )

        pages = web.Application(client_max_size=1 << 16)
        pages.router.add_get("/metrics", metrics)
        pages.router.add_get("/healthz", healthz)
        pages.router.add_get("/readyz", readyz)
        return pages
