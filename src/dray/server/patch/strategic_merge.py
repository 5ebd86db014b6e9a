"""Strategic merge patch: a merge patch that knows which lists are really maps.

The schema says of a list whether a patch replaces it or merges into it, and by
which key items find each other. Directives in the patch refine that: `$patch`
(replace, delete, merge), `$deleteFromPrimitiveList/x`, `$setElementOrder/x`,
`$retainKeys`.

Order of a merged list: items the patch names come in the patch's order, the
others in the server's order; where both wait, the server's item goes first only
if it stood before the patch's item already. A functional rewrite of a document:
nothing that is passed in changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Any

from dray.api.codec import encode
from dray.api.raw_json import RawJson
from dray.api.schema import LIST, STRUCT, Field, Type

JSON = Any
_DIRECTIVE = "$patch"
_DELETE_FROM = "$deleteFromPrimitiveList/"
_ORDER = "$setElementOrder/"
_RETAIN = "$retainKeys"


class StrategicPatchError(Exception):
    """The patch cannot be applied; upstream answers 500 with this text, and some with another status."""

    status = 500


class BadRetainKeys(StrategicPatchError):
    """The list of keys to retain is not a list."""

    status = 400


class RetainKeysMismatch(StrategicPatchError):
    """The patch sets keys that its own list does not name."""

    status = 422


class NoMergeKey(StrategicPatchError):
    """An item of a keyed list does not say which one it is."""


def apply_strategic_patch(
    document: dict[str, Any], patch: dict[str, Any], schema: Type | None
) -> dict[str, Any]:
    """Return the document with a strategic merge patch applied."""
    return _merge_map(document, patch, schema)


def _merge_map(original: dict[str, Any], patch: dict[str, Any], schema: Type | None) -> dict[str, Any]:
    if _DIRECTIVE in patch:
        return _directed_map(patch)
    merged = _retained(original, patch)
    ordered = {key.removeprefix(_ORDER): order for key, order in patch.items() if key.startswith(_ORDER)}
    for key, value in patch.items():
        if key == _RETAIN or key.startswith(_ORDER):
            continue
        if key.startswith(_DELETE_FROM):
            name = key.removeprefix(_DELETE_FROM)
            if isinstance(merged.get(name), list) and isinstance(value, list):
                gone = {_identity(item, "") for item in value}
                merged[name] = [item for item in merged[name] if _identity(item, "") not in gone]
            continue
        if value is None:
            merged.pop(key, None)
            continue
        result = _merge_value(merged.get(key), value, _field(schema, key), schema)
        if result is _NOTHING:
            merged.pop(key, None)
        else:
            merged[key] = result
    for name, order in ordered.items():
        if isinstance(merged.get(name), list) and isinstance(order, list):
            field = _field(schema, name)
            key = field.patch_merge_key if field is not None else ""
            server = original.get(name) if isinstance(original.get(name), list) else []
            merged[name] = _in_order(merged[name], order, server or [], key)
    return merged


_NOTHING = object()


def _merge_value(current: JSON, value: JSON, field: Field | None, schema: Type | None) -> JSON:
    strategies = field.patch_strategy if field is not None else ()
    if isinstance(current, dict) and isinstance(value, dict):
        if "replace" in strategies:
            return value
        return _merge_map(current, value, _inner(field, schema))
    if isinstance(current, list) and isinstance(value, list):
        if field is None or "merge" not in strategies:
            return value
        return _merge_list(current, value, field)
    return _without_directives(value)


def _directed_map(patch: dict[str, Any]) -> dict[str, Any]:
    directive = patch[_DIRECTIVE]
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != _DIRECTIVE}
    if directive == "delete":
        return {}
    raise StrategicPatchError(f"unknown patch type: {directive} in map: {as_go(patch)}")


def _retained(original: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    if _RETAIN not in patch:
        return dict(original)
    kept = patch[_RETAIN]
    if not isinstance(kept, list):
        raise BadRetainKeys("invalid patch format of retainKeys")
    kept = {_identity(key, "") for key in kept}
    extra = [key for key in patch if key != _RETAIN and not key.startswith("$") and key not in kept]
    if any(patch[key] is not None for key in extra):
        raise RetainKeysMismatch("patch content doesn't match retainKeys list")
    return {key: value for key, value in original.items() if key in kept}


def _merge_list(current: list[Any], value: list[Any], field: Field) -> list[Any]:
    if not current and not value:
        return current
    key = field.patch_merge_key
    if not any(isinstance(item, dict) for item in (*current, *value)):
        first_by_identity: dict[Hashable, Any] = {}
        for item in (*current, *value):
            first_by_identity.setdefault(_identity(item, ""), item)
        return _in_order(list(first_by_identity.values()), value, current, "")
    if not key:
        raise StrategicPatchError(f"cannot merge lists without merge key for {field.name}")
    server, wanted = _specials(current, value, key)
    merged = list(server)
    schema = field.type.element
    # Where each key stands first; what the patch adds can be found by later items of the patch.
    place_by_key: dict[Hashable, int] = {}
    for place, item in enumerate(merged):
        if isinstance(item, dict):
            place_by_key.setdefault(_scalar_identity(item.get(key)), place)
    for item in wanted:
        identity = _scalar_identity(_key_of(item, key))
        position = place_by_key.get(identity)
        if position is None:
            added = _without_directives(item)
            place_by_key[identity] = len(merged)
            merged.append(added)
        else:
            merged[position] = _merge_map(merged[position], item, schema)
    return _in_order(merged, wanted, server, key)


def _specials(current: list[Any], value: list[Any], key: str) -> tuple[list[Any], list[Any]]:
    """Carry out `$patch` items; return what is left of the server's list and of the patch."""
    wanted: list[Any] = []
    gone: set[Hashable] = set()
    replaced = False
    for item in value:
        if not isinstance(item, dict):
            raise StrategicPatchError(f"expected an object with key {key} in a list")
        directive = item.get(_DIRECTIVE)
        if directive is None:
            wanted.append(item)
        elif directive == "delete":
            gone.add(_scalar_identity(_key_of(item, key)))
        elif directive == "replace":
            replaced = True
        else:
            raise StrategicPatchError(f"unknown patch type: {directive} in map: {as_go(item)}")
    if replaced:
        return wanted, []
    if not gone:
        return list(current), wanted
    kept = [
        item for item in current if not (isinstance(item, dict) and _scalar_identity(item.get(key)) in gone)
    ]
    return kept, wanted


