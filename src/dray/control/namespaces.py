"""Namespaces: emptied when they are deleted, and given a default service account when they are new."""

from __future__ import annotations

import asyncio
import logging

from dray.api.core import Namespace
from dray.client import AlreadyExists, ClientError, NotFound, TransportError
from dray.client.resources import NAMESPACES, PODS, SERVICE_ACCOUNTS, Resource
from dray.control.garbage_collection import Partial, discover
from dray.control.reconcile_loop import Caches, Clock, Controller, steady_now
from dray.host.clock import utc_now

log = logging.getLogger("dray.control")

REDISCOVERY = 2.0  # seconds for which the list of served resources counts as known


class NamespaceController(Controller):
    """Deletes what is in a namespace that is being deleted, then lets it go."""

    name = "namespaces"

    def __init__(self, caches: Caches, clock: Clock = utc_now) -> None:
        super().__init__(caches, clock)
        self.namespaces = caches.of(NAMESPACES, Namespace)
        self._resources: list[Resource] = []
        self._discovered_at = float("-inf")

    def watch(self) -> None:
        """Look at every namespace."""
        self.namespaces.add_handler(lambda _old, new: self.enqueue(new.metadata.name) if new else None)

    async def reconcile(self, key: str) -> float | None:
        """Empty a terminating namespace, or see to its default service account."""
        namespace = self.namespaces.get(key)
        if namespace is None:
            return None
        if namespace.metadata.deletion_timestamp is None:
            await self._ensure_service_account(key)
            return None
        if "kubernetes" not in namespace.spec.finalizers:
            return None
        # The last look is at all that is served now, kinds that are new included.
        if await self._empty(key) or await self._empty(key, anew=True):
            return 0.2
        body = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": key, "resourceVersion": namespace.metadata.resource_version},
            "spec": {"finalizers": [name for name in namespace.spec.finalizers if name != "kubernetes"]},
        }
        try:
            await self.client.update(NAMESPACES, key, body, subresource="finalize")
        except NotFound:
            pass
        return None

    async def _ensure_service_account(self, namespace: str) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "default", "namespace": namespace},
        }
        try:
            await self.client.create(SERVICE_ACCOUNTS, body, namespace)
        except (AlreadyExists, NotFound):
            pass  # there already, or the namespace is gone

    async def _empty(self, namespace: str, *, anew: bool = False) -> int:
        """Ask for the deletion of everything inside; return how much is still there."""
        left = 0
        now = steady_now()
        if anew or now - self._discovered_at > REDISCOVERY:
            answer = await discover(self.client)
            if answer.failures:
                # What is not known cannot be emptied, and a namespace must not go before its content.
                raise TransportError(f"discovery of {', '.join(answer.failures)} failed")
            self._resources, self._discovered_at = answer.resources, now
        for resource in self._resources:
            if resource.namespaced:
                left += await self._empty_of(resource, namespace)
        return left

    async def _empty_of(self, resource: Resource, namespace: str) -> int:
        try:
            found = (await self.client.list(resource, namespace, view=Partial)).items
            if not found:
                return 0
            fresh = [item for item in found if item.metadata.deletion_timestamp is None]
            if fresh:
                await asyncio.gather(*(self._delete(resource, item) for item in fresh))
                found = (await self.client.list(resource, namespace, view=Partial)).items
        except NotFound:
            return 0
        return len(found)

    async def _delete(self, resource: Resource, item: Partial) -> None:
        # Pods get their grace; everything else goes at once.
        grace = None if resource == PODS else 0
        try:
            await self.client.delete(
                resource, item.metadata.name, item.metadata.namespace, uid=item.metadata.uid, grace_seconds=grace,
                propagation="Background",
            )  # fmt: skip
        except NotFound:
            pass
        except ClientError as error:
            log.debug(
                "emptying %s: %s/%s: %s", item.metadata.namespace, resource.plural, item.metadata.name, error
            )
