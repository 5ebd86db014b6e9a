"""Which nodes must know what: devices that map node-allocatable resources need nodes that declare it.

This is admission rather than validation: it depends on the nodes that exist at
the moment, and a refusal is a 403.
"""

from __future__ import annotations

from collections.abc import Mapping

from dray.api.json_types import JsonMapping
from dray.api.label_selectors import object_holds

Labels = Mapping[str, Mapping[str, str]]

FEATURE = "DRANodeAllocatableResources"


def check_declared_features(
    resource_slice: JsonMapping,
    features_of_node: Mapping[str, frozenset[str]],
    labels_of_node: Labels | None = None,
) -> list[str]:
    """Return why a slice may not be admitted; an empty list means: admit.

    `features_of_node` holds the nodes that exist and what each declares; labels decide which of them a node
    selector means (without labels only selection by name is understood).
    """
    spec = resource_slice.get("spec") or {}
    reasons: list[str] = []
    for device in spec.get("devices") or []:
        if not device.get("nodeAllocatableResources"):
            continue
        choice = device if spec.get("perDeviceNodeSelection") else spec
        name = choice.get("nodeName")
        if name:
            names = [name] if name in features_of_node else []
            if not names:
                reasons.append(f'node "{name}" not found for device "{device.get("name") or ""}"')
        elif choice.get("nodeSelector") is not None:
            terms = choice["nodeSelector"].get("nodeSelectorTerms") or []
            labels = labels_of_node or {}
            names = [node for node in features_of_node if _is_selected(node, labels.get(node, {}), terms)]
        elif choice.get("allNodes"):
            names = list(features_of_node)
        else:
            names = []
            reasons.append(
                f'device "{device.get("name") or ""}" in ResourceSlice has NodeAllocatableResources '
                "but does not map to any nodes"
            )
        lacking = (node for node in names if FEATURE not in features_of_node[node])
        reasons += [f'node "{node}" does not support {FEATURE} feature' for node in lacking]
    return reasons


def _is_selected(name: str, labels: Mapping[str, str], terms: list[JsonMapping]) -> bool:
    return any(_matches_term(name, labels, term) for term in terms)


def _matches_term(name: str, labels: Mapping[str, str], term: JsonMapping) -> bool:
    expressions, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    # A term without requirements selects nothing.
    if not expressions and not fields:
        return False
    by_label = all(object_holds(requirement, labels) for requirement in expressions)
    return by_label and all(object_holds(requirement, {"metadata.name": name}) for requirement in fields)
