"""JSON patch (RFC 6902) and merge patch (RFC 7386), with kube-apiserver's habits.

Both work on plain JSON values and return a new value; the input is never
changed, parts of it may be shared with the result. Habits that differ from the
RFC and that clients meet: `replace` of a member that does not exist adds it,
`test` of a missing member against null succeeds, negative list indices count
from the end.
"""

from __future__ import annotations

import copy
from typing import Any

from dray.api.raw_json import RawJson

JSON = Any  # what json.loads returns

MOST_OPERATIONS = 10_000  # kube-apiserver refuses longer patches


class PatchError(Exception):
    """The patch does not apply to this object."""


class PatchMalformed(Exception):
    """The patch is not a patch at all."""


def apply_merge_patch(target: JSON, patch: JSON) -> JSON:
    """Return the target with a merge patch applied."""
    if not isinstance(patch, dict):
        return patch
    if isinstance(target, RawJson):
        target = target.value
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = apply_merge_patch(merged.get(key), value)
    return merged


def apply_json_patch(document: JSON, operations: JSON) -> JSON:
    """Return the document with all operations applied, or raise PatchError."""
    if not isinstance(operations, list) or not all(isinstance(operation, dict) for operation in operations):
        raise PatchMalformed("a JSON patch is a list of operations")
    document = copy.deepcopy(document)  # raw leaves stay shared; a step into one opens it
    for operation in operations:
        _apply(document, operation)
    return document


def _apply(document: JSON, operation: dict[str, Any]) -> None:
    kind = operation.get("op")
    match kind:
        case "add":
            container, key = _locate(document, operation, "path")
            _add(container, key, copy.deepcopy(operation.get("value")))
        case "remove":
            _remove(*_locate(document, operation, "path"))
        case "replace":
            container, key = _locate(document, operation, "path")
            _replace(container, key, copy.deepcopy(operation.get("value")))
        case "move":
            source, source_key = _locate(document, operation, "from")
            value = _get(source, source_key)
            _remove(source, source_key)
            container, key = _locate(document, operation, "path")
            _add(container, key, value)
        case "copy":
            value = copy.deepcopy(_get(*_locate(document, operation, "from")))
            container, key = _locate(document, operation, "path")
            _add(container, key, value)
        case "test":
            container, key = _locate(document, operation, "path")
            found = container.get(key) if isinstance(container, dict) else _get(container, key)
            if not _same(found, operation.get("value")):
                raise PatchError(f"testing value {operation.get('path')} failed: test failed")
        case _:
            raise PatchError(f"Unexpected kind: {kind}")


def _locate(document: JSON, operation: dict[str, Any], name: str) -> tuple[Any, str]:
    """Return the container that holds the last part of a pointer, and that part."""
    pointer = operation.get(name)
    if not isinstance(pointer, str) or "/" not in pointer:
        raise PatchError(
            f"{operation.get('op')} operation does not apply: {name} {pointer!r} is no JSON pointer"
        )
    parts = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    container = document
    for part in parts[:-1]:
        try:
            container = _opened(container, part)
        except PatchError:
            container = None
        if not isinstance(container, dict | list):
            raise PatchError(
                f"{operation.get('op')} operation does not apply: doc is missing path: {pointer}"
            )
    return container, parts[-1]


def _index(container: list[Any], key: str, *, inserting: bool = False) -> int:
    try:
        index = int(key)
    except ValueError:
        raise PatchError(f"invalid array index: {key}") from None
    size = len(container) + (1 if inserting else 0)
    if index < -size or index >= size:
        raise PatchError(f"Unable to access invalid index: {index}")
    return index + size if index < 0 else index


def _opened(container: JSON, key: str) -> JSON:
    """Return an inner value; a raw one is parsed where it stands, so that it can be changed."""
    value = _get(container, key)
    if isinstance(value, RawJson):
        value = value.value
        container[key if isinstance(container, dict) else _index(container, key)] = value
    return value


def _get(container: JSON, key: str) -> JSON:
    if isinstance(container, list):
        return container[_index(container, key)]
    if key not in container:
        raise PatchError(f"Unable to find nonexistent key: {key}")
    return container[key]


def _add(container: JSON, key: str, value: JSON) -> None:
    if isinstance(container, dict):
        container[key] = value
    elif key == "-":
        container.append(value)
    else:
        container.insert(_index(container, key, inserting=True), value)


def _replace(container: JSON, key: str, value: JSON) -> None:
    if isinstance(container, dict):
        container[key] = value
    else:
        container[_index(container, key)] = value


def _remove(container: JSON, key: str) -> None:
    if isinstance(container, dict):
        if key not in container:
            raise PatchError(f"Unable to remove nonexistent key: {key}")
        del container[key]
    else:
        del container[_index(container, key)]


def _same(one: JSON, other: JSON) -> bool:
    """Compare JSON values; Python's True == 1 does not count."""
    one, other = (side.value if isinstance(side, RawJson) else side for side in (one, other))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
