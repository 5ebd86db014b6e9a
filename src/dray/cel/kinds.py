"""The types of the selector language, and when one may stand for another.

A type is a value: a kind, a name, and parameters. Type parameters (`A`, `_var3`)
are bound while a call is checked; `Bindings` holds what is bound so far and is
copied before an attempt, so that a failed attempt leaves no trace.
"""

from __future__ import annotations

from typing import NamedTuple


class CelType(NamedTuple):
    """A type; equality is structural."""

    kind: str
    name: str
    params: tuple[CelType, ...] = ()

    def __str__(self) -> str:
        if not self.params:
            return "google.protobuf.Any" if self.kind == "any" else self.name
        return f"{self.name}({', '.join(map(str, self.params))})"


def _scalar(name: str) -> CelType:
    return CelType(name, name)


BOOL = _scalar("bool")
INT = _scalar("int")
UINT = _scalar("uint")
DOUBLE = _scalar("double")
STRING = _scalar("string")
BYTES = _scalar("bytes")
DYN = _scalar("dyn")
ANY = CelType("any", "any")
ERROR = CelType("error", "!error!")
NULL = CelType("null", "null_type")
DURATION = CelType("duration", "google.protobuf.Duration")
TIMESTAMP = CelType("timestamp", "google.protobuf.Timestamp")
TYPE = CelType("type", "type")
DEVICE = CelType("struct", "kubernetes.DRADevice")
QUANTITY = CelType("struct", "kubernetes.Quantity")
SEMVER = CelType("struct", "kubernetes.Semver")
URL = CelType("struct", "kubernetes.URL")
FORMAT = CelType("struct", "kubernetes.NamedFormat")
IP = CelType("opaque", "net.IP")
CIDR = CelType("opaque", "net.CIDR")

_SHOWN = {"duration": "duration", "timestamp": "timestamp", "null": "null"}


def list_of(element: CelType) -> CelType:
    """Return list(element)."""
    return CelType("list", "list", (element,))


def map_of(key: CelType, value: CelType) -> CelType:
    """Return map(key, value)."""
    return CelType("map", "map", (key, value))


def optional_of(value: CelType) -> CelType:
    """Return optional_type(value)."""
    return CelType("opaque", "optional_type", (value,))


def type_of(value: CelType) -> CelType:
    """Return the type of a type."""
    return CelType("type", "type", (value,))


def parameter(name: str) -> CelType:
    """Return a type parameter."""
    return CelType("param", name)


def is_dyn(kind: CelType) -> bool:
    """Return whether anything may be there at run time."""
    return kind.kind in ("dyn", "any")


def is_dyn_or_error(kind: CelType) -> bool:
    """Return whether checking is given up for this type."""
    return kind.kind in ("dyn", "any", "error")


def unwrap_optional(kind: CelType) -> tuple[CelType, bool]:
    """Return the type inside an optional, and whether it was one."""
    if kind.kind == "opaque" and kind.name == "optional_type":
        return kind.params[0], True
    return kind, False


def show(kind: CelType) -> str:
    """Return the type as it appears in messages of the checker."""
    shown = _SHOWN.get(kind.kind)
    if shown:
        return shown
    if not kind.params:
        return kind.name
    return f"{kind.name}({', '.join(map(show, kind.params))})"


def show_signature(arguments: list[CelType], *, member: bool) -> str:
    """Return the argument types of a call as messages show them."""
    prefix = ""
    if member:
        prefix, arguments = f"{show(arguments[0])}.", arguments[1:]
    return f"{prefix}({', '.join(map(show, arguments))})"


class Bindings(dict[CelType, CelType]):
    """Type parameter → what it stands for."""

    def assignable(self, given: list[CelType], wanted: list[CelType]) -> Bindings | None:
        """Return the bindings under which every given type fits, or None."""
        if len(given) != len(wanted):
            return None
        attempt = Bindings(self)
        if all(attempt._fits(left, right) for left, right in zip(given, wanted, strict=True)):
            return attempt
        return None

    def _fits(self, left: CelType, right: CelType) -> bool:
        if right.kind == "param":
            valid, bound = self._substitutes(left, right)
            if valid:
                return True
            if bound:
                return False
        if left.kind == "param":
            return self._substitutes(right, left)[0]
        if is_dyn_or_error(left) or is_dyn_or_error(right):
            return True
        if left.kind == "null":
            return _is_nullable(right)
        if right.kind == "null":
            return _is_nullable(left)
        if left.kind == "type":
            return right.kind == "type"
        if left.kind in ("opaque", "list", "map"):
            return (
                left.kind == right.kind
                and left.name == right.name
                and len(left.params) == len(right.params)
                and all(self._fits(a, b) for a, b in zip(left.params, right.params, strict=True))
            )
        return left == right

    def _substitutes(self, candidate: CelType, param: CelType) -> tuple[bool, bool]:
        """Return whether `candidate` may stand for `param`, and whether param was bound already."""
        if candidate == param:
            return True, True
        bound = self.get(param)
        if bound is not None:
            if candidate == bound:
                return True, True
            if self._fits(candidate, bound):
                general = most_general(candidate, bound)
                if self._is_free_of(param, general):
                    self[param] = general
                return True, True
            return False, True
        if self._is_free_of(param, candidate):
            self[param] = candidate
            return True, False
        return False, False

    def _is_free_of(self, param: CelType, within: CelType) -> bool:
        if param == within:
            return False
        if within.kind == "param":
            bound = self.get(within)
            return bound is None or self._is_free_of(param, bound)
        return all(self._is_free_of(param, part) for part in within.params)

    def resolve(self, kind: CelType, *, free_to_dyn: bool = False) -> CelType:
        """Replace bound parameters; free ones become dyn on request."""
        bound = self.get(kind)
        if bound is not None:
            return self.resolve(bound, free_to_dyn=free_to_dyn)
        if kind.kind == "param":
            return DYN if free_to_dyn else kind
        if not kind.params:
            return kind
        return kind._replace(params=tuple(self.resolve(p, free_to_dyn=free_to_dyn) for p in kind.params))


def _is_nullable(kind: CelType) -> bool:
    return kind.kind in ("opaque", "struct", "any", "duration", "timestamp", "null")


def most_general(left: CelType, right: CelType) -> CelType:
    """Return the less specific of two types that unify."""
    return left if _is_no_more_specific(left, right) else right


def _is_no_more_specific(left: CelType, right: CelType) -> bool:
    if is_dyn(left) or left.kind == "param":
        return True
    if is_dyn(right) or right.kind == "param" or left.kind != right.kind:
        return False
    if left.kind in ("opaque", "list", "map"):
        return (
            left.name == right.name
            and len(left.params) == len(right.params)
            and all(_is_no_more_specific(a, b) for a, b in zip(left.params, right.params, strict=True))
        )
    return left.kind == "type" or left == right
