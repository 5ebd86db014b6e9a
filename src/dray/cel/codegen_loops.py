"""Code of loops and bindings: what the macros of CEL become in Python.

Costs per round are those of the folds that macros expand to (see `macros`): reading
the accumulator, testing it, and extending it.

Which failure a loop ends with is decided as the fold decides it. `all` and `exists`
keep the first and go on, since a later element may still decide. A list or map under
construction keeps its first failure, except that a failing condition replaces it;
`exists_one` keeps the last.
"""

from __future__ import annotations

import ast

from dray.cel import generated, kinds
from dray.cel import pysyntax as py
from dray.cel.codegen_base import Code, NotCompiledError, Scope, Variable, constant_value
from dray.cel.codegen_calls import CallWriter
from dray.cel.kinds import CelType
from dray.cel.syntax import Fold
from dray.cel.values import MISSING

_QUANTIFIERS = {"all": False, "exists": True}  # → the value that decides
_ROUND_COSTS = {"all": 3, "exists": 4}  # per element: test and read the accumulator
_TEST_COST = 1  # of which this is not spent where the loop ends early
_COLLECTORS = frozenset({"map", "filter", "list", "map_entries", "map_merge"})


class LoopWriter(CallWriter):
    """Writes loops and bindings, and with them every expression."""

    def fold(self, node: Fold, scope: Scope) -> Code:
        """Return the code of a loop or a binding."""
        if node.macro == "bind":
            return self._bind(node, scope)
        if node.macro not in _COLLECTORS and node.macro not in _QUANTIFIERS and node.macro != "exists_one":
            raise NotCompiledError
        self._loops += 1
        items, names, inner = self._range(node, scope)
        if node.macro in _QUANTIFIERS:
            code = self._quantifier(node, items, names, inner)
        elif node.macro == "exists_one":
            code = self._exists_one(node, items, names, inner)
        else:
            code = self._collector(node, items, names, inner)
        self._loops -= 1
        return code

    def _range(self, node: Fold, scope: Scope) -> tuple[ast.expr, list[str], Scope]:
        """Return what the loop runs over, its Python variables, and the scope inside."""
        # The range itself is not inside the loop.
        self._loops -= 1
        over = self.node(node.iter_range, scope)
        self._loops += 1
        is_list = over.type is not None and over.type.kind == "list"
        first = Variable(self.fresh("v"), over.element if is_list else None)
        names = [first.name]
        inner = {**scope, node.iter_var: first}
        if node.iter_var2:
            first.type = kinds.INT if is_list else None
            second = Variable(self.fresh("v"), over.element if is_list else None)
            names.append(second.name)
            inner[node.iter_var2] = second
            return self.stored(self.invoke(generated.each_pair, over.expression)), names, inner
        if is_list:
            return self.stored(over.expression), names, inner
        return self.stored(self.invoke(generated.each, over.expression)), names, inner

    def _loop(self, names: list[str], items: ast.expr, body: list[ast.stmt]) -> None:
        if self.counting:
            exceeded = py.compare(py.load("cost"), ast.Gt(), py.load("limit"))
            body = [*body, py.if_(exceeded, [py.raise_(self.invoke(generated.over_limit))])]
        self.emit(py.for_(names, items, body))

    def _predicate(self, node: Fold, name: str, scope: Scope) -> tuple[list[ast.stmt], bool]:
        """Return the statements that compute the condition of a round, and whether they can fail."""
        assert node.predicate is not None
        self._blocks += 2
        body, can_fail = self.apart(self.assigned(name, node.predicate, scope, boolean=True))
        self._blocks -= 2
        return body, can_fail and self.absorbs

    def _quantifier(self, node: Fold, items: ast.expr, names: list[str], scope: Scope) -> Code:
        decisive = _QUANTIFIERS[node.macro]
        result, failure = self.fresh("t"), self.fresh("f")
        self.emit(py.assign(result, py.constant(not decisive)))
        body, catches = self._predicate(node, result, scope)
        decided = py.load(result) if decisive else py.negated(py.load(result))
        if catches:
            self.emit(py.assign(failure, py.constant(None)))
            body = [self._caught(body, failure, [py.assign(result, py.constant(not decisive))])]
        if self.counting:
            # The round after the deciding one finds that out and ends the loop.
            cost = _ROUND_COSTS[node.macro]
            early = [py.increase("cost", py.constant(cost - _TEST_COST)), ast.Break()]
            body = [py.if_(decided, early), py.increase("cost", py.constant(cost)), *body]
        else:
            body = [*body, py.if_(decided, [ast.Break()])]
        self._loop(names, items, body)
        if catches:
            undecided = py.negated(py.load(result)) if decisive else py.load(result)
            self._raise_kept(failure, undecided)
        self.charge(1)
        return Code(py.load(result), kinds.BOOL)

    def _exists_one(self, node: Fold, items: ast.expr, names: list[str], scope: Scope) -> Code:
        matched, count, failure = self.fresh("t"), self.fresh("n"), self.fresh("f")
        self.emit(py.assign(count, py.constant(0)))
        body, catches = self._predicate(node, matched, scope)
        if catches:
            self.emit(py.assign(failure, py.constant(None)))
            body = [self._replaced(body, failure, matched)]
        found = [py.increase(count, py.constant(1))]
        if self.counting:
            found.append(py.increase("cost", py.constant(2)))
        self._loop(names, items, [*body, py.if_(py.load(matched), found)])
        if catches:
            self._raise_kept(failure, None)
        self.charge(2)
        return Code(py.compare(py.load(count), ast.Eq(), py.constant(1)), kinds.BOOL)

    def _replaced(self, body: list[ast.stmt], failure: str, matched: str) -> ast.stmt:
        """Return the body of a condition whose failure replaces any before it."""
        caught = self.fresh("x")
        handler = [py.assign(failure, py.load(caught)), py.assign(matched, py.constant(False))]
        return py.try_(body, py.load("Fault"), caught, handler)

    def _collector(self, node: Fold, items: ast.expr, names: list[str], scope: Scope) -> Code:
        result = self.fresh("t")
        makes_map = node.macro in ("map_entries", "map_merge")
        empty: ast.expr = ast.Dict([], []) if makes_map else ast.List([], ast.Load())
        self.emit(py.assign(result, empty))
        types: list[CelType | None] = []
        self._blocks += 2
        body, can_fail = self.apart(lambda: types.append(self._collect(node, result, names, scope)))
        self._blocks -= 2
        if node.predicate is None:
            self._loop(names, items, body)
        else:
            self._conditional_rounds(node, items, names, scope, (body, can_fail))
        self.charge(1)
        if makes_map:
            return Code(py.load(result))
        return Code(py.load(result), node.type, types[0])

    def _collect(self, node: Fold, result: str, names: list[str], scope: Scope) -> CelType | None:
        """Add the element of one round; return its type, if that is certain."""
        assert node.transform is not None
        code = self.node(node.transform, scope)
        if node.macro == "map_entries":
            self.charge(3)
            added = self.invoke(generated.insert_entry, py.load(result), py.load(names[0]), code.expression)
        elif node.macro == "map_merge":
            self.charge(2)
            added = self.invoke(generated.insert_entries, py.load(result), code.expression)
        else:
            self.charge(2 if constant_value(node.transform) is not MISSING else 12)
            added = py.call(py.attribute(py.load(result), "append"), code.expression)
        self.emit(ast.Expr(added))
        return code.type

    def _conditional_rounds(
        self,
        node: Fold,
        items: ast.expr,
        names: list[str],
        scope: Scope,
        collecting: tuple[list[ast.stmt], bool],
    ) -> None:
        matched, failure = self.fresh("t"), self.fresh("f")
        test, catches = self._predicate(node, matched, scope)
        body, can_fail = collecting
        if not catches:
            # A failure of an element ends the loop: no condition can replace it.
            self._loop(names, items, [*test, py.if_(py.load(matched), body)])
            return
        self.emit(py.assign(failure, py.constant(None)))
        if can_fail:
            body = [self._caught(body, failure, [ast.Pass()])]
        wanted = py.both(py.load(matched), py.is_(py.load(failure), py.constant(None)))
        self._loop(names, items, [self._replaced(test, failure, matched), py.if_(wanted, body)])
        self._raise_kept(failure, None)

    def _bind(self, node: Fold, scope: Scope) -> Code:
        """Return a value with a name. Its failure, and its cost, count when the name is first used."""
        name = self.fresh("v")
        codes: list[Code] = []

        def action() -> None:
            code = self.node(node.accu_init, scope)
            codes.append(code)
            self.emit(py.assign(name, code.expression))

        self._blocks += 1
        outer, self._is_delaying = self._is_delaying, True
        body, can_fail = self.apart(action)
        self._is_delaying = outer
        self._blocks -= 1
        cost = ""
        if self.counting and constant_value(node.accu_init) is MISSING:
            cost = self.fresh("d")
            self._delayed.append(cost)
            difference = ast.BinOp(py.load("cost"), ast.Sub(), py.load(cost))
            body = [py.assign(cost, py.load("cost")), *body, py.assign(cost, difference)]
            body.append(py.increase("cost", ast.UnaryOp(ast.USub(), py.load(cost))))
        may_fail = can_fail and self.absorbs
        if may_fail:
            caught = self.fresh("x")
            body = [py.try_(body, py.load("Fault"), caught, [py.assign(name, py.load(caught))])]
        self.emit(*body)
        variable = Variable(name, codes[0].type, codes[0].element, may_fail, cost)
        return self.node(node.result, {**scope, node.accu_var: variable})
