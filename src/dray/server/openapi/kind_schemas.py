"""Schemas of kinds as OpenAPI v3 writes them, made from `dray.api.schema`.

Every struct becomes a definition under the name Kubernetes gives it, so that
generated clients have the same classes. What patches and server-side apply need
to know travels in `x-kubernetes-*` extensions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dray.api.kinds import Kind
from dray.api.parsing import load_json
from dray.api.schema import LIST, MAP, STRUCT, Field, SchemaError, Type, schema_of, struct_of
from dray.server.openapi.enum_values import enumerations

Schema = dict[str, Any]
Schemas = dict[str, Schema]

REFERENCE = "#/components/schemas/"
_META = "io.k8s.apimachinery.pkg.apis.meta.v1."
_SCALARS: dict[str, Schema] = {
    "string": {"type": "string"},
    "bool": {"type": "boolean"},
    "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer", "format": "int64"},
    "float64": {"type": "number", "format": "double"},
    "bytes": {"type": "string", "format": "byte"},
}
# Scalars that have a definition of their own.
_NAMED: dict[str, tuple[str, Schema]] = {
    "quantity": (
        "io.k8s.apimachinery.pkg.api.resource.Quantity",
        {
            "description": "A number with an optional suffix, such as 500m, 1.5Gi or 2e3.",
            "oneOf": [{"type": "string"}, {"type": "number"}],
        },
    ),
    "time": (
        f"{_META}Time",
        {"description": "A moment, to the second.", "type": "string", "format": "date-time"},
    ),
    "microtime": (
        f"{_META}MicroTime",
        {"description": "A moment, to the microsecond.", "type": "string", "format": "date-time"},
    ),
    "duration": (
        f"{_META}Duration",
        {"description": "A span of time, such as 1h30m.", "type": "string"},
    ),
    "intorstring": (
        "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
        {
            "description": "A number, or a text such as a percentage or the name of a port.",
            "format": "int-or-string",
            "oneOf": [{"type": "integer"}, {"type": "string"}],
        },
    ),
    "raw": (
        "io.k8s.apimachinery.pkg.runtime.RawExtension",
        {"description": "Any JSON object, passed on as it is.", "type": "object"},
    ),
}
_FIELDS_V1 = (
    f"{_META}FieldsV1",
    {"description": "A set of fields, as a tree of their names.", "type": "object"},
)
_JSON = (
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON",
    {"description": "Any JSON value."},
)
_TYPE_META: Schemas = {
    "apiVersion": {"description": "Group and version of the object's schema.", "type": "string"},
    "kind": {"description": "Name of the object's schema, in CamelCase.", "type": "string"},
}
PATCH = f"{_META}Patch"
STATUS = f"{_META}Status"
DELETE_OPTIONS = f"{_META}DeleteOptions"
WATCH_EVENT = f"{_META}WatchEvent"
LIST_META = f"{_META}ListMeta"
OBJECT_META = f"{_META}ObjectMeta"


def reference(name: str) -> Schema:
    """Return a reference to a definition."""
    return {"$ref": REFERENCE + name}


def definition_name(kind: Kind, version: str) -> str:
    """Return the name under which a kind is defined."""
    try:
        return schema_of(kind.group, version, kind.kind).openapi_name
    except SchemaError:
        domain = ".".join(reversed(kind.group.split(".")))
        return f"{domain}.{version}.{kind.kind}"


def group_version_schemas(group: str, version: str, kinds: Iterable[Kind]) -> Schemas:
    """Return the definitions that the built-in kinds of a group version need, by name."""
    schemas: Schemas = {}
    for kind in kinds:
        add_kind(schemas, kind.group, version, kind.kind)
        if "list" in kind.verbs:
            schemas[f"{definition_name(kind, version)}List"] = list_schema(kind, version)
        for subresource in kind.subresources:
            # Options of connecting subresources (exec, proxy) are parameters, not bodies.
            if subresource.kind and not subresource.kind.endswith("Options"):
                add_kind(schemas, subresource.group, subresource.version, subresource.kind)
    add_common(schemas, group, version)
    return dict(sorted(schemas.items()))


def add_kind(schemas: Schemas, group: str, version: str, kind: str) -> None:
    """Add a kind and everything it refers to."""
    root = schema_of(group, version, kind)
    _add_structs(schemas, root)
    schemas[root.openapi_name]["x-kubernetes-group-version-kind"] = [
        {"group": group, "kind": kind, "version": version}
    ]


def add_common(schemas: Schemas, group: str, version: str) -> None:
    """Add what every group version uses: metadata, options, failures, watch events."""
    for name in ("ObjectMeta", "ListMeta", "DeleteOptions", "Status"):
        _add_structs(schemas, struct_of("meta", "v1", name))
    own = [{"group": "", "kind": "DeleteOptions", "version": "v1"}]
    if group:
        own.append({"group": group, "kind": "DeleteOptions", "version": version})
    schemas[DELETE_OPTIONS]["properties"] = {**_TYPE_META, **schemas[DELETE_OPTIONS]["properties"]}
    schemas[DELETE_OPTIONS]["x-kubernetes-group-version-kind"] = own
    schemas[STATUS]["properties"] = {**_TYPE_META, **schemas[STATUS]["properties"]}
    schemas[STATUS]["x-kubernetes-group-version-kind"] = [{"group": "", "kind": "Status", "version": "v1"}]
    schemas[PATCH] = {
        "description": "A change, in the form that the content type names.",
        "type": "object",
    }
    raw, raw_schema = _NAMED["raw"]
    schemas[raw] = raw_schema
    event = [{"group": group, "kind": "WatchEvent", "version": version}]
    schemas[WATCH_EVENT] = {
        "description": "One event of a watch.",
        "type": "object",
        "required": ["type", "object"],
        "properties": {
            "object": {"description": "The object after the event.", "allOf": [reference(raw)]},
            "type": {
                "description": "ADDED, MODIFIED, DELETED, BOOKMARK or ERROR.",
                "type": "string",
                "default": "",
            },
        },
        "x-kubernetes-group-version-kind": event,
    }


def list_schema(kind: Kind, version: str) -> Schema:
    """Return the definition of a list of objects."""
    return {
        "description": f"A list of objects of kind {kind.kind}.",
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": _TYPE_META["apiVersion"],
            "items": {
                "description": "The objects.",
                "type": "array",
                "items": reference(definition_name(kind, version)),
            },
            "kind": _TYPE_META["kind"],
            "metadata": {"description": "Version of the list and paging.", "allOf": [reference(LIST_META)]},
        },
        "x-kubernetes-group-version-kind": [
            {"group": kind.group, "kind": kind.list_kind, "version": version}
        ],
    }


def custom_schema(kind: Kind, version: str, given: Schema | None) -> Schema:
    """Return the definition of a custom kind from the schema of its definition."""
    schema = dict(given or {"type": "object", "x-kubernetes-preserve-unknown-fields": True})
    properties = dict(schema.get("properties") or {})
    metadata = {"description": "Name, labels and the like.", "allOf": [reference(OBJECT_META)]}
    schema["properties"] = {**_TYPE_META, **properties, "metadata": metadata}
    schema["x-kubernetes-group-version-kind"] = [{"group": kind.group, "kind": kind.kind, "version": version}]
    return schema


def _add_structs(schemas: Schemas, root: Type) -> None:
    waiting = [root]
    while waiting:
        struct = _base(waiting.pop())
        if struct.openapi_name in schemas:
            continue
        schemas[struct.openapi_name] = _struct_schema(struct, schemas)
        for field in struct.fields.values():
            found = field.type
            while found.element is not None:
                found = found.element
            if found.kind == STRUCT:
                waiting.append(found)


def _base(struct: Type) -> Type:
    """Return the struct itself for one that only a field declares atomic."""
    return struct_of(struct.group, struct.version, struct.name)


def _struct_schema(struct: Type, schemas: Schemas) -> Schema:
    properties: Schemas = dict(_TYPE_META) if struct.has_type_meta else {}
    for field in struct.fields.values():
        properties[field.name] = _property(struct, field, schemas)
    schema: Schema = {"type": "object", "properties": dict(sorted(properties.items()))}
    if struct.description:
        schema = {"description": struct.description, **schema}
    required = [field.name for field in struct.fields.values() if field.required]
    if required:
        schema["required"] = required
    if struct.is_atomic:
        schema["x-kubernetes-map-type"] = "atomic"
    return schema


def _property(struct: Type, field: Field, schemas: Schemas) -> Schema:
    schema = dict(_value_schema(struct, field.type, schemas))
    words = enumerations().get((struct.group, struct.name, field.name))
    if words:
        holder = schema
        if field.type.kind == LIST:
            holder = schema["items"] = dict(schema["items"])
        holder["enum"] = words
    if field.default:
        schema["default"] = _default(field)
    elif field.type.kind == STRUCT and not field.pointer:
        schema["default"] = {}
    if field.description or "default" in schema:
        if "$ref" in schema:
            # Beside a reference everything else would be ignored.
            schema["allOf"] = [{"$ref": schema.pop("$ref")}]
        if field.description:
            schema = {"description": field.description, **schema}
    if field.patch_merge_key:
        schema["x-kubernetes-patch-merge-key"] = field.patch_merge_key
    if field.patch_strategy:
        schema["x-kubernetes-patch-strategy"] = ",".join(field.patch_strategy)
    return schema


def _value_schema(struct: Type, value: Type, schemas: Schemas) -> Schema:
    if value.kind == LIST:
        assert value.element is not None
        schema = {"type": "array", "items": _value_schema(struct, value.element, schemas)}
        if value.map_keys:
            schema["x-kubernetes-list-map-keys"] = list(value.map_keys)
        if value.list_type:
            schema["x-kubernetes-list-type"] = value.list_type
        return schema
    if value.kind == MAP:
        assert value.element is not None
        schema = {"type": "object", "additionalProperties": _value_schema(struct, value.element, schemas)}
        return {**schema, "x-kubernetes-map-type": "atomic"} if value.is_atomic else schema
    if value.kind == STRUCT:
        schema = reference(value.openapi_name)
        if value.is_atomic and not _base(value).is_atomic:
            return {"allOf": [schema], "x-kubernetes-map-type": "atomic"}
        return schema
    if value.kind == "any":
        name, definition = _FIELDS_V1 if struct.group == "meta" else _JSON
        schemas.setdefault(name, definition)
        return reference(name)
    if value.kind in _NAMED:
        name, definition = _NAMED[value.kind]
        schemas.setdefault(name, definition)
        return reference(name)
    return _SCALARS[value.kind]


def _default(field: Field) -> Any:
    if field.type.kind in ("string", "time"):
        return field.default.strip('"')
    try:
        return load_json(field.default)
    except ValueError:
        return field.default
