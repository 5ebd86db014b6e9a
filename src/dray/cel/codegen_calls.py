"""Code of literals, calls and operators. See `codegen` for how it works as a whole."""

from __future__ import annotations

import ast
from collections.abc import Callable

from dray.cel import generated, kinds, operators
from dray.cel import pysyntax as py
from dray.cel.call_costs import actual_call_cost, is_plain
from dray.cel.codegen_access import INDEXING, AccessWriter
from dray.cel.codegen_base import (
    COST,
    DIRECT_TYPES,
    MAX_BLOCKS,
    MAX_FOLDED,
    MEMORY_LEFT,
    Code,
    NotCompiledError,
    Scope,
    constant_value,
)
from dray.cel.errors import CelError, Fault
from dray.cel.functions import implementation
from dray.cel.interpreter import member_key, not_equal
from dray.cel.kinds import CelType
from dray.cel.memory import OUTGROWING, memory_left_after
from dray.cel.planning import PATTERN_ARGUMENT
from dray.cel.ranges import LIST_BASE, MAP_BASE
from dray.cel.syntax import Call, Fold, Ident, ListNode, Literal, MapNode, Node, Select
from dray.cel.values import MISSING, equal, size_of

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


class CallWriter(AccessWriter):
    """Writes everything but loops."""

    def node(self, node: Node, scope: Scope, *, is_step: bool = True) -> Code:
        """Return the code of a node. An access that is not a step of its own costs less."""
        if self._blocks > MAX_BLOCKS and isinstance(node, Fold | Call):
            return self._outlined(node, scope, is_step=is_step)
        match node:
            case Literal():
                return Code(self.constant(node.value), DIRECT_TYPES.get(type(node.value)))
            case Ident() | Select() if node.constant is not None:
                return Code(self.constant(node.constant))
            case Ident() | Select():
                return self._access(node, [], scope, is_step=is_step)
            case Call() if node.function in INDEXING:
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

    def _list(self, node: ListNode, scope: Scope) -> Code:
        value = constant_value(node)
        if isinstance(value, list):
            types = {type(item) for item in value}
            element = DIRECT_TYPES.get(types.pop()) if len(types) == 1 else None
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
        catches = [can_fail and self.absorbs for _, _, can_fail in terms]
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
        """Join adjacent terms that neither need statements nor can fail."""
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
        position = PATTERN_ARGUMENT.get(node.function, len(arguments))
        constant_pattern = position < len(arguments) and isinstance(constant_value(arguments[position]), str)
        run = implementation(node.function, node.overloads, constant_pattern=constant_pattern)
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
            return Code(self.constant(conversion), DIRECT_TYPES.get(type(conversion)))
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
        if size_of(value) > MAX_FOLDED:
            return None
        overload = node.overloads[0] if len(node.overloads) == 1 else ""
        plain = is_plain(node.function, overload)
        self.charge(1 if plain else actual_call_cost(node.function, overload, values, value))
        return Code(self.constant(value), DIRECT_TYPES.get(type(value)))

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
        self.emit(py.assign(MEMORY_LEFT, self.invoke(memory_left_after, value, py.load(MEMORY_LEFT))))
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
        self.emit(py.increase(COST, py.call(py.load(name), value, *arguments)))


def _terms(node: Node, function: str) -> list[Node]:
    if isinstance(node, Call) and node.function == function:
        return [term for arg in node.args for term in _terms(arg, function)]
    return [node]
