"""Structural schemas at work: what they drop, what they fill in, how apply sees them.

A custom kind's schema is OpenAPI v3 as its definition has it, a plain JSON object.
Pruning drops what no schema knows, except below
`x-kubernetes-preserve-unknown-fields`; defaults are filled in where a member is
absent (or null and not nullable). All functions take a schema and a JSON value and
return a new value.
"""

from __future__ import annotations

import copy
from typing import Any

from dray.api.reading import MAX_COMPLAINTS
from dray.api.schema import LIST, MAP, STRUCT, Field, Type, struct_of

Schema = dict[str, Any]
_PRESERVE = "x-kubernetes-preserve-unknown-fields"
_EMBEDDED = "x-kubernetes-embedded-resource"
_TYPE_META = ("apiVersion", "kind", "metadata")


def prune(schema: Schema | None, value: Any, complaints: list[str] | None = None) -> Any:
    """Return a value without members that the schema does not know; names the first of them in `complaints`."""
    return _prune(schema, value, [], complaints)


def _prune(schema: Schema | None, value: Any, path: list[str], complaints: list[str] | None) -> Any:
    if schema is None:
        return value
    if isinstance(value, list):
        items = schema.get("items")
        if not isinstance(items, dict):
            return value
        pruned = []
        for index, item in enumerate(value):
            path.append(f"[{index}]")
            pruned.append(_prune(items, item, path, complaints))
            path.pop()
        return pruned
    if not isinstance(value, dict):
        return value
    properties: dict[str, Schema] = schema.get("properties") or {}
    additional = schema.get("additionalProperties")
    keeps = bool(schema.get(_PRESERVE)) or additional is True
    result = {}
    for name, item in value.items():
        known = properties.get(name, additional)
        if isinstance(known, dict):
            path.append(f".{name}")
            result[name] = _prune(known, item, path, complaints)
            path.pop()
        elif name in properties or keeps or (schema.get(_EMBEDDED) and name in _TYPE_META):
            result[name] = item
        elif complaints is not None and len(complaints) < MAX_COMPLAINTS:
            complaints.append(f'unknown field "{"".join((*path, f".{name}")).removeprefix(".")}"')
    return result


def with_defaults(schema: Schema | None, value: Any) -> Any:
    """Return a value with the schema's defaults filled in."""
    if schema is None:
        return value
    if isinstance(value, list):
        items = schema.get("items")
        return [with_defaults(items, item) for item in value] if isinstance(items, dict) else value
    if not isinstance(value, dict):
        return value
    properties: dict[str, Schema] = schema.get("properties") or {}
    result = {}
    for name, item in value.items():
        inner = properties.get(name)
        if inner is None:
            additional = schema.get("additionalProperties")
            inner = additional if isinstance(additional, dict) else None
        if item is None and inner is not None and not inner.get("nullable"):
            if "default" not in inner:
                continue  # null means absent where the field is not nullable
            item = copy.deepcopy(inner["default"])
        result[name] = with_defaults(inner, item)
    for name, inner in properties.items():
        if name not in result and "default" in inner:
            result[name] = with_defaults(inner, copy.deepcopy(inner["default"]))
    return result


def apply_type(schema: Schema | None) -> Type:
    """Return the type that server-side apply merges objects of a custom kind by."""
    root = _type_of(schema or {})
    # Members that a root without properties keeps are merged by their form; metadata always by its type.
    fields = dict(root.fields) if root.kind == STRUCT else {}
    fields["metadata"] = Field("metadata", struct_of("meta", "v1", "ObjectMeta"))
    return Type(STRUCT, name="Custom", has_type_meta=True, build_fields=lambda: fields)


_FREE = Type("any")


def _type_of(schema: Schema) -> Type:
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("items")
        return Type(
            LIST,
            element=_type_of(items) if isinstance(items, dict) else _FREE,
            list_type=schema.get("x-kubernetes-list-type") or "atomic",
            map_keys=tuple(schema.get("x-kubernetes-list-map-keys") or ()),
        )
    atomic = schema.get("x-kubernetes-map-type") == "atomic"
    properties: dict[str, Schema] = schema.get("properties") or {}
    if properties:
        fields = {
            name: Field(name, _type_of(inner), default=_key_default(inner))
            for name, inner in properties.items()
        }
        return Type(STRUCT, name="Custom", is_atomic=atomic, build_fields=lambda: fields)
    additional = schema.get("additionalProperties")
    if kind == "object" and (isinstance(additional, dict) or additional is True or schema.get(_PRESERVE)):
        element = _type_of(additional) if isinstance(additional, dict) else _FREE
        return Type(MAP, element=element, is_atomic=atomic)
    return _FREE


def _key_default(schema: Schema) -> str:
    default = schema.get("default")
    return default if isinstance(default, str) else ""
