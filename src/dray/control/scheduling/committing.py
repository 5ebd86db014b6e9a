"""Turn a placement into facts on the server, or take everything back.

The order is the protocol of DRA: the claim gets its finalizer (so that it cannot
vanish while in use), then allocation and reservation in one status write, then the pod
is bound. Writes carry the resourceVersion that the decision was based on; a conflict
means that the decision is void, so it is thrown away and made anew.

Two schedulers may give one device to two *different* claims, which no resourceVersion
protects. So before binding we wait until our own cache has seen our write: by then it
has seen all earlier ones, and if another claim holds the device by an earlier write, we
are the ones to yield. Of two schedulers that follow this rule exactly one yields. While
a scheduler that does not follow it (kube-scheduler) allocates claims, too, we wait a moment
longer before binding and yield to it in any case: see `_verify`.

The pods of a gang are committed together: first all claims, then all bindings.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from dray.api.core import Pod
from dray.api.features import Features
from dray.api.resource import AllocationResult, ResourceClaim
from dray.client import (
    MERGE_PATCH,
    STRATEGIC_PATCH,
    Client,
    ClientError,
    Conflict,
    Invalid,
    NotFound,
    ServerFailed,
    TransportError,
    change_metadata,
    key_of,
)
from dray.client import resources as kinds
from dray.control.claim_text import ClaimMetadata, ClaimText, Written
from dray.control.scheduling.caches import COMPANY_FOR, Caches
from dray.control.scheduling.deciding import Placed
from dray.control.scheduling.timestamps import timestamp
from dray.scheduler import FINALIZER, has_binding_conditions, is_reserved_for, judge_binding
from dray.scheduler.extended import IN_MEMORY_NAME

log = logging.getLogger("dray.scheduler")

CATCH_UP_TIMEOUT = 30.0  # seconds for our own write to come back through the watch

Consumer = dict[str, Any]


class CommitFailed(Exception):
    """The placement could not be made true; what was done has been taken back."""

    def __init__(self, message: str, *, is_conflict: bool = False) -> None:
        super().__init__(message)
        self.is_conflict = is_conflict  # somebody else was faster: worth trying again at once


_decode_text = msgspec.json.Decoder(ClaimText).decode


@dataclass(slots=True)
class _Trail:
    """What a commit has done so far, to be taken back if it fails."""

    reserved: list[tuple[ResourceClaim, str]] = field(default_factory=list)  # claim, consumer uid
    created: list[ClaimMetadata] = field(default_factory=list)  # claims for extended resources
    noted: list[Pod] = field(default_factory=list)  # pods whose status tells of node resources


@dataclass(slots=True)
class Committer:
    """Writes placements."""

    client: Client
    caches: Caches
    features: Features
    now: Callable[[], datetime]
    courtesy: float = 1.0  # seconds to wait before binding while another scheduler is active

    async def commit(self, placed: Sequence[Placed]) -> None:
        """Make all of these true: allocate, reserve, verify, wait for drivers, bind.

        Raises CommitFailed after taking back what can be taken back.
        """
        trail = _Trail()
        try:
            if len(placed) == 1:
                keys = await self._allocate_all(placed[0], trail)
                keys += await self._reserve_all(placed[0], trail)
                await self._finish(placed[0], keys, trail)
                return
            # A claim that members share is allocated by one of them: all allocations come first.
            found = [await self._allocate_all(each, trail) for each in placed]
            for each, keys in zip(placed, found, strict=True):
                keys += await self._reserve_all(each, trail)
            await asyncio.gather(
                *(self._finish(each, keys, trail) for each, keys in zip(placed, found, strict=True))
            )
        except (ClientError, TimeoutError, CommitFailed) as error:
            await self._take_back(placed, trail)
            if isinstance(error, CommitFailed):
                raise
            raise CommitFailed(str(error), is_conflict=isinstance(error, (Conflict, NotFound))) from error

    # --- claims ---------------------------------------------------------------

    async def _allocate_all(self, placed: Placed, trail: _Trail) -> list[str]:
        """Write the allocations that the placement decided; return the keys of the claims."""
        keys = []
        for claim, allocation in zip(placed.placement.claims, placed.placement.allocations, strict=True):
            consumer = _consumer(placed, claim)
            if claim.metadata.name == IN_MEMORY_NAME:
                keys.append(await self._allocate_extended(claim, allocation, consumer, trail))
            else:
                keys.append(await self._allocate(claim, allocation, consumer, trail))
        return keys

    async def _reserve_all(self, placed: Placed, trail: _Trail) -> list[str]:
        """Reserve the claims that somebody else allocated, long ago or just now."""
        keys = []
        decided = {claim.metadata.uid for claim in placed.placement.claims}
        for claim in placed.claims.all:
            if claim.metadata.uid in decided:
                continue
            consumer = _consumer(placed, claim)
            is_inherited = is_reserved_for(claim, {consumer["uid"]})
            if not is_inherited:
                await self._reserve(claim, consumer, trail)
            keys.append(key_of(claim.metadata))
            await self._verify_found(keys[-1], is_inherited=is_inherited)
        return keys

    async def _verify_found(self, key: str, *, is_inherited: bool) -> None:
        """Make sure of an allocation that we found: who wrote it may have died before the check.

        One that is reserved for our pod already may be another scheduler's work in progress. That
        one binds the pod or yields within a moment, so let it; afterwards the claim is ours.
        """
        claim = self.caches.claims.get(key)
        if is_inherited and claim is not None and claim.metadata.uid in self.caches.foreign_claims:
            await asyncio.sleep(2 * self.courtesy)
            claim = self.caches.claims.get(key)
        if claim is None or claim.status.allocation is None:
            raise CommitFailed(f"claim {key} lost its allocation", is_conflict=True)
        rival = self.caches.rival(claim)
        if rival is not None:
            await self._yield(claim, rival)

    async def _finish(self, placed: Placed, keys: list[str], trail: _Trail) -> None:
        for key in keys:
            await self._wait_for_drivers(key)
        self._check_unchanged(placed, keys)
        revision = claim = ""
        if placed.mappings:
            revision, claim = await self._note_extended(placed, trail), trail.created[-1].name
        if placed.node_statuses:
            await self._note_node_resources(placed.pod, placed.node_statuses)
            trail.noted.append(placed.pod)
        await self._bind(placed.pod, placed.placement.node, revision, claim)

    def _check_unchanged(self, placed: Placed, keys: list[str]) -> None:
        """Make sure that the claims still hold what the node was chosen for.

        Another scheduler of our name may have cleared one while we waited, and given it devices elsewhere.
        """
        expected = dict(zip(keys, placed.placement.allocations, strict=False))  # those come first in keys
        expected |= {
            key_of(each.metadata): each.status.allocation
            for each in placed.claims.allocated
            if each.status.allocation is not None
        }
        for key, allocation in expected.items():
            claim = self.caches.claims.get(key)
            now = claim.status.allocation if claim is not None else None
            if now is None or _devices_of(now) != _devices_of(allocation):
                raise CommitFailed(f"claim {key} was allocated anew", is_conflict=True)

    async def _allocate(
        self, claim: ResourceClaim, allocation: AllocationResult, consumer: Consumer, trail: _Trail
    ) -> str:
        namespace, name, key = claim.metadata.namespace, claim.metadata.name, key_of(claim.metadata)
        revision = claim.metadata.resource_version
        if FINALIZER not in claim.metadata.finalizers:
            text = _decode_text(self.caches.claims.raw(key))
            if text.metadata.resource_version != revision or text.metadata.uid != claim.metadata.uid:
                raise CommitFailed(f"claim {key} changed while it was being allocated", is_conflict=True)
            text.metadata.finalizers.append(FINALIZER)
            try:
                written = await self.client.update(kinds.CLAIMS, name, text, namespace, view=Written)
                revision = written.metadata.resource_version
            except Invalid:
                # kube-apiserver shows parameters in another spelling than it keeps, and misses that one now.
                revision = await change_metadata(
                    self.client, kinds.CLAIMS, claim.metadata, finalizers=[FINALIZER]
                )
        meta = ClaimMetadata(
            name=name, namespace=namespace, uid=claim.metadata.uid, resource_version=revision
        )
        await self._write_allocation(meta, claim, allocation, consumer, trail)
        return key

    async def _write_allocation(
        self,
        meta: ClaimMetadata,
        claim: ResourceClaim,
        allocation: AllocationResult,
        consumer: Consumer,
        trail: _Trail,
    ) -> None:
        """One status write for allocation and reservation; then make sure that no rival was first."""
        if any(result.binding_conditions for result in allocation.devices.results):
            allocation = msgspec.structs.replace(allocation, allocation_timestamp=timestamp(self.now()))
        body = _status_body(meta, {"allocation": allocation, "reservedFor": [consumer]})
        written = await self.client.update(
            kinds.CLAIMS, meta.name, body, meta.namespace, subresource="status", view=Written
        )
        trail.reserved.append((claim, consumer["uid"]))
        await self._verify(f"{meta.namespace}/{meta.name}", written.metadata.resource_version)

    async def _verify(self, key: str, revision: str) -> None:
        """Make sure that nobody else was given the same device by an earlier write."""
        if not await self.caches.seen(key, revision, CATCH_UP_TIMEOUT):
            raise CommitFailed(f"claim {key} was deleted while it was being allocated", is_conflict=True)
        claim = self.caches.claims.get(key)
        rival = self.caches.rival(claim) if claim is not None else None
        if rival is None and self.caches.seconds_alone() < COMPANY_FOR:
            # A scheduler that does not know this rule may have decided before it saw our write, and
            # its own write is still to come. It will not yield, so give it time, and yield to it.
            await asyncio.sleep(self.courtesy)
            claim = self.caches.claims.get(key)
            rival = self.caches.rival(claim, later_foreign=True) if claim is not None else None
        if claim is not None and rival is not None:
            await self._yield(claim, rival)

    async def _yield(self, claim: ResourceClaim, rival: str) -> None:
        """Give up an allocation that another claim has a better right to, unless a bound pod uses it."""
        users = [each for each in claim.status.reserved_for if each.resource == "pods"]
        for user in users:
            if await self._bound(user.name, claim.metadata.namespace, user.uid) is not None:
                raise CommitFailed(f"{rival} is in use by {user.name}", is_conflict=True)
        await self.deallocate(claim)
        raise CommitFailed(f"{rival} was given to another claim, too", is_conflict=True)

    async def _reserve(self, claim: ResourceClaim, consumer: Consumer, trail: _Trail) -> None:
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
        trail.reserved.append((claim, consumer["uid"]))
        if claim.status.allocation is not None and written.status.allocation != claim.status.allocation:
            raise CommitFailed(f"claim {namespace}/{name} was allocated anew", is_conflict=True)

    async def deallocate(self, claim: ResourceClaim) -> None:
        """Clear a claim's allocation and reservations, unless it changed meanwhile."""
        meta = claim.metadata
        body = _status_body(meta, {})
        await self.client.update(
            kinds.CLAIMS, meta.name, body, meta.namespace, subresource="status", view=Written
        )

    async def _take_back(self, placed: Sequence[Placed], trail: _Trail) -> None:
        """Remove our reservations; allocations stay, and the next attempt builds on them.

        Not for pods that are bound after all, by another scheduler or by a binding whose answer
        was lost: their reservations are true. When we cannot know, nothing is taken back.
        """
        try:
            metas = [each.pod.metadata for each in placed]
            found = [await self._bound(meta.name, meta.namespace, meta.uid) for meta in metas]
        except ClientError:
            return
        bound = {each.metadata.uid for each in found if each is not None}
        if bound and any(each.group is not None for each in placed):
            return
        # Of the claims for extended resources a bound pod keeps the one that its status names.
        statuses = [each.status.extended_resource_claim_status for each in found if each is not None]
        kept = {status.resource_claim_name for status in statuses if status is not None}
        for claim, uid in trail.reserved:
            if uid in bound or claim.metadata.name == IN_MEMORY_NAME:
                continue  # the latter are deleted below
            entry = {"$patch": "delete", "uid": uid}
            body = {"metadata": {"uid": claim.metadata.uid}, "status": {"reservedFor": [entry]}}
            path = kinds.CLAIMS.path(claim.metadata.namespace, claim.metadata.name, "status")
            try:
                await self.client.call("PATCH", path, body, content_type=STRATEGIC_PATCH, view=None)
            except ClientError as error:
                # The claim controller removes reservations of pods that are gone; nothing is lost.
                log.debug("cannot take back the reservation of %s: %s", claim.metadata.name, error)
        for pod in trail.noted:
            try:
                # An explicit empty list: servers keep the field when it is merely left out.
                if pod.metadata.uid not in bound:
                    await self._note_node_resources(pod, ())
            except ClientError as error:
                log.debug("cannot clear the node resources of %s: %s", pod.metadata.name, error)
        for meta in trail.created:
            if meta.name in kept:
                continue
            try:
                await self.delete_claim(meta.name, meta.namespace)
            except ClientError as error:
                log.debug("cannot delete claim %s: %s", meta.name, error)

    async def _bound(self, name: str, namespace: str, uid: str) -> Pod | None:
        """Return the pod as it is now if it is bound."""
        try:
            found = await self.client.get(kinds.PODS, name, namespace, view=Pod)
        except NotFound:
            return None
        return found if found.metadata.uid == uid and found.spec.node_name else None

    async def delete_claim(self, name: str, namespace: str) -> None:
        """Delete a claim that the scheduler made, finalizer first."""
        try:
            patch: dict[str, Any] = {"metadata": {"finalizers": None}}
            await self.client.patch(kinds.CLAIMS, name, patch, namespace, view=Written)
            await self.client.delete(kinds.CLAIMS, name, namespace)
        except NotFound:
            return

    async def _wait_for_drivers(self, key: str) -> None:
        """Wait for binding conditions, driven by the claim cache and a deadline."""
        while True:
            claim = self.caches.claims.get(key)
            if claim is None or claim.status.allocation is None:
                raise CommitFailed(f"claim {key} lost its allocation while binding", is_conflict=True)
            if not has_binding_conditions(claim):
                return
            waits = self.caches.waits
            waited = waits.seconds(claim)
            verdict = judge_binding(claim, waited, waits.timeout, self.features)
            if verdict.failure:
                raise CommitFailed(f"claim {key}: {verdict.failure}")
            if verdict.is_ready:
                return
            following = str(int(claim.metadata.resource_version) + 1)
            try:
                await self.caches.seen(key, following, min(5.0, max(0.1, waits.timeout - waited)))
            except TimeoutError:
                continue

    # --- extended resources ----------------------------------------------------

    async def _allocate_extended(
        self,
        claim: ResourceClaim,
        allocation: AllocationResult,
        consumer: Consumer,
        trail: _Trail,
    ) -> str:
        """Write the claim that so far exists only in memory; its finalizer travels along."""
        meta = claim.metadata
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {
                "generateName": meta.generate_name,
                "namespace": meta.namespace,
                "annotations": meta.annotations,
                "ownerReferences": meta.owner_references,
                "finalizers": [FINALIZER],
            },
            "spec": claim.spec,
        }
        made = (await self.client.create(kinds.CLAIMS, body, meta.namespace, view=Written)).metadata
        trail.created.append(made)
        # From now on the booking belongs to the real claim.
        booking = self.caches.bookings.pop(meta.uid, None)
        if booking is not None:
            self.caches.bookings[made.uid] = booking
        await self._write_allocation(made, claim, allocation, consumer, trail)
        return f"{made.namespace}/{made.name}"

    async def _note_extended(self, placed: Placed, trail: _Trail) -> str:
        """Tell kubelet which request of the claim serves which container; return the pod's revision.

        The pod is bound at this revision only: should another scheduler of our name have noted a claim
        of its own meanwhile, that one stands, and binding with ours would give the pod devices of another node.
        """
        pod = placed.pod
        status = {"resourceClaimName": trail.created[-1].name, "requestMappings": placed.mappings}
        body = {"metadata": {"uid": pod.metadata.uid}, "status": {"extendedResourceClaimStatus": status}}
        path = kinds.PODS.path(pod.metadata.namespace, pod.metadata.name, "status")
        written = await self.client.call("PATCH", path, body, content_type=STRATEGIC_PATCH, view=Written)
        return str(written.metadata.resource_version)

    async def _note_node_resources(self, pod: Pod, statuses: Sequence[dict[str, Any]]) -> None:
        """Tell kubelet and other schedulers what the pod's devices cost of the node."""
        body = {
            "metadata": {"uid": pod.metadata.uid},
            "status": {"nodeAllocatableResourceClaimStatuses": statuses},
        }
        path = kinds.PODS.path(pod.metadata.namespace, pod.metadata.name, "status")
        await self.client.call("PATCH", path, body, content_type=MERGE_PATCH, view=None)

    # --- the pod --------------------------------------------------------------

    async def _bind(self, pod: Pod, node: str, revision: str = "", claim: str = "") -> None:
        """Bind the pod; one with a claim for extended resources only at the revision that names this claim."""
        meta = pod.metadata
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        if revision:
            body["metadata"]["resourceVersion"] = revision
        path = kinds.PODS.path(meta.namespace, meta.name, "binding")
        try:
            await self.client.call("POST", path, body, view=None)
        except (Conflict, TransportError, ServerFailed):
            # Bound already, or no answer: if the pod is where we want it, all is well.
            found = await self.client.get(kinds.PODS, meta.name, meta.namespace, view=Pod)
            if found.metadata.uid != meta.uid or found.spec.node_name != node:
                raise
            status = found.status.extended_resource_claim_status
            if claim and (status is None or status.resource_claim_name != claim):
                raise  # another scheduler of our name was faster, with a claim of its own


def _devices_of(allocation: AllocationResult) -> list[tuple[str, str, str, str | None]]:
    return [(each.driver, each.pool, each.device, each.share_id) for each in allocation.devices.results]


def _consumer(placed: Placed, claim: ResourceClaim) -> Consumer:
    """Who is to hold the claim: the pod, or its group where the claim belongs to that."""
    if placed.group is not None and claim.metadata.uid in placed.claims.of_group:
        meta = placed.group.metadata
        return {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": meta.name, "uid": meta.uid}
    return {"resource": "pods", "name": placed.pod.metadata.name, "uid": placed.pod.metadata.uid}


def _status_body(meta: Any, status: dict[str, Any]) -> dict[str, Any]:
    """Spell a status write: identity, revision and status; the server ignores the rest."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
        },
        "status": status,
    }
