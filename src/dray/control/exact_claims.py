"""A claim as text: what a loop reads of it to write it back exactly.

The server compares a claim's spec byte by byte, so it is kept as the bytes that the server sent.
`managedFields` are left out on purpose: the server then keeps its own.
"""

from __future__ import annotations

import msgspec


class ClaimMetadata(msgspec.Struct, rename="camel", omit_defaults=True):
    """The metadata of a claim, for a PUT that returns what was read."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generate_name: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    labels: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    annotations: dict[str, str] = {}
    owner_references: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    finalizers: list[str] = []


class ClaimText(msgspec.Struct, rename="camel"):
    """A claim whose spec stays as it is."""

    metadata: ClaimMetadata
    spec: msgspec.Raw
    api_version: str = "resource.k8s.io/v1"
    kind: str = "ResourceClaim"


class Written(msgspec.Struct):
    """The only thing that is read of an answer to a write."""

    metadata: ClaimMetadata
