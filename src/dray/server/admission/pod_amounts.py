"""Requests and limits of pods as JSON, read as quantities; the rules are in `dray.api.pod_resources`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from dray.api.json_types import JsonObject
from dray.api.pod_resources import total_limits, total_requests
from dray.api.quantity import QuantityError, parse_quantity
from dray.api.quota_charges import Amounts

Side = Literal["requests", "limits"]


def amounts_of(resources: Mapping[str, object] | None) -> Amounts:
    """Read a map of quantities; values that are not quantities are left to validation."""
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

    def own(part: JsonObject) -> Amounts:
        return amounts_of((part.get("resources") or {}).get(side))

    total = total_requests if side == "requests" else total_limits
    return total(
        [own(container) for container in spec.get("containers") or ()],
        [
            (container.get("restartPolicy") == "Always", own(container))
            for container in spec.get("initContainers") or ()
        ],
        own(spec),
        amounts_of(spec.get("overhead")),
    )
