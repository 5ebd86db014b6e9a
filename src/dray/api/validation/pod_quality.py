"""The quality of service of a pod: Guaranteed, Burstable or BestEffort, by its requests and limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dray.api.quantity import parse_quantity
from dray.api.validation.equality import is_same

_COMPUTE = ("cpu", "memory")
_ZERO = parse_quantity(0)


def quality_of_service(spec: Mapping[str, Any]) -> str:
    """Return Guaranteed, Burstable or BestEffort."""
    requests: dict[str, bool] = {}
    limited = True  # every container limits cpu and memory to what it requests
    if _amounts(spec, "requests") or _amounts(spec, "limits"):
        return _of_pod_level(spec)
    for container in _containers(spec):
        asked, allowed = _amounts(container, "requests"), _amounts(container, "limits")
        requests |= dict.fromkeys([*asked, *allowed], True)
        limited = limited and all(
            name in allowed and is_same(asked.get(name, allowed[name]), allowed[name]) for name in _COMPUTE
        )
    if not requests:
        return "BestEffort"
    return "Guaranteed" if limited else "Burstable"


def _of_pod_level(spec: Mapping[str, Any]) -> str:
    asked, allowed = _amounts(spec, "requests"), _amounts(spec, "limits")
    exact = all(name in allowed and asked.get(name, allowed[name]) == allowed[name] for name in _COMPUTE)
    return "Guaranteed" if exact else "Burstable"


def _containers(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from spec.get("containers") or ()
    yield from spec.get("initContainers") or ()


def _amounts(holder: Mapping[str, Any], part: str) -> dict[str, Any]:
    """Return the cpu and memory amounts above zero."""
    amounts = (holder.get("resources") or {}).get(part) or {}
    found = {name: parse_quantity(amounts[name]) for name in _COMPUTE if name in amounts}
    return {name: amount for name, amount in found.items() if amount > _ZERO}
