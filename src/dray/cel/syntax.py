"""The syntax tree of an expression after macros are expanded.

Every node has an id of its own and the offset of the token that names it (the
operator, the dot, the opening bracket): complaints point there. The checker
writes `type`, `overloads` and `constant` onto the nodes; nothing else changes
a tree once it is parsed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from dray.cel.kinds import DYN, CelType


@dataclass(slots=True, eq=False)
class Node:
    """Any expression."""

    id: int
    offset: int
    type: CelType = field(default=DYN, init=False)


@dataclass(slots=True, eq=False)
class Literal(Node):
    """A scalar constant: None, bool, int, Uint, float, str or bytes."""

    value: object


@dataclass(slots=True, eq=False)
class Ident(Node):
    """A variable or the name of a type."""

    name: str
    constant: object = field(default=None, init=False)  # the type value, where the name is one


@dataclass(slots=True, eq=False)
class Select(Node):
    """`operand.field`, or `has(operand.field)` when test_only."""

    operand: Node
    name: str
    test_only: bool = False
    constant: object = field(default=None, init=False)


@dataclass(slots=True, eq=False)
class Call(Node):
    """A function or operator; `target` is the receiver of `target.function(args)`."""

    function: str
    target: Node | None
    args: list[Node]
    overloads: tuple[str, ...] = field(default=(), init=False)


@dataclass(slots=True, eq=False)
class ListNode(Node):
    """`[a, ?b]`."""

    elements: list[Node]
    optional: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class Entry:
    """`key: value` of a map."""

    offset: int
    key: Node
    value: Node
    optional: bool


@dataclass(slots=True, eq=False)
class MapNode(Node):
    """`{key: value, ?key: value}`."""

    entries: list[Entry]


@dataclass(slots=True, eq=False)
class Field:
    """`name: value` of an object literal."""

    offset: int
    name: str
    value: Node
    optional: bool


@dataclass(slots=True, eq=False)
class Struct(Node):
    """`Type{name: value}`; no type of the selector environment can be built this way."""

    type_name: str
    fields: list[Field]


@dataclass(slots=True, eq=False)
class Fold(Node):
    """A comprehension: what every macro with a loop, and `cel.bind`, becomes."""

    iter_range: Node
    iter_var: str
    iter_var2: str  # empty: one variable
    accu_var: str
    accu_init: Node
    condition: Node
    step: Node
    result: Node
    # The macro this came from: its name, and its predicate and transformation.
    macro: str = ""
    predicate: Node | None = None
    transform: Node | None = None


def children(node: Node) -> Iterator[Node]:
    """Yield the direct sub-expressions of a node, in evaluation order."""
    match node:
        case Select():
            yield node.operand
        case Call():
            if node.target is not None:
                yield node.target
            yield from node.args
        case ListNode():
            yield from node.elements
        case MapNode():
            for entry in node.entries:
                yield entry.key
                yield entry.value
        case Struct():
            for item in node.fields:
                yield item.value
        case Fold():
            yield from (node.iter_range, node.accu_init, node.condition, node.step, node.result)


def walk(node: Node) -> Iterator[Node]:
    """Yield a node and everything below it, parents first."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        stack.extend(reversed(list(children(current))))