def _key_of(item: JSON, key: str) -> JSON:
    if not isinstance(item, dict) or key not in item:
        raise NoMergeKey(f"map: {as_go(item)} does not contain declared merge key: {key}")
    return item[key]


def _identity(item: JSON, key: str) -> Hashable:
    """Return what an item of a list is found by: its merge key, or itself."""
    return _scalar_identity(item.get(key) if key and isinstance(item, dict) else item)


def _scalar_identity(value: JSON) -> Hashable:
    """Return something to find a value by in a dict; a patch may put anything in place of a name."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict | list | RawJson):
        return (encode(value),)
    found: Hashable = value  # Python's 1 == 1.0 == True is harmless here: names are text
    return found


def _in_order(merged: list[Any], patch_order: list[Any], server: list[Any], key: str) -> list[Any]:
    """Interleave what the patch names with what only the server has."""
    order = _first_places(patch_order, key)
    before = _first_places(server, key)
    named = deque(
        sorted(
            (item for item in merged if _identity(item, key) in order),
            key=lambda item: order[_identity(item, key)],
        )
    )
    others = deque(item for item in merged if _identity(item, key) not in order)
    result: list[Any] = []
    while named and others:
        first, second = before.get(_identity(others[0], key)), before.get(_identity(named[0], key))
        goes_first = first is not None and second is not None and first < second
        result.append((others if goes_first else named).popleft())
    return [*result, *named, *others]


def _first_places(items: list[Any], key: str) -> dict[Hashable, int]:
    places: dict[Hashable, int] = {}
    for place, item in enumerate(items):
        places.setdefault(_identity(item, key), place)
    return places


def _without_directives(value: JSON) -> JSON:
    """Return a value that is new to the document: without nulls, directives and items to delete."""
    if isinstance(value, dict):
        if value.get(_DIRECTIVE) == "delete":
            return _NOTHING
        cleaned = {}
        for key, item in value.items():
            if item is None or key in (_DIRECTIVE, _RETAIN) or key.startswith((_ORDER, _DELETE_FROM)):
                continue
            inner = _without_directives(item)
            if inner is not _NOTHING:
                cleaned[key] = inner
        return cleaned
    if isinstance(value, list):
        items = (_without_directives(item) for item in value)
        return [item for item in items if item is not _NOTHING]
    return value


def _field(schema: Type | None, name: str) -> Field | None:
    return schema.fields.get(name) if schema is not None and schema.kind == STRUCT else None


def _inner(field: Field | None, schema: Type | None) -> Type | None:
    """Return the schema below a member: of its field, or of a map's values."""
    if field is None:
        return schema.element if schema is not None and schema.kind != STRUCT else None
    if field.type.kind == LIST:
        return field.type.element
    return field.type


def as_go(value: JSON) -> str:
    """Print a value the way the reference does in its messages."""
    if isinstance(value, dict):
        inner = " ".join(f"{key}:{as_go(value[key])}" for key in sorted(value))
        return f"map[{inner}]"
    if isinstance(value, list):
        return "[" + " ".join(as_go(item) for item in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "<nil>" if value is None else str(value)
