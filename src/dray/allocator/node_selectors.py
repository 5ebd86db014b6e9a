"""Which nodes a slice or a device is meant for: matching node selectors.

Terms are joined by OR, requirements by AND; a term without requirements matches
nothing. Whether a requirement holds is decided by `dray.api.label_selectors`; a selector that cannot be understood is an error of the slice, reported
when a node is matched against it.
"""

from __future__ import annotations

from dray.allocator.errors import AllocationError
from dray.api.core import Node
from dray.api.label_selectors import holds, integer_of
from dray.api.meta import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm


def node_matches(
    node: Node, node_name: str | None, all_nodes: bool | None, selector: NodeSelector | None
) -> bool:
    """Return whether the node is among those named; nothing named means: no node."""
    if node_name:
        return node.metadata.name == node_name
    if all_nodes:
        return True
    return selector is not None and selector_matches(selector, node)


def selector_matches(selector: NodeSelector, node: Node) -> bool:
    """Match a node selector. Raises AllocationError for one that is malformed, matched or not."""
    terms = [term for term in selector.node_selector_terms if term.match_expressions or term.match_fields]
    # All terms are looked at, because a malformed one is an error even after a match.
    verdicts = [_term_matches(term, node) for term in terms]
    return any(verdicts)


def _term_matches(term: NodeSelectorTerm, node: Node) -> bool:
    labels = node.metadata.labels or {}
    expressions = [_label_matches(requirement, labels) for requirement in term.match_expressions]
    fields = [_field_matches(requirement, node.metadata.name) for requirement in term.match_fields]
    return all(expressions) and all(fields)


def _label_matches(requirement: NodeSelectorRequirement, labels: dict[str, str]) -> bool:
    values = requirement.values
    match requirement.operator:
        case "In" | "NotIn":
            if not values:
                raise _malformed(requirement, "values must not be empty for In and NotIn")
        case "Exists" | "DoesNotExist":
            if values:
                raise _malformed(requirement, "values must be empty for Exists and DoesNotExist")
        case "Gt" | "Lt":
            if len(values) != 1 or integer_of(values[0]) is None:
                raise _malformed(requirement, "exactly one integer value is needed for Gt and Lt")
        case _:
            raise _malformed(requirement, "the operator is not supported")
    return holds(requirement.key, requirement.operator, values, labels)


def _field_matches(requirement: NodeSelectorRequirement, node_name: str) -> bool:
    if requirement.operator not in {"In", "NotIn"}:
        raise _malformed(requirement, "fields support only In and NotIn")
    if len(requirement.values) != 1:
        raise _malformed(requirement, "fields need exactly one value")
    # The only field of a node is its name; any other reads as empty.
    value = node_name if requirement.key == "metadata.name" else ""
    return (value == requirement.values[0]) == (requirement.operator == "In")


def _malformed(requirement: NodeSelectorRequirement, why: str) -> AllocationError:
    return AllocationError(
        f"gather pool information: node selector requirement {requirement.key!r}"
        f" {requirement.operator} {requirement.values}: {why}"
    )
