"""What plugins share: the methods they do not need, and how they refuse."""

from __future__ import annotations

from collections.abc import Iterable

from dray.server.calls import Call
from dray.server.errors import ApiError, forbidden
from dray.server.reader import Object


class Quiet:
    """A plugin that has no opinion; plugins override what concerns them."""

    __slots__ = ()

    def mutate(self, call: Call, operation: str, new: Object, old: Object | None) -> None:
        """Change nothing."""

    def validate(self, call: Call, operation: str, new: Object, old: Object | None) -> None:
        """Refuse nothing."""

    def validate_delete(self, call: Call, old: Object) -> None:
        """Protect nothing."""

    def observe(self, group: str, resource: str, old: Object | None, new: Object | None) -> None:
        """Keep no books."""


def target_of(call: Call) -> tuple[str, str, str]:
    """Return group, resource and subresource of a request."""
    return call.route.kind.group, call.route.kind.plural, call.route.subresource


def name_of(call: Call, thing: Object | None) -> str:
    """Return the name that a refusal shows: from the path, else of the object, else its prefix."""
    metadata = (thing or {}).get("metadata") or {}
    return call.route.name or metadata.get("name") or metadata.get("generateName") or "Unknown"


def refused(call: Call, thing: Object | None, why: str, causes: Iterable[dict[str, str]] = ()) -> ApiError:
    """Return the 403 error of an admission plugin."""
    kind = call.route.kind
    return forbidden(kind.group, kind.plural, name_of(call, thing), why, causes)
