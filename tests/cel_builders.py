"""Expressions about nothing but literals, evaluated by both engines: the interpreter and the compiled function."""

from __future__ import annotations

import pytest

from dray.cel import DeviceInput, EvaluationError
from dray.cel.codegen import compile_tree
from dray.cel.errors import CompileError, Fault
from dray.cel.expressions import Meter, compile_expression, environment_of
from dray.cel.interpreter import RUN_TIME_LIMIT

NO_DEVICE = DeviceInput.build("d.example.com", {}, {})
ENVIRONMENT = environment_of({})


def value_of(text: str) -> object:
    """Return the value of an expression, on which both engines must agree; raise EvaluationError or CompileError."""
    expression = compile_expression(text, ENVIRONMENT)
    interpreted = expression.run({}, Meter())
    compiled = compile_tree(expression.tree, counting=False)
    if compiled is not None:
        value = compiled(NO_DEVICE, RUN_TIME_LIMIT)[0]
        assert (type(value), repr(value)) == (type(interpreted), repr(interpreted)), text
    return interpreted


def error_of(text: str) -> str:
    """Return why an expression that compiles has no value; both engines must say the same."""
    expression = compile_expression(text, ENVIRONMENT)
    with pytest.raises(EvaluationError) as refused:
        expression.run({}, Meter())
    compiled = compile_tree(expression.tree, counting=False)
    if compiled is not None:
        with pytest.raises((EvaluationError, Fault)) as failed:
            compiled(NO_DEVICE, RUN_TIME_LIMIT)
        assert failed.value.args[0] == str(refused.value), text
    return str(refused.value)


def complaint_of(text: str) -> str:
    """Return the first complaint of the compiler, without its drawing."""
    try:
        compile_expression(text, ENVIRONMENT)
    except CompileError as error:
        return error.issues[0].message if error.issues else str(error)
    raise AssertionError(f"{text} compiles")
