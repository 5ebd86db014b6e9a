"""Bind or order the volumes of pods that were placed, and wait until they are there.

A claim that waited for the pod's node is either bound to a free volume (the volume names the claim) or gets the annotation
`volume.kubernetes.io/selected-node`, by which its provisioner makes a volume for that node. Binding itself is done by the volume
controller; the pod is bound when its claims are. Nothing is taken back when that fails, as in kube-scheduler: what was
written leads the next attempt to the same node, until the provisioner removes the annotation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from dray.api.storage import PersistentVolume, PersistentVolumeClaim
from dray.client import MERGE_PATCH, Client
from dray.control.scheduling.storage_informers import PERSISTENT_VOLUMES, VOLUME_CLAIMS, StorageInformers
from dray.scheduler import Placed
from dray.scheduler.volumes import BOUND_BY_CONTROLLER, SELECTED_NODE, VolumeState, is_fully_bound

LOOK_AGAIN = 5.0  # seconds; changes wake us sooner


class VolumeBindingError(Exception):
    """The volumes of a pod are not what they were chosen for, or did not come in time."""


@dataclass(frozen=True, slots=True)
class _Expected:
    """What must become true of one claim."""

    claim: str  # key
    node: str
    volume: str = ""  # the one that was chosen; empty: one is being made
    revision: int = 0  # of our write, to volume or claim


@dataclass(slots=True)
class VolumeBinder:
    """Writes what placements say of volumes."""

    client: Client
    storage: StorageInformers
    timeout: float  # seconds for volumes to be bound
    pausing: Callable[[], AbstractContextManager[None]]  # held while waiting: others may be committed

    async def bind(self, placed: Sequence[Placed], is_gone: Callable[[Placed], bool]) -> None:
        """Write and wait, for all pods together.

        Raises VolumeBindingError when a volume cannot be had, ClientError when a write fails.
        """
        expected: list[_Expected] = []
        for each in placed:
            node = each.placement.node
            for claim, volume in each.placement.volumes.matches:
                expected.append(await self._bind_volume(claim, volume, node))
            for claim in each.placement.volumes.provisions:
                expected.append(await self._select_node(claim, node))
        with self.pausing():
            await self._wait(expected, lambda: any(is_gone(each) for each in placed))

    @property
    def _state(self) -> VolumeState:
        return self.storage.volumes

    async def _bind_volume(self, key: str, name: str, node: str) -> _Expected:
        """Let a free volume name its claim."""
        claim, volume = self._claim(key), self._state.volumes.get(name)
        if volume is None:
            raise VolumeBindingError(f'persistentvolume "{name}" not found')
        annotations = volume.metadata.annotations or {}
        meta: dict[str, Any] = {
            "uid": volume.metadata.uid,
            "resourceVersion": volume.metadata.resource_version,
        }
        if volume.spec.claim_ref is None and BOUND_BY_CONTROLLER not in annotations:
            meta["annotations"] = {BOUND_BY_CONTROLLER: "yes"}
        reference = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": claim.metadata.namespace,
            "name": claim.metadata.name,
            "uid": claim.metadata.uid,
            "resourceVersion": claim.metadata.resource_version,
        }
        written = await self.client.patch(
            PERSISTENT_VOLUMES,
            name,
            {"metadata": meta, "spec": {"claimRef": reference}},
            kind=MERGE_PATCH,
            view=PersistentVolume,
        )
        return _Expected(key, node, name, int(written.metadata.resource_version))

    async def _select_node(self, key: str, node: str) -> _Expected:
        """Ask the provisioner of the claim for a volume that the node can reach."""
        meta = self._claim(key).metadata
        if (meta.annotations or {}).get(SELECTED_NODE) == node:
            return _Expected(key, node)  # by an earlier attempt, or a pod that shares it
        body = {
            "metadata": {
                "uid": meta.uid,
                "resourceVersion": meta.resource_version,
                "annotations": {SELECTED_NODE: node},
            }
        }
        written = await self.client.patch(
            VOLUME_CLAIMS, meta.name, body, meta.namespace, kind=MERGE_PATCH, view=PersistentVolumeClaim
        )
        return _Expected(key, node, "", int(written.metadata.resource_version))

    def _claim(self, key: str) -> PersistentVolumeClaim:
        claim = self._state.claims.get(key)
        if claim is None:
            name = key.partition("/")[2]
            raise VolumeBindingError(f'persistentvolumeclaim "{name}" not found')
        return claim

    # --- waiting ------------------------------------------------------------------

    async def _wait(self, expected: Sequence[_Expected], is_gone: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.timeout
        while not all(self._is_done(each) for each in expected):
            if is_gone():
                raise VolumeBindingError("the pod was deleted or bound meanwhile")
            left = deadline - loop.time()
            if left <= 0:
                waiting = sorted(each.claim for each in expected if not self._is_done(each))
                raise VolumeBindingError(
                    f"binding volumes: {', '.join(waiting)} not bound within {self.timeout:g} s"
                )
            await self.storage.next_change(min(left, LOOK_AGAIN))

    def _is_done(self, expected: _Expected) -> bool:
        """Return whether the claim has its volume; raises VolumeBindingError when it will not get it."""
        state, claim = self._state, self._claim(expected.claim)
        if expected.volume:
            volume = state.volumes.get(expected.volume)
            if volume is None:
                raise VolumeBindingError(f'persistentvolume "{expected.volume}" not found')
            if int(volume.metadata.resource_version) < expected.revision:
                return False
            self._check_reach(volume, expected.node)
            if volume.spec.claim_ref is None or not volume.spec.claim_ref.uid:
                raise VolumeBindingError(f'ClaimRef got reset for pv "{expected.volume}"')
            return is_fully_bound(claim)
        if int(claim.metadata.resource_version) < expected.revision:
            return False
        if (claim.metadata.annotations or {}).get(SELECTED_NODE) != expected.node:
            raise VolumeBindingError(f'provisioning failed for PVC "{claim.metadata.name}"')
        if claim.spec.volume_name:
            made = state.volumes.get(claim.spec.volume_name)
            if made is None:
                return False  # our informer of volumes is behind
            self._check_reach(made, expected.node)
        return is_fully_bound(claim)

    def _check_reach(self, volume: PersistentVolume, node: str) -> None:
        known = self._state.state.nodes.get(node)
        if known is None or not self._state.nodes_of(volume) & known.bit:
            raise VolumeBindingError(
                f'pv "{volume.metadata.name}" node affinity doesn\'t match node "{node}"'
            )
