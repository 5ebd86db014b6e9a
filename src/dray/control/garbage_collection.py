"""Garbage collection by owner references, in the background, in the foreground, or leaving orphans.

The collector keeps one graph: every object by uid, and who names it as an owner.
It learns it from metadata alone (`PartialObjectMetadata`), for every resource that
the server serves, custom ones included.

Rules, per object:
  * an owner is *absent* when no object with its uid exists (the server is asked
    before anything is deleted for that reason); *waiting* when it is being deleted
    in the foreground; otherwise *solid*;
  * an object all of whose owners are absent or waiting is deleted; one with a solid
    owner only loses the references to absent ones;
  * an object with the finalizer `foregroundDeletion` goes when no dependent that
    blocks it is left; one with `orphan` is first removed from the owners of its dependents.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

from dray.api.kinds import KINDS
from dray.api.meta import ObjectMeta, OwnerReference, View
from dray.api.well_known import FOREGROUND_FINALIZER, ORPHAN_FINALIZER
from dray.client import Client, ClientError, Conflict, Informer, NotFound
from dray.client.resources import CUSTOM_RESOURCE_DEFINITIONS, Resource
from dray.control.reconcile_loop import Caches, Clock, Controller
from dray.host.clock import utc_now

log = logging.getLogger("dray.control")

GRACE_WITH_FINALIZERS = 1.0  # seconds in which finalizers may be removed before an object is deleted
REDISCOVERY = 30.0  # seconds between looks for new resources (custom kinds)

# Short-lived objects that are never owned and would only cost memory.
IGNORED = {(kind.group, kind.plural) for kind in KINDS if kind.kind == "Event"}


class Partial(View, frozen=True):
    """Any object, as far as the collector cares."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()


@dataclass(frozen=True, slots=True)
class Discovered:
    """What a server serves, as far as it told."""

    resources: list[Resource]
    failures: list[str]  # groups that did not answer: there may be more than `resources`


async def discover(client: Client) -> Discovered:
    """Return every resource of the server that can be listed, watched and deleted, in its preferred version."""
    failures: list[str] = []
    found: dict[tuple[str, str], Resource] = {}
    groups = (await client.call("GET", "/apis"))["groups"]
    paths = [("", "v1", "/api/v1")]
    for group in groups:
        versions = [group["preferredVersion"], *group["versions"]]
        paths += [(group["name"], entry["version"], f"/apis/{entry['groupVersion']}") for entry in versions]
    for group_name, version, path in paths:
        try:
            listing = await client.call("GET", path)
        except NotFound:
            continue  # withdrawn since the groups were listed
        except ClientError as error:
            log.debug("discovery of %s: %s", path, error)
            failures.append(path)
            continue
        for entry in listing.get("resources", ()):
            identity = (group_name, entry["name"])
            if "/" in entry["name"] or identity in found or identity in IGNORED:
                continue
            if {"list", "watch", "delete"} <= set(entry.get("verbs") or ()):
                found[identity] = Resource(
                    group_name, version, entry["name"], entry["kind"], bool(entry["namespaced"])
                )
    return Discovered(list(found.values()), failures)


class Node:
    """One object of the graph."""

    __slots__ = ("meta", "resource")

    def __init__(self, resource: Resource, meta: ObjectMeta) -> None:
        self.resource = resource
        self.meta = meta


