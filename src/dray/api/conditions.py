"""Conditions of a status: whether one is True."""

from __future__ import annotations

from collections.abc import Iterable

from dray.api.json_types import JsonObject
from dray.api.meta import Condition


def is_true(conditions: Iterable[Condition], condition_type: str) -> bool:
    """Return whether the condition is there with status True."""
    return any(each.type == condition_type and each.status == "True" for each in conditions)


def is_true_in(status: JsonObject, condition_type: str) -> bool:
    """Return the same for the status of an object that was not read into a view."""
    conditions: Iterable[JsonObject] = status.get("conditions") or ()
    return any(each.get("type") == condition_type and each.get("status") == "True" for each in conditions)
