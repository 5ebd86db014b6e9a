"""Make sure that no write based on an old revision of a claim can land any more.

A write lands only on the revision that it is based upon. So a change of the claim, any change, kills
all that was admitted before it, wherever it may be stuck: no clock, no timeout, no guess about how long an
API server may take. The change is an annotation; a claim that has moved on by itself is left alone.
"""

from __future__ import annotations

import msgspec

from dray.client import Client, Conflict, NotFound
from dray.client import resources as kinds

ANNOTATION = "dray.dev/fenced-at"  # the revision beyond which the guard moved the claim


class _Metadata(msgspec.Struct, rename="camel", omit_defaults=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generate_name: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    labels: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    annotations: dict[str, str] = {}
    owner_references: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    finalizers: list[str] = []
    # managedFields are left out on purpose: the server then keeps its own.


class _ClaimText(msgspec.Struct, rename="camel"):
    """A claim whose spec stays the bytes that the server sent: it compares them byte by byte."""

    metadata: _Metadata
    spec: msgspec.Raw
    api_version: str = "resource.k8s.io/v1"
    kind: str = "ResourceClaim"


class _Written(msgspec.Struct):
    metadata: _Metadata


async def fence(client: Client, key: str, uid: str, base: int) -> bool:
    """Move the claim beyond revision `base`; False when the claim is gone. Idempotent."""
    namespace, _, name = key.partition("/")
    while True:
        try:
            claim = await client.get(kinds.CLAIMS, name, namespace, view=_ClaimText)
            if claim.metadata.uid != uid:
                return False
            if int(claim.metadata.resource_version) > base:
                return True
            claim.metadata.annotations[ANNOTATION] = claim.metadata.resource_version
            await client.update(kinds.CLAIMS, name, claim, namespace, view=_Written)
            return True
        except NotFound:
            return False
        except Conflict:
            continue  # it has moved by itself; look where it is
