"""Estimate what an expression may cost at most, before it has seen a value.

One walk over the checked tree. Beside the cost of every node the walk keeps what
is known about sizes: of nodes (strings, lists, maps), of the entries of lists and
maps, and of variables. Where a value comes from a declared variable, its *path* (`device`,
`attributes`, `@values`, ...) leads to its declared size.

The estimate of a single call lives in `call_costs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dray.cel.call_costs import Argument, CallCost, estimate_call
from dray.cel.environment import Shape
from dray.cel.kinds import CelType
from dray.cel.ranges import LIST_BASE, MAP_BASE, MAX, ONE, STRUCT_BASE, UNKNOWN, ZERO, Range, fixed
from dray.cel.syntax import Call, Fold, Ident, ListNode, Literal, MapNode, Node, Select, Struct

Path = tuple[str, ...]
_ACCUMULATORS = ("@result", "__result__")
_SCALARS = frozenset({"bool", "double", "duration", "int", "timestamp", "uint"})


class Entries(NamedTuple):
    """The sizes of what a list or map holds."""

    container: str  # "list" or "map"
    key: Range
    value: Range


class _Local(NamedTuple):
    path: Path
    size: Range | None
    entries: Entries | None


def max_cost(node: Node, shapes: Mapping[str, Shape]) -> int:
    """Return the largest cost that an evaluation of the expression can have."""
    return _Estimator(shapes).cost(node).max


class _Estimator:
    def __init__(self, shapes: Mapping[str, Shape]) -> None:
        self._shapes = shapes
        self._paths: dict[int, Path] = {}
        self._sizes: dict[int, Range] = {}
        self._entries: dict[int, Entries] = {}
        self._locals: dict[str, list[_Local]] = {}

    def cost(self, node: Node) -> Range:
        """Return the cost of evaluating a node once."""
        match node:
            case Ident():
                return self._ident(node)
            case Select():
                return self._select(node)
            case Call():
                return self._call(node)
            case ListNode():
                return self._list(node)
            case MapNode():
                return self._map(node)
            case Struct():
                total = fixed(STRUCT_BASE)
                for item in node.fields:
                    total = total.plus(self.cost(item.value))
                return total
            case Fold():
                return self._bind(node) if _is_bind(node) else self._fold(node)
        return ZERO

    # --- what is known about a node --------------------------------------------------

    def _peek(self, name: str) -> _Local | None:
        stack = self._locals.get(name)
        return stack[-1] if stack else None

    def _push(self, name: str, local: _Local) -> None:
        self._locals.setdefault(name, []).append(local)

    def _pop(self, name: str) -> None:
        self._locals[name].pop()

    def _path(self, node: Node) -> Path:
        if isinstance(node, Ident):
            local = self._peek(node.name)
            if local is not None:
                return local.path
        return self._paths.get(node.id, ())

    def _size(self, node: Node) -> Range | None:
        known = self._sizes.get(node.id) or _literal_size(node)
        if known is not None:
            return known
        declared = self.declared_size(self._path(node))
        if declared is not None:
            self._sizes[node.id] = declared
            return declared
        if _is_scalar(node.type):
            return ONE
        if isinstance(node, Ident):
            local = self._peek(node.name)
            if local is not None:
                return local.size
        return None

    def declared_size(self, path: Path) -> Range | None:
        """Return the size that the declaration of a variable promises for a path."""
        shape = self._shapes.get(path[0]) if path else None
        if shape is None:
            return None
        for name in path[1:]:
            if name in ("@items", "@values"):
                below = shape.element
            elif name == "@keys":
                below = shape.key
            elif name in shape.fields:
                below = shape.fields[name]
            else:
                # The name of an attribute: every attribute of a domain has the same bound.
                is_leaf = shape.element is not None and shape.element.is_attribute
                below = shape.element if is_leaf else None
            if below is None:
                return None
            shape = below
        return Range(0, shape.max_size)

    def _size_or_unknown(self, node: Node) -> Range:
        return self._size(node) or UNKNOWN

    def _entries_of(self, node: Node) -> Entries | None:
        known = self._entries.get(node.id)
        if known is None and isinstance(node, Ident):
            local = self._peek(node.name)
            return None if local is None else local.entries
        return known

    def _copy_knowledge(self, target: Node, origin: Node) -> None:
        size, entries = self._size(origin), self._entries_of(origin)
        if size is not None:
            self._sizes[target.id] = size
        if entries is not None:
            self._entries[target.id] = entries

    def _argument(self, node: Node) -> Argument:
        path = self._path(node)
        if path and path[0] in _ACCUMULATORS:
            path = ()
        return Argument(node, path, self._size(node))

    # --- costs by kind of node ---------------------------------------------------------

    def _ident(self, node: Ident) -> Range:
        local = self._peek(node.name)
        self._paths[node.id] = (node.name,) if local is None else local.path
        return ONE

    def _select(self, node: Select) -> Range:
        if node.constant is not None:
            self._paths[node.id] = ()
            return ONE
        total = self.cost(node.operand)
        if node.test_only:
            return total
        if node.operand.type.kind in ("map", "struct", "param"):
            total = total.plus(ONE)
        self._paths[node.id] = (*self._path(node.operand), node.name)
        return total

    def _call(self, node: Call) -> Range:
        if node.function == "dyn":
            total = self.cost(node.args[0]).plus(ONE)
            self._copy_knowledge(node, node.args[0])
            return total
        costs = [self.cost(argument) for argument in node.args]
        arguments = [self._argument(argument) for argument in node.args]
        if not node.overloads:
            return ZERO
        total, target = ZERO, None
        if node.target is not None:
            total = self.cost(node.target)
            target = self._argument(node.target)
        span = Range(MAX, 0)
        result: Range | None = None
        for overload in node.overloads:
            found = self._overload(node, overload, target, arguments, costs)
            span = span.union(found.cost)
            if found.result_size is not None:
                result = found.result_size if result is None else result.union(found.result_size)
            if overload in ("index_list", "index_map") and node.args:
                entries = self._entries_of(node.args[0])
                result = None if entries is None else entries.value
                step = "@items" if overload == "index_list" else "@values"
                self._paths[node.id] = (*self._path(node.args[0]), step)
            if result is None:
                result = self._size(node)
        if result is not None:
            self._sizes[node.id] = result
        return total.plus(span)

    def _overload(
        self,
        node: Call,
        overload: str,
        target: Argument | None,
        arguments: list[Argument],
        costs: list[Range],
    ) -> CallCost:
        if overload in ("logical_and", "logical_or"):
            # Only the left side is sure to be evaluated.
            return CallCost(Range(costs[0].min, costs[0].plus(costs[1]).max))
        if overload == "conditional":
            return self._conditional(node, costs)
        if overload in ("add_list", "add_string", "add_bytes"):
            self._unite_entries(node, node.args[0], node.args[1])
        found = estimate_call(node.function, overload, target, arguments, self)
        total = found.cost
        for cost in costs:
            total = total.plus(cost)
        return CallCost(total, found.result_size)

    def _conditional(self, node: Call, costs: list[Range]) -> CallCost:
        size = self._size_or_unknown(node.args[1]).union(self._size_or_unknown(node.args[2]))
        self._unite_entries(node, node.args[1], node.args[2])
        return CallCost(costs[0].plus(costs[1].union(costs[2])), size)

    def _unite_entries(self, node: Node, left: Node, right: Node) -> None:
        one, other = self._entries_of(left), self._entries_of(right)
        if one is not None and other is not None:
            self._entries[node.id] = Entries(
                one.container, one.key.union(other.key), one.value.union(other.value)
            )

    def _list(self, node: ListNode) -> Range:
        total = fixed(LIST_BASE)
        size = Range(MAX, 0) if node.elements else ZERO
        for element in node.elements:
            total = total.plus(self.cost(element))
            size = size.union(self._size_or_unknown(element))
        self._entries[node.id] = Entries("list", ONE, size)
        return total

    def _map(self, node: MapNode) -> Range:
        total = fixed(MAP_BASE)
        key = value = Range(MAX, 0) if node.entries else ZERO
        for entry in node.entries:
            total = total.plus(self.cost(entry.key)).plus(self.cost(entry.value))
            key = key.union(self._size_or_unknown(entry.key))
            value = value.union(self._size_or_unknown(entry.value))
        self._entries[node.id] = Entries("map", key, value)
        return total

    def _bind(self, node: Fold) -> Range:
        total = self.cost(node.iter_range).plus(self.cost(node.accu_init))
        self._push_value(node.accu_var, node.accu_init)
        total = total.plus(self.cost(node.result))
        self._pop(node.accu_var)
        self._copy_knowledge(node, node.result)
        return total

    def _fold(self, node: Fold) -> Range:
        total = self.cost(node.iter_range).plus(self.cost(node.accu_init))
        self._push_value(node.accu_var, node.accu_init)
        self._push_loop_variables(node)
        per_element = self.cost(node.condition)
        per_element = self.cost(node.step).plus(per_element)
        self._pop(node.iter_var)
        if node.iter_var2:
            self._pop(node.iter_var2)
        total = total.plus(self.cost(node.result))
        self._pop(node.accu_var)
        count = self._size_or_unknown(node.iter_range)
        total = total.plus(count.times(per_element))
        if isinstance(node.accu_init, Literal):
            size = self._size(node.accu_init)
            if size is not None:
                self._sizes[node.id] = size
        elif isinstance(node.accu_init, ListNode | MapNode):
            self._sizes[node.id] = count
            entries = self._entries_of(node.step)
            if entries is not None:
                self._entries[node.id] = entries
        return total

    def _push_value(self, name: str, node: Node) -> None:
        self._push(name, _Local(self._path(node), self._size(node), self._entries_of(node)))

    def _push_loop_variables(self, node: Fold) -> None:
        entries = self._entries_of(node.iter_range)
        path = self._path(node.iter_range)
        container = entries.container if entries is not None else node.iter_range.type.kind
        is_list = container == "list"
        key = None if entries is None else entries.key
        value = None if entries is None else entries.value
        if node.iter_var2:
            self._push(node.iter_var, _Local((*path, "@indices" if is_list else "@keys"), key, None))
            self._push(node.iter_var2, _Local((*path, "@items" if is_list else "@values"), value, None))
        elif is_list:
            self._push(node.iter_var, _Local((*path, "@items"), value, None))
        else:
            self._push(node.iter_var, _Local((*path, "@keys"), key, None))


def _is_bind(node: Fold) -> bool:
    return (
        isinstance(node.iter_range, ListNode)
        and not node.iter_range.elements
        and isinstance(node.condition, Literal)
        and node.condition.value is False
        and node.accu_var != "__result__"
    )


def _literal_size(node: Node) -> Range | None:
    match node:
        case Literal(value=str() | bytes() as text):
            return fixed(len(text))
        case Literal():
            return ONE
        case ListNode():
            return fixed(len(node.elements))
        case MapNode():
            return fixed(len(node.entries))
    return None


def _is_scalar(kind: CelType) -> bool:
    if kind.kind == "opaque" and kind.name == "optional_type":
        return _is_scalar(kind.params[0])
    return kind.kind in _SCALARS
