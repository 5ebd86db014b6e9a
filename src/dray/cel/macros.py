"""Macros: calls that are rewritten while parsing.

A macro with a loop becomes a `Fold`: start with `accu_init`, and for every
element, while `condition` holds, replace the accumulator by `step`; then
evaluate `result`. `cel.bind` and the optional macros become a fold over an
empty list, which only names a value.

The shape of the rewriting decides the cost of an expression, so it follows CEL's
definition of each macro exactly. The nodes that a macro adds stand at the opening
bracket of its call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dray.cel.errors import CelError
from dray.cel.syntax import Call, Entry, Fold, Ident, ListNode, Literal, MapNode, Node, Select

ACCUMULATOR = "@result"
_OLD_ACCUMULATOR = "__result__"
_UNUSED = "#unused"
_SORT_INPUT = "@__sortBy_input__"


class MacroError(CelError):
    """A macro was called with arguments it cannot expand."""

    def __init__(self, offset: int, message: str) -> None:
        super().__init__(message)
        self.offset = offset


@dataclass(slots=True)
class Maker:
    """Makes the nodes of one expansion."""

    new_id: Callable[[], int]
    offset: int

    def literal(self, value: object) -> Node:
        """Return a constant."""
        return Literal(self.new_id(), self.offset, value)

    def ident(self, name: str) -> Node:
        """Return a variable."""
        return Ident(self.new_id(), self.offset, name)

    def accumulator(self) -> Node:
        """Return the accumulator variable."""
        return self.ident(ACCUMULATOR)

    def call(self, function: str, *args: Node, target: Node | None = None) -> Node:
        """Return a call."""
        return Call(self.new_id(), self.offset, function, target, list(args))

    def list_of(self, *elements: Node) -> Node:
        """Return a list."""
        return ListNode(self.new_id(), self.offset, list(elements))

    def bind(self, name: str, value: Node, result: Node, macro: str) -> Node:
        """Return `result` with `name` standing for `value`."""
        return Fold(
            self.new_id(),
            self.offset,
            iter_range=self.list_of(),
            iter_var=_UNUSED,
            iter_var2="",
            accu_var=name,
            accu_init=value,
            condition=self.literal(value=False),
            step=self.ident(name),
            result=result,
            macro=macro,
        )

    def copy(self, node: Node) -> Node:
        """Return the same expression with new ids."""
        match node:
            case Select():
                return Select(self.new_id(), node.offset, self.copy(node.operand), node.name, node.test_only)
            case Call():
                target = None if node.target is None else self.copy(node.target)
                return Call(
                    self.new_id(), node.offset, node.function, target, [self.copy(a) for a in node.args]
                )
            case ListNode():
                return ListNode(
                    self.new_id(), node.offset, [self.copy(e) for e in node.elements], node.optional
                )
            case MapNode():
                entries = [
                    Entry(e.offset, self.copy(e.key), self.copy(e.value), e.optional) for e in node.entries
                ]
                return MapNode(self.new_id(), node.offset, entries)
            case Fold():
                return self._copy_fold(node)
            case Ident():
                return Ident(self.new_id(), node.offset, node.name)
            case Literal():
                return Literal(self.new_id(), node.offset, node.value)
        return node

    def _copy_fold(self, node: Fold) -> Fold:
        fold = replace(
            node,
            id=self.new_id(),
            iter_range=self.copy(node.iter_range),
            accu_init=self.copy(node.accu_init),
            condition=self.copy(node.condition),
            step=self.copy(node.step),
            result=self.copy(node.result),
        )
        if node.macro in _PLAIN_LOOPS:
            # The copies of predicate and transformation lie inside the copied step.
            fold.macro = ""
        return fold


_PLAIN_LOOPS = frozenset({"all", "exists", "exists_one", "map", "filter", "list", "map_entries", "map_merge"})
_Expander = Callable[[Maker, Node | None, list[Node]], Node | None]


def expand(maker: Maker, function: str, target: Node | None, args: list[Node]) -> Node | None:
    """Return the expansion of a call, or None if it is not a macro."""
    expander = _MACROS.get((function, len(args), target is not None))
    return None if expander is None else expander(maker, target, args)


def _name_of(argument: Node, message: str) -> str:
    if not isinstance(argument, Ident):
        raise MacroError(argument.offset, message)
    return argument.name


def _loop_variable(argument: Node, message: str) -> str:
    name = _name_of(argument, message)
    if name in (ACCUMULATOR, _OLD_ACCUMULATOR):
        raise MacroError(argument.offset, "iteration variable overwrites accumulator variable")
    return name


def _loop_variables(first: Node, second: Node) -> tuple[str, str]:
    message = "argument must be a simple name"
    name, name2 = _name_of(first, message), _name_of(second, message)
    if name == name2:
        raise MacroError(second.offset, f"duplicate variable name: {name}")
    return _loop_variable(first, message), _loop_variable(second, message)


def _has(maker: Maker, _target: Node | None, args: list[Node]) -> Node:
    argument = args[0]
    if not isinstance(argument, Select):
        raise MacroError(argument.offset, "invalid argument to has() macro")
    return Select(maker.new_id(), maker.offset, argument.operand, argument.name, test_only=True)


def _quantifier(kind: str) -> _Expander:
    def expander(maker: Maker, target: Node | None, args: list[Node]) -> Node:
        assert target is not None
        if len(args) == 2:
            names = (_loop_variable(args[0], "argument must be a simple name"), "")
        else:
            names = _loop_variables(args[0], args[1])
        return _quantified(maker, kind, target, names, args[-1])

    return expander


def _quantified(maker: Maker, kind: str, target: Node, names: tuple[str, str], predicate: Node) -> Node:
    if kind == "all":
        init = maker.literal(value=True)
        condition = maker.call("@not_strictly_false", maker.accumulator())
        step = maker.call("_&&_", maker.accumulator(), predicate)
        result = maker.accumulator()
    elif kind == "exists":
        init = maker.literal(value=False)
        condition = maker.call("@not_strictly_false", maker.call("!_", maker.accumulator()))
        step = maker.call("_||_", maker.accumulator(), predicate)
        result = maker.accumulator()
    else:
        init = maker.literal(0)
        condition = maker.literal(value=True)
        more = maker.call("_+_", maker.accumulator(), maker.literal(1))
        step = maker.call("_?_:_", predicate, more, maker.accumulator())
        result = maker.call("_==_", maker.accumulator(), maker.literal(1))
    return Fold(
        maker.new_id(), maker.offset, target, *names, ACCUMULATOR, init, condition, step, result,
        macro=kind, predicate=predicate,
    )  # fmt: skip


def _collecting(
    maker: Maker, macro: str, target: Node, names: tuple[str, str], *, predicate: Node | None, transform: Node
) -> Node:
    """Return a fold that grows a list or a map by one step per element."""
    if macro in ("map_entries", "map_merge"):
        init: Node = MapNode(maker.new_id(), maker.offset, [])
        key = [maker.ident(names[0])] if macro == "map_entries" else []
        step = maker.call("cel.@mapInsert", maker.accumulator(), *key, transform)
    else:
        init = maker.list_of()
        step = maker.call("_+_", maker.accumulator(), maker.list_of(transform))
    if predicate is not None:
        step = maker.call("_?_:_", predicate, step, maker.accumulator())
    condition = maker.literal(value=True)
    return Fold(
        maker.new_id(), maker.offset, target, *names, ACCUMULATOR, init, condition, step, maker.accumulator(),
        macro=macro, predicate=predicate, transform=transform,
    )  # fmt: skip


def _map(maker: Maker, target: Node | None, args: list[Node]) -> Node:
    assert target is not None
    name = _loop_variable(args[0], "argument is not an identifier")
    predicate = args[1] if len(args) == 3 else None
    return _collecting(maker, "map", target, (name, ""), predicate=predicate, transform=args[-1])


def _filter(maker: Maker, target: Node | None, args: list[Node]) -> Node:
    assert target is not None
    name = _loop_variable(args[0], "argument is not an identifier")
    return _collecting(maker, "filter", target, (name, ""), predicate=args[1], transform=args[0])


def _transform(macro: str) -> _Expander:
    def expander(maker: Maker, target: Node | None, args: list[Node]) -> Node:
        assert target is not None
        names = _loop_variables(args[0], args[1])
        predicate = args[2] if len(args) == 4 else None
        return _collecting(maker, macro, target, names, predicate=predicate, transform=args[-1])

    return expander


def _bind(maker: Maker, target: Node | None, args: list[Node]) -> Node | None:
    if not (isinstance(target, Ident) and target.name == "cel"):
        return None
    name = _name_of(args[0], "cel.bind() variable names must be simple identifiers")
    return maker.bind(name, args[1], args[2], "bind")


def _optional_map(*, flat: bool) -> _Expander:
    word = "optFlatMap" if flat else "optMap"

    def expander(maker: Maker, target: Node | None, args: list[Node]) -> Node:
        assert target is not None
        name = _name_of(args[0], f"{word}() variable name must be a simple identifier")
        present = maker.call("hasValue", target=target)
        value = maker.call("value", target=maker.copy(target))
        bound = maker.bind(name, value, args[1], "bind")
        mapped = bound if flat else maker.call("optional.of", bound)
        return maker.call("_?_:_", present, mapped, maker.call("optional.none"))

    return expander


def _sort_by(maker: Maker, target: Node | None, args: list[Node]) -> Node:
    assert target is not None
    if not isinstance(target, ListNode | Select | Ident | Fold | Call):
        raise MacroError(
            target.offset,
            "sortBy can only be applied to a list, identifier, comprehension, call or select expression",
        )
    keys = _map(maker, maker.ident(_SORT_INPUT), args)
    call = maker.call("@sortByAssociatedKeys", keys, target=maker.ident(_SORT_INPUT))
    return maker.bind(_SORT_INPUT, target, call, "bind")


# (function, number of arguments, has a receiver) → expansion
_MACROS: dict[tuple[str, int, bool], _Expander] = {
    ("has", 1, False): _has,
    ("all", 2, True): _quantifier("all"),
    ("all", 3, True): _quantifier("all"),
    ("exists", 2, True): _quantifier("exists"),
    ("exists", 3, True): _quantifier("exists"),
    ("exists_one", 2, True): _quantifier("exists_one"),
    ("exists_one", 3, True): _quantifier("exists_one"),
    ("existsOne", 3, True): _quantifier("exists_one"),
    ("map", 2, True): _map,
    ("map", 3, True): _map,
    ("filter", 2, True): _filter,
    ("transformList", 3, True): _transform("list"),
    ("transformList", 4, True): _transform("list"),
    ("transformMap", 3, True): _transform("map_entries"),
    ("transformMap", 4, True): _transform("map_entries"),
    ("transformMapEntry", 3, True): _transform("map_merge"),
    ("transformMapEntry", 4, True): _transform("map_merge"),
    ("bind", 3, True): _bind,
    ("optMap", 2, True): _optional_map(flat=False),
    ("optFlatMap", 2, True): _optional_map(flat=True),
    ("sortBy", 2, True): _sort_by,
}
