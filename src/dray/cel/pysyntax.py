"""Small pieces of Python syntax, for the code generator."""

from __future__ import annotations

import ast


def load(name: str) -> ast.expr:
    """Return `name`."""
    return ast.Name(name, ast.Load())


def constant(value: bool | int | str | bytes | None) -> ast.expr:
    """Return a constant that Python can write itself."""
    return ast.Constant(value)


def call(function: ast.expr, *args: ast.expr) -> ast.expr:
    """Return `function(args)`."""
    return ast.Call(function, list(args), [])


def attribute(value: ast.expr, name: str) -> ast.expr:
    """Return `value.name`."""
    return ast.Attribute(value, name, ast.Load())


def subscript(value: ast.expr, key: ast.expr) -> ast.expr:
    """Return `value[key]`."""
    return ast.Subscript(value, key, ast.Load())


def compare(left: ast.expr, operator: ast.cmpop, right: ast.expr) -> ast.expr:
    """Return `left operator right`."""
    return ast.Compare(left, [operator], [right])


def is_(left: ast.expr, right: ast.expr) -> ast.expr:
    """Return `left is right`."""
    return compare(left, ast.Is(), right)


def is_not(left: ast.expr, right: ast.expr) -> ast.expr:
    """Return `left is not right`."""
    return compare(left, ast.IsNot(), right)


def both(left: ast.expr, right: ast.expr) -> ast.expr:
    """Return `left and right`."""
    return ast.BoolOp(ast.And(), [left, right])


def negated(value: ast.expr) -> ast.expr:
    """Return `not value`."""
    return ast.UnaryOp(ast.Not(), value)


def walrus(name: str, value: ast.expr) -> ast.expr:
    """Return `(name := value)`."""
    return ast.NamedExpr(ast.Name(name, ast.Store()), value)


def assign(name: str, value: ast.expr) -> ast.stmt:
    """Return `name = value`."""
    return ast.Assign([ast.Name(name, ast.Store())], value)


def increase(name: str, amount: ast.expr) -> ast.stmt:
    """Return `name += amount`."""
    return ast.AugAssign(ast.Name(name, ast.Store()), ast.Add(), amount)


def raise_(error: ast.expr) -> ast.stmt:
    """Return `raise error`."""
    return ast.Raise(error, None)


def if_(test: ast.expr, then: list[ast.stmt], otherwise: list[ast.stmt] | None = None) -> ast.stmt:
    """Return `if test: then else: otherwise`."""
    return ast.If(test, then or [ast.Pass()], otherwise or [])


def for_(names: list[str], items: ast.expr, body: list[ast.stmt]) -> ast.stmt:
    """Return `for names in items: body`."""
    targets: list[ast.expr] = [ast.Name(name, ast.Store()) for name in names]
    target = targets[0] if len(targets) == 1 else ast.Tuple(targets, ast.Store())
    return ast.For(target, items, body or [ast.Pass()], [])


def try_(body: list[ast.stmt], error: ast.expr, name: str, handler: list[ast.stmt]) -> ast.stmt:
    """Return `try: body except error as name: handler`."""
    return ast.Try(body, [ast.ExceptHandler(error, name, handler)], [], [])


def function(name: str, arguments: list[str], body: list[ast.stmt]) -> ast.stmt:
    """Return `def name(arguments): body`."""
    parameters = ast.arguments(
        posonlyargs=[], args=[ast.arg(item) for item in arguments], kwonlyargs=[], kw_defaults=[], defaults=[]
    )
    node = ast.FunctionDef(name=name, args=parameters, body=body, decorator_list=[])
    if "type_params" in ast.FunctionDef._fields:
        node.type_params = []  # type: ignore[attr-defined,unused-ignore]
    return node
