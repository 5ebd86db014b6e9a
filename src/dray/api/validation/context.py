"""What a validator must know besides the object: gates, the CEL checker, the client's version."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from dray.api.features import Features


@dataclass(frozen=True, slots=True)
class CelVerdict:
    """What compiling an expression brought to light."""

    error: str | None = None  # why it does not compile; None if it does
    max_cost: int = 0  # estimated worst case of one evaluation
    is_internal: bool = False  # the checker itself failed, the expression is not to blame


class SelectorChecker(Protocol):
    """Compiles CEL expressions; the room `cel` lies above this one, so it is handed in."""

    def check(self, expression: str, *, stored: bool, derived: bool) -> CelVerdict:
        """Compile a device selector or (`derived`) the expression of a derived attribute."""
        ...


class NoCel:
    """Accepts every expression, for callers that hold no objects with selectors."""

    def check(self, expression: str, *, stored: bool, derived: bool) -> CelVerdict:
        """Return a clean verdict without looking."""
        return CelVerdict()


@dataclass(frozen=True, slots=True)
class ValidationContext:
    """The circumstances of one validation."""

    features: Features = field(default_factory=Features.default)
    cel: SelectorChecker = field(default_factory=NoCel)
    version: str = "v1"  # API version of the request; shapes the paths of declared rules