class GarbageCollector(Controller):
    """Deletes what nobody owns any more."""

    name = "garbage-collector"
    workers = 8

    def __init__(self, caches: Caches, clock: Clock = utc_now) -> None:
        super().__init__(caches, clock)
        self.nodes: dict[str, Node] = {}
        self.dependents: dict[str, set[str]] = {}  # owner uid -> uids of objects that name it
        self._followed: dict[tuple[str, str], asyncio.Task[None] | None] = {}
        self._resource_by_kind: dict[tuple[str, str], Resource] = {}  # (apiVersion group, kind) -> resource
        self._informer_of: dict[tuple[str, str], Informer[Any]] = {}  # (apiVersion group, kind) -> its cache
        self._puzzles: set[str] = set()  # uids of objects with an owner of a kind that is not served (yet)
        self._kinds_changed = asyncio.Event()
        self._has_overview = asyncio.Event()  # every resource has been listed once

    def watch(self) -> None:
        """Follow nothing yet: what there is to follow is discovered while running."""

    async def run(self) -> None:
        """Follow every resource, new ones too, and collect."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_all(group))
            # Without all dependents in view an owner would seem to have none.
            await self._has_overview.wait()
            for _ in range(self.workers):
                group.create_task(self._work())

    def enqueue(self, key: str, delay: float = 0.0) -> None:
        """Ask for a look at an object; one that others hold with a finalizer gets a moment more.

        When an owner goes, they are usually letting go right now. Deleting it meanwhile would cost
        both sides conflicts, and win nothing: the object stays until they are done.
        """
        node = self.nodes.get(key)
        if node is not None and node.meta.finalizers and node.meta.deletion_timestamp is None:
            delay = max(delay, GRACE_WITH_FINALIZERS)
        super().enqueue(key, delay)

    async def _follow_all(self, group: asyncio.TaskGroup) -> None:
        while True:
            resources: list[Resource] = []
            is_complete = False
            try:
                answer = await discover(self.client)
                resources, is_complete = answer.resources, not answer.failures
            except ClientError as error:
                log.warning("garbage collector: discovery: %s", error)
            fresh = []
            for resource in resources:
                identity = (resource.group, resource.plural)
                self._resource_by_kind[(resource.group, resource.kind)] = resource
                if identity not in self._followed:
                    informer = self.caches.existing(resource)
                    if informer is None:
                        informer = Informer(self.client, resource, Partial, optional=True)
                        self._followed[identity] = group.create_task(informer.run())
                    else:
                        self._followed[identity] = None  # another controller keeps it going
                    informer.add_handler(self._handler(resource))
                    self._informer_of[(resource.group, resource.kind)] = informer
                    fresh.append(informer)
            for informer in fresh:
                await informer.wait_synced()
            if fresh:
                for uid in self._puzzles:
                    self.enqueue(uid)
                self._puzzles.clear()
            if resources:
                self._has_overview.set()
            try:
                async with asyncio.timeout(REDISCOVERY if is_complete else 1.0):
                    await self._kinds_changed.wait()
                await asyncio.sleep(0.5)  # a new kind is served a moment after its definition
            except TimeoutError:
                pass
            self._kinds_changed.clear()

    def _handler(self, resource: Resource) -> Any:
        def changed(old: Partial | None, new: Partial | None) -> None:
            if (
                resource.plural == CUSTOM_RESOURCE_DEFINITIONS.plural
                and resource.group == CUSTOM_RESOURCE_DEFINITIONS.group
            ):
                self._kinds_changed.set()
            if old is not None:
                self._unlink(old.metadata)
                if new is not None and old.metadata.owner_references != new.metadata.owner_references:
                    # Without this dependent, an owner that is deleted in the foreground may go.
                    for owner in old.metadata.owner_references:
                        self.enqueue(owner.uid)
            if new is not None:
                self.nodes[new.metadata.uid] = Node(resource, new.metadata)
                for owner in new.metadata.owner_references:
                    self.dependents.setdefault(owner.uid, set()).add(new.metadata.uid)
                if new.metadata.owner_references or new.metadata.deletion_timestamp is not None:
                    self.enqueue(new.metadata.uid)
            elif old is not None:
                self.nodes.pop(old.metadata.uid, None)
                self._puzzles.discard(old.metadata.uid)
                for dependent in self.dependents.get(old.metadata.uid, ()):
                    self.enqueue(dependent)
                # Somebody who is deleted in the foreground may have waited for this one.
                for owner in old.metadata.owner_references:
                    self.enqueue(owner.uid)

        return changed

    def _unlink(self, meta: ObjectMeta) -> None:
        for owner in meta.owner_references:
            group = self.dependents.get(owner.uid)
            if group is not None:
                group.discard(meta.uid)
                if not group:
                    del self.dependents[owner.uid]

    async def reconcile(self, key: str) -> float | None:
        """Decide about one object."""
        node = self.nodes.get(key)
        if node is None:
            return None
        if node.meta.deletion_timestamp is not None:
            await self._finish_deletion(node)
            return None
        if node.meta.owner_references:
            await self._judge(node)
        return None

    async def _judge(self, node: Node) -> None:
        absent: list[OwnerReference] = []
        waiting: list[OwnerReference] = []
        solid: list[OwnerReference] = []
        for owner in node.meta.owner_references:
            known = self.nodes.get(owner.uid)
            if known is not None and known.meta.namespace not in ("", node.meta.namespace):
                known = None  # an owner in another namespace does not count
            if known is None:
                if (_group(owner.api_version), owner.kind) not in self._resource_by_kind:
                    self._puzzles.add(node.meta.uid)
                gone = await self._is_gone(owner, node.meta.namespace)
                (absent if gone else solid).append(owner)
            elif known.meta.deletion_timestamp is not None and FOREGROUND_FINALIZER in known.meta.finalizers:
                waiting.append(owner)
            else:
                solid.append(owner)
        if solid:
            if absent or waiting:
                await self._drop_references(node, {owner.uid for owner in (*absent, *waiting)})
            return
        policy = "Background"
        if waiting and self.dependents.get(node.meta.uid):
            policy = "Foreground"
        try:
            await self.client.delete(
                node.resource,
                node.meta.name,
                node.meta.namespace or None,
                uid=node.meta.uid,
                resource_version=node.meta.resource_version if not waiting else None,
                propagation=policy,
            )
        except NotFound:
            pass

    async def _is_gone(self, owner: OwnerReference, namespace: str) -> bool:
        """Return whether an owner is no more; ask the server unless its end was seen: the graph may be behind.

        An owner that cannot exist by its kind is left alone.
        """
        informer = self._informer_of.get((_group(owner.api_version), owner.kind))
        if informer is not None and informer.has_ended(owner.uid):
            return True
        resource = self._resource_by_kind.get((_group(owner.api_version), owner.kind))
        if resource is None or (resource.namespaced and not namespace):
            return False
        try:
            found = await self.client.get(
                resource, owner.name, namespace if resource.namespaced else None, view=Partial
            )
        except NotFound:
            return True
        return found.metadata.uid != owner.uid

    async def _drop_references(self, node: Node, uids: set[str]) -> None:
        kept = [
            {
                "apiVersion": owner.api_version,
                "kind": owner.kind,
                "name": owner.name,
                "uid": owner.uid,
                **({"controller": owner.controller} if owner.controller is not None else {}),
                **(
                    {"blockOwnerDeletion": owner.block_owner_deletion}
                    if owner.block_owner_deletion is not None
                    else {}
                ),
            }
            for owner in node.meta.owner_references
            if owner.uid not in uids
        ]
        await self._patch_meta(node, {"ownerReferences": kept or None})

    async def _patch_meta(self, node: Node, change: dict[str, Any]) -> None:
        meta = node.meta
        patch = {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version, **change}}
        try:
            await self.client.patch(node.resource, meta.name, patch, meta.namespace or None)
        except NotFound:
            pass

    async def _finish_deletion(self, node: Node) -> None:
        finalizers = node.meta.finalizers
        if ORPHAN_FINALIZER in finalizers:
            for uid in list(self.dependents.get(node.meta.uid, ())):
                dependent = self.nodes.get(uid)
                if dependent is not None:
                    await self._drop_references(dependent, {node.meta.uid})
            await self._patch_meta(
                node, {"finalizers": [name for name in finalizers if name != ORPHAN_FINALIZER] or None}
            )
        elif FOREGROUND_FINALIZER in finalizers:
            blockers = 0
            for uid in list(self.dependents.get(node.meta.uid, ())):
                dependent = self.nodes.get(uid)
                if dependent is None:
                    continue
                if any(
                    ref.uid == node.meta.uid and ref.block_owner_deletion
                    for ref in dependent.meta.owner_references
                ):
                    blockers += 1
                self.enqueue(uid)
            if not blockers:
                try:
                    await self._patch_meta(
                        node,
                        {"finalizers": [name for name in finalizers if name != FOREGROUND_FINALIZER] or None},
                    )
                except Conflict:
                    self.enqueue(node.meta.uid, 0.1)


def _group(api_version: str) -> str:
    return api_version.partition("/")[0] if "/" in api_version else ""
