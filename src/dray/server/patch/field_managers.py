"""managedFields: who wrote which field, and the rules of apply.

Every writer of an object is a *manager* with the set of fields it wrote. A plain
write takes fields over silently. An apply states everything its manager wants:
fields it named before and does not name now are removed unless somebody else wants
them, and a field that another manager holds with another value is a conflict,
unless the apply forces it.

Sets are kept in the version in which they were written and compared in that
version. All functions work on objects in the version of the request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import nsmallest
from operator import itemgetter
from typing import Any

from dray.api.json_types import JsonObject
from dray.api.parsing import ParseError, load_json
from dray.api.schema import Type
from dray.server.patch.field_sets import (
    Fields,
    difference,
    insert,
    intersection,
    path_text,
    paths,
    union,
    union_of,
    without,
)
from dray.server.patch.typed_merge import Comparison, compare, fields_of, merge, remove, with_named_members

BEFORE_FIRST_APPLY = "before-first-apply"
ANCIENT = "ancient-changes"
MOST_UPDATERS = 10

Key = tuple[str, str, str, str]  # manager, operation, apiVersion ("" for applies), subresource


def _stripped() -> Fields:
    fields: Fields = {"f:apiVersion": {}, "f:kind": {}}
    insert(fields, ("f:metadata",))
    for name in (
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "clusterName",
        "generation",
        "managedFields",
        "resourceVersion",
    ):
        insert(fields, ("f:metadata", f"f:{name}"))
    return fields


_STRIPPED = _stripped()  # what the server owns itself and is never owned by a manager


MAX_CONFLICTS = 1_000  # that are named in an answer


class FieldConflicts(Exception):
    """An apply wants fields that others hold; (manager's description, path) pairs, the first of them."""

    def __init__(self, conflicts: list[tuple[str, str]], total: int) -> None:
        super().__init__("conflicts")
        self.conflicts = conflicts
        self.total = total


@dataclass(slots=True)
class Entry:
    """What one manager wrote."""

    fields: Fields
    api_version: str
    time: str = ""

    def changed(self, fields: Fields) -> Entry:
        """Return the entry with other fields."""
        return Entry(fields, self.api_version, self.time)


ManagedFields = dict[Key, Entry]


def read_managed_fields(entries: Any, *, from_client: bool = False) -> ManagedFields:
    """Read metadata.managedFields; anything unreadable makes them empty, as upstream does.

    What a client sent is looked at to the last leaf. What is stored was written by `write_managed_fields`.
    """
    if from_client and not all(_is_readable(entry) for entry in entries or ()):
        return {}
    managed: ManagedFields = {}
    for entry in entries or ():
        if not isinstance(entry, dict) or entry.get("fieldsType", "FieldsV1") != "FieldsV1":
            return {}
        operation, api_version = entry.get("operation", ""), entry.get("apiVersion", "")
        if operation not in ("Apply", "Update") or not isinstance(entry.get("fieldsV1") or {}, dict):
            return {}
        key = (
            entry.get("manager", ""),
            operation,
            "" if operation == "Apply" else api_version,
            entry.get("subresource", ""),
        )
        managed[key] = Entry(entry.get("fieldsV1") or {}, api_version, entry.get("time", ""))
    return managed


def _is_readable(entry: Any) -> bool:
    texts = ("manager", "operation", "apiVersion", "subresource", "time", "fieldsType")
    return (
        isinstance(entry, dict)
        and all(isinstance(entry.get(name) or "", str) for name in texts)
        and _is_field_set(entry.get("fieldsV1") or {})
    )


def _is_field_set(fields: Any) -> bool:
    """Return whether a value is a set of fields: `.`, or a letter, a colon and what it names, each with such a set."""
    if not isinstance(fields, dict):
        return False
    return all((name == "." or _is_element(name)) and _is_field_set(below) for name, below in fields.items())


def _is_element(name: str) -> bool:
    letter, colon, text = name.partition(":")
    if not colon or letter not in ("f", "k", "v", "i"):
        return False
    if letter == "f":
        return True
    try:
        value = load_json(text)
    except ParseError:
        return False
    if letter == "k":
        return isinstance(value, dict)
    return letter == "v" or isinstance(value, int)


def write_managed_fields(managed: ManagedFields) -> list[JsonObject]:
    """Write metadata.managedFields: applies first, then by time and name."""
    entries: list[tuple[tuple[str, ...], JsonObject]] = []
    for (manager, operation, _, subresource), entry in managed.items():
        encoded: JsonObject = {
            "manager": manager,
            "operation": operation,
            "apiVersion": entry.api_version,
            "time": entry.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": entry.fields,
        }
        if subresource:
            encoded["subresource"] = subresource
        rank = (operation, entry.time, manager, entry.api_version, subresource)
        entries.append((rank, {name: value for name, value in encoded.items() if value != ""}))
    if len(entries) > 1:
        entries.sort(key=itemgetter(0))
    return [encoded for _, encoded in entries]


@dataclass(slots=True)
class Ownership:
    """Keeps managedFields of one kind of object for requests in one version."""

    schema: Type | None
    api_version: str
    empty: JsonObject  # what an object of this version shows when nothing is set
    in_version: Callable[
        [JsonObject, str], JsonObject | None
    ]  # to another apiVersion; None: not served any more
    schema_in: Callable[[str], Type | None]
    ignored: Fields = field(default_factory=dict)  # fields that this request resets anyway
    subresource: str = ""

    def update(
        self, live: JsonObject | None, new: JsonObject, managed: ManagedFields, manager: str, now: str
    ) -> ManagedFields:
        """Return managedFields after a plain write."""
        if not managed and live is not None:
            return {}  # this object has no managed fields; only an apply adds them
        old = live if live is not None else self.empty
        return _capped(self._with_changes(old, new, managed, manager, now))

    def _with_changes(
        self, old: JsonObject, new: JsonObject, managed: ManagedFields, manager: str, now: str
    ) -> ManagedFields:
        key = (manager or "unknown", "Update", self.api_version, self.subresource)
        managed, comparison = self._settle(old, new, managed, None, force=True)
        written = difference(union(comparison.modified, comparison.added), _STRIPPED)
        if written:
            before = managed.get(key)
            fields = union(before.fields, written) if before is not None else written
            managed[key] = Entry(fields, self.api_version, now)
        return managed

    def apply(
        self,
        live: JsonObject | None,
        config: JsonObject,
        managed: ManagedFields,
        manager: str,
        now: str,
        *,
        force: bool,
    ) -> tuple[JsonObject, ManagedFields, bool]:
        """Return the merged object, its managedFields, and whether anything changed; raises FieldConflicts."""
        key = (manager, "Apply", "", self.subresource)
        old = live if live is not None else self.empty
        if live is not None and not managed:
            managed = self._with_changes(self.empty, live, managed, BEFORE_FIRST_APPLY, now)
        last = managed.get(key)
        wanted = without(fields_of(config, self.schema), self.ignored)
        merged = merge(old, config, self.schema)
        managed = {**managed, key: Entry(wanted, self.api_version)}
        merged = self._pruned(merged, managed, key, last)
        managed, comparison = self._settle(old, merged, managed, key, force=force)
        changed = live is None or bool(comparison.added or comparison.modified or comparison.removed)
        entry = managed[key]
        kept = difference(entry.fields, _STRIPPED)
        if kept:
            # An apply that changes nothing leaves no time of its own.
            time = now if changed else last.time if last is not None else ""
            managed[key] = Entry(kept, entry.api_version, time)
        else:
            del managed[key]
        return merged, managed, changed

    # --- inside ----------------------------------------------------------------

    def _compared(self, old: JsonObject, new: JsonObject, api_version: str) -> Comparison | None:
        """Compare two objects in another version; None when that version is not served."""
        skipped = frozenset(step[2:] for step, node in self.ignored.items() if not node)
        if api_version == self.api_version:
            result = compare(old, new, self.schema, skipped)
        else:
            before, after = self.in_version(old, api_version), self.in_version(new, api_version)
            if before is None or after is None:
                return None
            result = compare(before, after, self.schema_in(api_version), skipped)
        if len(skipped) == len(self.ignored):
            return result
        result.removed = without(result.removed, self.ignored)
        result.modified = without(result.modified, self.ignored)
        result.added = without(result.added, self.ignored)
        return result

    def _settle(
        self, old: JsonObject, new: JsonObject, managed: ManagedFields, own: Key | None, *, force: bool
    ) -> tuple[ManagedFields, Comparison]:
        """Take from the other managers what a change takes; raises FieldConflicts unless forced."""
        mine = self._compared(old, new, self.api_version)
        assert mine is not None
        # By version: the differences, and what of them is written.
        comparisons: dict[str, tuple[Comparison | None, Fields]] = {
            self.api_version: (mine, union(mine.modified, mine.added))
        }
        settled: ManagedFields = {}
        conflicts: list[tuple[str, str]] = []
        n_conflicts = 0
        for key, entry in managed.items():
            if key == own:
                settled[key] = entry
                continue
            if entry.api_version not in comparisons:
                found = self._compared(old, new, entry.api_version)
                written = union(found.modified, found.added) if found is not None else {}
                comparisons[entry.api_version] = (found, written)
            comparison, written = comparisons[entry.api_version]
            if comparison is None:
                continue
            taken = intersection(entry.fields, written)
            if taken and not force:
                who = _described(key, entry)
                found_paths = list(paths(taken))
                n_conflicts += len(found_paths)
                shown = nsmallest(MAX_CONFLICTS - len(conflicts), found_paths)
                conflicts += [(who, path_text(path)) for path in shown]
            left = difference(entry.fields, taken) if taken else entry.fields
            if comparison.removed:
                left = difference(left, comparison.removed)
            if left:
                settled[key] = entry.changed(left)
        if conflicts:
            raise FieldConflicts(conflicts, n_conflicts)
        return settled, mine

    def _pruned(self, merged: JsonObject, managed: ManagedFields, key: Key, last: Entry | None) -> JsonObject:
        """Remove what this manager applied last time and nobody wants any more.

        Everything of the last time is taken out first. Then each version in which somebody owns fields is asked
        what of it must come back, since sets of paths mean something only in the version they were written in.
        """
        if last is None or not last.fields:
            return merged
        version = last.api_version
        schema, shown = self._shown(merged, version)
        if shown is None:
            return merged
        before = with_named_members(last.fields, schema)
        pruned = remove(shown, before, schema) or {}
        # The version of the removal goes first: others may not be able to show an object that lacks a field.
        owned: dict[str, list[Fields]] = {version: []}
        for other in managed.values():
            owned.setdefault(other.api_version, []).append(other.fields)
        for each, sets in owned.items():
            pruned = self._with_owned(merged, pruned, each, sets)
        pruned_here = self._shown(pruned, version)[1] or {}
        gone = intersection(difference(_named(shown, schema), _named(pruned_here, schema)), before)
        back = self._shown(remove(shown, gone, schema) or {}, self.api_version)[1]
        return back if back is not None else merged

    def _with_owned(
        self, merged: JsonObject, pruned: JsonObject, version: str, sets: list[Fields]
    ) -> JsonObject:
        """Return the pruned object, in a version, with those fields again that somebody owns in that version."""
        schema, whole = self._shown(merged, version)
        _, part = self._shown(pruned, version)
        if whole is None or part is None:
            return pruned  # the version is not served any more
        owned = with_named_members(union_of(sets), schema) if sets else {}
        gone = difference(difference(_named(whole, schema), _named(part, schema)), owned)
        return remove(whole, gone, schema) or {}

    def _shown(self, obj: JsonObject, api_version: str) -> tuple[Type | None, JsonObject | None]:
        """Return the schema of a version and the object in it; no object where it is not served."""
        if api_version == self.api_version:
            schema = self.schema
        else:
            schema = self.schema_in(api_version)
        if (obj.get("apiVersion") or self.api_version) == api_version:
            return schema, obj
        return schema, self.in_version(obj, api_version)


def _named(obj: JsonObject, schema: Type | None) -> Fields:
    return with_named_members(fields_of(obj, schema), schema)


def _described(key: Key, entry: Entry) -> str:
    manager, operation, _, subresource = key
    text = f'"{manager}"'
    if subresource:
        text += f' with subresource "{subresource}"'
    if operation == "Update":
        text += f" using {entry.api_version}"
    return text


def _capped(managed: ManagedFields) -> ManagedFields:
    """Fold the oldest updates into one entry when there are too many."""
    updaters = [key for key in managed if key[1] == "Update"]
    if len(updaters) <= MOST_UPDATERS:
        return managed
    updaters.sort(key=lambda key: (managed[key].time, key))
    result = dict(managed)
    first_by_version: dict[str, Key] = {}
    parts_by_bucket: dict[Key, list[Fields]] = {}  # joined at the end, or the work would be quadratic
    n_left = len(updaters)
    for key in updaters:
        if n_left <= MOST_UPDATERS:
            break
        entry = result[key]
        bucket = (ANCIENT, "Update", entry.api_version, "")
        first = first_by_version.setdefault(entry.api_version, key)
        if first == key:
            continue
        if bucket not in result:
            result[bucket] = result.pop(first)
        parts = parts_by_bucket.setdefault(bucket, [result[bucket].fields])
        parts.append(entry.fields)
        result[bucket] = Entry({}, entry.api_version, entry.time)
        del result[key]
        if key == bucket:
            del parts_by_bucket[bucket]
        n_left -= 1
    for bucket, parts in parts_by_bucket.items():
        result[bucket] = result[bucket].changed(union_of(parts[::-1]))
    return result
