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

Two schedulers of one name may work on one *pod*, too. Whoever writes a claim's allocation first
decides; the other one finds it reserved for the pod, gives the first a moment to bind, and then goes on with
that allocation, because the first may have died. Claims for extended resources are no exception: their name
follows from the pod, so there is one, whoever makes it. Pods with claims are bound at the revision at
which no claim of theirs was withdrawn: see `withdrawing.py`.

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
from dray.api.parsing import json_loader
from dray.api.resource import AllocationResult, ResourceClaim
from dray.api.times import format_time as timestamp
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
from dray.control.scheduling.withdrawing import InUseError, Withdrawer, is_withdrawn, status_body
from dray.scheduler import (
    FINALIZER,
    has_binding_conditions,
    is_reserved_for,
    judge_binding,
    may_have_conditions,
    special_name,
    special_owner,
)
from dray.scheduler.extended import IN_MEMORY_NAME

log = logging.getLogger("dray.scheduler")

CATCH_UP_TIMEOUT = 30.0  # seconds for our own write to come back through the watch
_BINDING_ATTEMPTS = 3  # a pod may change while it is being bound: a report, a label

Consumer = dict[str, Any]


class CommitFailed(Exception):
    """The placement could not be made true; what was done has been taken back."""

    def __init__(self, message: str, *, is_conflict: bool = False) -> None:
        super().__init__(message)
        self.is_conflict = is_conflict  # somebody else was faster: worth trying again at once


_CONFLICTS = (Conflict, NotFound, InUseError)
_decode_text = json_loader(ClaimText).decode


@dataclass(frozen=True, slots=True)
class _Reservation:
    """A claim that we have reserved for somebody."""

    meta: ClaimMetadata  # as of our write
    consumer: str  # uid


@dataclass(slots=True)
class _Trail:
    """What a commit has done so far, to be taken back if it fails."""

    reserved: list[_Reservation] = field(default_factory=list)
    created: list[tuple[str, ClaimMetadata]] = field(
        default_factory=list
    )  # uid in memory, claim on the server
    noted: list[tuple[Pod, str]] = field(
        default_factory=list
    )  # status tells of node resources; since revision


