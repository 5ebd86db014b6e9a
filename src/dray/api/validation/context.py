"""What a validator must know besides the object: gates, the CEL checker, the client's version."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Protocol

from dray.api import codec
from dray.api.features import Features

_MOST_ACCEPTED = 4096
_LONGEST_ACCEPTED = 8 * 1024  # bytes; longer ones are rare, and must not fill the memory


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


class Accepted:
    """Values that were judged before and found right.

    Claims made from one template are equal but for their metadata; the second need not be
    judged again. Whoever hands one in keeps features and CEL the same for its lifetime.
    """

    def __init__(self, most: int = _MOST_ACCEPTED) -> None:
        self._most = most
        self._seals: OrderedDict[tuple[str, str, bytes], None] = OrderedDict()  # in order of age

    def seal(self, rule: str, version: str, value: object) -> tuple[str, str, bytes]:
        """Return what makes two values equal under a rule."""
        return rule, version, codec.encode(value)

    def __contains__(self, seal: tuple[str, str, bytes]) -> bool:
        return seal in self._seals

    def add(self, seal: tuple[str, str, bytes]) -> None:
        """Remember a value; the oldest makes room."""
        if len(seal[2]) > _LONGEST_ACCEPTED:
            return
        if len(self._seals) >= self._most:
            self._seals.popitem(last=False)
        self._seals[seal] = None


@dataclass(frozen=True, slots=True)
class ValidationContext:
    """The circumstances of one validation."""

    features: Features = field(default_factory=Features.default)
    cel: SelectorChecker = field(default_factory=NoCel)
    version: str = "v1"  # API version of the request; shapes the paths of declared rules
    accepted: Accepted | None = None  # None: judge everything anew
