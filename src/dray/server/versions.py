"""Versions of objects: stored in one, spoken in several."""

from __future__ import annotations

from dray.api.kinds import Kind
from dray.server.reader import Object


class Versions:
    """Converts between the storage version and the version of a request."""

    def is_stored_form(self, kind: Kind, version: str) -> bool:
        """Tell whether stored bytes can be sent as they are."""
        return kind.storage_version == version and kind.group != "events.k8s.io"

    def outgoing(self, kind: Kind, obj: Object, version: str) -> Object:
        """Return a stored object as a version shows it."""
        return obj

    def incoming(self, kind: Kind, obj: Object, version: str) -> Object:
        """Return a client's object as it is stored."""
        return obj

    def empty(self, kind: Kind, version: str, revision: int) -> Object:
        """Return an object that says nothing but its kind and a resourceVersion."""
        return {
            "kind": kind.kind,
            "apiVersion": kind.api_version(version),
            "metadata": {"resourceVersion": str(revision)},
        }
