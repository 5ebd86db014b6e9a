"""Expressions about anything but devices: compiled for declared variables, run with a meter.

Admission policies, match conditions of webhooks and rules of custom kinds are written in
the same language as device selectors, with other variables. They are evaluated once per
write, so there is no compiled function here: the interpreter runs them.

This module and `schema_types` are the door to the language for such expressions; values and
types that their callers need are exported here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dray.cel.checker import check
from dray.cel.declarations import declared_functions
from dray.cel.depth import with_room
from dray.cel.environment import Environment, Shape
from dray.cel.errors import CompileError, EvaluationError
from dray.cel.estimate import max_cost
from dray.cel.functions_authorizer import Authorizer, Question
from dray.cel.interpreter import Failure, Frame, Meter, Step
from dray.cel.kinds import BOOL, DYN, INT, NULL, STRING, TIMESTAMP, CelType, list_of, map_of, optional_of
from dray.cel.parser import parse
from dray.cel.planning import plan
from dray.cel.source import Complaints, Source
from dray.cel.syntax import Ident, Node, walk
from dray.cel.validators import validate
from dray.cel.values import NOTHING, Optional, Timestamp, type_name

__all__ = [
    "BOOL", "DYN", "INT", "NOTHING", "NULL", "STRING", "TIMESTAMP", "Authorizer", "CelType", "Environment", "Expression",
    "Failure", "Meter", "Optional", "Question", "Shape", "Timestamp", "Variables", "compile_expression",
    "environment_of", "list_of", "map_of", "optional_of", "refuse_other_types", "type_name",
]  # fmt: skip

Variables = dict[str, object]


def environment_of(
    variables: Mapping[str, CelType],
    structs: Mapping[str, dict[str, CelType]] | None = None,
    shapes: Mapping[str, Shape] | None = None,
) -> Environment:
    """Return an environment with these variables and the functions that Kubernetes offers everywhere."""
    return Environment(
        variables=dict(variables),
        structs=dict(structs or {}),
        functions=declared_functions(with_includes=False),
        shapes=dict(shapes or {}),
    )


class Expression:
    """A compiled expression. Immutable; may be shared between threads."""

    __slots__ = ("_steps", "names", "output_type", "text", "tree")

    def __init__(self, text: str, tree: Node, steps: Step) -> None:
        self.text = text
        self.tree = tree
        self.output_type: CelType = tree.type
        self.names = frozenset(node.name.removeprefix(".") for node in walk(tree) if isinstance(node, Ident))
        self._steps = steps

    def uses(self, variable: str) -> bool:
        """Return whether the expression mentions a variable (or a loop variable of that name)."""
        return variable in self.names

    def max_cost(self, shapes: Mapping[str, Shape]) -> int:
        """Return the largest cost of an evaluation, by the declared sizes of variables."""
        return with_room(lambda: max_cost(self.tree, shapes))

    def run(self, variables: Variables, meter: Meter) -> object:
        """Return the value; raise EvaluationError. The meter keeps what it cost, also of a failure."""
        start = meter.cost
        frame = Frame(meter, None, variables)

        def attempt() -> object:
            meter.restart(start)
            return self._steps.run(frame)

        value = with_room(attempt)
        if isinstance(value, Failure):
            raise EvaluationError(value.message)
        return value


def compile_expression(text: str, environment: Environment) -> Expression:
    """Compile an expression; raise CompileError with all complaints."""
    return with_room(lambda: _compile(text, environment))


def _compile(text: str, environment: Environment) -> Expression:
    complaints = Complaints(Source(text))
    tree = parse(complaints)
    if tree is None:
        raise complaints.error()
    check(tree, environment, complaints)
    if complaints:
        raise complaints.error()
    validate(tree, complaints)
    if complaints:
        raise complaints.error()
    return Expression(text, tree, plan(tree))


def refuse_other_types(expression: Expression, allowed: Collection[CelType]) -> None:
    """Raise CompileError unless the expression has one of these types."""
    if expression.output_type in allowed:
        return
    names = [str(kind) for kind in allowed]
    wanted = names[0] if len(names) == 1 else f"one of [{' '.join(names)}]"
    raise CompileError(f"must evaluate to {wanted} but got {expression.output_type}")
