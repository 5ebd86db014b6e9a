"""Give every node of a tree its type, or complain.

Types of a call are found by trying its overloads: the first that fits decides the
result, and if several fit with different results the result is `dyn`. All that fit
are noted on the node, since the cost estimate covers them all.
"""

from __future__ import annotations

from dray.cel import kinds
from dray.cel.declarations import Overload
from dray.cel.environment import TYPE_NAMES, Environment
from dray.cel.kinds import (
    BOOL,
    DYN,
    ERROR,
    INT,
    Bindings,
    CelType,
    is_dyn,
    is_dyn_or_error,
    list_of,
    map_of,
    most_general,
    optional_of,
    parameter,
    show,
    show_signature,
    type_of,
    unwrap_optional,
)
from dray.cel.source import Complaints
from dray.cel.syntax import Call, Fold, Ident, ListNode, Literal, MapNode, Node, Select, Struct, walk
from dray.cel.values import Uint

_LITERAL_TYPES: dict[type, CelType] = {
    type(None): kinds.NULL,
    bool: BOOL,
    int: INT,
    Uint: kinds.UINT,
    float: kinds.DOUBLE,
    str: kinds.STRING,
    bytes: kinds.BYTES,
}


def check(node: Node, environment: Environment, complaints: Complaints) -> None:
    """Write types and overloads onto the tree; complaints tell whether it is sound."""
    checker = _Checker(environment, complaints)
    checker.visit(node)
    for part in walk(node):
        if part.type.params or part.type.kind == "param":
            part.type = checker.bindings.resolve(part.type, free_to_dyn=True)


def qualified_name(node: Node) -> str | None:
    """Return `a.b.c` for a chain of plain selections, else None."""
    names: list[str] = []
    while isinstance(node, Select) and not node.test_only:
        names.append(node.name)
        node = node.operand
    if not isinstance(node, Ident):
        return None
    names.append(node.name)
    return ".".join(reversed(names))


