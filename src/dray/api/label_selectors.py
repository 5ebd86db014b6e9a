"""Matching labels against label selectors and single requirements.

A label selector (`matchLabels`, `matchExpressions`) is a conjunction of requirements
`key operator values`; a node selector term and a selector in a query (`a in (x,y),!b`)
are made of the same requirements. This module decides whether they hold; parsing and
validating them is done elsewhere.

Two rules of the API surprise: a *missing* selector matches nothing while an *empty* one
matches everything, and `NotIn` holds where the label is absent.

Invariant: this is the only definition of the operators
(tests/unit/api/test_api_label_selectors.py).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from dray.api.meta import LabelSelector

__all__ = [
    "compares",
    "format_selector",
    "holds",
    "integer_of",
    "matches_label_object",
    "matches_labels",
    "object_holds",
]

_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_INT64: Final = range(-(2**63), 2**63)
_MOST_DIGITS: Final = 64  # a label value has at most 63 characters


def matches_labels(selector: LabelSelector | None, labels: Mapping[str, str] | None) -> bool:
    """Return whether a label selector matches an object with these labels."""
    if selector is None:
        return False
    labels = labels or {}
    for key, value in (selector.match_labels or {}).items():
        if labels.get(key) != value:
            return False
    return all(holds(need.key, need.operator, need.values, labels) for need in selector.match_expressions)


def matches_label_object(selector: Mapping[str, Any] | None, labels: Mapping[str, str] | None) -> bool:
    """Return what `matches_labels` does, for a selector as JSON (`matchLabels`, `matchExpressions`)."""
    if selector is None:
        return False
    labels = labels or {}
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(object_holds(need, labels) for need in selector.get("matchExpressions") or ())


def object_holds(requirement: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return what `holds` does, for a requirement as JSON."""
    key, operator = requirement.get("key") or "", requirement.get("operator") or ""
    return holds(key, operator, requirement.get("values") or (), labels)


def holds(key: str, operator: str, values: Collection[str], labels: Mapping[str, str]) -> bool:
    """Return whether the labels meet one requirement; an unknown operator is never met."""
    value = labels.get(key)
    match operator:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return compares(value, operator, values)
    return False


def compares(value: str | None, operator: str, values: Collection[str]) -> bool:
    """Return whether a value is greater (`Gt`) or less (`Lt`) than the only one in `values`.

    Both must be decimal integers of at most 64 bits; anything else does not compare.

    >>> compares("12", "Gt", ["9"]), compares("1_0", "Gt", ["9"])
    (True, False)
    """
    if value is None or len(values) != 1:
        return False
    left, right = integer_of(value), integer_of(next(iter(values)))
    if left is None or right is None:
        return False
    return left > right if operator == "Gt" else left < right


def integer_of(text: str) -> int | None:
    """Return a decimal integer of at most 64 bits; None for anything else."""
    if len(text) > _MOST_DIGITS or not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if number in _INT64 else None


def format_selector(selector: Mapping[str, Any] | None) -> str:
    """Return a label selector (as JSON) as text, requirements by key.

    >>> format_selector({"matchLabels": {"b": "1"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["y", "x"]}]})
    'a in (x,y),b=1'
    """
    parts = [(key, f"{key}={value}") for key, value in ((selector or {}).get("matchLabels") or {}).items()]
    for requirement in (selector or {}).get("matchExpressions") or ():
        key, values = requirement.get("key", ""), ",".join(sorted(requirement.get("values") or ()))
        text = {
            "In": f"{key} in ({values})",
            "NotIn": f"{key} notin ({values})",
            "Exists": key,
            "DoesNotExist": f"!{key}",
        }.get(requirement.get("operator", ""), "")
        parts.append((key, text))
    return ",".join(text for _, text in sorted(parts, key=lambda part: part[0]))
