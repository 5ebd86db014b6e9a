"""Turn a placement into facts on the server, or take everything back.

The order is the protocol of DRA: the claim gets its finalizer (so that it cannot
vanish while in use), then allocation and reservation in one status write, then the pod
is bound. Writes carry the resourceVersion that the decision was based on; a conflict
means that the decision is void, so it is thrown away and made anew.

Two schedulers may give one device to two *different* claims, which no resourceVersion
protects. So before binding we wait until our own cache has seen our write: by then it
has seen all earlier ones, and if another claim holds the device by an earlier write, we
are the ones to yield. Of two schedulers that follow this rule exactly one yields.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from dray.api.core import Pod, PodGroup
from dray.api.features import Features
from dray.api.resource import AllocationResult, ResourceClaim
from dray.client import STRATEGIC_PATCH, ApiError, Client, ClientError, Conflict, NotFound, key_of
from dray.client import resources as kinds
from dray.control.scheduling.caches import Caches
from dray.scheduler import (
    FINALIZER,
    Placement,
    PodClaims,
    has_binding_conditions,
    is_reserved_for,
    judge_binding,
)

CATCH_UP_TIMEOUT = 30.0  # seconds for our own write to come back through the watch


class CommitFailed(Exception):
    """The placement could not be made true; what was done has been taken back."""

    def __init__(self, message: str, *, is_conflict: bool = False) -> None:
        super().__init__(message)
        self.is_conflict = is_conflict  # somebody else was faster: worth trying again at once


class _Metadata(msgspec.Struct, rename="camel", omit_defaults=True):
    """The metadata of a claim as text, so that a PUT returns exactly what was read."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generate_name: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    labels: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    annotations: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    owner_references: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    finalizers: list[str] = []
    # managedFields are left out on purpose: the server then keeps its own.


class _ClaimText(msgspec.Struct, rename="camel"):
    """A claim whose spec stays the bytes that the server sent."""

    metadata: _Metadata
    spec: msgspec.Raw
    api_version: str = "resource.k8s.io/v1"
    kind: str = "ResourceClaim"


class _Written(msgspec.Struct):
    """The only thing we read of an answer to a write."""

    metadata: _Metadata


_decode_text = msgspec.json.Decoder(_ClaimText).decode


