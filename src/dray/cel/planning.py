"""Turn a checked tree into the steps that the interpreter runs, folding constants."""

from __future__ import annotations

from dray.cel.access import (
    KEY_TYPES,
    Access,
    ComputedQualifier,
    Conditional,
    ConstantQualifier,
    PresenceQualifier,
    Qualifier,
    StepAccess,
    VariableAccess,
    bad_key,
)
from dray.cel.errors import AbortedError, CompileError
from dray.cel.functions import implementation
from dray.cel.functions_strings import compile_pattern
from dray.cel.interpreter import (
    CallStep,
    Constant,
    Failure,
    FoldStep,
    Frame,
    ListStep,
    Logic,
    MapStep,
    Membership,
    Meter,
    OptionalOr,
    Step,
    guarded,
    member_key,
    not_equal,
    not_strictly_false,
)
from dray.cel.syntax import Call, Fold, Ident, ListNode, Literal, MapNode, Node, Select
from dray.cel.values import equal

FOLDED = frozenset(
    {"bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"}
)
PATTERN_ARGUMENT = {"matches": 1, "find": 1, "findAll": 1}


def plan(node: Node) -> Step:
    """Return the steps of an expression; raise CompileError if a constant part of it fails."""
    match node:
        case Literal():
            return Constant(node.id, node.value)
        case Ident():
            if node.constant is not None:
                return Constant(node.id, node.constant)
            if node.type.kind == "type":
                # A variable cannot stand for a type.
                raise CompileError(f"program instantiation failed: reference to undefined type: {node.name}")
            return VariableAccess(node.id, node.name)
        case Select():
            return _select(node)
        case Call():
            return _call(node)
        case ListNode():
            return _list(node)
        case MapNode():
            return _map(node)
        case Fold():
            return _fold(node)
    raise CompileError(f"program instantiation failed: unsupported expression: {type(node).__name__}")


def _access(step: Step) -> Access:
    """Return a step as something that qualifiers can be added to."""
    return step if isinstance(step, Access) and not step.test_only else StepAccess(step.id, step)


def _select(node: Select) -> Step:
    if node.constant is not None:
        return Constant(node.id, node.constant)
    access = _access(plan(node.operand))
    if node.test_only:
        access.add(PresenceQualifier(node.id, node.name, optional=False))
        access.test_only = True
    else:
        access.add(ConstantQualifier(node.id, node.name, optional=False))
    return access


def _call(node: Call) -> Step:
    args = [plan(arg) for arg in ([] if node.target is None else [node.target]) + node.args]
    match node.function:
        case "_&&_" | "_||_":
            return Logic(node.id, args, decisive=node.function == "_||_")
        case "_?_:_":
            return Conditional(node.id, args[0], _branch(args[1]), _branch(args[2]))
        case "_==_":
            return CallStep(node.id, "_==_", "equals", args, equal)
        case "_!=_":
            return CallStep(node.id, "_!=_", "not_equals", args, not_equal)
        case "_[_]" | "_[?_]" | "_?._":
            return _index(node, args[0], args[1], optional=node.function != "_[_]")
        case "or" | "orValue":
            return OptionalOr(node.id, args[0], args[1], unwraps=node.function == "orValue")
        case "@not_strictly_false":
            return CallStep(node.id, node.function, "not_strictly_false", args, not_strictly_false)
    overload = node.overloads[0] if len(node.overloads) == 1 else ""
    if overload == "in_list" and isinstance(args[1], Constant):
        optimized = _membership(node, args[0], args[1])
        if optimized is not None:
            return optimized
    position = PATTERN_ARGUMENT.get(node.function, len(args))
    pattern = args[position] if position < len(args) else None
    constant_pattern = isinstance(pattern, Constant) and isinstance(pattern.value, str)
    run = implementation(node.function, node.overloads, constant_pattern=constant_pattern)
    step = CallStep(node.id, node.function, overload, args, run)
    return _folded(step)


def _branch(step: Step) -> Access:
    return step if isinstance(step, Access) else StepAccess(step.id, step)


def _folded(step: CallStep) -> Step:
    """Evaluate conversions of constants, and compile constant patterns, ahead of time."""
    if step.function in FOLDED and len(step.args) == 1 and isinstance(step.args[0], Constant):
        value = guarded(step.implementation, step.args[0].value)
        if isinstance(value, Failure):
            raise CompileError(f"program instantiation failed: {value.message}")
        return Constant(step.id, value)
    position = PATTERN_ARGUMENT.get(step.function)
    if position is not None and position < len(step.args):
        pattern = step.args[position]
        if isinstance(pattern, Constant) and isinstance(pattern.value, str):
            compiled = guarded(compile_pattern, pattern.value)
            if isinstance(compiled, Failure):
                raise CompileError(f"program instantiation failed: {compiled.message}")
            step.stops_early = True
    return step


def _membership(node: Call, item: Step, items: Constant) -> Step | None:
    values = items.value
    if not isinstance(values, list):
        return None
    if not values:
        return Constant(node.id, value=False)
    if not all(isinstance(value, bool | int | float | str) for value in values):
        return None
    return Membership(node.id, item, frozenset(map(member_key, values)))


def _index(node: Call, operand: Step, key: Step, *, optional: bool) -> Step:
    access = _access(operand)
    qualifier: Qualifier
    if isinstance(key, Constant):
        if type(key.value) not in KEY_TYPES:
            raise CompileError(f"program instantiation failed: {bad_key(key.value)}")
        qualifier = ConstantQualifier(node.id, key.value, optional=optional)
    else:
        qualifier = ComputedQualifier(node.id, key, optional=optional)
    access.add(qualifier)
    return access


def _fold_constants(step: Step) -> Step:
    try:
        value = step.run(Frame(Meter(), None, {}))
    except AbortedError as error:
        raise CompileError(f"program instantiation failed: {error}") from None
    return Constant(step.id, value)


def _list(node: ListNode) -> Step:
    elements = [plan(element) for element in node.elements]
    step = ListStep(node.id, elements, node.optional)
    return _fold_constants(step) if all(isinstance(element, Constant) for element in elements) else step


def _map(node: MapNode) -> Step:
    entries = [(plan(entry.key), plan(entry.value), entry.optional) for entry in node.entries]
    step = MapStep(node.id, entries)
    is_constant = all(isinstance(part, Constant) for key, value, _ in entries for part in (key, value))
    return _fold_constants(step) if is_constant else step


def _fold(node: Fold) -> Step:
    accu = plan(node.accu_init)
    iter_range = plan(node.iter_range)
    names = (node.iter_var, node.iter_var2, node.accu_var)
    steps = (iter_range, accu, plan(node.condition), plan(node.step), plan(node.result))
    return FoldStep(node.id, names, steps)
