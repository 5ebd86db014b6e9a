"""The simple JSON paths of custom columns: `.spec.replicas`, `.status.conditions[?(@.type=="Ready")].status`.

Supported are names (with escaped dots), quoted names in brackets, positions, the
star, and filters that compare one field with a text or number. That is what
definitions may use for columns.

A column shows the first value that its path leads to, so values are looked for one after the other,
depth first, with a stack of iterators: a path has as many levels as it likes. Paths and objects come
from clients: fifty stars on a nested list look at every value of it, for each of two thousand columns.
So all columns of one object share a `Budget` of visited values and of characters shown; columns after
its end are empty.

Invariant (tests/unit/server/test_edge_tables.py): the work for one row is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dray.api.caching import cached_by_text

_STEP = re.compile(
    r"""\.(?P<name>(?:\\.|[^.\[\\])+)
      | \[(?P<position>-?\d+)\]
      | \[['"](?P<quoted>[^'"]*)['"]\]
      | (?:\[\*\]|\.\*)(?P<star>)
      | \[\?\(@\.(?P<field>[^=\s!)]+)\s*(?P<operator>==|!=)\s*(?P<wanted>[^)]*)\)\]""",
    re.VERBOSE,
)
_MISSING = object()
_PASSED = object()  # what a filter yields for an item that it leaves out, so that it counts as a visit
_LONGEST_PATH = 4_096  # characters; a longer path is not understood
Step = Callable[[Any], Iterator[Any]]


@dataclass(slots=True)
class Budget:
    """What the columns of one object may still cost."""

    visits: int = 20_000  # values looked at: some milliseconds
    characters: int = 4 << 20  # shown: more than an object has, less than thousands of copies of it


def find(path: str, value: Any, budget: Budget | None = None) -> Iterator[Any]:
    """Yield what a path leads to; nothing when it is not understood, or when the budget is spent.

    >>> list(find(".a[1]", {"a": [1, 2]})), list(find('.c[?(@.t=="x")].s', {"c": [{"t": "x", "s": 5}]}))
    ([2], [5])
    """
    steps = _parse(path) if len(path) <= _LONGEST_PATH else None
    if steps is None:
        return
    if not steps:
        yield value
        return
    budget = budget or Budget()
    stack = [steps[0](value)]
    while stack and budget.visits > 0:
        budget.visits -= 1
        found = next(stack[-1], _MISSING)
        if found is _MISSING:
            stack.pop()
        elif found is _PASSED:
            continue
        elif len(stack) == len(steps):
            yield found
        else:
            stack.append(steps[len(stack)](found))


@cached_by_text(maxsize=512, longest=512)
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
            equal = (actual if isinstance(actual, str) else _plain(actual)) == text
            fits = actual is not _MISSING and equal == (operator == "==")
            yield item if fits else _PASSED

    return step


def _plain(value: Any) -> str:
    """Return a scalar as text; lists and objects, which may be large, are equal to no text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else ""
