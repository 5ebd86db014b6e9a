"""Judging a value by an OpenAPI v3 schema, in the words of kube-apiserver.

Every broken rule is one field error. The texts are those of the validation library
that kube-apiserver uses ("spec.size in body should be ..."), because users search
for them.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

import re2

from dray.api.validation.fields import (
    ErrorType,
    FieldError,
    duplicate,
    invalid,
    not_supported,
    required,
)

Schema = dict[str, Any]
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "array": (list,),
    "object": (dict,),
}


def validate_value(schema: Schema | None, value: Any, path: str) -> list[FieldError]:
    """Return what is wrong with a value."""
    if schema is None:
        return []
    if value is None:
        if schema.get("nullable"):
            return []
        return [_type_error(path, schema.get("type") or "value", value)] if schema.get("type") else []
    mismatch = _check_type(schema, value, path)
    if mismatch:
        return mismatch
    problems: list[FieldError] = []
    if isinstance(value, dict):
        problems += _check_object(schema, value, path)
    elif isinstance(value, list):
        problems += _check_list(schema, value, path)
    elif isinstance(value, str):
        problems += _check_text(schema, value, path)
    elif not isinstance(value, bool):
        problems += _check_number(schema, value, path)
    if schema.get("enum") is not None and value not in schema["enum"]:
        problems.append(not_supported(path, value, [str(word) for word in schema["enum"]]))
    return problems + _check_combinations(schema, value, path)


def _check_type(schema: Schema, value: Any, path: str) -> list[FieldError]:
    if schema.get("x-kubernetes-int-or-string"):
        fits = isinstance(value, (int, str)) and not isinstance(value, bool)
        return [] if fits else [_type_error(path, "integer,string", value)]
    wanted = schema.get("type")
    if not wanted:
        return []
    fits = isinstance(value, _TYPES.get(wanted, (object,)))
    if isinstance(value, bool) and wanted != "boolean":
        fits = False
    if wanted == "integer" and isinstance(value, float) and value.is_integer():
        fits = True
    return [] if fits else [_type_error(path, wanted, value)]


def _type_error(path: str, wanted: str, value: Any) -> FieldError:
    found = _name_of(value)
    return FieldError(
        ErrorType.TYPE_INVALID, path, found, f'{path} in body must be of type {wanted}: "{found}"'
    )


def _name_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    for name in ("string", "integer", "number", "array", "object"):
        if isinstance(value, _TYPES[name]):
            return name
    return "null"


def _check_object(schema: Schema, value: dict[str, Any], path: str) -> list[FieldError]:
    problems = [required(_join(path, name)) for name in schema.get("required") or () if name not in value]
    properties: dict[str, Schema] = schema.get("properties") or {}
    additional = schema.get("additionalProperties")
    for name, item in value.items():
        if name in properties:
            problems += validate_value(properties[name], item, _join(path, name))
        elif isinstance(additional, dict):
            problems += validate_value(additional, item, f"{path}.{name}" if path else name)
    most, least = schema.get("maxProperties"), schema.get("minProperties")
    if most is not None and len(value) > most:
        problems.append(invalid(path, len(value), f"{path} in body should have at most {most} properties"))
    if least is not None and len(value) < least:
        problems.append(invalid(path, len(value), f"{path} in body should have at least {least} properties"))
    return problems


def _check_list(schema: Schema, value: list[Any], path: str) -> list[FieldError]:
    problems: list[FieldError] = []
    most, least = schema.get("maxItems"), schema.get("minItems")
    if most is not None and len(value) > most:
        problems.append(FieldError(ErrorType.TOO_MANY, path, len(value), f"must have at most {most} items"))
    if least is not None and len(value) < least:
        problems.append(invalid(path, len(value), f"{path} in body should have at least {least} items"))
    items = schema.get("items")
    if isinstance(items, dict):
        for index, item in enumerate(value):
            problems += validate_value(items, item, f"{path}[{index}]")
    return problems + _check_unique(schema, value, path)


def _check_unique(schema: Schema, value: list[Any], path: str) -> list[FieldError]:
    kind = schema.get("x-kubernetes-list-type")
    seen: set[str] = set()  # as text: items are of any type, and there may be very many
    problems: list[FieldError] = []
    for index, item in enumerate(value):
        if kind == "set":
            identity: Any = item
        elif kind == "map" and isinstance(item, dict):
            keys = schema.get("x-kubernetes-list-map-keys") or ()
            identity = {key: item.get(key) for key in keys if key in item}
        else:
            return []
        text = json.dumps(identity, sort_keys=True)
        if text in seen:
            problems.append(duplicate(f"{path}[{index}]", identity))
        seen.add(text)
    return problems


def _check_text(schema: Schema, value: str, path: str) -> list[FieldError]:
    problems: list[FieldError] = []
    most, least = schema.get("maxLength"), schema.get("minLength")
    if most is not None and len(value) > most:
        problems.append(FieldError(ErrorType.TOO_LONG, path, "", f"may not be more than {most} bytes"))
    if least is not None and len(value) < least:
        problems.append(invalid(path, value, f"{path} in body should be at least {least} chars long"))
    pattern = schema.get("pattern")
    if pattern and not _matches(pattern, value):
        problems.append(invalid(path, value, f"{path} in body should match '{pattern}'"))
    check = _FORMATS.get(schema.get("format") or "")
    if check is not None and not check(value):
        why = f'{path} in body must be of type {schema["format"]}: "{value}"'
        problems.append(FieldError(ErrorType.TYPE_INVALID, path, value, why))
    return problems


def _matches(pattern: str, value: str) -> bool:
    try:
        return re2.search(pattern, value) is not None
    except re2.error:
        return True  # the definition was accepted with it; it cannot refuse objects


def _check_number(schema: Schema, value: int | float, path: str) -> list[FieldError]:
    problems: list[FieldError] = []
    most, least, step = schema.get("maximum"), schema.get("minimum"), schema.get("multipleOf")
    if most is not None:
        strict = bool(schema.get("exclusiveMaximum"))
        if value > most or (strict and value == most):
            words = "less than" if strict else "less than or equal to"
            problems.append(invalid(path, value, f"{path} in body should be {words} {most:g}"))
    if least is not None:
        strict = bool(schema.get("exclusiveMinimum"))
        if value < least or (strict and value == least):
            words = "greater than" if strict else "greater than or equal to"
            problems.append(invalid(path, value, f"{path} in body should be {words} {least:g}"))
    if step and value % step:
        problems.append(invalid(path, value, f"{path} in body should be a multiple of {step:g}"))
    limits = {"int32": 2**31, "int64": 2**63}.get(schema.get("format") or "")
    if limits and not -limits <= value < limits:
        problems.append(
            invalid(
                path,
                value,
                f"Checked value must be of type {schema.get('type')} with format {schema['format']}",
            )
        )
    return problems


def _check_combinations(schema: Schema, value: Any, path: str) -> list[FieldError]:
    problems: list[FieldError] = []
    for part in schema.get("allOf") or ():
        problems += validate_value(part, value, path)
    any_of, one_of = schema.get("anyOf"), schema.get("oneOf")
    if any_of and all(validate_value(part, value, path) for part in any_of):
        problems.append(
            invalid(path, _shown(value), f"{_where(path)} in body must validate at least one schema (anyOf)")
        )
    if one_of and sum(not validate_value(part, value, path) for part in one_of) != 1:
        problems.append(
            invalid(
                path, _shown(value), f"{_where(path)} in body must validate one and only one schema (oneOf)"
            )
        )
    if schema.get("not") is not None and not validate_value(schema["not"], value, path):
        problems.append(
            invalid(path, _shown(value), f"{_where(path)} in body must not validate the schema (not)")
        )
    return problems


def _where(path: str) -> str:
    return f'"{path}"' if path else '""'


def _shown(value: Any) -> Any:
    return value if not isinstance(value, (dict, list)) else ""


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _is_time(value: str) -> bool:
    try:
        datetime.fromisoformat(value.replace("Z", "+00:00"))
    except ValueError:
        return False
    return "T" in value


def _is_address(version: int) -> Callable[[str], bool]:
    def check(value: str) -> bool:
        try:
            return ipaddress.ip_address(value).version == version
        except ValueError:
            return False

    return check


def _is_network(value: str) -> bool:
    try:
        ipaddress.ip_network(value, strict=False)
    except ValueError:
        return False
    return "/" in value


_UUID = re.compile(r"(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_HOST = re.compile(r"[a-zA-Z0-9]([-a-zA-Z0-9]{0,62})(\.[a-zA-Z0-9]([-a-zA-Z0-9]{0,62}))*\.?")
_MAIL = re.compile(r"[^@\s]+@[^@\s]+")
_FORMATS: dict[str, Callable[[str], bool]] = {
    "date-time": _is_time,
    "date": lambda value: _DATE.fullmatch(value) is not None,
    "ipv4": _is_address(4),
    "ipv6": _is_address(6),
    "cidr": _is_network,
    "uuid": lambda value: _UUID.fullmatch(value) is not None,
    "hostname": lambda value: _HOST.fullmatch(value) is not None,
    "email": lambda value: _MAIL.fullmatch(value) is not None,
}
