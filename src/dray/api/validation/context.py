"""What a validator must know besides the object: gates, the CEL checker, the client's version."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from dray.api import codec
from dray.api.caching import BoundedCache
from dray.api.features import Features

_LONGEST_ACCEPTED = 8 * 1024  # bytes; longer ones are rare, and must not fill the memory


@dataclass(frozen=True, slots=True)
class CelVerdict:
    """What compiling an expression brought to light."""

    error: str | None = None  # why it does not compile; None if it does
    max_cost: int = 0  # estimated worst case of one evaluation
    is_internal: bool = False  # the checker itself failed, the expression is not to blame


class SelectorChecker(Protocol):
    """Compiles CEL expressions; the package `cel` is a layer above, so it is passed in."""

    def check(self, expression: str, *, stored: bool, derived: bool) -> CelVerdict:
        """Compile a device selector or (`derived`) the expression of a derived attribute."""
        ...


class ExpressionChecker(Protocol):
    """Compiles the expressions of one policy or webhook configuration."""

    def problem(self, text: str, purpose: str, *, authorizer: bool = True) -> str:
        """Return why an expression cannot serve a purpose (condition, message, annotation), or ""."""
        ...

    def add_variable(self, name: str, text: str) -> str:
        """Return why a variable does not compile, or ""; later expressions know it."""
        ...


class AdmissionCel(Protocol):
    """Begins the check of a policy's expressions."""

    def __call__(self, *, params: bool, has_variables: bool) -> ExpressionChecker:
        """Return a checker; `params`: the policy has a paramKind."""
        ...


class _AcceptsAll:
    def problem(self, text: str, purpose: str, *, authorizer: bool = True) -> str:
        return ""

    def add_variable(self, name: str, text: str) -> str:
        return ""


def no_admission_cel(*, params: bool, has_variables: bool) -> ExpressionChecker:
    """Return a checker that accepts every expression, for callers that do not hold policies."""
    return _AcceptsAll()


class NoCel:
    """Accepts every expression, for callers that hold no objects with selectors."""

    def check(self, expression: str, *, stored: bool, derived: bool) -> CelVerdict:
        """Return a clean verdict without looking."""
        return CelVerdict()


class Accepted:
    """Values that were judged before and found right.

    Claims made from one template are equal but for their metadata; the second need not be
    judged again. Whoever hands one in keeps features and CEL the same for its lifetime.
    """

    def __init__(self, limit: int = 4096) -> None:
        self._seals: BoundedCache[tuple[str, str, bytes], bool] = BoundedCache(limit)

    def seal(self, rule: str, version: str, value: object) -> tuple[str, str, bytes]:
        """Return what makes two values equal under a rule."""
        return rule, version, codec.encode(value)

    def __contains__(self, seal: tuple[str, str, bytes]) -> bool:
        return self._seals.get(seal) is not None

    def add(self, seal: tuple[str, str, bytes]) -> None:
        """Remember a value, unless it is long; those used longest ago make room."""
        if len(seal[2]) <= _LONGEST_ACCEPTED:
            self._seals.add(seal, True)


@dataclass(frozen=True, slots=True)
class ValidationContext:
    """The circumstances of one validation."""

    features: Features = field(default_factory=Features.default)
    cel: SelectorChecker = field(default_factory=NoCel)
    version: str = "v1"  # API version of the request; shapes the paths of declared rules
    accepted: Accepted | None = None  # None: judge everything anew
    admission_cel: AdmissionCel = no_admission_cel
