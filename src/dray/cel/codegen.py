"""Compile an expression into a Python function: loops become loops, variables local variables.

The function is built from Python's own syntax tree nodes and handed to `compile`; no
text of the expression is ever executed, literals enter as constants and names as
numbered temporaries.

There are two kinds of function. Where the estimate says that an expression cannot
cost more than it may, nothing is counted, and failures are handled as CEL demands: a
failure is a Python exception (Fault), caught where `&&`, `||` or a loop absorbs it.
Otherwise the function counts. It then stops at the limit, but it knows the cost of
evaluations without failure only: any Fault ends it, and the caller asks the
interpreter.

Theory of operation: `node` appends statements to the current body and returns the
expression of the value. Arguments are evaluated from left to right, so an expression
that is followed by statements of a later argument is stored first (`_values`). Costs
known ahead are summed up and added where the flow of control divides (`_flush`).

Invariants (tests/property/test_cel_codegen.py): a function that returns gives the
interpreter's value; one that raises Fault and does not count, its error; one that
counts and returns, its cost.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import NamedTuple

from dray.cel import generated, kinds, operators
from dray.cel import pysyntax as py
from dray.cel.call_costs import actual_call_cost, is_plain
from dray.cel.device import DeviceInput
from dray.cel.errors import CelError, Fault, no_such_overload
from dray.cel.functions import implementation
from dray.cel.interpreter import member_key, not_equal
from dray.cel.kinds import CelType
from dray.cel.memory import OUTGROWING, ROOM, room_after
from dray.cel.planning import FOLDED
from dray.cel.ranges import LIST_BASE, MAP_BASE
from dray.cel.syntax import Call, Fold, Ident, ListNode, Literal, MapNode, Node, Select
from dray.cel.values import MISSING, Optional, equal, size_of

# Of a device and a cost limit: the value, and the cost if the function counts.
Compiled = Callable[[DeviceInput, int], tuple[object, int | None]]

_COST = "cost"
_LIMIT = "limit"
_ROOM = "room"
_DEVICE = "device"
_MAX_BLOCKS = 12  # Python allows 20 nested loops and try statements in one function; a node adds up to 4
_MAX_FOLDED = 128  # characters or elements of a result that is computed when compiling


class NotCompiledError(CelError):
    """The expression is left to the interpreter."""


def compile_tree(tree: Node, *, counting: bool) -> Compiled | None:
    """Return the function of an expression, or None where the interpreter must do."""
    # Loops are a module of their own, which needs this one.
    from dray.cel.codegen_loops import LoopGenerator

    generator = LoopGenerator(counting=counting)
    try:
        module = generator.module(tree)
        code = compile(ast.fix_missing_locations(module), "<selector>", "exec")
    except (NotCompiledError, RecursionError, MemoryError, SyntaxError):
        return None
    inner = next(constant for constant in code.co_consts if isinstance(constant, CodeType))
    return FunctionType(inner, generator.names, "selector")


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


class Qualifier(NamedTuple):
    """One step of an access: `.name`, `[key]`, `.?name`, or the end of has()."""

    key: Node | str
    optional: bool
    is_test: bool

    @property
    def is_plain(self) -> bool:
        """Whether it is `.name` or `[key]`."""
        return not (self.optional or self.is_test)


_DIRECT = frozenset({kinds.INT, kinds.STRING, kinds.BOOL})
_TESTED = {kinds.STRING: "str", kinds.INT: "int", kinds.BOOL: "bool"}
_COMPARISONS: dict[str, tuple[type[ast.cmpop], Callable[[object, object], object]]] = {
    "_==_": (ast.Eq, equal),
    "_!=_": (ast.NotEq, not_equal),
    "_<_": (ast.Lt, operators.less),
    "_<=_": (ast.LtE, operators.less_equals),
    "_>_": (ast.Gt, operators.greater),
    "_>=_": (ast.GtE, operators.greater_equals),
}
_ARITHMETIC: dict[str, type[ast.operator]] = {"_+_": ast.Add, "_-_": ast.Sub, "_*_": ast.Mult}
_INDEXING = frozenset({"_[_]", "_[?_]", "_?._"})
_DEVICE_FIELDS = {
    "driver": "driver",
    "attributes": "attributes",
    "capacity": "capacity",
    "allowMultipleAllocations": "allow_multiple_allocations",
}
_UNKNOWN_TYPES = frozenset({"dyn", "any", "param", "error"})
_PLAIN_CONSTANTS = frozenset({bool, int, str, bytes})
_DIRECT_TYPES: dict[type, CelType] = {int: kinds.INT, str: kinds.STRING, bool: kinds.BOOL}


class Generator:
    """Everything but loops."""

    def __init__(self, *, counting: bool) -> None:
        self.counting = counting
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

    def module(self, tree: Node) -> ast.Module:
        """Return the function as a module of one statement."""
        result = self.stored(self.node(tree, {}).expression)
        body = self._body
        cost = py.constant(None)
        if self.counting:
            self._flush()
            self._check_limit()
            cost = py.load(_COST)
            body.insert(0, py.assign(_COST, py.constant(0)))
        if self.uses_memory:
            body.insert(0, py.assign(_ROOM, py.constant(ROOM)))
        body.append(ast.Return(ast.Tuple([result, cost], ast.Load())))
        return ast.Module([py.function("selector", [_DEVICE, _LIMIT], body)], [])

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
        if value is None or (isinstance(value, bool | int | str | bytes) and type(value) in _PLAIN_CONSTANTS):
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
            self.emit(py.increase(_COST, py.constant(self._pending)))
            self._pending = 0

    def _check_limit(self) -> None:
        exceeded = py.compare(py.load(_COST), ast.Gt(), py.load(_LIMIT))
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

    # --- nodes -----------------------------------------------------------------------------

    def node(self, node: Node, scope: Scope, *, is_step: bool = True) -> Code:
        """Return the code of a node. An access that is no step of its own costs less."""
        if self._blocks > _MAX_BLOCKS and isinstance(node, Fold | Call):
            return self._outlined(node, scope, is_step=is_step)
        match node:
            case Literal():
                return Code(self.constant(node.value), _DIRECT_TYPES.get(type(node.value)))
            case Ident() | Select() if node.constant is not None:
                return Code(self.constant(node.constant))
            case Ident() | Select():
                return self._access(node, [], scope, is_step=is_step)
            case Call() if node.function in _INDEXING:
                return self._access(node, [], scope, is_step=is_step)
            case Call():
                return self._call(node, scope)
            case ListNode() if not node.optional:
                return self._list(node, scope)
            case MapNode() if not any(entry.optional for entry in node.entries):
                return self._map(node, scope)
            case Fold():
                return self.fold(node, scope)
        raise NotCompiledError

    def fold(self, node: Fold, scope: Scope) -> Code:
        """Return the code of a loop or a binding."""
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
        outer = [_ROOM] if uses_memory else []
        if self.counting:
            outer += [_COST, *delayed]
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
        value = self.stored(code.expression)
        is_other = py.both(py.is_not(value, py.constant(True)), py.is_not(value, py.constant(False)))
        self.emit(py.if_(is_other, [self._fail(no_such_overload)]))
        return value

    def _list(self, node: ListNode, scope: Scope) -> Code:
        value = constant_value(node)
        if isinstance(value, list):
            types = {type(item) for item in value}
            element = _DIRECT_TYPES.get(types.pop()) if len(types) == 1 else None
            return Code(self.constant(value), node.type, element)
        codes = self.values(node.elements, scope)
        self.charge(LIST_BASE)
        found = {code.type for code in codes}
        element = found.pop() if len(found) == 1 else None
        return Code(ast.List([code.expression for code in codes], ast.Load()), node.type, element)

    def _map(self, node: MapNode, scope: Scope) -> Code:
        parts = [part for entry in node.entries for part in (entry.key, entry.value)]
        codes = self.values(parts, scope)
        if constant_value(node) is MISSING:
            self.charge(MAP_BASE)
        return Code(self.invoke(generated.make_map, *(code.expression for code in codes)))

    # --- accesses ----------------------------------------------------------------------------

    def _access(self, node: Node, qualifiers: list[Qualifier], scope: Scope, *, is_step: bool) -> Code:
        """Return the code of `root.a[b].?c`: see `access.Access`."""
        root, chain = _chain(node)
        chain += qualifiers
        if is_step and not (chain and chain[-1].is_test):
            self.charge(1)
        if isinstance(root, Call) and root.function == "_?_:_" and chain:
            return self._conditional_access(root, chain, scope)
        field = chain[0].key if chain and chain[0].is_plain else None
        if isinstance(field, str) and _is_device(root, scope):
            self.charge(1)
            base = py.attribute(py.load(_DEVICE), _DEVICE_FIELDS[field])
            return self._device_access(field, base, chain[1:], scope)
        if isinstance(root, Ident):
            start = self._variable(root, scope)
            return self._qualified(root, start, chain, scope) if chain else start
        return self._qualified(root, self.node(root, scope), chain, scope)

    def _variable(self, node: Ident, scope: Scope) -> Code:
        variable = scope.get(node.name)
        if variable is None:
            if node.name.removeprefix(".") != "device":
                raise NotCompiledError
            return Code(py.subscript(py.attribute(py.load(_DEVICE), "variables"), py.constant("device")))
        if variable.may_fail:
            is_fault = py.is_(py.call(py.load("type"), py.load(variable.name)), py.load("Fault"))
            self.emit(py.if_(is_fault, [self._fail(generated.fresh, py.load(variable.name))]))
        if variable.cost:
            if self._is_delaying:
                # The first use would be part of a cost that may never be added.
                raise NotCompiledError
            self.emit(py.increase(_COST, py.load(variable.cost)), py.assign(variable.cost, py.constant(0)))
        return Code(py.load(variable.name), variable.type, variable.element)

    def _device_access(self, field: str, base: ast.expr, chain: list[Qualifier], scope: Scope) -> Code:
        if field == "driver":
            return Code(base, kinds.STRING)
        if field == "allowMultipleAllocations":
            return Code(base, kinds.BOOL)
        is_plain_chain = len(chain) == 2 and not any(part.optional for part in chain)
        if not is_plain_chain or chain[0].is_test:
            return self._steps(base, chain, scope, may_be_optional=False)
        domain, name = _constant_key(chain[0]), _constant_key(chain[1])
        if not isinstance(domain, str) or not isinstance(name, str):
            return self._steps(base, chain, scope, may_be_optional=False)
        self.charge(2)
        holder = py.subscript(base, py.constant(domain))
        if chain[1].is_test:
            return Code(py.compare(py.constant(name), ast.In(), holder), kinds.BOOL)
        get = py.attribute(holder, "get")
        value = self.stored(py.call(get, py.constant(name), py.load("MISSING")))
        is_missing = py.is_(value, py.load("MISSING"))
        self.emit(py.if_(is_missing, [self._fail(generated.no_such_key, py.constant(name))]))
        return Code(value)

    def _qualified(self, root: Node, start: Code, chain: list[Qualifier], scope: Scope) -> Code:
        may_be = kinds.unwrap_optional(root.type)[1] or root.type.kind in _UNKNOWN_TYPES
        return self._steps(start.expression, chain, scope, may_be_optional=may_be and start.type is None)

    def _steps(self, start: ast.expr, chain: list[Qualifier], scope: Scope, *, may_be_optional: bool) -> Code:
        """Follow the qualifiers. Once one is optional, what is missing ends the chain without failure."""
        value = start
        is_optional: ast.expr | None = None  # not None: the code that tells
        if may_be_optional:
            value, is_optional = self._opened(start)
        for part in chain:
            if part.optional and not _is_true(is_optional):
                value, is_optional = self.stored(value), py.constant(True)
            if is_optional is None:
                value = self._plain_step(value, part, scope)
                continue
            if part.is_test or (self.counting and self._loops):
                # has() of an optional chain, and costs of values that come and go: rare and odd.
                raise NotCompiledError
            value = self._optional_step(value, part, scope, is_optional)
        if is_optional is None:
            return Code(value, kinds.BOOL if chain and chain[-1].is_test else None)
        wrapped = self.invoke(generated.closed, value)
        if _is_true(is_optional):
            return Code(wrapped)
        return Code(ast.IfExp(is_optional, wrapped, value))

    def _opened(self, start: ast.expr) -> tuple[ast.expr, ast.expr]:
        """Look into the root if it is an optional; return its value, and whether it was one."""
        value, flag = self.fresh("t"), self.fresh("o")
        is_optional = py.is_(py.call(py.load("type"), py.load(value)), self.constant(Optional))
        opening = [py.assign(value, self.invoke(generated.opened, py.load(value)))]
        self.emit(py.assign(value, start), py.assign(flag, is_optional), py.if_(py.load(flag), opening))
        return py.load(value), py.load(flag)

    def _key(self, part: Qualifier, scope: Scope) -> ast.expr:
        if isinstance(part.key, str):
            return py.constant(part.key)
        return self.node(part.key, scope, is_step=False).expression

    def _plain_step(self, value: ast.expr, part: Qualifier, scope: Scope) -> ast.expr:
        self.charge(1)
        before = len(self._body)
        key = self._key(part, scope)
        if len(self._body) > before:
            added, self._body[before:] = self._body[before:], []
            value = self.stored(value)
            self._body.extend(added)
        return self.stored(self.invoke(generated.has if part.is_test else generated.find, value, key))

    def _optional_step(
        self, value: ast.expr, part: Qualifier, scope: Scope, is_optional: ast.expr
    ) -> ast.expr:
        result = self.fresh("t")
        self.emit(py.assign(result, value))

        def action() -> None:
            key = self.stored(self._key(part, scope))
            found = self.invoke(generated.find_maybe, py.load(result), key)
            if not _is_true(is_optional):
                strict = self.invoke(generated.find, py.load(result), key)
                found = ast.IfExp(is_optional, found, strict)
            self.emit(py.assign(result, found))
            if self.counting:
                present = py.is_not(py.load(result), py.load("MISSING"))
                self.emit(py.if_(present, [py.increase(_COST, py.constant(1))]))

        body, _ = self.apart(action)
        self.emit(py.if_(py.is_not(py.load(result), py.load("MISSING")), body))
        return py.load(result)

    def _conditional_access(self, root: Call, chain: list[Qualifier], scope: Scope) -> Code:
        """Return `(c ? a : b).x`: the qualifiers belong to both branches."""
        if len(chain) > 3 or any(_constant_key(part) is MISSING for part in chain):
            raise NotCompiledError

        def branch(node: Node) -> Code:
            return self._access(node, chain, scope, is_step=False)

        return self._choice(root, scope, branch)

    # --- calls ---------------------------------------------------------------------------------

    def _call(self, node: Call, scope: Scope) -> Code:
        match node.function:
            case "_&&_" | "_||_":
                return self._logic(node, scope)
            case "!_":
                value = self.boolean(node.args[0], scope)
                self.charge(1)
                return Code(py.negated(value), kinds.BOOL)
            case "_?_:_":
                return self._choice(node, scope, lambda part: self.node(part, scope, is_step=False))
            case "_==_" | "_!=_" | "_<_" | "_<=_" | "_>_" | "_>=_":
                return self._comparison(node, scope)
            case "orValue" | "or":
                return self._or_else(node, scope)
            case "@in":
                return self._membership(node, scope)
        return self._function(node, scope)

    def _logic(self, node: Call, scope: Scope) -> Code:
        """Return a chain of terms; the first decisive one decides, whatever failed before."""
        decisive = node.function == "_||_"
        terms = [self._term(term, scope) for term in _terms(node, node.function)]
        terms = self._joined_terms(terms, ast.Or() if decisive else ast.And())
        if len(terms) == 1 and not terms[0][1]:
            return Code(terms[0][0], kinds.BOOL)
        result = self.fresh("t")
        catches = [can_fail and not self.counting for _, _, can_fail in terms]
        # A failure of the last term needs no catching if there is none before.
        if not any(catches[:-1]):
            catches[-1] = False
        failure = self.fresh("f")
        if any(catches):
            self.emit(py.assign(failure, py.constant(None)))
        undecided = py.negated(py.load(result)) if decisive else py.load(result)
        for position, (expression, statements, _) in enumerate(terms):
            body = [*statements, py.assign(result, expression)]
            if catches[position]:
                body = [self._caught(body, failure, [py.assign(result, py.constant(not decisive))])]
            if position == 0:
                self.emit(*body)
            else:
                self.emit(py.if_(undecided, body))
        if any(catches):
            self._raise_kept(failure, undecided)
        return Code(py.load(result), kinds.BOOL)

    def _term(self, node: Node, scope: Scope) -> tuple[ast.expr, list[ast.stmt], bool]:
        found: list[ast.expr] = []
        self._blocks += 1
        body, can_fail = self.apart(lambda: found.append(self.boolean(node, scope)))
        self._blocks -= 1
        return found[0], body, can_fail

    @staticmethod
    def _joined_terms(
        terms: list[tuple[ast.expr, list[ast.stmt], bool]], operator: ast.boolop
    ) -> list[tuple[ast.expr, list[ast.stmt], bool]]:
        """Join neighbours that neither need statements nor can fail."""
        joined: list[tuple[ast.expr, list[ast.stmt], bool]] = []
        for expression, statements, can_fail in terms:
            if joined and not statements and not can_fail and not joined[-1][2]:
                before, its_statements, _ = joined.pop()
                operands = (
                    before.values if isinstance(before, ast.BoolOp) and before.op is operator else [before]
                )
                joined.append((ast.BoolOp(operator, [*operands, expression]), its_statements, False))
            else:
                joined.append((expression, statements, can_fail))
        return joined

    def _caught(self, body: list[ast.stmt], failure: str, after: list[ast.stmt]) -> ast.stmt:
        """Return the body with its failure kept, unless one was kept before."""
        caught = self.fresh("x")
        keep = py.if_(py.is_(py.load(failure), py.constant(None)), [py.assign(failure, py.load(caught))])
        return py.try_(body, py.load("Fault"), caught, [keep, *after])

    def _raise_kept(self, failure: str, test: ast.expr | None) -> None:
        is_kept = py.is_not(py.load(failure), py.constant(None))
        condition = is_kept if test is None else py.both(test, is_kept)
        self.emit(py.if_(condition, [self._fail(generated.fresh, py.load(failure))]))

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

    def _comparison(self, node: Call, scope: Scope) -> Code:
        operator, general = _COMPARISONS[node.function]
        left, right = self.values(node.args, scope)
        if left.type is not None and left.type == right.type and left.type in _DIRECT:
            value = py.compare(left.expression, operator(), right.expression)
            if self.counting:
                sides = [self.stored(left.expression), self.stored(right.expression)]
                value = py.compare(sides[0], operator(), sides[1])
                self._price(node, sides, value, [left.type, right.type])
            return Code(value, kinds.BOOL)
        literal = node.args[1]
        if isinstance(literal, Literal) and literal.type in _TESTED and not self.counting:
            # The usual case: an attribute against a literal. Same type: Python's operator will do.
            name = self.fresh("t")
            tested = py.call(py.load("type"), py.walrus(name, left.expression))
            fallback = self.invoke(general, py.load(name), right.expression)
            direct = py.compare(py.load(name), operator(), right.expression)
            return Code(
                ast.IfExp(py.is_(tested, py.load(_TESTED[literal.type])), direct, fallback), kinds.BOOL
            )
        return self._priced(node, general, [left, right], kinds.BOOL)

    def _or_else(self, node: Call, scope: Scope) -> Code:
        assert node.target is not None
        if self.counting and self._loops:
            raise NotCompiledError
        left = self.stored(self.node(node.target, scope).expression)
        result = self.fresh("t")
        present = self.invoke(generated.is_present, left)
        value = py.attribute(left, "value") if node.function == "orValue" else left
        body, _ = self.apart(self.assigned(result, node.args[0], scope))
        self.emit(py.if_(present, [py.assign(result, value)], body))
        return Code(py.load(result))

    def _membership(self, node: Call, scope: Scope) -> Code:
        values = constant_value(node.args[1])
        if node.overloads != ("in_list",) or not isinstance(values, list):
            return self._function(node, scope, kinds.BOOL)
        if not values:
            return Code(py.constant(False), kinds.BOOL)
        if not all(isinstance(value, bool | int | float | str) for value in values):
            return self._function(node, scope, kinds.BOOL)
        item = self.node(node.args[0], scope)
        members = frozenset(map(member_key, values))
        if item.type in _DIRECT and {type(value) for value in values} <= {int, str}:
            wanted = int if item.type == kinds.INT else str
            if item.type == kinds.BOOL:
                return Code(ast.IfExp(item.expression, py.constant(False), py.constant(False)), kinds.BOOL)
            same = frozenset(value for value in values if type(value) is wanted)
            return Code(py.compare(item.expression, ast.In(), self.constant(same)), kinds.BOOL)
        can_fail = self._can_fail
        code = self.invoke(generated.is_member, item.expression, self.constant(members))
        self._can_fail = can_fail
        return Code(code, kinds.BOOL)

    def _function(self, node: Call, scope: Scope, result: CelType | None = None) -> Code:
        arguments = ([] if node.target is None else [node.target]) + node.args
        run = implementation(node.function, node.overloads)
        folded = self._folded(node, run, arguments)
        if folded is not None:
            return folded
        codes = self.values(arguments, scope)
        if node.function in _ARITHMETIC and all(code.type == kinds.INT for code in codes):
            return self._arithmetic(node, [code.expression for code in codes])
        if node.function == "size":
            result = kinds.INT
        code = self._priced(node, run, codes, result)
        return code._replace(type=node.type, element=kinds.INT) if node.function == "lists.range" else code

    def _arithmetic(self, node: Call, sides: list[ast.expr]) -> Code:
        self.charge(1)
        self._can_fail = True
        name = self.fresh("t")
        value = ast.BinOp(sides[0], _ARITHMETIC[node.function](), sides[1])
        within = ast.Compare(
            py.constant(operators.INT64_MIN), [ast.LtE(), ast.LtE()],
            [py.load(name), py.constant(operators.INT64_MAX)],
        )  # fmt: skip
        overflow = py.if_(py.negated(within), [py.raise_(self.invoke(generated.overflow))])
        self.emit(py.assign(name, value), overflow)
        return Code(py.load(name), kinds.INT)

    def _folded(self, node: Call, run: Callable[..., object], arguments: list[Node]) -> Code | None:
        """Return a call of constants as a constant, unless it fails or is big."""
        conversion = constant_value(node)
        if conversion is not MISSING:
            return Code(self.constant(conversion), _DIRECT_TYPES.get(type(conversion)))
        values = [constant_value(argument) for argument in arguments]
        if not arguments or any(value is MISSING for value in values):
            return None
        if any(isinstance(value, list | dict) for value in values) and node.function != "size":
            return None
        if node.function == "lists.range":
            return None
        try:
            value = run(*values)
        except (Fault, CelError):
            return None
        if size_of(value) > _MAX_FOLDED:
            return None
        overload = node.overloads[0] if len(node.overloads) == 1 else ""
        plain = is_plain(node.function, overload)
        self.charge(1 if plain else actual_call_cost(node.function, overload, values, value))
        return Code(self.constant(value), _DIRECT_TYPES.get(type(value)))

    def _priced(
        self, node: Call, run: Callable[..., object], codes: list[Code], result: CelType | None
    ) -> Code:
        """Return a call, charged for."""
        if not self.counting:
            value = self.invoke(run, *(code.expression for code in codes))
            return Code(self._bounded(node, value), result)
        arguments = [self.stored(code.expression) for code in codes]
        value = self._bounded(node, self.stored(self.invoke(run, *arguments)))
        self._price(node, arguments, value, [code.type for code in codes])
        return Code(value, result)

    def _bounded(self, node: Call, value: ast.expr) -> ast.expr:
        """Charge a value that may be bigger than it costs to the memory of the evaluation."""
        if node.function not in OUTGROWING:
            return value
        self.uses_memory = True
        value = self.stored(value)
        self.emit(py.assign(_ROOM, self.invoke(room_after, value, py.load(_ROOM))))
        return value

    def _price(
        self, node: Call, arguments: list[ast.expr], value: ast.expr, types: list[CelType | None]
    ) -> None:
        overload = node.overloads[0] if len(node.overloads) == 1 else ""
        if node.function in ("_==_", "_!=_"):
            overload = "equals" if node.function == "_==_" else "not_equals"
            if all(kind in (kinds.INT, kinds.BOOL) for kind in types):
                self.charge(1)
                return
        if is_plain(node.function, overload):
            self.charge(1)
            return
        function = node.function

        def price(result: object, *values: object) -> int:
            return actual_call_cost(function, overload, list(values), result)

        self._flush()
        self.names[name := self.fresh("c")] = price
        self.emit(py.increase(_COST, py.call(py.load(name), value, *arguments)))


def _chain(node: Node) -> tuple[Node, list[Qualifier]]:
    """Return where an access starts, and its qualifiers."""
    chain: list[Qualifier] = []
    is_first = True
    while True:
        if isinstance(node, Select) and node.constant is None and (is_first or not node.test_only):
            chain.append(Qualifier(node.name, optional=False, is_test=node.test_only))
            node = node.operand
        elif isinstance(node, Call) and node.function in _INDEXING:
            chain.append(Qualifier(node.args[1], optional=node.function != "_[_]", is_test=False))
            node = node.args[0]
        else:
            chain.reverse()
            return node, chain
        is_first = False


def _constant_key(part: Qualifier) -> object:
    return part.key if isinstance(part.key, str) else constant_value(part.key)


def _is_true(expression: ast.expr | None) -> bool:
    return isinstance(expression, ast.Constant) and expression.value is True


def _is_device(node: Node, scope: Scope) -> bool:
    return isinstance(node, Ident) and node.name == "device" and "device" not in scope


def _terms(node: Node, function: str) -> list[Node]:
    if isinstance(node, Call) and node.function == function:
        return [term for arg in node.args for term in _terms(arg, function)]
    return [node]


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
        case Call() if node.function in FOLDED and node.target is None and len(node.args) == 1:
            value = constant_value(node.args[0])
            if value is MISSING:
                return MISSING
            try:
                return implementation(node.function, node.overloads)(value)
            except Fault:
                return MISSING
    return MISSING
