"""The older form of the same documents: one Swagger 2.0 file for everything.

It is derived from the v3 documents: references move to `#/definitions/`, bodies
become parameters, and what v2 cannot say (a number or a text) becomes a text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dray.api.media_types import JSON_TYPE, YAML_TYPE
from dray.server.openapi.kind_schemas import REFERENCE

_METHODS = ("get", "put", "post", "delete", "patch")


def to_v2(documents: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Join v3 documents into one v2 document."""
    definitions: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    info: Any = {}
    for document in documents:
        info = document["info"]
        for name, schema in document.get("components", {}).get("schemas", {}).items():
            converted = _schema(schema)
            if name in definitions:
                _join_kinds(definitions[name], converted)
            else:
                definitions[name] = converted
        for path, item in document["paths"].items():
            paths[path] = _path_item(item)
    security = {
        "description": "Bearer Token authentication",
        "type": "apiKey",
        "name": "authorization",
        "in": "header",
    }
    return {
        "swagger": "2.0",
        "info": info,
        "paths": dict(sorted(paths.items())),
        "definitions": dict(sorted(definitions.items())),
        "securityDefinitions": {"BearerToken": security},
        "security": [{"BearerToken": []}],
    }


def _join_kinds(known: dict[str, Any], other: dict[str, Any]) -> None:
    """Collect the kinds of a definition that several group versions share."""
    kinds = known.get("x-kubernetes-group-version-kind")
    if kinds is not None:
        kinds.extend(kind for kind in other.get("x-kubernetes-group-version-kind", ()) if kind not in kinds)


def _schema(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "oneOf" in schema:
        return {**{key: value for key, value in schema.items() if key != "oneOf"}, "type": "string"}
    converted: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str):
            converted[key] = "#/definitions/" + value.removeprefix(REFERENCE)
        elif key == "properties":
            # Their names are no keywords: JSONSchemaProps has properties called oneOf and default.
            converted[key] = {name: _schema(inner) for name, inner in value.items()}
        elif key == "allOf" and len(value) == 1:
            converted.update(_schema(value[0]))
        elif key not in ("nullable", "default"):
            converted[key] = _schema(value)
    return converted


def _path_item(item: dict[str, Any]) -> dict[str, Any]:
    converted: dict[str, Any] = {method: _operation(item[method]) for method in _METHODS if method in item}
    if item.get("parameters"):
        converted["parameters"] = [_parameter(parameter) for parameter in item["parameters"]]
    return converted


def _operation(operation: dict[str, Any]) -> dict[str, Any]:
    converted = {k: v for k, v in operation.items() if k not in ("parameters", "requestBody", "responses")}
    parameters = [_parameter(parameter) for parameter in operation.get("parameters", ())]
    converted["consumes"], converted["produces"] = ["*/*"], [JSON_TYPE, YAML_TYPE]
    converted["schemes"] = ["https"]
    body = operation.get("requestBody")
    if body:
        media_types = list(body["content"])
        converted["consumes"] = media_types
        schema = _schema(body["content"][media_types[0]]["schema"])
        required = {"required": True} if body.get("required") else {}
        parameters.insert(0, {"name": "body", "in": "body", **required, "schema": schema})
    if parameters:
        converted["parameters"] = parameters
    converted["responses"] = {code: _response(answer) for code, answer in operation["responses"].items()}
    return converted


def _response(answer: dict[str, Any]) -> dict[str, Any]:
    converted = {"description": answer["description"]}
    for content in answer.get("content", {}).values():
        converted["schema"] = _schema(content["schema"])
        break
    return converted


def _parameter(parameter: dict[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in parameter.items() if key != "schema"}
    return {**parameter.get("schema", {}), **rest}