@dataclass(slots=True)
class Committer:
    """Writes placements."""

    client: Client
    caches: Caches
    features: Features
    now: Callable[[], datetime]
    withdrawer: Withdrawer
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
        except (ClientError, TimeoutError, CommitFailed, InUseError) as error:
            await self._take_back(placed, trail)
            if isinstance(error, CommitFailed):
                raise
            raise CommitFailed(str(error), is_conflict=isinstance(error, _CONFLICTS)) from error

    # --- claims ---------------------------------------------------------------

    async def _allocate_all(self, placed: Placed, trail: _Trail) -> list[str]:
        """Write the allocations that the placement decided; return the keys of the claims."""
        keys = []
        for claim, allocation in zip(placed.placement.claims, placed.placement.allocations, strict=True):
            consumer = _consumer(placed, claim)
            if claim.metadata.name == IN_MEMORY_NAME:
                keys.append(await self._allocate_extended(placed, claim, allocation, trail))
            else:
                keys.append(await self._allocate(claim, allocation, consumer, trail))
        return keys

    async def _reserve_all(self, placed: Placed, trail: _Trail) -> list[str]:
        """Reserve the claims that somebody else allocated, long ago or just now."""
        decided = {claim.metadata.uid for claim in placed.placement.claims}
        found = [claim for claim in placed.claims.all if claim.metadata.uid not in decided]
        for claim in found:
            consumer = _consumer(placed, claim)
            if not is_reserved_for(claim, {consumer["uid"]}):
                await self._reserve(claim, consumer, trail)
            elif claim.metadata.uid in self.caches.elsewhere:
                # Another scheduler's work in progress, maybe. That one binds the pod or yields
                # within a moment, so let it; afterwards the claim is ours.
                await self.caches.something_happened(placed.pod, claim, 2 * self.courtesy)
                if self.caches.has_left(placed.pod):
                    raise CommitFailed("another scheduler was faster", is_conflict=True)
        for claim in found:
            await self._verify_found(key_of(claim.metadata))
        return [key_of(claim.metadata) for claim in found]

    async def _verify_found(self, key: str) -> None:
        """Make sure of an allocation that we found: who wrote it may have died before the check."""
        claim = self.caches.claims.get(key)
        if claim is None or claim.status.allocation is None:
            raise CommitFailed(f"claim {key} lost its allocation", is_conflict=True)
        rival = self.caches.rival(claim)
        if rival is not None:
            await self._yield(claim, rival)

    async def _finish(self, placed: Placed, keys: list[str], trail: _Trail) -> None:
        for key in keys:
            await self._wait_for_drivers(key)
        pod = placed.pod
        if not keys and not self.caches.extended.asked_by(pod):
            await self._bind(pod, placed.placement.node, "")
            return
        # From here on every write of the pod is made at the revision that the one before has left.
        known = self.caches.pods.get(key_of(pod.metadata))
        if known is None or self.caches.has_left(pod):
            raise CommitFailed("another scheduler was faster", is_conflict=True)
        self._check_claims(placed, keys, known)
        revision = known.metadata.resource_version
        special = _special_of(placed)
        if placed.mappings:
            revision = await self._note_extended(placed, known, special)
        if placed.node_statuses or known.status.node_allocatable_resource_claim_statuses:
            revision = await self._note_node_resources(pod, placed.node_statuses, revision)
            trail.noted.append((pod, revision))
        await self._bind_exactly(placed, keys, revision, special)

    def _check_claims(self, placed: Placed, keys: list[str], pod: Pod) -> None:
        """Make sure that the claims still hold what the node was chosen for, and are held by the pod.

        Another scheduler of our name may have cleared one while we waited, and given it devices elsewhere,
        or may be about to: then it has left word in the pod, which is to be bound as it is here or not at all.
        """
        expected = dict(zip(keys, placed.placement.allocations, strict=False))  # those come first in keys
        expected |= {
            key_of(each.metadata): each.status.allocation
            for each in placed.claims.allocated
            if each.status.allocation is not None
        }
        for key in keys:
            claim = self.caches.claims.get(key)
            now = claim.status.allocation if claim is not None else None
            if claim is None or now is None:
                raise CommitFailed(f"claim {key} lost its allocation", is_conflict=True)
            if key in expected and _devices_of(now) != _devices_of(expected[key]):
                raise CommitFailed(f"claim {key} was allocated anew", is_conflict=True)
            if is_withdrawn(pod, claim) or not is_reserved_for(claim, {_consumer(placed, claim)["uid"]}):
                raise CommitFailed(f"claim {key} was withdrawn", is_conflict=True)

    async def _allocate(
        self, claim: ResourceClaim, allocation: AllocationResult, consumer: Consumer, trail: _Trail
    ) -> str:
        namespace, name, key = claim.metadata.namespace, claim.metadata.name, key_of(claim.metadata)
        revision = claim.metadata.resource_version
        if FINALIZER not in claim.metadata.finalizers:
            known = self.caches.claims.get(key)
            if known is None or known.metadata.uid != claim.metadata.uid:
                raise CommitFailed(f"claim {key} was deleted before it was allocated", is_conflict=True)
            text = _decode_text(self.caches.claims.raw(key))
            if text.metadata.resource_version != revision:
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
        await self._write_allocation(_written(claim, revision), allocation, consumer, trail)
        return key

    async def _write_allocation(
        self,
        meta: ClaimMetadata,
        allocation: AllocationResult,
        consumer: Consumer,
        trail: _Trail,
    ) -> None:
        """One status write for allocation and reservation; then make sure that no rival was first."""
        if may_have_conditions(self.features):
            allocation = msgspec.structs.replace(allocation, allocation_timestamp=timestamp(self.now()))
        body = status_body(meta, {"allocation": allocation, "reservedFor": [consumer]})
        written = await self.client.update(
            kinds.CLAIMS, meta.name, body, meta.namespace, subresource="status", view=Written
        )
        trail.reserved.append(_Reservation(written.metadata, consumer["uid"]))
        await self._verify(written.metadata)

    async def _verify(self, meta: ClaimMetadata) -> None:
        """Make sure that nobody else was given the same device by an earlier write."""
        key = f"{meta.namespace}/{meta.name}"
        if not await self.caches.seen(meta, CATCH_UP_TIMEOUT):
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
        await self.withdrawer.deallocate(claim)
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
        meta = _written(claim, written.metadata.resource_version)
        trail.reserved.append(_Reservation(meta, consumer["uid"]))
        if claim.status.allocation is not None and written.status.allocation != claim.status.allocation:
            raise CommitFailed(f"claim {namespace}/{name} was allocated anew", is_conflict=True)
        if not await self.caches.seen(meta, CATCH_UP_TIMEOUT):
            raise CommitFailed(f"claim {namespace}/{name} was deleted", is_conflict=True)

    async def _take_back(self, placed: Sequence[Placed], trail: _Trail) -> None:
        """Remove our reservations; allocations stay, and the next attempt builds on them.

        Not for pods that are bound after all, by another scheduler or by a binding whose answer
        was lost: their reservations are true. When we cannot know, nothing is taken back.
        """
        for in_memory, made in trail.created:
            booking = self.caches.bookings.pop(made.uid, None)
            if booking is not None:
                self.caches.bookings[in_memory] = booking
        try:
            found = [await self._current(each.pod) for each in placed]
        except ClientError:
            return
        bound = {each.metadata.uid for each in found if each is not None and each.spec.node_name}
        if bound and any(each.group is not None for each in placed):
            return
        # A claim for extended resources is of no use to a pod that is gone, or was bound without it.
        for each, pod in zip(placed, found, strict=True):
            special = _special_of(each)
            if special and (pod is None or (pod.spec.node_name and _named_by(pod) != special)):
                await self._delete_special(each.pod, special, trail)
        for reservation in trail.reserved:
            if reservation.consumer not in bound:
                await self._unreserve(reservation)
        for noted, revision in trail.noted:
            try:
                # An explicit empty list: servers keep the field when it is merely left out.
                if noted.metadata.uid not in bound:
                    await self._note_node_resources(noted, (), revision)
            except ClientError as error:
                log.debug("cannot clear the node resources of %s: %s", noted.metadata.name, error)

    async def _unreserve(self, reservation: _Reservation) -> None:
        """Give up a reservation; should that fail, nothing is lost: the next attempt finds it."""
        meta, consumer = reservation.meta, reservation.consumer
        key = f"{meta.namespace}/{meta.name}"
        for _ in range(3):  # drivers write claims, too
            try:
                if not await self.caches.seen(meta, CATCH_UP_TIMEOUT):
                    return
                claim = self.caches.claims.get(key)
                if claim is None or claim.metadata.uid != meta.uid or not is_reserved_for(claim, {consumer}):
                    return
                meta = _next_of(claim)
                await self.withdrawer.unreserve(claim, consumer)
                return
            except Conflict:
                continue
            except (ClientError, InUseError, TimeoutError) as error:
                log.debug("cannot take back the reservation of %s: %s", key, error)
                return

    async def _delete_special(self, pod: Pod, name: str, trail: _Trail) -> None:
        """Delete a claim for extended resources that its pod does not need any more."""
        key = f"{pod.metadata.namespace}/{name}"
        try:
            for _, made in trail.created:
                await self.caches.seen(made, CATCH_UP_TIMEOUT)
            claim = self.caches.claims.get(key)
            if claim is not None and special_owner(claim) == pod.metadata.uid:
                await self.withdrawer.delete(claim, is_needless=True)
        except (ClientError, TimeoutError) as error:
            log.debug("cannot delete claim %s: %s", key, error)

    async def _current(self, pod: Pod) -> Pod | None:
        """Read the pod as it is now; None when it is gone."""
        try:
            found = await self.client.get(kinds.PODS, pod.metadata.name, pod.metadata.namespace, view=Pod)
        except NotFound:
            return None
        return found if found.metadata.uid == pod.metadata.uid else None

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
            try:
                await self.caches.seen(_next_of(claim), min(5.0, max(0.1, waits.timeout - waited)))
            except TimeoutError:
                continue

    # --- extended resources ----------------------------------------------------

    async def _allocate_extended(
        self, placed: Placed, claim: ResourceClaim, allocation: AllocationResult, trail: _Trail
    ) -> str:
        """Write the claim that so far exists only in memory; its finalizer travels along.

        Raises Conflict when another scheduler has made it already: the next attempt goes on with that one.
        """
        meta = claim.metadata
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {
                "name": special_name(placed.pod),
                "generateName": meta.generate_name,
                "namespace": meta.namespace,
                "annotations": meta.annotations,
                "ownerReferences": meta.owner_references,
                "finalizers": [FINALIZER],
            },
            "spec": claim.spec,
        }
        made = (await self.client.create(kinds.CLAIMS, body, meta.namespace, view=Written)).metadata
        trail.created.append((meta.uid, made))
        # From now on the booking belongs to the real claim.
        booking = self.caches.bookings.pop(meta.uid, None)
        if booking is not None:
            self.caches.bookings[made.uid] = booking
        await self._write_allocation(made, allocation, _consumer(placed, claim), trail)
        return f"{made.namespace}/{made.name}"

    async def _note_extended(self, placed: Placed, pod: Pod, special: str) -> str:
        """Tell kubelet which request of the claim serves which container; return the pod's revision."""
        noted = pod.status.extended_resource_claim_status
        if noted is not None and noted.resource_claim_name == special:
            if noted.request_mappings == list(placed.mappings):
                return pod.metadata.resource_version
        status = {"resourceClaimName": special, "requestMappings": placed.mappings}
        return await self._patch_pod(
            pod, {"extendedResourceClaimStatus": status}, pod.metadata.resource_version, STRATEGIC_PATCH
        )

    async def _note_node_resources(self, pod: Pod, statuses: Sequence[dict[str, Any]], revision: str) -> str:
        """Tell kubelet and other schedulers what the pod's devices cost of the node."""
        status = {"nodeAllocatableResourceClaimStatuses": statuses}
        return await self._patch_pod(pod, status, revision, MERGE_PATCH)

    async def _patch_pod(self, pod: Pod, status: dict[str, Any], revision: str, kind: str) -> str:
        """Change the status of a pod, at this revision only; return the new one."""
        meta = pod.metadata
        body = {"metadata": {"uid": meta.uid, "resourceVersion": revision}, "status": status}
        path = kinds.PODS.path(meta.namespace, meta.name, "status")
        written = await self.client.call("PATCH", path, body, content_type=kind, view=Written)
        return str(written.metadata.resource_version)

    # --- the pod --------------------------------------------------------------

    async def _bind_exactly(self, placed: Placed, keys: list[str], revision: str, special: str) -> None:
        """Bind a pod with claims, at the revision at which all was well; look again if it has changed."""
        for attempt in range(1, _BINDING_ATTEMPTS + 1):
            try:
                await self._bind(placed.pod, placed.placement.node, revision, special)
                return
            except Conflict:
                found = await self._current(placed.pod)
                if found is None or found.spec.node_name or attempt == _BINDING_ATTEMPTS:
                    raise
                if placed.node_statuses or _named_by(found) != (special if placed.mappings else ""):
                    raise  # another scheduler has made notes of its own
                self._check_claims(placed, keys, found)
                revision = found.metadata.resource_version

    async def _bind(self, pod: Pod, node: str, revision: str, special: str = "") -> None:
        """Bind the pod, at this revision only if there is one."""
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
            found = await self._current(pod)
            if found is None or found.spec.node_name != node:
                raise
            if special and _named_by(found) != special:
                raise  # another scheduler of our name was faster, with a claim of its own


