"""The views of `dray.api` without `managedFields`.

Those are often half of an object's text, and the scheduler never looks at them; a name that
no server sends makes the decoder skip them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dray.api.core import Node, Pod
from dray.api.meta import ObjectMeta
from dray.api.resource import ResourceClaim, ResourceSlice


class LeanMeta(ObjectMeta, frozen=True):
    """Metadata as far as a scheduler reads it."""

    managed_fields: list[Any] = msgspec.field(default=[], name="managedFields (not read)")


class LeanPod(Pod, frozen=True):
    """A pod."""

    metadata: LeanMeta = LeanMeta()


class LeanNode(Node, frozen=True):
    """A node."""

    metadata: LeanMeta = LeanMeta()


class LeanClaim(ResourceClaim, frozen=True):
    """A claim."""

    metadata: LeanMeta = LeanMeta()


class LeanSlice(ResourceSlice, frozen=True):
    """A slice."""

    metadata: LeanMeta = LeanMeta()
