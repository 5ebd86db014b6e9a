"""Compile an expression into a Python function: fast, and exact whenever it returns.

The function is built from Python's own syntax tree nodes and handed to `compile`;
no text of the expression is ever executed, literals enter as constants and names as
numbered temporaries. It works on the happy path only: where an operation could fail,
or a `dyn` value has an unexpected type, it raises, and the caller asks the
interpreter, which knows what the failure means. So `&&` is plain `and`, and a lookup
is a plain subscription.

Invariant (tests/property/test_cel_codegen.py): when the function returns, the
interpreter returns the same value.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from types import FunctionType

from dray.cel import kinds, operators
from dray.cel.access import look_up
from dray.cel.device import DeviceInput
from dray.cel.errors import CelError, Fault, no_such_overload
from dray.cel.functions import implementation
from dray.cel.interpreter import Failure, not_equal
from dray.cel.syntax import Call, Fold, Ident, ListNode, Literal, MapNode, Node, Select
from dray.cel.values import MISSING, NOTHING, Optional, equal, map_items, map_key, map_keys

Compiled = Callable[[DeviceInput], object]


class _NotCompiled(CelError):
    """The expression is left to the interpreter."""


def compile_tree(tree: Node) -> Compiled | None:
    """Return a function of a device, or None where there is no fast way."""
    generator = _Generator()
    try:
        body = generator.node(tree, {})
        function = ast.FunctionDef(
            name="selector",
            args=ast.arguments(
                posonlyargs=[], args=[ast.arg("device")], kwonlyargs=[], kw_defaults=[], defaults=[]
            ),
            body=[ast.Return(body)],
            decorator_list=[],
        )
        if "type_params" in ast.FunctionDef._fields:
            function.type_params = []  # type: ignore[attr-defined,unused-ignore]
        module = ast.fix_missing_locations(ast.Module([function], []))
        code = compile(module, "<selector>", "exec")
    except (_NotCompiled, RecursionError, MemoryError):
        return None
    inner = next(constant for constant in code.co_consts if hasattr(constant, "co_code"))
    return FunctionType(inner, generator.names, "selector")


# --- what the generated code calls ---------------------------------------------------------------


def _find(value: object, key: object) -> object:
    found = look_up(value, key)
    if found is MISSING or isinstance(found, Failure):
        raise no_such_overload()
    return found


def _find_in_optional(value: object, key: object) -> Optional:
    if isinstance(value, Optional):
        if not value.present:
            return NOTHING
        value = value.value
    found = look_up(value, key)
    if isinstance(found, Failure):
        raise no_such_overload()
    return NOTHING if found is MISSING else Optional(found)


def _has(value: object, key: object) -> bool:
    if isinstance(value, Optional):
        raise no_such_overload()
    found = look_up(value, key)
    if isinstance(found, Failure):
        raise no_such_overload()
    return found is not MISSING


def _or_value(left: object, right: Callable[[], object]) -> object:
    if not isinstance(left, Optional):
        raise no_such_overload()
    return left.value if left.present else right()


def _or(left: object, right: Callable[[], object]) -> object:
    if not isinstance(left, Optional):
        raise no_such_overload()
    return left if left.present else right()


def _refuse() -> object:
    raise no_such_overload()


def _each(value: object) -> Iterator[object]:
    if isinstance(value, list):
        return iter(value)
    if isinstance(value, dict):
        return map_keys(value)
    raise no_such_overload()


def _each_pair(value: object) -> Iterator[tuple[object, object]]:
    if isinstance(value, list):
        return iter(enumerate(value))
    if isinstance(value, dict):
        return map_items(value)
    raise no_such_overload()


def _all(items: Iterator[object], predicate: Callable[[object], bool]) -> bool:
    return all(map(predicate, items))


def _exists(items: Iterator[object], predicate: Callable[[object], bool]) -> bool:
    return any(map(predicate, items))


def _exists_one(items: Iterator[object], predicate: Callable[[object], bool]) -> bool:
    return sum(map(predicate, items)) == 1


def _map(items: Iterator[object], transform: Callable[[object], object]) -> list[object]:
    return list(map(transform, items))


def _filter_map(
    items: Iterator[object], predicate: Callable[[object], bool], transform: Callable[[object], object]
) -> list[object]:
    return [transform(item) for item in items if predicate(item)]


def _make_map(*parts: object) -> dict[object, object]:
    return {map_key(parts[index]): parts[index + 1] for index in range(0, len(parts), 2)}


_PLAIN_CONSTANTS = frozenset({bool, int, str, bytes})
_TESTED = {kinds.STRING: "str", kinds.INT: "int", kinds.BOOL: "bool"}
_COMPARISONS: dict[str, tuple[type[ast.cmpop], Callable[[object, object], object]]] = {
    "_==_": (ast.Eq, equal),
    "_!=_": (ast.NotEq, not_equal),
    "_<_": (ast.Lt, operators.less),
    "_<=_": (ast.LtE, operators.less_equals),
    "_>_": (ast.Gt, operators.greater),
    "_>=_": (ast.GtE, operators.greater_equals),
}
_QUANTITY_COMPARISONS = {"isGreaterThan": ast.Gt, "isLessThan": ast.Lt}
_LOOPS = {"all": _all, "exists": _exists, "exists_one": _exists_one}
_SURE_BOOLS = frozenset({*_COMPARISONS, "_&&_", "_||_", "!_", "@in"})
_DEVICE_FIELDS = {
    "driver": "driver",
    "attributes": "attributes",
    "capacity": "capacity",
    "allowMultipleAllocations": "allow_multiple_allocations",
}


class _Generator:
    def __init__(self) -> None:
        self._count = 0
        self.names: dict[str, object] = {"type": type, "str": str, "int": int, "bool": bool}

    def _fresh(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def _constant(self, value: object) -> ast.expr:
        """Make a value available to the code."""
        if value is None or (isinstance(value, bool | int | str | bytes) and type(value) in _PLAIN_CONSTANTS):
            return ast.Constant(value)
        name = self._fresh("c")
        self.names[name] = value
        return _load(name)

    def _invoke(self, function: Callable[..., object], *args: ast.expr) -> ast.expr:
        return ast.Call(self._constant(function), list(args), [])

    # --- nodes --------------------------------------------------------------------------

    def node(self, node: Node, scope: dict[str, str]) -> ast.expr:
        """Return the code of a node; `scope` maps variables to Python names."""
        match node:
            case Literal():
                return self._constant(node.value)
            case Ident():
                return self._ident(node, scope)
            case Select():
                return self._select(node, scope)
            case Call():
                return self._call(node, scope)
            case ListNode() if not node.optional:
                return ast.List([self.node(element, scope) for element in node.elements], ast.Load())
            case MapNode() if not any(entry.optional for entry in node.entries):
                parts = [
                    self.node(part, scope) for entry in node.entries for part in (entry.key, entry.value)
                ]
                return self._invoke(_make_map, *parts)
            case Fold():
                return self._fold(node, scope)
        raise _NotCompiled

    def _boolean(self, node: Node, scope: dict[str, str]) -> ast.expr:
        """Return code that yields a bool or raises."""
        code = self.node(node, scope)
        if _is_surely_bool(node):
            return code
        name = self._fresh("t")
        is_bool = ast.BoolOp(
            ast.Or(),
            [
                _compare(ast.Is(), _walrus(name, code), ast.Constant(True)),
                _compare(ast.Is(), _load(name), ast.Constant(False)),
            ],
        )
        return ast.IfExp(is_bool, _load(name), self._invoke(_refuse))

    def _ident(self, node: Ident, scope: dict[str, str]) -> ast.expr:
        if node.name in scope:
            return _load(scope[node.name])
        if node.constant is not None:
            return self._constant(node.constant)
        if node.name.removeprefix(".") == "device":
            return ast.Subscript(_field("variables"), ast.Constant("device"), ast.Load())
        raise _NotCompiled

    def _select(self, node: Select, scope: dict[str, str]) -> ast.expr:
        if node.constant is not None:
            return self._constant(node.constant)
        if _is_device(node.operand, scope):
            if node.test_only:
                return ast.Constant(True)
            return _field(_DEVICE_FIELDS[node.name])
        operand = self.node(node.operand, scope)
        key = ast.Constant(node.name)
        if node.test_only:
            if _is_domain(node.operand, scope):
                return _compare(ast.In(), key, operand)
            return self._invoke(_has, operand, key)
        return self._lookup(node.operand, operand, key, scope)

    def _lookup(self, holder: Node, operand: ast.expr, key: ast.expr, scope: dict[str, str]) -> ast.expr:
        if _is_domain(holder, scope) or _is_domains(holder, scope):
            return ast.Subscript(operand, key, ast.Load())
        if kinds.unwrap_optional(holder.type)[1]:
            return self._invoke(_find_in_optional, operand, key)
        if holder.type.kind in ("dyn", "any", "param"):
            # An optional may hide behind dyn.
            raise _NotCompiled
        return self._invoke(_find, operand, key)

    def _call(self, node: Call, scope: dict[str, str]) -> ast.expr:
        match node.function:
            case "_&&_" | "_||_":
                terms = [self._boolean(arg, scope) for arg in node.args]
                return ast.BoolOp(ast.And() if node.function == "_&&_" else ast.Or(), terms)
            case "!_":
                return ast.UnaryOp(ast.Not(), self._boolean(node.args[0], scope))
            case "_?_:_":
                return ast.IfExp(
                    self._boolean(node.args[0], scope),
                    self.node(node.args[1], scope),
                    self.node(node.args[2], scope),
                )
            case "_==_" | "_!=_" | "_<_" | "_<=_" | "_>_" | "_>=_":
                return self._comparison(node, scope)
            case "_[_]":
                holder, key = node.args
                if isinstance(key, Literal) and isinstance(key.value, str):
                    return self._lookup(holder, self.node(holder, scope), ast.Constant(key.value), scope)
                return self._lookup_computed(holder, key, scope)
            case "_[?_]" | "_?._":
                parts = [self.node(arg, scope) for arg in node.args]
                return self._invoke(_find_in_optional, *parts)
            case "orValue" | "or":
                return self._or_else(node, scope)
            case "@in":
                return self._membership(node, scope)
        return self._function(node, scope)

    def _lookup_computed(self, holder: Node, key: Node, scope: dict[str, str]) -> ast.expr:
        if holder.type.kind not in ("list", "map"):
            raise _NotCompiled
        return self._invoke(_find, self.node(holder, scope), self.node(key, scope))

    def _comparison(self, node: Call, scope: dict[str, str]) -> ast.expr:
        operator, general = _COMPARISONS[node.function]
        left, right = node.args
        if isinstance(right, Literal) and right.type in _TESTED:
            # The usual case: an attribute against a literal. Same type: Python's operator will do.
            name = self._fresh("t")
            same = _compare(
                ast.Is(),
                ast.Call(_load("type"), [_walrus(name, self.node(left, scope))], []),
                _load(_TESTED[right.type]),
            )
            literal = self._constant(right.value)
            fallback = self._invoke(general, _load(name), literal)
            return ast.IfExp(same, _compare(operator(), _load(name), literal), fallback)
        return self._invoke(general, self.node(left, scope), self.node(right, scope))

    def _or_else(self, node: Call, scope: dict[str, str]) -> ast.expr:
        assert node.target is not None
        if node.function == "orValue":
            direct = self._direct_default(node.target, node.args[0], scope)
            if direct is not None:
                return direct
        right = ast.Lambda(_no_arguments(), self.node(node.args[0], scope))
        helper = _or_value if node.function == "orValue" else _or
        return self._invoke(helper, self.node(node.target, scope), right)

    def _direct_default(self, target: Node, default: Node, scope: dict[str, str]) -> ast.expr | None:
        """Compile `domain.?name.orValue(literal)` into a dict.get."""
        if not (
            isinstance(target, Call) and target.function in ("_?._", "_[?_]") and isinstance(default, Literal)
        ):
            return None
        holder, key = target.args
        if not (_is_domain(holder, scope) and isinstance(key, Literal) and isinstance(key.value, str)):
            return None
        get = ast.Attribute(self.node(holder, scope), "get", ast.Load())
        return ast.Call(get, [ast.Constant(key.value), self._constant(default.value)], [])

    def _membership(self, node: Call, scope: dict[str, str]) -> ast.expr:
        item, container = node.args
        if isinstance(item, Literal) and isinstance(item.value, str) and _is_domain(container, scope):
            return _compare(ast.In(), ast.Constant(item.value), self.node(container, scope))
        values = _string_literals(container)
        if values is None:
            return self._invoke(operators.contains, self.node(item, scope), self.node(container, scope))
        name = self._fresh("t")
        is_string = _compare(
            ast.Is(), ast.Call(_load("type"), [_walrus(name, self.node(item, scope))], []), _load("str")
        )
        found = _compare(ast.In(), _load(name), self._constant(frozenset(values)))
        # A value of another type equals no string.
        return ast.IfExp(is_string, found, ast.Constant(False))

    def _function(self, node: Call, scope: dict[str, str]) -> ast.expr:
        arguments = ([] if node.target is None else [node.target]) + node.args
        run = implementation(node.function, node.overloads)
        if all(isinstance(argument, Literal) for argument in arguments):
            return self._folded(run, [a.value for a in arguments if isinstance(a, Literal)])
        if node.function in _QUANTITY_COMPARISONS and all(_is_surely_quantity(a, scope) for a in arguments):
            left, right = (self.node(argument, scope) for argument in arguments)
            return _compare(_QUANTITY_COMPARISONS[node.function](), left, right)
        return self._invoke(run, *(self.node(argument, scope) for argument in arguments))

    def _folded(self, run: Callable[..., object], values: list[object]) -> ast.expr:
        try:
            return self._constant(run(*values))
        except Fault:
            return self._invoke(_refuse)

    def _fold(self, node: Fold, scope: dict[str, str]) -> ast.expr:
        if node.macro == "bind":
            name = self._fresh("v")
            value = _walrus(name, self.node(node.accu_init, scope))
            result = self.node(node.result, {**scope, node.accu_var: name})
            return ast.Subscript(ast.Tuple([value, result], ast.Load()), ast.Constant(1), ast.Load())
        if node.iter_var2 or node.macro not in ("all", "exists", "exists_one", "map", "filter"):
            raise _NotCompiled
        items = self._invoke(_each, self.node(node.iter_range, scope))
        name = self._fresh("v")
        inner = {**scope, node.iter_var: name}
        loop = _LOOPS.get(node.macro)
        if loop is not None:
            assert node.predicate is not None
            return self._invoke(loop, items, _lambda(name, self._boolean(node.predicate, inner)))
        assert node.transform is not None
        transform = _lambda(name, self.node(node.transform, inner))
        if node.predicate is None:
            return self._invoke(_map, items, transform)
        predicate = _lambda(name, self._boolean(node.predicate, inner))
        return self._invoke(_filter_map, items, predicate, transform)


# --- small pieces of Python syntax, and facts about nodes --------------------------------------------


def _load(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def _field(name: str) -> ast.expr:
    return ast.Attribute(_load("device"), name, ast.Load())


def _walrus(name: str, value: ast.expr) -> ast.expr:
    return ast.NamedExpr(ast.Name(name, ast.Store()), value)


def _compare(operator: ast.cmpop, left: ast.expr, right: ast.expr) -> ast.expr:
    return ast.Compare(left, [operator], [right])


def _no_arguments() -> ast.arguments:
    return ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])


def _lambda(name: str, body: ast.expr) -> ast.expr:
    arguments = ast.arguments(
        posonlyargs=[], args=[ast.arg(name)], kwonlyargs=[], kw_defaults=[], defaults=[]
    )
    return ast.Lambda(arguments, body)


def _is_device(node: Node, scope: dict[str, str]) -> bool:
    return isinstance(node, Ident) and node.name == "device" and "device" not in scope


def _is_domains(node: Node, scope: dict[str, str]) -> bool:
    """Tell whether a node is `device.attributes` or `device.capacity`."""
    return (
        isinstance(node, Select)
        and not node.test_only
        and node.name in ("attributes", "capacity")
        and _is_device(node.operand, scope)
    )


def _is_domain(node: Node, scope: dict[str, str]) -> bool:
    """Tell whether a node is one domain, taken by a constant name."""
    if isinstance(node, Select):
        return not node.test_only and _is_domains(node.operand, scope)
    if isinstance(node, Call) and node.function == "_[_]":
        key = node.args[1]
        return isinstance(key, Literal) and isinstance(key.value, str) and _is_domains(node.args[0], scope)
    return False


def _is_surely_quantity(node: Node, scope: dict[str, str]) -> bool:
    if isinstance(node, Call) and node.function == "quantity":
        return True
    holder: Node | None = None
    if isinstance(node, Select) and not node.test_only:
        holder = node.operand
    elif isinstance(node, Call) and node.function == "_[_]":
        holder = node.args[0]
    return holder is not None and node.type == kinds.QUANTITY and _is_domain(holder, scope)


def _is_surely_bool(node: Node) -> bool:
    match node:
        case Literal():
            return isinstance(node.value, bool)
        case Select():
            return node.test_only
        case Call():
            return node.function in _SURE_BOOLS or (
                node.type == kinds.BOOL
                and not node.overloads[0].startswith(("optional_", "conditional", "index_"))
            )
        case Fold():
            return node.macro in _LOOPS
    return False


def _string_literals(node: Node) -> list[str] | None:
    if not isinstance(node, ListNode) or node.optional or not node.elements:
        return None
    values = [element.value for element in node.elements if isinstance(element, Literal)]
    strings = [value for value in values if isinstance(value, str)]
    return strings if len(strings) == len(node.elements) else None
