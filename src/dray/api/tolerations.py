"""Taints and tolerations of nodes and devices: the only definition of their match.

Pods tolerate the taints of nodes, requests those of devices. Kubernetes decides both by the same rules, so they
are one function here: an empty key covers every key, an empty effect every effect, and `Equal` (also when the
operator is empty) compares values. Validation refuses `Equal` without a key in pods but accepts it in claims,
where it therefore covers the taints of any key with that value.

Only node taints are compared as numbers (`Gt`, `Lt`); an unknown operator covers nothing.

Invariant: no other module decides this (tests/unit/test_one_definition.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, TypeVar

from dray.api.core import Taint, Toleration
from dray.api.label_selectors import compares
from dray.api.resource import DeviceTaint, DeviceToleration

NO_SCHEDULE: Final = "NoSchedule"
NO_EXECUTE: Final = "NoExecute"
PREFER_NO_SCHEDULE: Final = "PreferNoSchedule"
BLOCKING_EFFECTS: Final = frozenset({NO_SCHEDULE, NO_EXECUTE})

_Taint = TypeVar("_Taint", Taint, DeviceTaint)


def tolerates(toleration: Toleration | DeviceToleration, taint: Taint | DeviceTaint) -> bool:
    """Return whether one toleration covers one taint; an empty key or effect covers any."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    match toleration.operator:
        case "" | "Equal":
            return toleration.value == taint.value
        case "Exists":
            return True
        case "Gt" | "Lt" if isinstance(toleration, Toleration):
            return compares(taint.value, toleration.operator, [toleration.value])
    return False


def first_untolerated(
    taints: Iterable[_Taint],
    tolerations: Sequence[Toleration] | Sequence[DeviceToleration],
    effects: Collection[str] = BLOCKING_EFFECTS,
) -> _Taint | None:
    """Return the first taint of these effects that nothing tolerates; by default those that keep new users away."""
    for taint in taints:
        if taint.effect in effects and not any(tolerates(each, taint) for each in tolerations):
            return taint
    return None
