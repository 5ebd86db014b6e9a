"""Storage objects for the scheduler, followed from the first pod on that has a volume claim.

Most clusters with devices have pods without PersistentVolumeClaims only; those pay nothing for seven further watches. When the first pod with a claim is
seen, the informers start, and pods with claims wait until all of them are filled; others are scheduled meanwhile. Kinds that the server does not have
count as empty; without claims (they are not served, or may not be listed, which is a WARNING line) volumes are not judged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from dray.api.core import Pod
from dray.api.kinds import STORAGE
from dray.api.meta import ObjectMeta
from dray.api.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from dray.client import Client, Informer, Resource, key_of
from dray.scheduler import Hint, claim_volumes
from dray.scheduler.volumes import VOLUMES, VolumeState

VOLUME_CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
PERSISTENT_VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
STORAGE_CLASSES = Resource(STORAGE, "v1", "storageclasses", "StorageClass", namespaced=False)
CSI_NODES = Resource(STORAGE, "v1", "csinodes", "CSINode", namespaced=False)
CSI_DRIVERS = Resource(STORAGE, "v1", "csidrivers", "CSIDriver", namespaced=False)
CSI_CAPACITIES = Resource(STORAGE, "v1", "csistoragecapacities", "CSIStorageCapacity")
ATTACHMENTS = Resource(STORAGE, "v1", "volumeattachments", "VolumeAttachment", namespaced=False)


class StorageInformers:
    """Keeps the volumes of the snapshot up to date, once a pod needs them."""

    def __init__(self, client: Client, volumes: VolumeState, wake: Callable[[Hint], None]) -> None:
        self.volumes = volumes
        self._wake = wake
        self._tasks: asyncio.TaskGroup | None = None
        self._is_started = False
        self._is_filled = False
        self._waiting: dict[str, Pod] = {}  # key -> pod that came before the informers were filled
        self._listeners: list[asyncio.Future[None]] = []  # who waits for the next change
        self.on_pod: Callable[[Pod], None] = lambda _: None  # a pod that waited for the informers
        self.claims = Informer(client, VOLUME_CLAIMS, PersistentVolumeClaim, optional=True)
        self.persistent_volumes = Informer(client, PERSISTENT_VOLUMES, PersistentVolume, optional=True)
        self.classes = Informer(client, STORAGE_CLASSES, StorageClass, optional=True)
        self.csi_nodes = Informer(client, CSI_NODES, CSINode, optional=True)
        self.csi_drivers = Informer(client, CSI_DRIVERS, CSIDriver, optional=True)
        self.capacities = Informer(client, CSI_CAPACITIES, CSIStorageCapacity, optional=True)
        self.attachments = Informer(client, ATTACHMENTS, VolumeAttachment, optional=True)
        volumes_in_order: list[Informer[Any]] = [
            self.classes,
            self.csi_drivers,
            self.csi_nodes,
            self.capacities,
            self.persistent_volumes,
            self.attachments,
            self.claims,
        ]
        self._in_order = volumes_in_order

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Get ready; nothing is listed before a pod needs it."""
        self._tasks = tasks
        volumes = self.volumes
        self.claims.add_handler(self._claim_changed)
        self.persistent_volumes.add_handler(
            self._stored(
                volumes.set_volume, lambda meta: volumes.delete_volume(meta.name), lambda each: each.status
            )
        )
        self.classes.add_handler(self._stored(*_plain(volumes.classes), lambda each: each.allowed_topologies))
        self.csi_nodes.add_handler(
            self._stored(volumes.set_csi_node, lambda meta: volumes.delete_csi_node(meta.name))
        )
        self.csi_drivers.add_handler(self._stored(*_plain(volumes.csi_drivers)))
        self.capacities.add_handler(self._stored(*_plain(volumes.capacities), _amount_of))
        self.attachments.add_handler(
            self._stored(volumes.set_attachment, lambda meta: volumes.delete_attachment(meta.name))
        )

    def is_ready_for(self, pod: Pod) -> bool:
        """Return whether the pod's volumes can be judged; if not, `on_pod` is called for it when they can."""
        if self._is_filled or not claim_volumes(pod):
            return True
        self._waiting[key_of(pod.metadata)] = pod
        if not self._is_started and self._tasks is not None:
            self._is_started = True
            self._tasks.create_task(self._fill(self._tasks), name="storage informers")
        return False

    def forget(self, key: str) -> None:
        """A pod waits no longer."""
        self._waiting.pop(key, None)

    async def _fill(self, tasks: asyncio.TaskGroup) -> None:
        for informer in self._in_order:
            tasks.create_task(informer.run(), name=f"informer {informer.resource.plural}")
        for informer in self._in_order:
            await informer.wait_synced()
        self._is_filled = True
        self.volumes.is_followed = self.claims.is_available
        waiting, self._waiting = self._waiting, {}
        for pod in waiting.values():
            self.on_pod(pod)

    # --- changes ------------------------------------------------------------------

    def _claim_changed(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
        claim = new or old
        assert claim is not None
        key = key_of(claim.metadata)
        self.volumes.is_followed = self._is_filled
        if new is None:
            self.volumes.claims.pop(key, None)
        else:
            self.volumes.claims[key] = new
        self._notify()
        self._wake(f"volume-claim:{key}")

    def _stored(
        self,
        keep: Callable[[Any], None],
        drop: Callable[[ObjectMeta], object],
        more: Callable[[Any], object] = lambda _: None,  # what beside metadata and spec matters
    ) -> Callable[[Any, Any], None]:
        """Return a handler that keeps objects of one kind in the snapshot, and wakes pods that wait for such."""

        def changed(old: Any, new: Any) -> None:
            if new is None:
                drop(old.metadata)
            else:
                keep(new)
            self._notify()
            if old is None or new is None or _matter(old, more) != _matter(new, more):
                self._wake(VOLUMES)

        return changed

    def _notify(self) -> None:
        listeners, self._listeners = self._listeners, []
        for each in listeners:
            if not each.done():
                each.set_result(None)

    async def next_change(self, timeout: float) -> None:
        """Return when a storage object has changed, or when the time is over."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listeners.append(future)
        try:
            async with asyncio.timeout(timeout):
                await future
        except TimeoutError:
            self._listeners.remove(future)


def _plain(objects: dict[str, Any]) -> tuple[Callable[[Any], None], Callable[[ObjectMeta], object]]:
    def keep(each: Any) -> None:
        objects[key_of(each.metadata)] = each

    return keep, lambda meta: objects.pop(key_of(meta), None)


def _amount_of(each: CSIStorageCapacity) -> object:
    return (each.capacity, each.maximum_volume_size, each.node_topology)


def _matter(each: Any, more: Callable[[Any], object]) -> tuple[object, ...]:
    """Return what of an object pods can wait for; written by drivers again and again with nothing new in it."""
    meta = each.metadata
    return (meta.labels, meta.annotations, getattr(each, "spec", None), more(each))
