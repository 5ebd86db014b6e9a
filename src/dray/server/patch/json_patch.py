"""JSON patch (RFC 6902) and merge patch (RFC 7386), with kube-apiserver's habits.

Both work on plain JSON values and return a new value; the input is never
changed, parts of it may be shared with the result. Habits that differ from the
RFC and that clients meet: `replace` of a member that does not exist adds it,
`test` of a missing member against null succeeds, negative list indices count
from the end.
"""

from __future__ import annotations

from typing import Any

from dray.api.codec import encode
from dray.api.parsing import MAX_DEPTH, TOO_DEEP, ParseError, check_depth, depth_of
from dray.api.raw_json import RawJson
from dray.server.requests import copy_json

JSON = Any  # a plain JSON value

MAX_OPERATIONS = 10_000  # of one JSON patch; kube-apiserver's limit
MAX_COPIED_BYTES = 3 * 1024 * 1024  # by all `copy` operations of one patch; kube-apiserver's limit
MAX_SHIFTED_ITEMS = 100_000_000  # by all insertions and removals in lists of one patch: less than 100 ms


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
    work = _Work()
    document = copy_json(document)  # raw leaves stay shared; a step into one opens it
    for operation in operations:
        _apply(document, operation, work)
    if depth_of(document) > MAX_DEPTH:
        raise PatchError(TOO_DEEP)
    return document


class _Work:
    """What the operations of one patch have cost; more than is allowed ends the patch.

    A short patch can ask for much: each `copy` may double the document, and each insertion at
    the beginning of a list moves all its items.
    """

    def __init__(self) -> None:
        self._n_copied = 0  # bytes, as JSON
        self._n_shifted = 0  # list items
        self._opened: dict[RawJson, JSON] = {}  # raw values that were tested

    def copied(self, value: JSON) -> JSON:
        """Return a copy of a value of the document; raise PatchError when copies get too large or deep."""
        try:
            text = encode(value)
            check_depth(text)
        except (RecursionError, ParseError):
            raise PatchError(TOO_DEEP) from None
        self._n_copied += len(text)
        if self._n_copied > MAX_COPIED_BYTES:
            raise PatchError(
                "Unable to complete the copy, the accumulated size increase of copy is "
                f"{self._n_copied}, exceeding the limit {MAX_COPIED_BYTES}"
            )
        return copy_json(value)

    def shift(self, container: JSON) -> None:
        """Count an insertion into a list or a removal from one."""
        if isinstance(container, list):
            self._n_shifted += len(container)
            if self._n_shifted > MAX_SHIFTED_ITEMS:
                raise PatchError("the operations of the patch move too many list items")

    def value_of(self, value: JSON) -> JSON:
        """Return a value to compare; raw JSON is parsed once however often it is tested."""
        if not isinstance(value, RawJson):
            return value
        if value not in self._opened:
            self._opened[value] = value.value
        return self._opened[value]


def _apply(document: JSON, operation: dict[str, Any], work: _Work) -> None:
    kind = operation.get("op")
    match kind:
        case "add":
            container, key = _locate(document, operation, "path")
            _add(container, key, copy_json(operation.get("value")), work)
        case "remove":
            _remove(*_locate(document, operation, "path"), work)
        case "replace":
            container, key = _locate(document, operation, "path")
            _replace(container, key, copy_json(operation.get("value")))
        case "move":
            source, source_key = _locate(document, operation, "from")
            value = _get(source, source_key)
            _remove(source, source_key, work)
            container, key = _locate(document, operation, "path")
            _add(container, key, value, work)
        case "copy":
            value = work.copied(_get(*_locate(document, operation, "from")))
            container, key = _locate(document, operation, "path")
            _add(container, key, value, work)
        case "test":
            container, key = _locate(document, operation, "path")
            found = container.get(key) if isinstance(container, dict) else _get(container, key)
            if not _same(work.value_of(found), operation.get("value")):
                raise PatchError(f"testing value {operation.get('path')} failed: test failed")
        case _:
            raise PatchError(f"Unexpected kind: {kind}")


def _locate(document: JSON, operation: dict[str, Any], name: str) -> tuple[Any, str]:
    """Return the container that holds the last part of a pointer, and that part."""
    pointer = operation.get(name)
    if not isinstance(pointer, str) or "/" not in pointer:
        raise PatchError(
            f"{operation.get('op')} operation does not apply: {name} {pointer!r} is not a JSON pointer"
        )
    parts = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    if len(parts) > MAX_DEPTH:
        raise PatchError(f"{operation.get('op')} operation does not apply: {name} has too many parts")
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


def _add(container: JSON, key: str, value: JSON, work: _Work) -> None:
    if isinstance(container, dict):
        container[key] = value
    elif key == "-":
        container.append(value)
    else:
        work.shift(container)
        container.insert(_index(container, key, inserting=True), value)


def _replace(container: JSON, key: str, value: JSON) -> None:
    if isinstance(container, dict):
        container[key] = value
    else:
        container[_index(container, key)] = value


def _remove(container: JSON, key: str, work: _Work) -> None:
    if isinstance(container, dict):
        if key not in container:
            raise PatchError(f"Unable to remove nonexistent key: {key}")
        del container[key]
    else:
        work.shift(container)
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
