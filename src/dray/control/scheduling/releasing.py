"""Release claims: deallocate them, delete those that the scheduler made, give up reservations.

Never from a pod that is bound. There is one active scheduler per name (leader election), so nobody binds a
pod of ours while we release its claim: it is enough to read the pods that hold the claim from the server, and to write the claim
at the resourceVersion that was judged. If anybody has changed the claim meanwhile (a new reservation, say), the write fails.

A claim that is reserved for a PodGroup is held by all pods of the group that we know of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from dray.api.core import Pod
from dray.api.resource import ResourceClaim
from dray.api.well_known import TERMINAL_PHASES
from dray.client import STRATEGIC_PATCH, Client, NotFound, key_of
from dray.client import resources as kinds
from dray.control.exact_claims import Written
from dray.control.scheduling.informers import Informers


class InUseError(Exception):
    """A claim cannot be released: a pod that holds it is bound."""


def status_body(meta: Any, status: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a status write of a claim: identity, revision and status."""
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


@dataclass(slots=True)
class ClaimReleaser:
    """Releases claims; see the module docstring.

    Every method raises InUseError when a bound pod holds the claim, and Conflict when the claim has changed.
    """

    client: Client
    informers: Informers

    async def deallocate(self, claim: ResourceClaim) -> str:
        """Clear a claim's allocation and all reservations; return its new revision."""
        await self._check_unbound(claim, self._holders(claim))
        return await self._clear(claim)

    async def delete(self, claim: ResourceClaim, *, is_unused: bool = False) -> None:
        """Delete a claim that a scheduler made: allocation first, then the finalizer.

        With `is_unused` the pods are not asked: its pod is gone, or bound without it.
        """
        meta = claim.metadata
        revision = meta.resource_version
        try:
            if claim.status.allocation is not None or claim.status.reserved_for:
                await self._check_unbound(claim, () if is_unused else self._holders(claim))
                revision = await self._clear(claim)
            if meta.finalizers:
                body = {"metadata": {"uid": meta.uid, "resourceVersion": revision, "finalizers": None}}
                written = await self.client.patch(kinds.CLAIMS, meta.name, body, meta.namespace, view=Written)
                revision = written.metadata.resource_version
            await self.client.delete(
                kinds.CLAIMS, meta.name, meta.namespace, uid=meta.uid, resource_version=revision
            )
        except NotFound:
            return

    async def unreserve(self, claim: ResourceClaim, consumer: str) -> None:
        """Give up the reservation of a pod or group; the allocation stays."""
        await self._check_unbound(claim, self._holders(claim, only=consumer))
        meta = claim.metadata
        body = {
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "status": {"reservedFor": [{"$patch": "delete", "uid": consumer}]},
        }
        path = kinds.CLAIMS.path(meta.namespace, meta.name, "status")
        await self.client.call("PATCH", path, body, content_type=STRATEGIC_PATCH, view=None)

    async def _clear(self, claim: ResourceClaim) -> str:
        meta = claim.metadata
        written = await self.client.update(
            kinds.CLAIMS, meta.name, status_body(meta, {}), meta.namespace, subresource="status", view=Written
        )
        return str(written.metadata.resource_version)

    def _holders(self, claim: ResourceClaim, only: str = "") -> Iterator[tuple[str, str]]:
        """Yield name and uid of the pods that hold the claim, themselves or as members of a group."""
        for each in claim.status.reserved_for:
            if only and each.uid != only:
                continue
            if each.resource == "pods":
                yield each.name, each.uid
                continue
            for pod in self.informers.pods_of(each, claim.metadata.namespace):
                yield pod.metadata.name, pod.metadata.uid

    async def _check_unbound(self, claim: ResourceClaim, holders: Iterable[tuple[str, str]]) -> None:
        for name, uid in holders:
            pod = await self._current(name, claim.metadata.namespace, uid)
            if pod is not None and pod.spec.node_name and pod.status.phase not in TERMINAL_PHASES:
                raise InUseError(f"claim {key_of(claim.metadata)} is in use by pod {name}")

    async def _current(self, name: str, namespace: str, uid: str) -> Pod | None:
        """Read a pod from the server; None when this very pod is gone."""
        try:
            found: Pod = await self.client.get(kinds.PODS, name, namespace, view=Pod)
        except NotFound:
            return None
        return found if found.metadata.uid == uid else None
