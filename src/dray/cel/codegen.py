"""Compile an expression into a Python function: loops become loops, variables local variables.

The function is built from Python's own syntax tree nodes and handed to `compile`; no
text of the expression is ever executed, literals enter as constants and names as
numbered temporaries.

There are two kinds of function. Where the estimate says that an expression cannot
cost more than it may, nothing is counted, and failures are handled as CEL demands: a
failure is a Python exception (Fault), caught where `&&`, `||` or a loop absorbs it. Not
so in expressions that may end the whole evaluation (`may_abort`): there a Fault ends the
function, and the interpreter says what comes of it.
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
from types import CodeType, FunctionType

from dray.cel import pysyntax as py
from dray.cel.call_costs import compares_elements
from dray.cel.codegen_base import COST, DEVICE, LIMIT, MEMORY_LEFT, NotCompiledError
from dray.cel.codegen_loops import LoopWriter
from dray.cel.device import DeviceInput
from dray.cel.memory import MEMORY_LIMIT
from dray.cel.syntax import Call, Literal, MapNode, Node, walk

# Of a device and a cost limit: the value, and the cost if the function counts.
Compiled = Callable[[DeviceInput, int], tuple[object, int | None]]


def compile_tree(tree: Node, *, counting: bool, absorbs: bool = True) -> Compiled | None:
    """Return the function of an expression, or None where the interpreter must do."""
    generator = _Generator(counting=counting, absorbs=absorbs)
    try:
        module = generator.module(tree)
        code = compile(ast.fix_missing_locations(module), "<selector>", "exec")
    except (NotCompiledError, RecursionError, MemoryError, SyntaxError):
        return None
    inner = next(constant for constant in code.co_consts if isinstance(constant, CodeType))
    return FunctionType(inner, generator.names, "selector")


_HASHABLE = frozenset({"bool", "int", "uint", "double", "string", "null", "duration", "timestamp", "type"})


def may_abort(tree: Node) -> bool:
    """Return whether values can end the evaluation as a whole (see `errors.AbortedError`)."""
    for node in walk(tree):
        if isinstance(node, MapNode):
            if any(entry.key.type.kind not in _HASHABLE for entry in node.entries):
                return True
        elif isinstance(node, Call):
            overload = node.overloads[0] if len(node.overloads) == 1 else ""
            if compares_elements(overload):
                return True
            if overload == "list_flatten_int" and not isinstance(node.args[0], Literal):
                return True
            is_lookup = node.function == "@in" and node.args[1].type.kind != "list"
            if is_lookup and node.args[0].type.kind not in _HASHABLE:
                return True
    return False


class _Generator(LoopWriter):
    """Writes the whole function."""

    def module(self, tree: Node) -> ast.Module:
        """Return the function as a module of one statement."""
        result = self.stored(self.node(tree, {}).expression)
        body = self._body
        cost = py.constant(None)
        if self.counting:
            self._flush()
            self._check_limit()
            cost = py.load(COST)
            body.insert(0, py.assign(COST, py.constant(0)))
        if self.uses_memory:
            body.insert(0, py.assign(MEMORY_LEFT, py.constant(MEMORY_LIMIT)))
        body.append(ast.Return(ast.Tuple([result, cost], ast.Load())))
        return ast.Module([py.function("selector", [DEVICE, LIMIT], body)], [])
