"""Values under a schema: their fields, their differences, their merge.

The schema says what is one unit under apply: scalars, atomic lists and structs are
leaves; other structs and maps are made of members, keyed lists of items named by
their keys, sets of items named by their values. What has no schema (the free parts
of custom kinds) is taken by its form: objects are made of members, lists are leaves.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from json.encoder import encode_basestring
from typing import Any

from dray.api import codec
from dray.api.caching import BoundedCache
from dray.api.raw_json import RawJson
from dray.api.schema import LIST, MAP, STRUCT, Type
from dray.server.patch.field_sets import SELF, Fields, below, has, insert

ABSENT: Any = object()


@dataclass(slots=True)
class Comparison:
    """How one value differs from another, as sets of paths."""

    removed: Fields = field(default_factory=dict)
    modified: Fields = field(default_factory=dict)
    added: Fields = field(default_factory=dict)


def _is_leaf(schema: Type | None, *values: Any) -> bool:
    """Return whether values have no paths of their own below them.

    Objects of custom kinds are compared before their types are checked: a value that is
    not what the schema says (text where an object should be) is a leaf.
    """
    if schema is None:
        return all(value is None for value in values) or not _all_are(dict, values)
    kind = schema.kind
    if kind in (STRUCT, MAP):
        return schema.is_atomic or not _all_are(dict, values)
    return kind != LIST or schema.list_type not in ("map", "set") or not _all_are(list, values)


def _all_are(container: type, values: tuple[Any, ...]) -> bool:
    return all(value is None or isinstance(value, container) for value in values)


def _member_type(schema: Type | None, name: str) -> Type | None:
    if schema is None:
        return None
    if schema.kind == MAP:
        return schema.element
    found = schema.fields.get(name)
    return found.type if found is not None else None


def _is_named(schema: Type | None, name: str) -> bool:
    """Return whether a member is a field of a struct, not a free key."""
    if schema is None or schema.kind != STRUCT:
        return False
    return name in schema.fields or (schema.has_type_meta and name in ("kind", "apiVersion"))


def step_of(schema: Type, item: Any) -> str:
    """Return the name of a list item."""
    if schema.list_type == "set":
        return "v:" + _text(item)
    element = schema.element
    keys: dict[str, Any] = {}
    for name in schema.map_keys:
        value = item.get(name) if isinstance(item, dict) else None
        if value is None and element is not None and name in element.fields:
            value = element.fields[name].default or None
        keys[name] = value
    return "k:" + _text(keys)


def _text(value: Any) -> str:
    # Names and single keys are nearly all there is.
    if type(value) is str:
        return encode_basestring(value)
    if type(value) is dict and len(value) == 1:
        ((name, inner),) = value.items()
        if type(inner) is str:
            return f"{{{encode_basestring(name)}:{encode_basestring(inner)}}}"
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, RawJson) and isinstance(other, RawJson):
        return one.raw == other.raw or bool(one.value == other.value)
    return bool(one == other)


# --- the fields of one value ---------------------------------------------------


def fields_of(value: Any, schema: Type | None) -> Fields:
    """Return the paths that a configuration sets."""
    result: Fields = {}
    if not _is_leaf(schema, value):
        _collect(value, schema, result)
    return result


def _collect(value: Any, schema: Type | None, result: Fields) -> None:
    """Add the paths below a value that is not a leaf."""
    if isinstance(value, dict):
        for name, item in value.items():
            step, member = f"f:{name}", _member_type(schema, name)
            is_leaf = _is_leaf(member, item)
            if not is_leaf:
                _collect_below(item, member, step, result)
            if is_leaf or item is None or item == {} or not _is_named(schema, name):
                insert(result, (step,))
    elif isinstance(value, list):
        assert schema is not None
        for item in value:
            step = step_of(schema, item)
            if not _is_leaf(schema.element, item):
                _collect_below(item, schema.element, step, result)
            insert(result, (step,))


def _collect_below(value: Any, schema: Type | None, step: str, result: Fields) -> None:
    """Add the paths of a member or item that is not a leaf; without any, it leaves no trace."""
    known = result.get(step)
    if known:  # two items may have one name
        _collect(value, schema, known)
        return
    inner: Fields = {}
    _collect(value, schema, inner)
    if inner:
        # What was a member without longer paths stays one.
        result[step] = inner if known is None else {SELF: {}, **inner}


# --- differences ---------------------------------------------------------------


def compare(old: Any, new: Any, schema: Type | None, ignored: frozenset[str] = frozenset()) -> Comparison:
    """Return how the new value differs from the old one; both are whole objects.

    Members whose differences nobody wants to know are `ignored`.
    """
    comparison = Comparison()
    for name in {**old, **new}:
        if name in ignored:
            continue
        before, after = old.get(name, ABSENT), new.get(name, ABSENT)
        if after is before or after == before:
            continue
        member = _member_type(schema, name)
        if name == "spec" and member is not None:
            _compare_known(before, after, member, comparison)
        else:
            _compare(before, after, member, f"f:{name}", comparison)
    return comparison


def _compare_known(old: Any, new: Any, schema: Type, out: Comparison) -> None:
    """Add the differences of a spec; those of equal specs are remembered.

    Objects made from one template are written with equal specs again and again, and the
    paths of a spec depend on nothing else. Sets of paths are never changed in place.
    """
    if old is new or (old is not ABSENT and new is not ABSENT and _same(old, new)):
        return
    key = (id(schema), _seal(old), _seal(new))
    known = _KNOWN.get(key)
    if known is None:
        inner = Comparison()
        _compare(old, new, schema, "f:spec", inner)
        known = (schema, inner)
        if len(key[1]) + len(key[2]) <= _LONGEST_KNOWN:
            _KNOWN.add(key, known)
    inner = known[1]
    out.removed.update(inner.removed)
    out.modified.update(inner.modified)
    out.added.update(inner.added)


# (schema, old, new) -> the schema (so that no other one gets its id) and the differences
_KNOWN: BoundedCache[tuple[int, bytes, bytes], tuple[Type, Comparison]] = BoundedCache(1024)
_LONGEST_KNOWN = 16 * 1024  # bytes; specs of slices are longer, and seldom equal


def _seal(value: Any) -> bytes:
    return b"" if value is ABSENT else codec.encode(value)


def _compare_members(old: Any, new: Any, schema: Type | None, out: Comparison) -> None:
    for name, before in old.items():
        after = new.get(name, ABSENT)
        if after is not before and after != before:  # few members differ
            _compare(before, after, _member_type(schema, name), f"f:{name}", out)
    for name, after in new.items():
        if name not in old:
            out.added[f"f:{name}"] = _everything(after, _member_type(schema, name))


def _compare(old: Any, new: Any, schema: Type | None, step: str, out: Comparison) -> None:
    """Add the differences of one member below its parent's sets."""
    if old is new:
        return
    if old is ABSENT:
        out.added[step] = _everything(new, schema)
        return
    if new is ABSENT:
        out.removed[step] = _everything(old, schema)
        return
    if _same(old, new):
        return
    if _is_leaf(schema, old, new) or (not old and not new and _is_container(schema, old, new)):
        out.modified[step] = {}
        return
    inner = Comparison()
    if schema is not None and schema.kind == LIST:
        _compare_lists(old or [], new or [], schema, inner)
    else:
        _compare_members(old or {}, new or {}, schema, inner)
    if inner.added:
        out.added[step] = inner.added
    if inner.removed:
        out.removed[step] = inner.removed
    if inner.modified:
        out.modified[step] = inner.modified


