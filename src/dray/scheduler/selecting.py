"""Matching labels: label selectors, node selectors, taints and tolerations.

All rules of the API in one place, as pure predicates. Two surprises of the API are
kept on purpose: a *missing* label selector matches nothing while an *empty* one
matches everything, and `NotIn` is true where the label is absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dray.api.core import Taint, Toleration
from dray.api.meta import LabelSelector, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm

Labels = Mapping[str, str]

NO_SCHEDULE = "NoSchedule"
NO_EXECUTE = "NoExecute"
PREFER_NO_SCHEDULE = "PreferNoSchedule"
UNSCHEDULABLE_TAINT = Taint(key="node.kubernetes.io/unschedulable", effect=NO_SCHEDULE)


def matches_labels(selector: LabelSelector | None, labels: Labels | None) -> bool:
    """Whether a label selector picks an object with these labels."""
    if selector is None:
        return False
    labels = labels or {}
    for key, value in (selector.match_labels or {}).items():
        if labels.get(key) != value:
            return False
    return all(_holds(need.key, need.operator, need.values, labels) for need in selector.match_expressions)


def _holds(key: str, operator: str, values: Sequence[str], labels: Labels) -> bool:
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
            return _compares(value, operator, values)
    return False


def _compares(value: str | None, operator: str, values: Sequence[str]) -> bool:
    """Compare as whole numbers; anything that is none does not match."""
    if value is None or len(values) != 1:
        return False
    try:
        left, right = int(value), int(values[0])
    except ValueError:
        return False
    return left > right if operator == "Gt" else left < right


def _field_holds(need: NodeSelectorRequirement, node_name: str) -> bool:
    if need.key != "metadata.name":
        return False
    if need.operator == "In":
        return node_name in need.values
    return need.operator == "NotIn" and node_name not in need.values


def matches_term(term: NodeSelectorTerm, node_name: str, labels: Labels) -> bool:
    """Whether a node meets one term; a term without requirements meets none."""
    if not term.match_expressions and not term.match_fields:
        return False
    return all(
        _holds(need.key, need.operator, need.values, labels) for need in term.match_expressions
    ) and all(_field_holds(need, node_name) for need in term.match_fields)


def matches_node(selector: NodeSelector | None, node_name: str, labels: Labels) -> bool:
    """Whether a node selector picks the node; none at all picks every node."""
    if selector is None:
        return True
    return any(matches_term(term, node_name, labels) for term in selector.node_selector_terms)


def names_in(selector: NodeSelector) -> frozenset[str] | None:
    """Return the only nodes a selector can pick, where it pins them by name; else None.

    Saves a scan: allocated claims and daemon pods pin their node this way.
    """
    found: set[str] = set()
    for term in selector.node_selector_terms:
        pins = [need for need in term.match_fields if need.key == "metadata.name" and need.operator == "In"]
        if not pins:
            return None
        found.update(frozenset.intersection(*(frozenset(pin.values) for pin in pins)))
    return frozenset(found)


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether one toleration covers one taint."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    match toleration.operator:
        case "" | "Equal":
            return bool(toleration.key) and toleration.value == taint.value
        case "Exists":
            return True
        case "Gt" | "Lt":
            return _compares(taint.value, toleration.operator, [toleration.value])
    return False


def first_untolerated(
    taints: Iterable[Taint],
    tolerations: Sequence[Toleration],
    effects: tuple[str, ...] = (NO_SCHEDULE, NO_EXECUTE),
) -> Taint | None:
    """Return the first taint of these effects that nothing tolerates."""
    for taint in taints:
        if taint.effect in effects and not any(tolerates(each, taint) for each in tolerations):
            return taint
    return None