class _Checker:
    def __init__(self, environment: Environment, complaints: Complaints) -> None:
        self._environment = environment
        self._complaints = complaints
        self._scopes: list[dict[str, CelType]] = []
        self._n_free = 0
        self.bindings = Bindings()

    # --- small tools ---------------------------------------------------------------

    def _complain(self, node: Node, message: str) -> None:
        self._complaints.add(node.offset, message)

    def _fresh(self) -> CelType:
        self._n_free += 1
        return parameter(f"_var{self._n_free - 1}")

    def _assign(self, given: CelType, wanted: CelType) -> bool:
        bindings = self.bindings.assignable([given], [wanted])
        if bindings is None:
            return False
        self.bindings = bindings
        return True

    def _undeclared(self, node: Node, name: str) -> CelType:
        self._complain(node, f"undeclared reference to '{name}' (in container '')")
        return ERROR

    def _mismatch(self, node: Node, expected: CelType, found: CelType) -> None:
        self._complain(node, f"expected type '{show(expected)}' but found '{show(found)}'")

    # --- nodes -----------------------------------------------------------------------

    def visit(self, node: Node) -> CelType:
        """Check a node and return its type."""
        match node:
            case Literal():
                node.type = _LITERAL_TYPES[type(node.value)]
            case Ident():
                node.type = self._ident(node)
            case Select():
                node.type = self._select(node)
            case Call():
                node.type = self._call(node)
            case ListNode():
                node.type = self._list(node)
            case MapNode():
                node.type = self._map(node)
            case Struct():
                node.type = self._struct(node)
            case Fold():
                node.type = self._fold(node)
        if node.type.params and _is_too_big(node.type):
            # Types of nested literals can double with every level.
            self._complain(node, "type of the expression is too complex")
            raise self._complaints.error()
        return node.type

    def _local(self, name: str) -> CelType | None:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        return None

    def _ident(self, node: Ident) -> CelType:
        # With a leading dot a name is never that of a loop's variable.
        local = None if node.name.startswith(".") else self._local(node.name)
        if local is not None:
            return local
        name = node.name.removeprefix(".")
        declared = self._environment.variables.get(name)
        if declared is not None:
            return declared
        if name in TYPE_NAMES:
            node.constant = TYPE_NAMES[name]
            return type_of(TYPE_NAMES[name])
        return self._undeclared(node, node.name)

    def _select(self, node: Select) -> CelType:
        name = None if node.test_only else qualified_name(node)
        if name is not None:
            root = name.split(".", 1)[0]
            bare = name.removeprefix(".")
            if (self._local(root) is None or name.startswith(".")) and bare in TYPE_NAMES:
                node.constant = TYPE_NAMES[bare]
                return type_of(TYPE_NAMES[bare])
        result = self._field(node, node.operand, node.name, optional=False)
        return BOOL if node.test_only else self.bindings.resolve(result)

    def _field(self, node: Node, operand: Node, name: str, *, optional: bool) -> CelType:
        target, was_optional = unwrap_optional(self.bindings.resolve(self.visit(operand)))
        if target.kind == "map":
            result = target.params[1]
        elif target.kind == "struct":
            result = self._struct_field(node, target, name)
        elif target.kind == "param":
            # The operand may turn out to be anything: stop it from being bound to less.
            self._assign(DYN, target)
            result = DYN
        else:
            if not is_dyn_or_error(target):
                self._complain(node, f"type '{show(target)}' does not support field selection")
            result = DYN
        return optional_of(result) if was_optional or optional else result

    def _struct_field(self, node: Node, target: CelType, name: str) -> CelType:
        fields = self._environment.structs.get(target.name)
        if fields is None:
            self._complain(node, f"unexpected failed resolution of '{target.name}'")
            return ERROR
        found = fields.get(name)
        if found is None:
            self._complain(node, f"undefined field '{name}'")
            return ERROR
        return found

    def _call(self, node: Call) -> CelType:
        if node.function == "_?._":
            literal = node.args[1]
            assert isinstance(literal, Literal)
            node.overloads = ("select_optional_field",)
            literal.type = kinds.STRING
            return self.bindings.resolve(self._field(node, node.args[0], str(literal.value), optional=True))
        for argument in node.args:
            self.visit(argument)
        functions = self._environment.functions
        if node.target is None:
            name = node.function.removeprefix(".")
            if name not in functions:
                return self._undeclared(node, node.function)
            node.function = name
            return self._resolve(node, functions[name])
        prefix = qualified_name(node.target)
        if prefix is not None:
            full = f"{prefix}.{node.function}".removeprefix(".")
            if full in functions:
                # `sets.contains(...)` is a function with a dotted name, not a member.
                node.function, node.target = full, None
                return self._resolve(node, functions[full])
        self.visit(node.target)
        if node.function not in functions:
            return self._undeclared(node, node.function)
        return self._resolve(node, functions[node.function])

    def _resolve(self, node: Call, overloads: tuple[Overload, ...]) -> CelType:
        if node.function in ("_&&_", "_||_"):
            return self._logic(node, overloads[0])
        arguments = ([] if node.target is None else [node.target.type]) + [arg.type for arg in node.args]
        # Types without parts bind nothing that is seen later, so what they resolve to can be remembered.
        is_plain = all(not kind.params and kind.kind != "param" for kind in arguments)
        key = (node.function, node.target is not None, *arguments)
        known = self._environment.resolved.get(key) if is_plain else None
        if known is not None:
            node.overloads, plain_result, n_fresh = known
            self._n_free += n_fresh  # messages show the numbers of type parameters
            return plain_result
        n_free = self._n_free
        fitting: list[str] = []
        result: CelType | None = None
        for overload in overloads:
            if overload.is_member != (node.target is not None):
                continue
            wanted, outcome = self._instantiate(overload)
            bindings = self.bindings.assignable(arguments, wanted)
            if bindings is None:
                continue
            self.bindings = bindings
            fitting.append(overload.id)
            outcome = bindings.resolve(outcome)
            if result is None:
                result = outcome
            elif not is_dyn(result) and outcome != result:
                result = DYN
        if result is None:
            shown = [self.bindings.resolve(kind, free_to_dyn=True) for kind in arguments]
            signature = show_signature(shown, member=node.target is not None)
            self._complain(node, f"found no matching overload for '{node.function}' applied to '{signature}'")
            return ERROR
        node.overloads = tuple(fitting)
        if is_plain and not result.params and result.kind != "param":
            self._environment.resolved[key] = node.overloads, result, self._n_free - n_free
        return result

    def _instantiate(self, overload: Overload) -> tuple[list[CelType], CelType]:
        """Give the overload type parameters of its own."""
        if not overload.params:
            return list(overload.args), overload.result
        fresh = Bindings({param: self._fresh() for param in overload.params})
        return [fresh.resolve(arg) for arg in overload.args], fresh.resolve(overload.result)

    def _logic(self, node: Call, overload: Overload) -> CelType:
        sound = True
        for argument in node.args:
            if not self._assign(argument.type, BOOL):
                self._mismatch(argument, BOOL, argument.type)
                sound = False
        node.overloads = (overload.id,)
        return BOOL if sound else ERROR

    def _list(self, node: ListNode) -> CelType:
        element: CelType | None = None
        for index, item in enumerate(node.elements):
            kind = self.visit(item)
            if index in node.optional:
                kind = self._unwrapped(item, kind)
            element = self._join(element, kind)
        return list_of(element or self._fresh())

    def _unwrapped(self, node: Node, kind: CelType) -> CelType:
        inner, was_optional = unwrap_optional(kind)
        if not was_optional and not is_dyn(kind):
            self._mismatch(node, optional_of(kind), kind)
        return inner

    def _join(self, previous: CelType | None, current: CelType) -> CelType:
        if previous is None:
            return current
        if self._assign(previous, current):
            return most_general(previous, current)
        # Mixed types are refused later, by `validators`, which knows where they are allowed.
        return DYN

    def _map(self, node: MapNode) -> CelType:
        key: CelType | None = None
        value: CelType | None = None
        for entry in node.entries:
            key = self._join(key, self.visit(entry.key))
            kind = self.visit(entry.value)
            if entry.optional:
                kind = self._unwrapped(entry.value, kind)
            value = self._join(value, kind)
        if key is None or value is None:
            key, value = self._fresh(), self._fresh()
        return map_of(key, value)

    def _struct(self, node: Struct) -> CelType:
        self._undeclared(node, node.type_name)
        return ERROR

    def _fold(self, node: Fold) -> CelType:
        self.visit(node.iter_range)
        accumulator = self.visit(node.accu_init)
        first, second = self._loop_types(node)
        self._scopes.append({node.accu_var: accumulator})
        self._scopes.append({node.iter_var: first} | ({node.iter_var2: second} if node.iter_var2 else {}))
        self._assert_type(node.condition, BOOL)
        self._assert_type(node.step, accumulator)
        self._scopes.pop()
        result = self.visit(node.result)
        self._scopes.pop()
        return self.bindings.resolve(result)

    def _loop_types(self, node: Fold) -> tuple[CelType, CelType]:
        """Return the types of the loop variables: index or key, and value."""
        kind = self.bindings.resolve(node.iter_range.type)
        if kind.kind == "list":
            element = kind.params[0]
            return (INT, element) if node.iter_var2 else (element, DYN)
        if kind.kind == "map":
            return kind.params[0], kind.params[1]
        if kind.kind in ("dyn", "error", "param"):
            self._assign(DYN, kind)
            return DYN, DYN
        self._complain(
            node.iter_range,
            f"expression of type '{show(kind)}' cannot be range of a comprehension "
            "(must be list, map, or dynamic)",
        )
        return ERROR, ERROR

    def _assert_type(self, node: Node, wanted: CelType) -> None:
        kind = self.visit(node)
        if not self._assign(wanted, kind):
            self._mismatch(node, wanted, kind)


_MAX_TYPE_PARTS = 2_000


def _is_too_big(kind: CelType) -> bool:
    left = _MAX_TYPE_PARTS
    stack = [kind]
    while stack:
        left -= 1
        if left < 0:
            return True
        stack.extend(stack.pop().params)
    return False
