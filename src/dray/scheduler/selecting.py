"""Matching nodes: node selectors, and taints with tolerations.

Pure predicates. A missing node selector picks every node, a term without requirements
none. Single requirements are decided by `dray.api.label_selectors`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dray.api.core import Taint, Toleration
from dray.api.label_selectors import compares, holds
from dray.api.meta import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from dray.api.well_known import UNSCHEDULABLE_KEY

Labels = Mapping[str, str]

NO_SCHEDULE = "NoSchedule"
NO_EXECUTE = "NoExecute"
PREFER_NO_SCHEDULE = "PreferNoSchedule"
UNSCHEDULABLE_TAINT = Taint(key=UNSCHEDULABLE_KEY, effect=NO_SCHEDULE)


def _field_holds(need: NodeSelectorRequirement, node_name: str) -> bool:
    if need.key != "metadata.name":
        return False
    if need.operator == "In":
        return node_name in need.values
    return need.operator == "NotIn" and node_name not in need.values


def matches_term(term: NodeSelectorTerm, node_name: str, labels: Labels) -> bool:
    """Return whether a node meets one term; a term without requirements meets none."""
    if not term.match_expressions and not term.match_fields:
        return False
    return all(
        holds(need.key, need.operator, need.values, labels) for need in term.match_expressions
    ) and all(_field_holds(need, node_name) for need in term.match_fields)


def matches_node(selector: NodeSelector | None, node_name: str, labels: Labels) -> bool:
    """Return whether a node selector picks the node; none at all picks every node."""
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
    """Return whether one toleration covers one taint."""
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
            return compares(taint.value, toleration.operator, [toleration.value])
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
