"""The forms an answer can take: the object itself, only its metadata, or rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from dray.api.json_types import JsonObject
from dray.api.kinds import META, kind_of
from dray.api.validation.fields import invalid
from dray.server.objects.get_and_list import Listing, list_metadata
from dray.server.objects.watch_streams import Show
from dray.server.requests import Call, Representation, errors, package_of
from dray.server.store import Record
from dray.server.tables import Tables


class ResponseForms:
    """Gives objects the form that a client negotiated."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def one(self, call: Call, obj: JsonObject, representation: Representation) -> JsonObject:
        """Return one object in its form."""
        if not representation.as_kind:
            return obj
        if representation.as_kind == "Table":
            return self._table(call, [obj], {"resourceVersion": _version(obj)}, representation)
        if representation.as_kind == "PartialObjectMetadata":
            return _partial(obj, representation)
        raise _wrong_number(call, representation, "not a list")

    def frame(self, call: Call, listing: Listing, representation: Representation) -> JsonObject:
        """Return a list in its form, without items; the place for them is its last member."""
        metadata = list_metadata(listing)
        if not representation.as_kind:
            kind = call.route.kind
            return {
                "kind": kind.list_kind,
                "apiVersion": kind.api_version(call.route.version),
                "metadata": metadata,
                "items": [],
            }
        if representation.as_kind == "Table":
            return self._table(call, [], metadata, representation)
        if representation.as_kind == "PartialObjectMetadataList":
            return {
                "kind": "PartialObjectMetadataList",
                "apiVersion": f"{META}/{representation.as_version}",
                "metadata": metadata,
                "items": [],
            }
        raise _wrong_number(call, representation, "a list")

    def item(self, call: Call, obj: JsonObject, representation: Representation) -> JsonObject:
        """Return one object as an item of a list of that form."""
        if representation.as_kind == "Table":
            row: JsonObject = self._table(call, [obj], {}, representation)["rows"][0]
            return row
        if representation.as_kind:
            return _partial(obj, representation)
        kind = call.route.kind
        if kind_of(kind.group, kind.kind) is None:
            return obj
        return {key: value for key, value in obj.items() if key not in ("kind", "apiVersion")}

    def rows(
        self, call: Call, records: Iterable[Record], read: Callable[[Record], JsonObject], table_version: str
    ) -> Iterator[bytes]:
        """Return stored objects as rows of a table in JSON."""
        route = call.route
        include = _include(call)
        return self._tables.encoded_rows(route.kind, route.version, records, read, include, table_version)

    def for_watch(self, call: Call, representation: Representation) -> Show | None:
        """Return the function that shapes events; None for plain objects."""
        if not representation.as_kind:
            return None
        if representation.as_kind != "Table":
            return lambda obj: _partial(obj, representation)
        seen = False

        def show(obj: JsonObject) -> JsonObject:
            nonlocal seen
            table = self._table(call, [obj], {"resourceVersion": _version(obj)}, representation)
            if seen:
                # Columns are told once; later events carry rows only.
                table["columnDefinitions"] = None
            seen = True
            return table

        return show

    def _table(
        self, call: Call, objects: list[JsonObject], metadata: JsonObject, representation: Representation
    ) -> JsonObject:
        route = call.route
        return self._tables.to_table(
            route.kind, route.version, objects, metadata, _include(call), representation.as_version
        )


def _include(call: Call) -> str:
    """Return what a row carries of its object: Metadata, Object or None; raises 400."""
    include = call.request.first("includeObject") or "Metadata"
    if include not in ("Metadata", "Object", "None"):
        problem = invalid("includeObject", include, "must be 'Metadata', 'Object', 'None', or empty")
        raise errors.bad_request(f"Unable to convert to Table as requested: {problem.message()}")
    return include


def _version(obj: JsonObject) -> str:
    return str((obj.get("metadata") or {}).get("resourceVersion", ""))


def _partial(obj: JsonObject, representation: Representation) -> JsonObject:
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": f"{META}/{representation.as_version}",
        "metadata": obj.get("metadata") or {},
    }


def _wrong_number(call: Call, representation: Representation, what: str) -> errors.ApiError:
    """Return 406 for a list that is wanted as one object, or the other way round."""
    kind, wanted = call.route.kind, representation.as_kind
    name = kind.list_kind if what == "a list" else kind.kind
    return errors.not_acceptable(
        f"you requested {wanted}, but the requested object is {what} (*{package_of(kind.group)}.{name})"
    )
