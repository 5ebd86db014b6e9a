"""Code of accesses: variables, selections, indexings and optional chains. See `access` for what they mean."""

from __future__ import annotations

import ast
from typing import NamedTuple

from dray.cel import generated, kinds
from dray.cel import pysyntax as py
from dray.cel.codegen_base import COST, DEVICE, Code, CodeWriter, NotCompiledError, Scope, constant_value
from dray.cel.syntax import Call, Ident, Node, Select
from dray.cel.values import MISSING, Optional


class Qualifier(NamedTuple):
    """One step of an access: `.name`, `[key]`, `.?name`, or the end of has()."""

    key: Node | str
    optional: bool
    is_test: bool

    @property
    def is_plain(self) -> bool:
        """Return whether it is `.name` or `[key]`."""
        return not (self.optional or self.is_test)


INDEXING = frozenset({"_[_]", "_[?_]", "_?._"})
_DEVICE_FIELDS = {
    "driver": "driver",
    "attributes": "attributes",
    "capacity": "capacity",
    "allowMultipleAllocations": "allow_multiple_allocations",
}
_UNKNOWN_TYPES = frozenset({"dyn", "any", "param", "error"})


class AccessWriter(CodeWriter):
    """Writes accesses."""

    def _access(self, node: Node, qualifiers: list[Qualifier], scope: Scope, *, is_step: bool) -> Code:
        """Return the code of `root.a[b].?c`: see `access.Access`."""
        root, chain = _chain(node)
        chain += qualifiers
        if isinstance(root, Call) and root.function == "_?_:_" and chain:
            if is_step and chain[-1].is_test:
                self.charge(-1)
            return self._conditional_access(root, chain, scope)
        if is_step and not (chain and chain[-1].is_test):
            self.charge(1)
        field = chain[0].key if chain and chain[0].is_plain else None
        if isinstance(field, str) and _is_device(root, scope):
            self.charge(1)
            base = py.attribute(py.load(DEVICE), _DEVICE_FIELDS[field])
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
            return Code(py.subscript(py.attribute(py.load(DEVICE), "variables"), py.constant("device")))
        if variable.may_fail:
            is_fault = py.is_(py.call(py.load("type"), py.load(variable.name)), py.load("Fault"))
            self.emit(py.if_(is_fault, [self._fail(generated.fresh, py.load(variable.name))]))
        if variable.cost:
            if self._is_delaying:
                # The first use would be part of a cost that may never be added.
                raise NotCompiledError
            self.emit(py.increase(COST, py.load(variable.cost)), py.assign(variable.cost, py.constant(0)))
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
                self.emit(py.if_(present, [py.increase(COST, py.constant(1))]))

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


def _chain(node: Node) -> tuple[Node, list[Qualifier]]:
    """Return where an access starts, and its qualifiers."""
    chain: list[Qualifier] = []
    is_first = True
    while True:
        if isinstance(node, Select) and node.constant is None and (is_first or not node.test_only):
            chain.append(Qualifier(node.name, optional=False, is_test=node.test_only))
            node = node.operand
        elif isinstance(node, Call) and node.function in INDEXING:
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
