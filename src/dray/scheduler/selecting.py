"""Matching nodes with node selectors.

Pure predicates. A missing node selector picks every node, a term without requirements
none. Single requirements are decided by `dray.api.label_selectors`.
"""

from __future__ import annotations

from collections.abc import Mapping

from dray.api.label_selectors import holds
from dray.api.meta import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm

Labels = Mapping[str, str]


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