def _everything(value: Any, schema: Type | None) -> Fields:
    """Return the paths of a value that came or went as a whole, itself included."""
    if not value or _is_leaf(schema, value):
        return {}
    result: Fields = {SELF: {}}
    if schema is not None and schema.kind == LIST:
        element = schema.element
        for step, items in _by_step(value, schema).items():
            # Items of one name cannot be told apart; they come and go as one.
            result[step] = _everything(items[0], element) if len(items) == 1 else {}
    elif schema is None or schema.kind == MAP:
        element = None if schema is None else schema.element
        for name, item in value.items():
            # All but objects and lists are leaves, whatever the schema says.
            result[f"f:{name}"] = _everything(item, element) if isinstance(item, (dict, list)) else {}
    else:
        fields = schema.fields
        for name, item in value.items():
            if isinstance(item, (dict, list)):
                found = fields.get(name)
                result[f"f:{name}"] = _everything(item, None if found is None else found.type)
            else:
                result[f"f:{name}"] = {}
    return result


def _is_container(schema: Type | None, *values: Any) -> bool:
    if schema is not None:
        return schema.kind in (LIST, MAP, STRUCT)
    return any(isinstance(value, dict) for value in values)


def _compare_lists(old: list[Any], new: list[Any], schema: Type, out: Comparison) -> None:
    before, after = _by_step(old, schema), _by_step(new, schema)
    for step in {**before, **after}:
        one, other = before.get(step, []), after.get(step, [])
        if len(one) <= 1 and len(other) <= 1:
            items = (one[0] if one else ABSENT, other[0] if other else ABSENT)
            _compare(*items, schema.element, step, out)
        elif one != other:
            # Items of one name cannot be told apart; they change as one.
            target = out.added if not one else out.removed if not other else out.modified
            target[step] = {}


