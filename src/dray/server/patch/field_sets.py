"""Sets of field paths, in the very form in which managedFields keeps them (FieldsV1).

A set is a nested dict. A key names one step: `f:name` a member, `k:{"name":"a"}` an
item of a keyed list, `v:"x"` an item of a set. Below a key, `{}` says that the path
itself is in the set; `"."` says so where longer paths follow; a dict without `"."`
is only the way to longer paths.

    {"f:metadata": {"f:labels": {".": {}, "f:app": {}}}}
    = { metadata.labels, metadata.labels.app }

Operations return new sets; parts may be shared with their arguments.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dray.api.parsing import load_json

Fields = dict[str, Any]  # step -> Fields
SELF = "."


def is_member(node: Mapping[str, Any]) -> bool:
    """Return whether the path of a node is in the set."""
    return not node or SELF in node


def insert(fields: Fields, path: Sequence[str]) -> None:
    """Add a path, in place; the empty path names no field."""
    node = fields
    for position, step in enumerate(path):
        is_last = position == len(path) - 1
        child = node.get(step)
        if child is None:
            child = node[step] = {}
        elif is_last:
            if child:
                child.setdefault(SELF, {})
        elif not child:
            child[SELF] = {}  # was a member without longer paths; stays one
        node = child


def union(one: Fields, other: Fields) -> Fields:
    """Return the paths that are in either set."""
    result = dict(one)
    for step, node in other.items():
        if step not in result:
            result[step] = node
        elif step != SELF:
            member = is_member(result[step]) or is_member(node)
            _put(result, step, member, union(_inner(result[step]), _inner(node)))
    return result


def union_of(sets: Sequence[Fields]) -> Fields:
    """Return the paths that are in any of many sets: in pairs, so that no set is copied once for each other."""
    left = list(sets)
    while len(left) > 1:
        left = [
            union(*left[at : at + 2]) if at + 1 < len(left) else left[at] for at in range(0, len(left), 2)
        ]
    return left[0] if left else {}


def difference(one: Fields, other: Fields) -> Fields:
    """Return the paths of the first set that are not in the second."""
    result: Fields = {}
    for step, node in one.items():
        found = other.get(step)
        if found is None:
            result[step] = node
        elif step != SELF:
            member = is_member(node) and not is_member(found)
            _put(result, step, member, difference(_inner(node), _inner(found)))
    return result


def without(one: Fields, other: Fields) -> Fields:
    """Return the first set less the second's paths and everything below them."""
    result: Fields = {}
    for step, node in one.items():
        found = other.get(step)
        if found is None:
            result[step] = node
        elif step != SELF and not is_member(found):
            _put(result, step, is_member(node), without(_inner(node), _inner(found)))
    return result


def intersection(one: Fields, other: Fields) -> Fields:
    """Return the paths that are in both sets."""
    result: Fields = {}
    for step, node in one.items():
        found = other.get(step)
        if found is not None and step != SELF:
            member = is_member(node) and is_member(found)
            _put(result, step, member, intersection(_inner(node), _inner(found)))
    return result


def below(fields: Fields, step: str) -> Fields:
    """Return the paths that begin with a step, without it."""
    return _inner(fields.get(step) or {})


def has(fields: Fields, step: str) -> bool:
    """Return whether the path of one step is in the set."""
    node = fields.get(step)
    return node is not None and is_member(node)


def paths(fields: Fields, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield every path of a set."""
    for step, node in fields.items():
        if step == SELF:
            continue
        path = (*prefix, step)
        if is_member(node):
            yield path
        yield from paths(_inner(node), path)


def path_text(path: Sequence[str]) -> str:
    """Write a path as conflicts show it: `.spec.containers[name="a"].image`."""
    text = ""
    for step in path:
        kind, _, rest = step.partition(":")
        if kind == "f":
            text += f".{rest}"
        elif kind == "k":
            keys = load_json(rest)
            inner = ",".join(f"{name}={json.dumps(value)}" for name, value in sorted(keys.items()))
            text += f"[{inner}]"
        elif kind == "v":
            text += f"[={rest}]"
        else:
            text += f"[{rest}]"
    return text


def _inner(node: Fields) -> Fields:
    return {step: child for step, child in node.items() if step != SELF} if SELF in node else node


def _put(result: Fields, step: str, member: bool, inner: Fields) -> None:
    if member:
        result[step] = {SELF: {}, **inner} if inner else {}
    elif inner:
        result[step] = inner
