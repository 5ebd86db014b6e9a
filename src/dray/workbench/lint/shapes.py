"""Does an object have the shape that its version's schema describes?

The server stops at the first value of a wrong type and drops what it does not know. Somebody who
checks a manifest wants all of it at once: the reader notes every deviation (`dray.api.reading.inspect`),
and here each becomes a finding with advice. The commonest mistake by far is the shape of one
version under the name of another; that is one finding with the repair, not five unknown fields.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from dray.api.conversion import FLAT_REQUEST_FIELDS
from dray.api.reading import DUPLICATE, UNKNOWN, Deviation, inspect
from dray.api.schema.types import LIST, MAP, STRUCT, Type
from dray.workbench.lint.findings import Problem, error

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


def check_shape(schema: Type, value: Any) -> Iterator[Problem]:
    """Yield what is wrong with the shape of an object."""
    deviations = sorted(inspect(schema, value), key=_struct_of)
    for (code, path), group in groupby(deviations, key=_struct_of):
        found = list(group)
        if code == UNKNOWN:
            yield from _unknown_fields(found, path)
        elif code == DUPLICATE:
            for deviation in found:
                place = deviation.field_path()
                yield error("duplicate-field", place, f"field {deviation.name!r} is given twice")
        else:
            for deviation in found:
                yield _wrong(deviation)


def _struct_of(deviation: Deviation) -> tuple[str, str]:
    """Return the key that groups the deviations of one struct."""
    if deviation.code not in (UNKNOWN, DUPLICATE):
        return deviation.code, ""
    return deviation.code, deviation.field_path().removesuffix(deviation.name).removesuffix(".")


def _unknown_fields(found: list[Deviation], path: str) -> Iterator[Problem]:
    schema, value = found[0].schema, found[0].value
    misplaced = _other_version(schema, value, path, [deviation.name for deviation in found])
    if misplaced is not None:
        yield misplaced
    else:
        for deviation in found:
            yield _unknown(schema, deviation.name, deviation.field_path())


def _other_version(schema: Type, value: dict[str, Any], path: str, unknown: list[str]) -> Problem | None:
    """Recognise the shape of another version of resource.k8s.io."""
    if schema.name == "DeviceRequest" and unknown:
        flat = [name for name in unknown if name in FLAT_REQUEST_FIELDS]
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
    if schema.name == "PodResourceClaim" and unknown == ["source"]:
        return error(
            "old-shape",
            path,
            "`source` existed until Kubernetes 1.30",
            "move resourceClaimName or resourceClaimTemplateName out of `source`, beside `name`",
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
    return error("unknown-field", path, f"there is no field {name!r} in {schema.name}", hint)


def _wrong(deviation: Deviation) -> Problem:
    kind, value, path = deviation.schema.kind, deviation.value, deviation.field_path()
    if isinstance(value, str) and kind in ("time", "microtime", "bytes"):
        return error("wrong-type", path, f"must be {_WORDS[kind]}: {deviation.message}")
    if type(value) is int and kind in ("int32", "int64", "intorstring"):
        return error("wrong-type", path, f"{value} does not fit in {'64' if kind == 'int64' else '32'} bits")
    found = {dict: "a map", list: "a list", bool: "a boolean", str: "text"}.get(type(value), "a number")
    hint = ""
    if kind == "string" and not isinstance(value, dict | list):
        hint = "put the value in quotes"
    elif kind == LIST and isinstance(value, dict):
        hint = "write `- ` before the first field"
    elif kind == "quantity":
        hint = "for example 40Gi, 500m, 8"
    shown = f" ({value!r})" if not isinstance(value, dict | list) else ""
    return error("wrong-type", path, f"must be {_WORDS.get(kind, kind)}, not {found}{shown}", hint)
