"""The simple JSON paths of custom columns: `.spec.replicas`, `.status.conditions[?(@.type=="Ready")].status`.

Supported are names (with escaped dots), quoted names in brackets, positions, the
star, and filters that compare one field with a text or number. That is what
definitions may use for columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from dray.api.text_cache import remembers_short_texts

_STEP = re.compile(
    r"""\.(?P<name>(?:\\.|[^.\[\\])+)
      | \[(?P<position>-?\d+)\]
      | \[['"](?P<quoted>[^'"]*)['"]\]
      | (?:\[\*\]|\.\*)(?P<star>)
      | \[\?\(@\.(?P<field>[^=\s!)]+)\s*(?P<operator>==|!=)\s*(?P<wanted>[^)]*)\)\]""",
    re.VERBOSE,
)
_MISSING = object()
Step = Callable[[Any], Iterator[Any]]


def find(path: str, value: Any) -> list[Any]:
    """Return what a path leads to; empty when nothing, or when the path is not understood.

    >>> find(".a[1]", {"a": [1, 2]}), find('.c[?(@.t=="x")].s', {"c": [{"t": "x", "s": 5}]})
    ([2], [5])
    """
    steps = _parse(path)
    if steps is None:
        return []
    found = [value]
    for step in steps:
        found = [inner for outer in found for inner in step(outer)]
    return found


@remembers_short_texts(maxsize=512, longest=1_000)
def _parse(path: str) -> tuple[Step, ...] | None:
    steps: list[Step] = []
    position = 0
    path = path.strip().removeprefix("{").removesuffix("}").removeprefix("$")
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None:
            return None
        steps.append(_step(match))
        position = match.end()
    return tuple(steps)


def _step(match: re.Match[str]) -> Step:
    parts = match.groupdict()
    if parts["star"] is not None:
        return _children
    if parts["position"] is not None:
        return _item(int(parts["position"]))
    if parts["field"] is not None:
        return _filter(parts["field"], parts["operator"], parts["wanted"].strip())
    name = parts["quoted"] if parts["quoted"] is not None else re.sub(r"\\(.)", r"\1", parts["name"])
    if name == "*":
        return _children
    return _member(name)


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _member(name: str) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, dict) and name in value:
            yield value[name]

    return step


def _item(position: int) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, list) and -len(value) <= position < len(value):
            yield value[position]

    return step


def _filter(field: str, operator: str, wanted: str) -> Step:
    quoted = len(wanted) >= 2 and wanted[0] in "'\"" and wanted[-1] == wanted[0]
    text = wanted[1:-1] if quoted else wanted

    def step(value: Any) -> Iterator[Any]:
        for item in value if isinstance(value, list) else ():
            actual = item.get(field, _MISSING) if isinstance(item, dict) else _MISSING
            if actual is _MISSING:
                continue
            equal = (actual if isinstance(actual, str) else _plain(actual)) == text
            if equal == (operator == "=="):
                yield item

    return step


def _plain(value: Any) -> str:
    return {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)
