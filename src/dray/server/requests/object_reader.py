"""What authorisers and admission may read: the current objects, without waiting.

The server keeps the current state in memory, so reading is a dictionary access.
Objects come in their storage version, as plain JSON dictionaries that belong to
the store: readers must not change them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from dray.api.json_types import JsonObject


class Reader(Protocol):
    """Synchronous reads of current objects; `group` is "" for the core group."""

    def get(self, group: str, resource: str, namespace: str, name: str) -> JsonObject | None:
        """Return one object (namespace "" for cluster-scoped kinds) or None."""

    def list(self, group: str, resource: str, namespace: str | None = None) -> Iterable[JsonObject]:
        """Return the objects of a kind, of all namespaces or of one."""