def _special_of(placed: Placed) -> str:
    """Return the name of the claim for the pod's extended resources, empty when it has none."""
    for claim in placed.claims.all:
        if claim.metadata.name == IN_MEMORY_NAME:
            return special_name(placed.pod)
        if special_owner(claim) == placed.pod.metadata.uid:
            return claim.metadata.name
    return ""


def _written(claim: ResourceClaim, revision: str) -> ClaimMetadata:
    """Return what a claim is known by, as of a later write."""
    meta = claim.metadata
    return ClaimMetadata(name=meta.name, namespace=meta.namespace, uid=meta.uid, resource_version=revision)


def _next_of(claim: ResourceClaim) -> ClaimMetadata:
    """Stand for whatever change of a claim comes next."""
    return _written(claim, str(int(claim.metadata.resource_version) + 1))


def _named_by(pod: Pod) -> str:
    status = pod.status.extended_resource_claim_status
    return status.resource_claim_name if status is not None else ""


def _devices_of(allocation: AllocationResult) -> list[tuple[str, str, str, str | None]]:
    return [(each.driver, each.pool, each.device, each.share_id) for each in allocation.devices.results]


def _consumer(placed: Placed, claim: ResourceClaim) -> Consumer:
    """Who is to hold the claim: the pod, or its group where the claim belongs to that."""
    if placed.group is not None and claim.metadata.uid in placed.claims.of_group:
        meta = placed.group.metadata
        return {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": meta.name, "uid": meta.uid}
    return {"resource": "pods", "name": placed.pod.metadata.name, "uid": placed.pod.metadata.uid}
