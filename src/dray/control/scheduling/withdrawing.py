"""Take an allocation or a reservation back, but never from a pod that is bound.

Clearing a claim is a write of the claim, binding is a write of the pod, and no revision ties
the two together: one scheduler may bind a pod with a claim in the very moment in which another
one of the same name, which has found the claim unusable, clears it. The pod would run with a
device that is given to the next one.

So whoever clears first leaves word in the pod, and whoever binds looks for it:

  * To clear a claim at revision c, add `withdrawn.dray.dev/<uid of the claim>.<c>` to the
    annotations of every pod that holds it. If one is bound, stop. Then write the claim, at revision c only.
  * To bind, take the pod at revision r and the claim at revision c'. If the pod says that the
    claim was withdrawn at c' or later, stop. Then bind, at revision r only.

Why that is enough: were both to succeed, the word was left before r (else the binding would have
failed, or the word would have met a bound pod), so the binder has read it, so c < c'. But then
the claim has changed since c, and clearing it at c fails or was over before c'.

A scheduler may die between the word and the deed. The claim then stays as it was, and the pod may
not use it like that. Giving up the pod's reservation is a change like any other: it makes the word
void, and the pod may go on with the allocation (`Decider` asks for that).

What belongs to a PodGroup is held by all its pods that we know of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from dray.api.core import Pod
from dray.api.resource import ResourceClaim
from dray.client import STRATEGIC_PATCH, Client, Conflict, NotFound, key_of
from dray.client import resources as kinds
from dray.control.claim_text import Written
from dray.control.scheduling.caches import Caches

WITHDRAWN = "withdrawn.dray.dev/"  # followed by uid and revision of a claim


class InUseError(Exception):
    """A claim cannot be cleared: a pod that holds it is bound."""


def words(pod: Pod, claim: ResourceClaim) -> dict[str, int]:
    """Return the words about a claim that were left in a pod: annotation -> revision of the claim."""
    start = f"{WITHDRAWN}{claim.metadata.uid}."
    return {
        key: int(key[len(start) :])
        for key in pod.metadata.annotations or ()
        if key.startswith(start) and key[len(start) :].isdigit()
    }


def is_withdrawn(pod: Pod, claim: ResourceClaim) -> bool:
    """Whether the pod may not be bound with the claim as it is here, because somebody is clearing it."""
    if not pod.metadata.annotations:
        return False
    return any(revision >= int(claim.metadata.resource_version) for revision in words(pod, claim).values())


def status_body(meta: Any, status: dict[str, Any]) -> dict[str, Any]:
    """Spell a status write of a claim: identity, revision and status; the server ignores the rest."""
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
class Withdrawer:
    """Clears claims; see the module docstring.

    Everything raises InUseError when a bound pod holds the claim, and Conflict when the claim is no
    longer what it was: then somebody else has gone on with it, and it is theirs.
    """

    client: Client
    caches: Caches

    async def deallocate(self, claim: ResourceClaim) -> str:
        """Clear a claim's allocation and all reservations; return its new revision."""
        await self._leave_word(claim, self._holders(claim))
        return await self._clear(claim)

    async def delete(self, claim: ResourceClaim, *, is_needless: bool = False) -> None:
        """Delete a claim that a scheduler made: allocation first, then the finalizer.

        One that is needless (its pod is gone, or bound without it) cannot be in use.
        """
        meta = claim.metadata
        revision = meta.resource_version
        try:
            if claim.status.allocation is not None or claim.status.reserved_for:
                await self._leave_word(claim, () if is_needless else self._holders(claim))
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
        await self._leave_word(claim, self._holders(claim, only=consumer))
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

    # --- leaving word -----------------------------------------------------------

    def _holders(self, claim: ResourceClaim, only: str = "") -> Iterator[tuple[str, str]]:
        """Yield name and uid of the pods that hold the claim, themselves or as members of a group."""
        for each in claim.status.reserved_for:
            if only and each.uid != only:
                continue
            if each.resource == "pods":
                yield each.name, each.uid
                continue
            for pod in self.caches.pods_of(each, claim.metadata.namespace):
                yield pod.metadata.name, pod.metadata.uid

    async def _leave_word(self, claim: ResourceClaim, holders: Iterable[tuple[str, str]]) -> None:
        for name, uid in holders:
            pod = await self._tell(name, uid, claim)
            if pod is not None and pod.spec.node_name and pod.status.phase not in ("Succeeded", "Failed"):
                raise InUseError(f"claim {key_of(claim.metadata)} is in use by {name}")

    async def _tell(self, name: str, uid: str, claim: ResourceClaim) -> Pod | None:
        """Leave word in one pod; return the pod as it is then, None when it is gone."""
        meta = claim.metadata
        known = self.caches.pods.get(f"{meta.namespace}/{name}")
        word: dict[str, str | None] = {f"{WITHDRAWN}{meta.uid}.{meta.resource_version}": "true"}
        if known is not None and known.metadata.uid == uid:
            if known.spec.node_name:
                return known
            # What was said of earlier revisions is void: the claim cannot be cleared at those any more.
            now = int(meta.resource_version)
            word |= {key: None for key, then in words(known, claim).items() if then < now}
        body = {"metadata": {"uid": uid, "annotations": word}}
        path = kinds.PODS.path(meta.namespace, name, "status")
        try:
            pod: Pod = await self.client.call("PATCH", path, body, content_type=STRATEGIC_PATCH, view=Pod)
        except NotFound:
            return None
        except Conflict:
            if await self._is_there(name, meta.namespace, uid):
                raise
            return None  # another pod has the name now
        return pod

    async def _is_there(self, name: str, namespace: str, uid: str) -> bool:
        try:
            found: Pod = await self.client.get(kinds.PODS, name, namespace, view=Pod)
        except NotFound:
            return False
        return found.metadata.uid == uid