def _by_step(items: list[Any], schema: Type) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for item in items:
        found.setdefault(step_of(schema, item), []).append(item)
    return found


# --- merging ---------------------------------------------------------------------


def merge(live: Any, config: Any, schema: Type | None) -> Any:
    """Return the live value with a configuration laid over it."""
    if live is ABSENT:
        return config
    if config is ABSENT:
        return live
    if _is_leaf(schema, live, config):
        return config
    if schema is not None and schema.kind == LIST:
        if not isinstance(live, list) or not isinstance(config, list):
            return config
        return _merge_lists(live, config, schema)
    if not isinstance(live, dict) or not isinstance(config, dict):
        return config
    merged = dict(live)
    for name, wanted in config.items():
        merged[name] = merge(live.get(name, ABSENT), wanted, _member_type(schema, name))
    return merged


def _merge_lists(live: list[Any], config: list[Any], schema: Type) -> list[Any]:
    """Keep the configuration's order, and live items between the neighbours they had."""
    names, wanted = [step_of(schema, item) for item in live], [step_of(schema, item) for item in config]
    live_by_name = dict(zip(names, live, strict=True))
    all_wanted = frozenset(wanted)
    shared = deque(name for name in wanted if name in live_by_name)
    result: list[Any] = []
    here = there = 0
    while here < len(live) or there < len(config):
        if here < len(live):
            name = names[here]
            if name not in all_wanted:
                result.append(live[here])
                here += 1
                continue
            # A shared item is placed when the configuration's turn has come to it.
            if there < len(config) and name == wanted[there]:
                here += 1
            elif there < len(config) and shared and shared[0] != name:
                here += 1
                continue
        if there >= len(config):
            here += 1
            continue
        name = wanted[there]
        result.append(merge(live_by_name.get(name, ABSENT), config[there], schema.element))
        there += 1
        if shared and shared[0] == name:
            shared.popleft()
    return result


# --- removing ------------------------------------------------------------------


def remove(value: Any, fields: Fields, schema: Type | None) -> Any:
    """Return a value without the given paths; None where nothing is left of a container."""
    if not fields or _is_leaf(schema, value):
        return value
    if isinstance(value, list):
        assert schema is not None
        items = []
        for item in value:
            step = step_of(schema, item)
            if has(fields, step):
                continue
            inner = below(fields, step)
            items.append(remove(item, inner, schema.element) if inner else item)
        return items or None
    if isinstance(value, dict):
        kept = {}
        for name, item in value.items():
            step = f"f:{name}"
            if has(fields, step):
                continue
            inner = below(fields, step)
            kept[name] = remove(item, inner, _member_type(schema, name)) if inner else item
        return kept or None
    return value


def with_named_members(fields: Fields, schema: Type | None) -> Fields:
    """Return a set in which the fields of structs on the way to members are members too."""
    result: Fields = {}
    for step, node in fields.items():
        if step == SELF:
            result[SELF] = {}
            continue
        kind, _, rest = step.partition(":")
        inner_schema = (
            _member_type(schema, rest) if kind == "f" else schema.element if schema is not None else None
        )
        inner = with_named_members({s: n for s, n in node.items() if s != SELF}, inner_schema)
        member = not node or SELF in node or (kind == "f" and _is_named(schema, rest))
        if member:
            result[step] = {SELF: {}, **inner} if inner else {}
        else:
            result[step] = inner
    return result