@dataclass(slots=True)
class Committer:
    """Writes placements."""

    client: Client
    caches: Caches
    features: Features
    now: Callable[[], datetime]
    binding_timeout: float = 600.0

    async def commit(self, pod: Pod, claims: PodClaims, placement: Placement, group: PodGroup | None) -> None:
        """Allocate, reserve, verify, wait for drivers, bind. Raises CommitFailed after undoing."""
        consumer = _consumer(pod)
        reserved: list[ResourceClaim] = []
        try:
            for claim, allocation in zip(placement.claims, placement.allocations, strict=True):
                await self._allocate(claim, allocation, consumer, reserved)
            for claim in claims.allocated:
                if not is_reserved_for(claim, {pod.metadata.uid}):
                    await self._reserve(claim, consumer, reserved)
            for claim in (*placement.claims, *claims.allocated):
                await self._wait_for_drivers(key_of(claim.metadata))
            await self._bind(pod, placement.node)
        except (ClientError, TimeoutError, CommitFailed) as error:
            await self._take_back(pod, reserved)
            if isinstance(error, CommitFailed):
                raise
            raise CommitFailed(str(error), is_conflict=isinstance(error, (Conflict, NotFound))) from error
        except asyncio.CancelledError:
            # Shutting down: what is written stays true; the next scheduler goes on from it.
            raise

    # --- claims ---------------------------------------------------------------

    async def _allocate(
        self,
        claim: ResourceClaim,
        allocation: AllocationResult,
        consumer: dict[str, Any],
        reserved: list[ResourceClaim],
    ) -> None:
        namespace, name, key = claim.metadata.namespace, claim.metadata.name, key_of(claim.metadata)
        revision = claim.metadata.resource_version
        if FINALIZER not in claim.metadata.finalizers:
            text = _decode_text(self.caches.claims.raw(key))
            if text.metadata.resource_version != revision or text.metadata.uid != claim.metadata.uid:
                raise CommitFailed(f"claim {key} changed while it was being allocated", is_conflict=True)
            text.metadata.finalizers.append(FINALIZER)
            written = await self.client.update(kinds.CLAIMS, name, text, namespace, view=_Written)
            revision = written.metadata.resource_version
        if any(result.binding_conditions for result in allocation.devices.results):
            allocation = msgspec.structs.replace(allocation, allocation_timestamp=timestamp(self.now()))
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": claim.metadata.uid,
                "resourceVersion": revision,
            },
            "status": {"allocation": allocation, "reservedFor": [consumer]},
        }
        written = await self.client.update(
            kinds.CLAIMS, name, body, namespace, subresource="status", view=_Written
        )
        reserved.append(claim)
        await self._verify(key, written.metadata.resource_version)

    async def _verify(self, key: str, revision: str) -> None:
        """Make sure that nobody else was given the same device by an earlier write."""
        if not await self.caches.seen(key, revision, CATCH_UP_TIMEOUT):
            raise CommitFailed(f"claim {key} was deleted while it was being allocated", is_conflict=True)
        claim = self.caches.claims.get(key)
        rival = self.caches.rival(claim) if claim is not None else None
        if claim is not None and rival is not None:
            await self.deallocate(claim)
            raise CommitFailed(f"device {rival} was given to another claim first", is_conflict=True)

    async def _reserve(
        self, claim: ResourceClaim, consumer: dict[str, Any], reserved: list[ResourceClaim]
    ) -> None:
        """Join the consumers of an allocated claim; a merge by uid needs no revision."""
        body = {"metadata": {"uid": claim.metadata.uid}, "status": {"reservedFor": [consumer]}}
        name, namespace = claim.metadata.name, claim.metadata.namespace
        written = await self.client.patch(
            kinds.CLAIMS,
            name,
            body,
            namespace,
            kind=STRATEGIC_PATCH,
            subresource="status",
            view=ResourceClaim,
        )
        reserved.append(claim)
        if written.status.allocation != claim.status.allocation:
            raise CommitFailed(f"claim {namespace}/{name} was allocated anew", is_conflict=True)

    async def deallocate(self, claim: ResourceClaim) -> None:
        """Clear a claim's allocation and reservations, unless it changed meanwhile."""
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {
                "name": claim.metadata.name,
                "namespace": claim.metadata.namespace,
                "uid": claim.metadata.uid,
                "resourceVersion": claim.metadata.resource_version,
            },
            "status": {},
        }
        await self.client.update(
            kinds.CLAIMS,
            claim.metadata.name,
            body,
            claim.metadata.namespace,
            subresource="status",
            view=_Written,
        )

    async def _take_back(self, pod: Pod, reserved: list[ResourceClaim]) -> None:
        """Remove our reservations; allocations stay, and the next attempt builds on them."""
        entry = {"$patch": "delete", "uid": pod.metadata.uid}
        for claim in reserved:
            body = {"metadata": {"uid": claim.metadata.uid}, "status": {"reservedFor": [entry]}}
            try:
                await self.client.call(
                    "PATCH",
                    kinds.CLAIMS.path(claim.metadata.namespace, claim.metadata.name, "status"),
                    body,
                    content_type=STRATEGIC_PATCH,
                    view=None,
                )
            except ClientError:
                # The claim controller removes reservations of pods that are gone; nothing is lost.
                continue

    async def _wait_for_drivers(self, key: str) -> None:
        """Wait for binding conditions, driven by the claim cache and a deadline."""
        while True:
            claim = self.caches.claims.get(key)
            if claim is None or claim.status.allocation is None:
                raise CommitFailed(f"claim {key} lost its allocation while binding", is_conflict=True)
            if not has_binding_conditions(claim):
                return
            since = parse_timestamp(claim.status.allocation.allocation_timestamp)
            waited = (self.now() - since).total_seconds() if since else 0.0
            verdict = judge_binding(claim, waited, self.binding_timeout, self.features)
            if verdict.failure:
                raise CommitFailed(f"claim {key}: {verdict.failure}")
            if verdict.is_ready:
                return
            following = str(int(claim.metadata.resource_version) + 1)
            try:
                await self.caches.seen(key, following, min(5.0, max(0.1, self.binding_timeout - waited)))
            except TimeoutError:
                continue

    # --- the pod --------------------------------------------------------------

    async def _bind(self, pod: Pod, node: str) -> None:
        meta = pod.metadata
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = kinds.PODS.path(meta.namespace, meta.name, "binding")
        try:
            await self.client.call("POST", path, body, view=None)
        except ApiError:
            raise
        except ClientError:
            # No answer: the binding may have happened. Look before taking anything back.
            found = await self.client.get(kinds.PODS, meta.name, meta.namespace, view=Pod)
            if found.metadata.uid == meta.uid and found.spec.node_name == node:
                return
            raise


def _consumer(pod: Pod) -> dict[str, Any]:
    return {"resource": "pods", "name": pod.metadata.name, "uid": pod.metadata.uid}


def timestamp(moment: datetime) -> str:
    """Spell a moment as the API does, in seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_timestamp(text: str | None) -> datetime | None:
    """Read an API timestamp."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None
