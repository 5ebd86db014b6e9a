"""The language of device selectors: parse, check, estimate, compile, evaluate."""

from dray.cel.device import DeviceInput
from dray.cel.errors import CelError, CompileError, CostLimitError, EvaluationError, Issue
from dray.cel.explain import FalseTerm, explain_false, key_hint
from dray.cel.interpreter import RUN_TIME_LIMIT
from dray.cel.program import (
    Outcome,
    Program,
    Verdict,
    check_expression,
    compile_derived,
    compile_selector,
    is_compiled,
    takes_long,
)
from dray.cel.reads import ReadSet, reads_of

__all__ = [
    "RUN_TIME_LIMIT",
    "CelError",
    "CompileError",
    "CostLimitError",
    "DeviceInput",
    "EvaluationError",
    "FalseTerm",
    "Issue",
    "Outcome",
    "Program",
    "ReadSet",
    "Verdict",
    "check_expression",
    "compile_derived",
    "compile_selector",
    "explain_false",
    "is_compiled",
    "key_hint",
    "reads_of",
    "takes_long",
]
