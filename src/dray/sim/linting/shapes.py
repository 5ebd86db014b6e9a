"""Does an object have the shape that its version's schema describes?

The server stops at the first value of a wrong type and drops what it does not know.
Somebody who checks a manifest wants all of it at once, so this is a walk of its own
that goes on after every mistake. The commonest mistake by far is the shape of one
version under the name of another; that is one finding with the repair, not five
unknown fields.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from dray.api.parsing import Duplicates, ExactFloat
from dray.api.quantity import QuantityError, parse_quantity
from dray.api.schema.types import LIST, MAP, STRUCT, Type
from dray.sim.linting.findings import Problem, error

# What v1beta1 writes directly into a request, and later versions into `exactly`.
FLAT_REQUEST = frozenset(
    [
        "deviceClassName",
        "selectors",
        "allocationMode",
        "count",
        "adminAccess",
        "tolerations",
        "capacity",
        "derivedAttributes",
    ]
)
_WORDS = {
    "string": "text",
    "bool": "true or false",
    "int32": "a whole number",
    "int64": "a whole number",
    "float64": "a number",
    "quantity": "a quantity such as 40Gi",
    "bytes": "base64 text",
    "time": "a time",
    "microtime": "a time",
    "duration": "a duration",
    "intorstring": "a number or text",
    LIST: "a list",
    MAP: "a map",
    STRUCT: "a map",
}


def check_shape(schema: Type, value: Any, path: str = "") -> Iterator[Problem]:
    """Yield what is wrong with the shape of a value."""
    if value is None:
        return
    if schema.kind == STRUCT:
        yield from _struct(schema, value, path)
    elif schema.kind == LIST:
        if not isinstance(value, list):
            yield _wrong(schema, value, path)
            return
        assert schema.element is not None
        for index, item in enumerate(value):
            yield from check_shape(schema.element, item, f"{path}[{index}]")
    elif schema.kind == MAP:
        if not isinstance(value, dict):
            yield _wrong(schema, value, path)
            return
        assert schema.element is not None
        for key, item in value.items():
            yield from check_shape(schema.element, item, f"{path}[{key}]")
    elif not _is_scalar(schema.kind, value):
        yield _wrong(schema, value, path)


def _struct(schema: Type, value: Any, path: str) -> Iterator[Problem]:
    if not isinstance(value, dict):
        yield _wrong(schema, value, path)
        return
    if isinstance(value, Duplicates):
        for name in value.names:
            yield error("duplicate-field", _below(path, name), f"field {name!r} is given twice")
    unknown = [
        name
        for name in value
        if name not in schema.fields and not (schema.has_type_meta and name in ("kind", "apiVersion"))
    ]
    misplaced = _other_version(schema, value, path, unknown)
    if misplaced is not None:
        yield misplaced
    else:
        for name in unknown:
            yield _unknown(schema, name, path)
    for name, field in schema.fields.items():
        if name in value:
            yield from check_shape(field.type, value[name], _below(path, name))


def _other_version(schema: Type, value: dict[str, Any], path: str, unknown: list[str]) -> Problem | None:
    """Recognise the shape of another version of resource.k8s.io."""
    if schema.name == "DeviceRequest" and unknown:
        flat = [name for name in unknown if name in FLAT_REQUEST]
        if flat and flat == unknown:
            return error(
                "old-shape",
                path,
                f"{', '.join(flat)} stand directly in the request, as in v1beta1",
                f"indent them under `exactly:`, or write apiVersion: resource.k8s.io/v1beta1 instead of {schema.version}",
            )
        if unknown == ["exactly"]:
            return error(
                "new-shape",
                path,
                "`exactly` does not exist in v1beta1",
                "write apiVersion: resource.k8s.io/v1, or move the fields of `exactly` up",
            )
    if schema.name == "Device" and unknown == ["basic"]:
        return error(
            "old-shape", path, "`basic` exists only in v1beta1", "move the fields of `basic` up one level"
        )
    if schema.name == "Device" and schema.version == "v1beta1" and unknown and "basic" not in value:
        return error(
            "new-shape",
            path,
            f"{', '.join(unknown)} must stand under `basic` in v1beta1",
            "write apiVersion: resource.k8s.io/v1",
        )
    return None


def _unknown(schema: Type, name: str, path: str) -> Problem:
    known = list(schema.fields)
    lower = {field.lower(): field for field in known}
    near = lower.get(name.lower()) or next(
        iter(difflib.get_close_matches(name, known, n=1, cutoff=0.65)), None
    )
    hint = f"did you mean {near}?" if near else f"known here: {', '.join(sorted(known)[:12])}"
    return error("unknown-field", _below(path, name), f"there is no field {name!r} in {schema.name}", hint)


def _wrong(schema: Type, value: Any, path: str) -> Problem:
    found = {dict: "a map", list: "a list", bool: "a boolean", str: "text"}.get(type(value), "a number")
    wanted = _WORDS.get(schema.kind, schema.kind)
    hint = ""
    if schema.kind == "string" and not isinstance(value, dict | list):
        hint = "put the value in quotes"
    elif schema.kind == LIST and isinstance(value, dict):
        hint = "write `- ` before the first field"
    elif schema.kind == "quantity":
        hint = "for example 40Gi, 500m, 8"
    shown = f" ({value!r})" if not isinstance(value, dict | list) else ""
    return error("wrong-type", path, f"must be {wanted}, not {found}{shown}", hint)


def _is_scalar(kind: str, value: Any) -> bool:
    match kind:
        case "any" | "raw":
            return True
        case "bool":
            return isinstance(value, bool)
        case "int32" | "int64":
            return isinstance(value, int) and not isinstance(value, bool)
        case "float64":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "intorstring":
            return isinstance(value, int | str) and not isinstance(value, bool)
        case "quantity":
            return _is_quantity(value)
    return isinstance(value, str)


def _is_quantity(value: Any) -> bool:
    if isinstance(value, bool | dict | list):
        return False
    try:
        parse_quantity(value.text if isinstance(value, ExactFloat) else str(value))
    except QuantityError:
        return False
    return True


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
