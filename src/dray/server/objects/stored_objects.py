"""Objects in the store: where they lie, how they are written and read.

An object is stored once, as JSON in its storage version, beginning with its kind
and apiVersion and carrying its own resourceVersion. Most answers are therefore
the stored bytes themselves; a list is the bytes of its items, less those first
two members, joined by commas.

Decoded objects are cached beside their bytes and shared by everybody who reads:
nobody may change one. Whoever wants to change an object takes `copy_json` of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from dray.api.json_types import JsonObject
from dray.api.kinds import NEW_EVENTS, Kind, kind_of_plural
from dray.api.parsing import MAX_DEPTH, ParseError, check_depth
from dray.api.schema import Type
from dray.server.objects.object_versions import stored_schema
from dray.server.requests import decode_stored, encode, errors
from dray.server.store import Record, Store

# Decoded objects kept beside their bytes. A decoded object takes about ten times
# its bytes, so large ones (slices) are decoded when needed, and of the others only
# the newest are kept: 6,000 objects of 500 nodes would take 60 MB more than their bytes.
CACHED_OBJECTS = 1_000
CACHED_BYTES_EACH = 4_096
MAX_OBJECT_BYTES = 6 * 1024 * 1024  # twice the largest body: managedFields repeat the names of all members


def storage_of(kind: Kind) -> tuple[str, str]:
    """Return the group and plural under which objects of a kind are kept.

    Events are one set of objects that two groups show.
    """
    if kind.group == NEW_EVENTS:
        return "", kind.plural
    return kind.group, kind.plural


def prefix_of(kind: Kind, namespace: str = "") -> str:
    """Return the key prefix of a kind, or of its objects in a namespace."""
    group, plural = storage_of(kind)
    prefix = f"/{group or 'core'}/{plural}/"
    return f"{prefix}{namespace}/" if namespace else prefix


def key_of(kind: Kind, namespace: str, name: str) -> str:
    """Return the key of an object."""
    return f"{prefix_of(kind, namespace)}{name}"


def opening_of(kind: Kind) -> bytes:
    """Return the first bytes of every stored object of a kind."""
    group, _ = storage_of(kind)
    api_version = f"{group}/{kind.storage_version}" if group else kind.storage_version
    return msgspec.json.encode({"kind": kind.kind, "apiVersion": api_version})[:-1] + b","


def check_stored(encoded: bytes) -> None:
    """Refuse to store what is larger than anybody reads, or deeper than every part can handle.

    Patches make objects larger and deeper than their own bodies, and so do managedFields, which
    repeat the members of an object some levels further down.
    """
    if len(encoded) > MAX_OBJECT_BYTES:
        raise errors.too_large(f"Request entity too large: limit is {MAX_OBJECT_BYTES}")
    try:
        check_depth(encoded)
    except ParseError:
        raise errors.bad_request(
            f"the object and its managedFields nest more than {MAX_DEPTH} levels deep"
        ) from None


class Objects:
    """Reads and writes objects of all kinds; implements `Reader`."""

    def __init__(
        self,
        store: Store,
        find_kind: Callable[[str, str], Kind | None] = kind_of_plural,
        schema_of: Callable[[Kind], Type | None] = stored_schema,
    ) -> None:
        self.store = store
        self._find_kind = find_kind
        self._schema_of = schema_of
        self._cache: dict[str, tuple[int, JsonObject]] = {}
        # Objects of writes under way: who follows the store need not decode them, however large they are.
        self._in_flight: dict[str, tuple[int, JsonObject]] = {}
        self._views: dict[str, tuple[int, JsonObject]] = {}
        self._openings: dict[Kind, bytes] = {}

    # --- Reader --------------------------------------------------------------

    def get(self, group: str, resource: str, namespace: str, name: str) -> JsonObject | None:
        """Return one object in its storage version, or None."""
        kind = self._find_kind(group, resource)
        return None if kind is None else self.find(kind, namespace, name)

    def list(self, group: str, resource: str, namespace: str | None = None) -> Iterator[JsonObject]:
        """Yield the objects of a kind."""
        kind = self._find_kind(group, resource)
        if kind is not None:
            for record in self.store.list(prefix_of(kind, namespace or "")).records:
                yield self.decoded(kind, record)

    # --- for the verbs -------------------------------------------------------

    def find(self, kind: Kind, namespace: str, name: str) -> JsonObject | None:
        """Return one object in its storage version, or None."""
        record = self.store.get(key_of(kind, namespace, name))
        return None if record is None else self.decoded(kind, record)

    def decoded(self, kind: Kind, record: Record) -> JsonObject:
        """Return the object of a record; shared, not to be changed."""
        cached = self._cache.get(record.key) or self._in_flight.get(record.key)
        if cached is not None and cached[0] == record.revision:
            return cached[1]
        obj = decode_stored(self._schema_of(kind), record.value)
        self._remember(record.key, record.revision, len(record.value), obj)
        return obj

    def _remember(self, key: str, revision: int, size: int, obj: JsonObject) -> None:
        if size <= CACHED_BYTES_EACH:
            if len(self._cache) >= CACHED_OBJECTS:
                self._cache.pop(next(iter(self._cache)))
            self._cache[key] = (revision, obj)
        else:
            self._cache.pop(key, None)

    def selectable(self, kind: Kind, record: Record) -> JsonObject:
        """Return as much of an object as selectors look at.

        Slices are too large to keep decoded, and every node asks for its own: what
        they are selected by is kept beside the bytes.
        """
        if kind.plural != "resourceslices":
            return self.decoded(kind, record)
        kept = self._views.get(record.key)
        if kept is not None and kept[0] == record.revision:
            return kept[1]
        obj = self.decoded(kind, record)
        metadata, spec = obj["metadata"], obj.get("spec") or {}
        view: JsonObject = {
            "metadata": {part: metadata[part] for part in ("name", "labels") if part in metadata},
            "spec": {part: spec[part] for part in ("nodeName", "driver", "pool") if part in spec},
        }
        if len(self._views) >= CACHED_OBJECTS:
            self._views.pop(next(iter(self._views)))
        self._views[record.key] = (record.revision, view)
        return view

    def decoded_past(self, kind: Kind, record: Record) -> JsonObject:
        """Return the object of a record that may be history; does not disturb the cache."""
        cached = self._cache.get(record.key)
        if cached is not None and cached[0] == record.revision:
            return cached[1]
        return decode_stored(self._schema_of(kind), record.value)

    def opening(self, kind: Kind) -> bytes:
        """Return the bytes that list items leave out."""
        opening = self._openings.get(kind)
        if opening is None:
            opening = self._openings[kind] = opening_of(kind)
        return opening

    async def put(self, kind: Kind, key: str, obj: JsonObject, expected: int) -> tuple[JsonObject, Record]:
        """Write an object at an expected revision; returns it as stored."""
        stored: JsonObject = {}

        def value(revision: int) -> bytes:
            metadata = {**obj.get("metadata", {}), "resourceVersion": str(revision)}
            group, _ = storage_of(kind)
            stored["kind"] = kind.kind
            stored["apiVersion"] = f"{group}/{kind.storage_version}" if group else kind.storage_version
            stored["metadata"] = metadata
            for name, part in obj.items():
                if name not in stored:
                    stored[name] = part
            encoded = encode(stored)
            check_stored(encoded)
            self._remember(key, revision, len(encoded), stored)
            self._in_flight[key] = (revision, stored)
            return encoded

        try:
            record = await self.store.put(key, value, expected)
        finally:
            self._in_flight.pop(key, None)
        return stored, record
