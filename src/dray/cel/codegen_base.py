"""What all generated code needs: names, statements, costs, and parts that are put aside.

See `codegen` for how it works as a whole.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from dray.cel import generated, kinds
from dray.cel import pysyntax as py
from dray.cel.errors import CelError, Fault, no_such_overload
from dray.cel.functions import implementation
from dray.cel.kinds import CelType
from dray.cel.planning import FOLDED
from dray.cel.syntax import Call, Ident, ListNode, Literal, MapNode, Node, Select
from dray.cel.values import MISSING

COST = "cost"
LIMIT = "limit"
MEMORY_LEFT = "memory_left"
DEVICE = "device"
MAX_BLOCKS = 12  # Python allows 20 nested loops and try statements in one function; a node adds up to 4
MAX_FOLDED = 128  # characters or elements of a result that is computed when compiling


class NotCompiledError(CelError):
    """The expression is left to the interpreter."""


class Code(NamedTuple):
    """The expression of a value, and what is certain about the value."""

    expression: ast.expr
    type: CelType | None = None  # None: it may have any type
    element: CelType | None = None  # of a list


@dataclass(slots=True)
class Variable:
    """A variable of the expression, and where Python has it."""

    name: str
    type: CelType | None = None
    element: CelType | None = None
    may_fail: bool = False  # it may hold a Fault, to be raised when the variable is used
    cost: str = ""  # what its first use costs: the name of a Python variable


Scope = dict[str, Variable]


PLAIN_CONSTANTS = frozenset({bool, int, str, bytes})
DIRECT_TYPES: dict[type, CelType] = {int: kinds.INT, str: kinds.STRING, bool: kinds.BOOL}


class CodeWriter:
    """Writes statements; the classes that extend it know what to write."""

    def __init__(self, *, counting: bool, absorbs: bool = True) -> None:
        self.counting = counting
        self.absorbs = absorbs and not counting  # whether `&&`, `||` and loops go on after a failure
        self.names: dict[str, object] = {
            "type": type, "str": str, "int": int, "bool": bool, "Fault": Fault, "MISSING": MISSING,
        }  # fmt: skip
        self._count = 0
        self._body: list[ast.stmt] = []
        self._pending = 0  # cost not yet added
        self._delayed: list[str] = []  # names of costs that are added at a variable's first use
        self._can_fail = False
        self._blocks = 0
        self._loops = 0
        self._by_function: dict[int, str] = {}
        self.uses_memory = False
        self._is_delaying = False  # in the value of a binding, whose cost is added at its first use

    # --- bookkeeping ---------------------------------------------------------------------

    def fresh(self, prefix: str) -> str:
        """Return a Python name that is not in use."""
        self._count += 1
        return f"{prefix}{self._count}"

    def emit(self, *statements: ast.stmt) -> None:
        """Append to the current body."""
        self._body.extend(statements)

    def stored(self, value: ast.expr) -> ast.expr:
        """Return a name for a value, so that it is computed now and once."""
        if isinstance(value, ast.Name | ast.Constant):
            return value
        name = self.fresh("t")
        self.emit(py.assign(name, value))
        return py.load(name)

    def constant(self, value: object) -> ast.expr:
        """Make a value available to the code."""
        if value is None or (isinstance(value, bool | int | str | bytes) and type(value) in PLAIN_CONSTANTS):
            return ast.Constant(value)
        name = self.fresh("c")
        self.names[name] = value
        return py.load(name)

    def invoke(self, function: Callable[..., object], *args: ast.expr) -> ast.expr:
        """Return a call of a Python function, which may raise Fault."""
        self._can_fail = True
        name = self._by_function.get(id(function))
        if name is None:
            name = self._by_function[id(function)] = self.fresh("c")
            self.names[name] = function
        return py.call(py.load(name), *args)

    def charge(self, cost: int) -> None:
        """Add to the cost of the code at hand."""
        if self.counting:
            self._pending += cost

    def _flush(self) -> None:
        if self._pending:
            self.emit(py.increase(COST, py.constant(self._pending)))
            self._pending = 0

    def _check_limit(self) -> None:
        exceeded = py.compare(py.load(COST), ast.Gt(), py.load(LIMIT))
        self.emit(py.if_(exceeded, [py.raise_(self.invoke(generated.over_limit))]))

    def _fail(self, function: Callable[..., object], *args: ast.expr) -> ast.stmt:
        return py.raise_(self.invoke(function, *args))

    def apart(self, action: Callable[[], None]) -> tuple[list[ast.stmt], bool]:
        """Return the statements of an action, and whether they can fail."""
        self._flush()
        outer, outer_can_fail = self._body, self._can_fail
        self._body, self._can_fail = [], False
        try:
            action()
            self._flush()
            return self._body, self._can_fail
        finally:
            can_fail = self._can_fail
            self._body, self._can_fail = outer, outer_can_fail or can_fail

    def assigned(self, name: str, node: Node, scope: Scope, *, boolean: bool = False) -> Callable[[], None]:
        """Return the action that computes a node into a name."""

        def action() -> None:
            value = self.boolean(node, scope) if boolean else self.node(node, scope).expression
            self.emit(py.assign(name, value))

        return action

    def node(self, node: Node, scope: Scope, *, is_step: bool = True) -> Code:
        """Return the code of a node. An access that is not a step of its own costs less."""
        raise NotImplementedError

    def _outlined(self, node: Node, scope: Scope, *, is_step: bool) -> Code:
        """Put a deep part into a function of its own."""
        blocks, self._blocks = self._blocks, 0
        name = self.fresh("f")

        def action() -> None:
            self.emit(ast.Return(self.node(node, scope, is_step=is_step).expression))

        before, self.uses_memory = self.uses_memory, False
        delayed = list(self._delayed)
        body, _ = self.apart(action)
        uses_memory, self.uses_memory = self.uses_memory, self.uses_memory or before
        self._blocks = blocks
        outer = [MEMORY_LEFT] if uses_memory else []
        if self.counting:
            outer += [COST, *delayed]
            self._delayed = delayed
            # The cost of the result itself was added after it: bring it before.
            last = next(i for i, statement in enumerate(body) if isinstance(statement, ast.Return))
            body.append(body.pop(last))
        if outer:
            body.insert(0, ast.Nonlocal(outer))
        self.emit(py.function(name, [], body))
        return Code(self.stored(py.call(py.load(name))))

    def values(self, nodes: list[Node], scope: Scope) -> list[Code]:
        """Return the code of several nodes, to be evaluated in this order."""
        codes: list[Code] = []
        n_stored = 0  # that are names or constants for sure
        for node in nodes:
            before = len(self._body)
            code = self.node(node, scope)
            if len(self._body) > before:
                added, self._body[before:] = self._body[before:], []
                for position in range(n_stored, len(codes)):
                    earlier = codes[position]
                    codes[position] = earlier._replace(expression=self.stored(earlier.expression))
                n_stored = len(codes)
                self._body.extend(added)
            codes.append(code)
        return codes

    def boolean(self, node: Node, scope: Scope) -> ast.expr:
        """Return code that yields a bool; anything else fails."""
        code = self.node(node, scope)
        if code.type == kinds.BOOL:
            return code.expression
        # A name even for a constant: Python warns of comparisons of constants.
        value = py.load(name := self.fresh("t"))
        self.emit(py.assign(name, code.expression))
        is_other = py.both(py.is_not(value, py.constant(True)), py.is_not(value, py.constant(False)))
        self.emit(py.if_(is_other, [self._fail(no_such_overload)]))
        return value

    def _choice(self, node: Call, scope: Scope, branch: Callable[[Node], Code]) -> Code:
        condition = self.boolean(node.args[0], scope)
        result = self.fresh("t")
        types: list[CelType | None] = []

        def action(part: Node) -> None:
            code = branch(part)
            types.append(code.type)
            self.emit(py.assign(result, code.expression))

        if not isinstance(condition, ast.Name | ast.Constant):
            condition = self.stored(condition)
        truthy, _ = self.apart(lambda: action(node.args[1]))
        falsy, _ = self.apart(lambda: action(node.args[2]))
        self.emit(py.if_(condition, truthy, falsy))
        return Code(py.load(result), types[0] if types[0] == types[1] else None)

    def _caught(self, body: list[ast.stmt], failure: str, after: list[ast.stmt]) -> ast.stmt:
        """Return the body with its failure kept, unless one was kept before."""
        caught = self.fresh("x")
        keep = py.if_(py.is_(py.load(failure), py.constant(None)), [py.assign(failure, py.load(caught))])
        return py.try_(body, py.load("Fault"), caught, [keep, *after])

    def _raise_kept(self, failure: str, test: ast.expr | None) -> None:
        is_kept = py.is_not(py.load(failure), py.constant(None))
        condition = is_kept if test is None else py.both(test, is_kept)
        self.emit(py.if_(condition, [self._fail(generated.fresh, py.load(failure))]))


def constant_value(node: Node) -> object:
    """Return the value of a node that costs nothing to evaluate, or MISSING: see `planning`."""
    match node:
        case Literal():
            return node.value
        case Ident() | Select():
            return MISSING if node.constant is None else node.constant
        case ListNode() if not node.optional:
            values = [constant_value(element) for element in node.elements]
            return MISSING if any(value is MISSING for value in values) else values
        case MapNode() if not any(entry.optional for entry in node.entries):
            parts = [constant_value(part) for entry in node.entries for part in (entry.key, entry.value)]
            if any(part is MISSING for part in parts):
                return MISSING
            try:
                return generated.make_map(*parts)
            except Fault:
                return MISSING
        case Call() if node.overloads == ("in_list",) and constant_value(node.args[1]) == []:
            return False
        case Call() if node.function in FOLDED and node.target is None and len(node.args) == 1:
            value = constant_value(node.args[0])
            if value is MISSING:
                return MISSING
            try:
                return implementation(node.function, node.overloads)(value)
            except Fault:
                return MISSING
    return MISSING
