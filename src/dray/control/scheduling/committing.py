"""Turn a placement into facts on the server, or release everything again.

The order is the protocol of DRA: the claim gets its finalizer (so that it cannot
vanish while in use), then allocation and reservation in one status write, then the pod
is bound. Writes carry the resourceVersion that the decision was based on; a conflict
means that the decision is void, so it is thrown away and made anew.

Another scheduler, of another name, may give one device to two *different* claims, which no resourceVersion
protects. So before binding we wait until our own informer has seen our write, and verify it against everything that was written
before (`verification`). If it may not stand, the claim is deallocated.

There is one active scheduler per name. What a former leader has left behind (allocations and reservations of pods that
are not bound, claims for extended resources) is found by the next one, which goes on with it.

The pods of a gang are committed together: first all claims and volumes, then the waiting for drivers, then all bindings. A member that fails before the
first binding releases the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from dray.api.core import Pod
from dray.api.features import Features
from dray.api.kinds import SCHEDULING
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
from dray.control.exact_claims import ClaimMetadata, ClaimText, Written
from dray.control.scheduling.informers import Informers
from dray.control.scheduling.releasing import ClaimReleaser, InUseError, status_body
from dray.control.scheduling.volume_binding import VolumeBinder, VolumeBindingError
from dray.scheduler import (
    FINALIZER,
    IN_MEMORY_NAME,
    Placed,
    has_binding_conditions,
    is_reserved_for,
    judge_binding,
    may_have_conditions,
    special_name,
    special_owner,
)

log = logging.getLogger("dray.scheduler")

CATCH_UP_TIMEOUT = 30.0  # seconds for our own write to come back through the watch

Consumer = dict[str, Any]


class CommitFailed(Exception):
    """The placement could not be made true; what was reserved has been released."""

    def __init__(self, message: str, *, is_conflict: bool = False, is_unknown: bool = False) -> None:
        super().__init__(message)
        self.is_conflict = is_conflict  # something has changed meanwhile: worth trying again at once
        self.is_unknown = is_unknown  # a binding was sent and not answered: it may still land
        self.bound: frozenset[str] = frozenset()  # uids of members of the gang that are bound all the same


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
    noted: list[Pod] = field(default_factory=list)  # their status tells of node resources


@dataclass(slots=True)
class Committer:
    """Writes placements."""

    client: Client
    informers: Informers
    features: Features
    now: Callable[[], datetime]
    releaser: ClaimReleaser
    volumes: VolumeBinder

    async def commit(self, placed: Sequence[Placed]) -> None:
        """Make all of these true: allocate, reserve, verify, wait for volumes and drivers, bind.

        Raises CommitFailed after releasing what can be released.
        """
        trail = _Trail()
        try:
            if len(placed) == 1:
                keys = await self._allocate_all(placed[0], trail)
                keys += await self._reserve_all(placed[0], trail)
                await self._bind_volumes(placed)
                await self._prepare(placed[0], keys, trail)
                await self._bind(placed[0].pod, placed[0].placement.node, _special_of(placed[0]))
                return
            # A claim that members share is allocated by one of them: all allocations come first.
            found = [await self._allocate_all(each, trail) for each in placed]
            for each, keys in zip(placed, found, strict=True):
                keys += await self._reserve_all(each, trail)
            await self._bind_volumes(placed)
            # None is bound before all may be: whoever fails until then, a driver or a deleted pod, releases all.
            await _together(
                [self._prepare(each, keys, trail) for each, keys in zip(placed, found, strict=True)]
            )
            await self._bind_all(placed)
        except (ClientError, TimeoutError, CommitFailed, InUseError) as error:
            await self._release(
                placed, trail, keeps_reservations=isinstance(error, CommitFailed) and error.is_unknown
            )
            if isinstance(error, CommitFailed):
                raise
            raise CommitFailed(str(error), is_conflict=isinstance(error, _CONFLICTS)) from error

    async def attach(self, placed: Placed) -> None:
        """Give a running pod the claim that was decided for it: allocate, reserve, verify, wait for drivers.

        Raises CommitFailed; a reservation that was written stays, since the pod's node may have acted on it.
        """
        trail = _Trail()
        try:
            keys = await self._allocate_all(placed, trail)
            keys += await self._reserve_all(placed, trail)
            for key in keys:
                await self._wait_for_drivers(key)
        except (ClientError, TimeoutError, InUseError) as error:
            raise CommitFailed(str(error), is_conflict=isinstance(error, _CONFLICTS)) from error

    async def _bind_volumes(self, placed: Sequence[Placed]) -> None:
        """Bind or order the volumes that waited for a node, and wait for them."""
        if any(each.placement.volumes for each in placed):
            try:
                await self.volumes.bind(placed, lambda each: self.informers.has_left(each.pod))
            except VolumeBindingError as error:
                raise CommitFailed(str(error)) from error

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
        for claim in found:
            await self._verify_found(key_of(claim.metadata))
        return [key_of(claim.metadata) for claim in found]

    async def _verify_found(self, key: str) -> None:
        """Verify an allocation that we found: whoever wrote it may have ended before doing so."""
        claim = self.informers.claims.get(key)
        if claim is None or claim.status.allocation is None:
            raise CommitFailed(f"claim {key} lost its allocation", is_conflict=True)
        await self._check_conflict(claim)

    async def _bind_all(self, placed: Sequence[Placed]) -> None:
        """Bind the members of a gang; one that fails does not keep the others from being bound."""
        works = (self._bind(each.pod, each.placement.node, _special_of(each)) for each in placed)
        results = await asyncio.gather(*works, return_exceptions=True)
        failed = [result for result in results if isinstance(result, BaseException)]
        if not failed:
            return
        error = failed[0]
        if not isinstance(error, CommitFailed):
            if not isinstance(error, ClientError):
                raise error
            error = CommitFailed(str(error), is_conflict=isinstance(error, _CONFLICTS))
        error.is_unknown = any(isinstance(each, CommitFailed) and each.is_unknown for each in failed)
        error.bound = frozenset(
            each.pod.metadata.uid for each, result in zip(placed, results, strict=True) if result is None
        )
        raise error

    async def _prepare(self, placed: Placed, keys: list[str], trail: _Trail) -> None:
        """Wait for drivers, and note in the pod's status what its node must know; then it may be bound."""
        for key in keys:
            await self._wait_for_drivers(key)
        pod = placed.pod
        known = self.informers.pods.get(key_of(pod.metadata))
        if known is None or self.informers.has_left(pod):
            raise CommitFailed("the pod was deleted or bound meanwhile", is_conflict=True)
        self._check_claims(placed, keys)
        special = _special_of(placed)
        if placed.mappings:
            await self._note_extended(placed, known, special)
        if placed.node_statuses or known.status.node_allocatable_resource_claim_statuses:
            trail.noted.append(pod)
            await self._note_node_resources(pod, placed.node_statuses)

    def _check_claims(self, placed: Placed, keys: list[str]) -> None:
        """Make sure that the claims still hold what the node was chosen for, and are reserved for the pod.

        While we waited, a claim may have been deallocated for another pod of ours, or by people.
        """
        expected = dict(zip(keys, placed.placement.allocations, strict=False))  # those come first in keys
        expected |= {
            key_of(each.metadata): each.status.allocation
            for each in placed.claims.allocated
            if each.status.allocation is not None
        }
        for key in keys:
            claim = self.informers.claims.get(key)
            now = claim.status.allocation if claim is not None else None
            if claim is None or now is None:
                raise CommitFailed(f"claim {key} lost its allocation", is_conflict=True)
            if key in expected and _devices_of(now) != _devices_of(expected[key]):
                raise CommitFailed(f"claim {key} was allocated anew", is_conflict=True)
            if not is_reserved_for(claim, {_consumer(placed, claim)["uid"]}):
                raise CommitFailed(f"claim {key} is no longer reserved for the pod", is_conflict=True)

    async def _allocate(
        self, claim: ResourceClaim, allocation: AllocationResult, consumer: Consumer, trail: _Trail
    ) -> str:
        namespace, name, key = claim.metadata.namespace, claim.metadata.name, key_of(claim.metadata)
        revision = claim.metadata.resource_version
        if FINALIZER not in claim.metadata.finalizers:
            known = self.informers.claims.get(key)
            if known is None or known.metadata.uid != claim.metadata.uid:
                raise CommitFailed(f"claim {key} was deleted before it was allocated", is_conflict=True)
            text = _decode_text(self.informers.claims.raw(key))
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
        """One status write for allocation and reservation; then verify it."""
        if may_have_conditions(self.features):
            allocation = msgspec.structs.replace(allocation, allocation_timestamp=timestamp(self.now()))
        body = status_body(meta, {"allocation": allocation, "reservedFor": [consumer]})
        written = await self.client.update(
            kinds.CLAIMS, meta.name, body, meta.namespace, subresource="status", view=Written
        )
        trail.reserved.append(_Reservation(written.metadata, consumer["uid"]))
        await self._verify(written.metadata)

    async def _verify(self, meta: ClaimMetadata) -> None:
        """Make sure that no earlier write gave the same device to another claim."""
        key = f"{meta.namespace}/{meta.name}"
        if not await self.informers.seen(meta, CATCH_UP_TIMEOUT):
            raise CommitFailed(f"claim {key} was deleted while it was being allocated", is_conflict=True)
        claim = self.informers.claims.get(key)
        if claim is not None:
            await self._check_conflict(claim)

    async def _check_conflict(self, claim: ResourceClaim) -> None:
        """Deallocate a claim whose allocation may not stand beside earlier ones, unless a bound pod uses it."""
        conflict = self.informers.conflict(claim)
        if conflict is not None:
            await self.releaser.deallocate(claim)
            raise CommitFailed(conflict, is_conflict=True)

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
        if not await self.informers.seen(meta, CATCH_UP_TIMEOUT):
            raise CommitFailed(f"claim {namespace}/{name} was deleted", is_conflict=True)

    async def _release(self, placed: Sequence[Placed], trail: _Trail, *, keeps_reservations: bool) -> None:
        """Remove our reservations; allocations stay, and the next attempt builds on them.

        Not for pods that are bound after all, and not while a binding that was not answered may still land: the next attempt
        finds the reservations and goes on with them. When we cannot know, nothing is released.
        """
        for in_memory, made in trail.created:
            self.informers.snapshot.move_reservation(made.uid, in_memory)
        if keeps_reservations:
            return
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
        for noted in trail.noted:
            try:
                # An explicit empty list: servers keep the field when it is merely left out.
                if noted.metadata.uid not in bound:
                    await self._note_node_resources(noted, ())
            except ClientError as error:
                log.debug("cannot clear the node resources of %s: %s", noted.metadata.name, error)

    async def _unreserve(self, reservation: _Reservation) -> None:
        """Give up a reservation; should that fail, nothing is lost: the next attempt finds it."""
        meta, consumer = reservation.meta, reservation.consumer
        key = f"{meta.namespace}/{meta.name}"
        for _ in range(3):  # drivers write claims, too
            try:
                if not await self.informers.seen(meta, CATCH_UP_TIMEOUT):
                    return
                claim = self.informers.claims.get(key)
                if claim is None or claim.metadata.uid != meta.uid or not is_reserved_for(claim, {consumer}):
                    return
                meta = _next_of(claim)
                await self.releaser.unreserve(claim, consumer)
                return
            except Conflict:
                continue
            except (ClientError, InUseError, TimeoutError) as error:
                log.debug("cannot release the reservation of %s: %s", key, error)
                return

    async def _delete_special(self, pod: Pod, name: str, trail: _Trail) -> None:
        """Delete a claim for extended resources that its pod does not need any more."""
        key = f"{pod.metadata.namespace}/{name}"
        try:
            for _, made in trail.created:
                await self.informers.seen(made, CATCH_UP_TIMEOUT)
            claim = self.informers.claims.get(key)
            if claim is not None and special_owner(claim) == pod.metadata.uid:
                await self.releaser.delete(claim, is_unused=True)
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
            claim = self.informers.claims.get(key)
            if claim is None or claim.status.allocation is None:
                raise CommitFailed(f"claim {key} lost its allocation while binding", is_conflict=True)
            if not has_binding_conditions(claim):
                return
            waits = self.informers.waits
            waited = waits.seconds(claim)
            verdict = judge_binding(claim, waited, waits.timeout, self.features)
            if verdict.failure:
                raise CommitFailed(f"claim {key}: {verdict.failure}")
            if verdict.is_ready:
                return
            try:
                await self.informers.seen(_next_of(claim), min(5.0, max(0.1, waits.timeout - waited)))
            except TimeoutError:
                continue

    # --- extended resources ----------------------------------------------------

    async def _allocate_extended(
        self, placed: Placed, claim: ResourceClaim, allocation: AllocationResult, trail: _Trail
    ) -> str:
        """Write the claim that so far exists only in memory, with its finalizer.

        Raises Conflict when it exists already (a former leader made it): the next attempt goes on with that one.
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
        self.informers.snapshot.move_reservation(meta.uid, made.uid)
        await self._write_allocation(made, allocation, _consumer(placed, claim), trail)
        return f"{made.namespace}/{made.name}"

    async def _note_extended(self, placed: Placed, pod: Pod, special: str) -> None:
        """Tell kubelet which request of the claim serves which container."""
        noted = pod.status.extended_resource_claim_status
        if noted is not None and noted.resource_claim_name == special:
            if noted.request_mappings == list(placed.mappings):
                return
        status = {"resourceClaimName": special, "requestMappings": placed.mappings}
        await self._patch_pod(pod, {"extendedResourceClaimStatus": status}, STRATEGIC_PATCH)

    async def _note_node_resources(self, pod: Pod, statuses: Sequence[dict[str, Any]]) -> None:
        """Tell kubelet and other schedulers what the pod's devices cost of the node."""
        status = {"nodeAllocatableResourceClaimStatuses": statuses}
        await self._patch_pod(pod, status, MERGE_PATCH)

    async def _patch_pod(self, pod: Pod, status: dict[str, Any], kind: str) -> None:
        """Change the status of this very pod."""
        meta = pod.metadata
        body = {"metadata": {"uid": meta.uid}, "status": status}
        path = kinds.PODS.path(meta.namespace, meta.name, "status")
        await self.client.call("PATCH", path, body, content_type=kind, view=None)

    # --- the pod --------------------------------------------------------------

    async def _bind(self, pod: Pod, node: str, special: str) -> None:
        """Bind this very pod; `special` names the claim that its status must name by then."""
        meta = pod.metadata
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = kinds.PODS.path(meta.namespace, meta.name, "binding")
        try:
            await self.client.call("POST", path, body, view=None)
        except (Conflict, TransportError, ServerFailed) as error:
            # Bound already, or no answer: if the pod is where we want it, all is well.
            try:
                found = await self._current(pod)
            except ClientError:
                raise CommitFailed(str(error), is_unknown=True) from error
            if found is not None and found.spec.node_name == node:
                if not special or _named_by(found) == special:
                    return
            if found is not None and not found.spec.node_name and not isinstance(error, Conflict):
                raise CommitFailed(str(error), is_unknown=True) from error
            raise


async def _together(works: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Do all of it; when one fails, stop the others before its error is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


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
        return {"apiGroup": SCHEDULING, "resource": "podgroups", "name": meta.name, "uid": meta.uid}
    return {"resource": "pods", "name": placed.pod.metadata.name, "uid": placed.pod.metadata.uid}
