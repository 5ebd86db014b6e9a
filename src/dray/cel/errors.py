"""What can go wrong with a device selector.

    CelError
    ├── CompileError      the text is not a valid selector (syntax, types, result type)
    └── EvaluationError   a valid selector failed on one device
        ├── CostLimitError    ... because it ran longer than it may
        └── AbortedError      ... with values that end a whole evaluation

Inside an evaluation a failure is a `Fault`: it travels up the expression until
an `&&` or `||` absorbs it, and only what leaves the expression becomes an
EvaluationError.
"""

from __future__ import annotations

from dataclasses import dataclass

KEY_HINT = (
    "consider using CEL optional chaining (.? followed by orValue()) "
    "or guarding the check with has() for optional fields"
)


class CelError(Exception):
    """Any failure of the selector language."""


@dataclass(frozen=True, slots=True)
class Issue:
    """One complaint about an expression, with its place (line from 1, column from 0)."""

    message: str
    line: int
    column: int


class CompileError(CelError):
    """The expression is not valid; `str()` is the text that Kubernetes reports."""

    def __init__(self, text: str, issues: tuple[Issue, ...] = (), hint: str = "") -> None:
        super().__init__(text)
        self.issues = issues
        self.hint = hint


class EvaluationError(CelError):
    """The expression failed on a device; `hint` may say what to write instead."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    @property
    def hinted(self) -> str:
        """The message as the scheduler shows it: with the advice for missing keys."""
        message = str(self)
        return f"{message}. {KEY_HINT}" if "no such key:" in message else message


class CostLimitError(EvaluationError):
    """The evaluation was stopped at its cost limit."""


class AbortedError(EvaluationError):
    """The evaluation met values that upstream cannot handle: no `&&` or `||` absorbs that."""

    def __init__(self, message: str) -> None:
        super().__init__(f"internal error: {message}")


class Fault(Exception):
    """A failure inside an evaluation, not yet absorbed by `&&` or `||`."""

    @property
    def message(self) -> str:
        """The text of the failure."""
        return str(self.args[0]) if self.args else ""


def no_such_overload(detail: str = "") -> Fault:
    """Return the fault of an operation that its operands do not support."""
    return Fault(f"no such overload: {detail}" if detail else "no such overload")
