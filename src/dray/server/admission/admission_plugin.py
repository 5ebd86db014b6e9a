"""What plugins share: the methods they do not need, and how they refuse."""

from __future__ import annotations

from collections.abc import Iterable

from dray.api.caching import BoundedCache
from dray.api.json_types import JsonObject
from dray.server.requests import ApiError, Call, Reader, forbidden


class BasePlugin:
    """A plugin that has no opinion; plugins override what concerns them."""

    __slots__ = ()

    def mutate(self, call: Call, operation: str, new: JsonObject, old: JsonObject | None) -> None:
        """Change nothing."""

    def validate(self, call: Call, operation: str, new: JsonObject, old: JsonObject | None) -> None:
        """Refuse nothing."""

    def validate_delete(self, call: Call, old: JsonObject) -> None:
        """Protect nothing."""

    def observe(self, group: str, resource: str, old: JsonObject | None, new: JsonObject | None) -> None:
        """Record nothing."""


class Kept:
    """The objects of one resource as the reader lists them, listed again only after one changed.

    Every write asks for limits and quotas that hardly ever change. Whoever keeps one must
    hand on all that it observes.
    """

    def __init__(self, reader: Reader, group: str, resource: str) -> None:
        self._reader = reader
        self._resource = (group, resource)
        self._lists: BoundedCache[str | None, tuple[JsonObject, ...]] = BoundedCache(1_000)  # namespaces

    def list(self, namespace: str | None = None) -> tuple[JsonObject, ...]:
        """Return the objects of a namespace, or all; shared, not to be changed."""
        found = self._lists.get(namespace)
        if found is None:
            found = tuple(self._reader.list(*self._resource, namespace))
            self._lists.add(namespace, found)
        return found

    def observe(self, group: str, resource: str) -> None:
        """Follow a committed write."""
        if (group, resource) == self._resource:
            self._lists.clear()


def target_of(call: Call) -> tuple[str, str, str]:
    """Return group, resource and subresource of a request."""
    return call.route.kind.group, call.route.kind.plural, call.route.subresource


def name_of(call: Call, thing: JsonObject | None) -> str:
    """Return the name that a refusal shows: from the path, else of the object, else its prefix."""
    metadata = (thing or {}).get("metadata") or {}
    return call.route.name or metadata.get("name") or metadata.get("generateName") or "Unknown"


def refused(
    call: Call, thing: JsonObject | None, why: str, causes: Iterable[dict[str, str]] = ()
) -> ApiError:
    """Return the 403 error of an admission plugin."""
    kind = call.route.kind
    return forbidden(kind.group, kind.plural, name_of(call, thing), why, causes)
