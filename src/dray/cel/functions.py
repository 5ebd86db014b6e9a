"""From a call's function and overloads to the Python function that runs it.

An implementation is registered per overload. Where the checker left one overload,
its argument types are still tested at run time, since a `dyn` argument may be
anything; where it left several, the first whose argument types fit the values is
taken. Operators decide by their values alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from dray.api.quantity import Quantity
from dray.api.semver import Semver
from dray.cel.conversions import CONVERSIONS
from dray.cel.declarations import declared_functions
from dray.cel.errors import Fault, no_such_overload
from dray.cel.functions_authorizer import (
    AUTHORIZER,
    AccessDecision,
    Authorizer,
    GroupCheck,
    PathCheck,
    ResourceCheck,
)
from dray.cel.functions_kubernetes import KUBERNETES
from dray.cel.functions_lists import LISTS
from dray.cel.functions_strings import STRINGS
from dray.cel.functions_time import TIME
from dray.cel.kinds import DYN, CelType, list_of
from dray.cel.operators import OPERATORS
from dray.cel.values import Cidr, Duration, Format, Ip, Optional, Timestamp, Uint, Url, type_name

Implementation = Callable[..., object]

_BY_OVERLOAD: dict[str, Implementation] = {
    **STRINGS,
    **LISTS,
    **KUBERNETES,
    **AUTHORIZER,
    **TIME,
    **CONVERSIONS,
}

_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "uint": (Uint,),
    "double": (float,),
    "string": (str,),
    "bytes": (bytes,),
    "list": (list,),
    "map": (dict,),
    "duration": (Duration,),
    "timestamp": (Timestamp,),
    "type": (CelType,),
    "optional_type": (Optional,),
    "kubernetes.Quantity": (Quantity,),
    "kubernetes.Semver": (Semver,),
    "kubernetes.URL": (Url,),
    "kubernetes.NamedFormat": (Format,),
    "net.IP": (Ip,),
    "net.CIDR": (Cidr,),
    "kubernetes.authorization.Authorizer": (Authorizer,),
    "kubernetes.authorization.PathCheck": (PathCheck,),
    "kubernetes.authorization.GroupCheck": (GroupCheck,),
    "kubernetes.authorization.ResourceCheck": (ResourceCheck,),
    "kubernetes.authorization.Decision": (AccessDecision,),
}


def _predicate(kind: CelType) -> Callable[[object], bool]:
    if kind.kind in ("param", "dyn", "any"):
        return lambda _value: True
    name = kind.kind if kind.kind in _PYTHON_TYPES else kind.name
    wanted = _PYTHON_TYPES.get(name, ())
    if kind.kind == "list" and _is_specific(kind.params[0]):
        element = _predicate(kind.params[0])
        return lambda value: isinstance(value, list) and (not value or element(value[0]))
    if name == "int":
        return lambda value: type(value) is int
    return lambda value: isinstance(value, wanted)


def _is_specific(kind: CelType) -> bool:
    return kind.kind not in ("param", "dyn", "any")


# These take lists of any elements, whatever the checker made of them.
_ANY_ELEMENTS = frozenset({"sort", "@sortByAssociatedKeys", "flatten"})


def implementation(
    function: str, overloads: tuple[str, ...], *, constant_pattern: bool = False
) -> Implementation:
    """Return the function for a call; it raises Fault on values it does not support."""
    operator = OPERATORS.get(function)
    if operator is not None:
        return operator
    declared = {o.id: o for o in declared_functions(with_includes=True)[function]}
    if function == "size":
        overloads = tuple(declared)  # one function for all that has a size, whatever the checker made of it
    any_elements = function in _ANY_ELEMENTS
    candidates = [
        (
            tuple(
                _predicate(list_of(DYN) if any_elements and arg.kind == "list" else arg)
                for arg in declared[name].args
            ),
            _BY_OVERLOAD[name],
        )
        for name in overloads
        if name in _BY_OVERLOAD
    ]

    chosen: dict[tuple[type, ...], Implementation | None] = {}

    def dispatch(*args: object) -> object:
        key = tuple(map(type, args))
        if args and key[0] is list and args[0] and not any_elements:
            # A list is known by its first element.
            key = (*key, type(cast("list[object]", args[0])[0]))
        try:
            run = chosen[key]
        except KeyError:
            run = chosen[key] = _choose(candidates, args)
        if run is None:
            raise _refusal(function, args, constant_pattern=constant_pattern)
        return run(*args)

    return dispatch


_TERSE = frozenset({"contains", "startsWith", "endsWith", "matches"})
_TERSE_WITH_CONSTANT = frozenset({"find", "findAll"})
_NAMED_ONLY = frozenset({"size", "sort", "@sortByAssociatedKeys"})


def _refusal(function: str, args: tuple[object, ...], *, constant_pattern: bool) -> Fault:
    """Word the refusal as upstream does; that depends on how it implements the function."""
    if function == "matches" and not constant_pattern and args and not isinstance(args[0], str):
        return no_such_overload(function)
    if function in _TERSE or (constant_pattern and function in _TERSE_WITH_CONSTANT):
        return no_such_overload()
    if function in _NAMED_ONLY:
        has_receiver = bool(args) and isinstance(args[0], str | Duration | Timestamp)
        return no_such_overload("" if has_receiver else function)
    if function == "flatten":
        return no_such_overload(f"{type_name(args[0])}.flatten({', '.join(map(type_name, args[1:]))})")
    return no_such_overload(f"{function}({', '.join(map(type_name, args))})")


def _choose(
    candidates: list[tuple[tuple[Callable[[object], bool], ...], Implementation]], args: tuple[object, ...]
) -> Implementation | None:
    """Return the first candidate that takes arguments of these types."""
    for predicates, run in candidates:
        if all(fits(value) for fits, value in zip(predicates, args, strict=True)):
            return run
    return None
