"""Make sure that no write based on an old revision of a claim can land any more.

A write lands only on the revision that it is based upon. So a change of the claim, any change, kills
all that was admitted before it, wherever it may be stuck: no clock, no timeout, no guess about how long an
API server may take. The change is an annotation; a claim that has moved on by itself is left alone.
"""

from __future__ import annotations

import asyncio

from dray.api.meta import ObjectMeta
from dray.client import Client, Conflict, Invalid, NotFound, change_metadata
from dray.client import resources as kinds
from dray.control.exact_claims import ClaimMetadata, ClaimText, Written
from dray.control.guarding.guard_views import Status

_PAUSE = 0.05  # seconds before looking again where a claim is
ANNOTATION = "dray.dev/fenced-at"  # the revision beyond which the guard moved the claim


class _WithStatus(ClaimText):
    status: Status = Status()


async def list_waiting(client: Client) -> list[ClaimText]:
    """Return the claims that have no allocation, as they are stored at this moment or later."""
    # Without a resourceVersion a list is never older than the question.
    listed = await client.list(kinds.CLAIMS, view=_WithStatus)
    return [ClaimText(each.metadata, each.spec) for each in listed.items if each.status.allocation is None]


async def move_on(client: Client, claim: ClaimText) -> None:
    """Move a claim that was just read beyond its revision; one that is gone or has moved is left alone."""
    meta = claim.metadata
    if not await _annotate(client, claim):
        # Most likely it has moved by itself. But 409 may also be the word of some other webhook: look.
        await fence(client, f"{meta.namespace}/{meta.name}", meta.uid, int(meta.resource_version))


async def _annotate(client: Client, claim: ClaimText) -> bool:
    meta = claim.metadata
    meta.annotations[ANNOTATION] = meta.resource_version
    try:
        await client.update(kinds.CLAIMS, meta.name, claim, meta.namespace, view=Written)
    except (Conflict, NotFound):
        return False
    except Invalid:
        # "spec: field is immutable", although it is what we read: see `dray.client.metadata_changes`.
        return await _annotate_exactly(client, meta)
    return True


async def _annotate_exactly(client: Client, meta: ClaimMetadata) -> bool:
    known = ObjectMeta(
        name=meta.name, namespace=meta.namespace, uid=meta.uid, resource_version=meta.resource_version
    )
    try:
        await change_metadata(client, kinds.CLAIMS, known, annotations={ANNOTATION: meta.resource_version})
    except (Conflict, NotFound):
        return False
    return True


async def fence(client: Client, key: str, uid: str, base: int) -> bool:
    """Move the claim beyond revision `base`; False when the claim is gone. Idempotent."""
    namespace, _, name = key.partition("/")
    while True:
        try:
            claim = await client.get(kinds.CLAIMS, name, namespace, view=ClaimText)
        except NotFound:
            return False
        if claim.metadata.uid != uid:
            return False
        if int(claim.metadata.resource_version) > base:
            return True
        if await _annotate(client, claim):
            return True
        await asyncio.sleep(_PAUSE)
