"""What a pod asks for in sum: containers together, init containers at their worst moment.

Init containers run one after the other before the rest, so only the largest
counts; those that keep running beside the pod (restartPolicy Always) add up with
all that starts after them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from dray.api.json_types import JsonObject
from dray.api.quantity import Quantity, QuantityError, parse_quantity

Amounts = dict[str, Quantity]
Side = Literal["requests", "limits"]
POD_LEVEL = ("cpu", "memory")


def amounts_of(resources: Mapping[str, object] | None) -> Amounts:
    """Read a map of quantities; what is no quantity is left to validation."""
    amounts: Amounts = {}
    for name, value in (resources or {}).items():
        if isinstance(value, str | int | float):
            try:
                amounts[name] = parse_quantity(value)
            except QuantityError:
                continue
    return amounts


def pod_amounts(spec: JsonObject, side: Side) -> Amounts:
    """Return the requests or limits of a pod as a whole."""
    total: Amounts = {}
    for container in spec.get("containers") or ():
        add(total, amounts_of((container.get("resources") or {}).get(side)))
    beside: Amounts = {}
    peak: Amounts = {}
    for container in spec.get("initContainers") or ():
        own = amounts_of((container.get("resources") or {}).get(side))
        if container.get("restartPolicy") == "Always":
            add(total, own)
            add(beside, own)
            own = beside
        else:
            add(own, beside)
        _raise_to(peak, own)
    _raise_to(total, peak)
    pod_level = amounts_of((spec.get("resources") or {}).get(side))
    total.update({name: amount for name, amount in pod_level.items() if name in POD_LEVEL})
    return total


def add(total: Amounts, more: Mapping[str, Quantity]) -> None:
    """Add amounts by name, in place."""
    for name, amount in more.items():
        total[name] = total[name] + amount if name in total else amount


def _raise_to(total: Amounts, least: Mapping[str, Quantity]) -> None:
    for name, amount in least.items():
        if name not in total or total[name] < amount:
            total[name] = amount
