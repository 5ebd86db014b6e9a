"""Pods that are to be spread evenly over topology domains, by their own constraints or by the cluster's defaults.

Required constraints (DoNotSchedule) judge nodes: the pods that match, in the domain of the node, may not be more than `maxSkew` above the
emptiest domain. Which nodes take part (their labels, `nodeAffinityPolicy`, `nodeTaintsPolicy`) decides what counts, both as a domain and as a pod.

Preferred constraints (ScheduleAnyway) score nodes. A pod without any constraint gets kube-scheduler's defaults: even over host names (skew 3)
and zones (skew 5), among the pods that its Services and its ReplicaSet, StatefulSet or ReplicationController select. A pod that nothing selects is not spread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from dray.api.core import Pod, TopologySpreadConstraint
from dray.api.label_selectors import matches_labels
from dray.api.meta import LabelSelector, LabelSelectorRequirement
from dray.api.tolerations import first_untolerated
from dray.api.well_known import HOSTNAME_LABEL, ZONE_LABEL
from dray.scheduler.pod_counts import Census, PodCounts
from dray.scheduler.selecting import matches_node
from dray.scheduler.shape import PodShape
from dray.scheduler.state import ClusterState, NodeState

DEFAULTS = ((HOSTNAME_LABEL, 3), (ZONE_LABEL, 5))  # topology key, maxSkew

_encode = msgspec.json.Encoder(order="deterministic").encode
_OWNERS = {("apps", "ReplicaSet"), ("apps", "StatefulSet"), ("", "ReplicationController")}


@dataclass(slots=True)
class Selecting:
    """The objects whose selectors tell which pods belong together."""

    services: dict[str, dict[str, dict[str, str]]] = field(
        default_factory=dict
    )  # namespace -> name -> selector
    owners: dict[tuple[str, str], LabelSelector] = field(
        default_factory=dict
    )  # (kind, namespace/name) -> selector

    def __bool__(self) -> bool:
        return bool(self.services or self.owners)

    def selector_of(self, pod: Pod) -> LabelSelector | None:
        """Return what picks the pods that belong together with this one; None when nothing selects it."""
        labels = pod.metadata.labels or {}
        wanted: dict[str, str] = {}
        for selector in self.services.get(pod.metadata.namespace, {}).values():
            if selector and all(labels.get(key) == value for key, value in selector.items()):
                wanted.update(selector)
        found = LabelSelector(match_labels=wanted)
        owner = next((each for each in pod.metadata.owner_references if each.controller), None)
        if owner is not None and (owner.api_version.rpartition("/")[0], owner.kind) in _OWNERS:
            of_owner = self.owners.get((owner.kind, f"{pod.metadata.namespace}/{owner.name}"))
            if of_owner is not None:
                found = LabelSelector(
                    match_labels={**wanted, **(of_owner.match_labels or {})},
                    match_expressions=list(of_owner.match_expressions),
                )
        return found if found.match_labels or found.match_expressions else None


class TopologySpread:
    """Judges and scores nodes by how evenly pods are spread."""

    def __init__(self, state: ClusterState, counts: PodCounts, selecting: Selecting | None = None) -> None:
        self._state = state
        self._counts = counts
        self.selecting = selecting if selecting is not None else Selecting()

    # --- required rules -------------------------------------------------------

    def refusal(self, pod: Pod, shape: PodShape) -> Callable[[NodeState], str | None]:
        """Return a judge of nodes: None, or why the pod's constraints do not allow it."""
        keys = [rule.topology_key for rule in shape.spread]
        judges = [self._judge(pod, rule, keys) for rule in shape.spread]

        def judge(node: NodeState) -> str | None:
            return next((reason for allows in judges if (reason := allows(node))), None)

        return judge

    def _judge(
        self, pod: Pod, rule: TopologySpreadConstraint, keys: Sequence[str]
    ) -> Callable[[NodeState], str | None]:
        labels = pod.metadata.labels or {}
        selector = selector_with_keys(rule, labels)
        nodes = [node for node in self._state.nodes.values() if _has_all(node, keys)]
        counts = self._domains(pod, rule, selector, nodes)
        lowest = min(counts.values(), default=0)
        if rule.min_domains is not None and len(counts) < rule.min_domains:
            lowest = 0
        own = matches_labels(selector, labels)

        def judge(node: NodeState) -> str | None:
            value = node.labels.get(rule.topology_key)
            if value is None:
                return "{do} not have the label of a topology spread constraint"
            if counts.get(value, 0) + own - lowest > rule.max_skew:
                return "{do} not satisfy a topology spread constraint"
            return None

        return judge

    def _domains(
        self,
        pod: Pod,
        rule: TopologySpreadConstraint,
        selector: LabelSelector | None,
        nodes: Sequence[NodeState],
    ) -> dict[str, int]:
        """Return the matching pods per domain, of the nodes that take part."""
        by_node = self._census(pod.metadata.namespace, selector).by_value
        counts: dict[str, int] = {}
        for node in nodes:
            value = node.labels.get(rule.topology_key)
            if value is not None and _takes_part(pod, rule, node):
                counts[value] = counts.get(value, 0) + by_node.get(node.name, 0)
        return counts

    def _census(self, namespace: str, selector: LabelSelector | None) -> Census:
        return self._counts.census(
            _encode(("spread", selector, namespace)),
            None,
            lambda use: (
                use.namespace == namespace and not use.is_terminating and matches_labels(selector, use.labels)
            ),
        )

    # --- preferences ----------------------------------------------------------

    def soft_rules(self, pod: Pod, shape: PodShape) -> tuple[TopologySpreadConstraint, ...]:
        """Return the constraints that only score nodes: the pod's own, or the defaults."""
        if shape.soft_spread or shape.spread or not self.selecting:
            return shape.soft_spread
        selector = self.selecting.selector_of(pod)
        if selector is None:
            return ()
        return tuple(
            TopologySpreadConstraint(
                topology_key=key, max_skew=skew, when_unsatisfiable="ScheduleAnyway", label_selector=selector
            )
            for key, skew in DEFAULTS
        )

    def preference(
        self,
        pod: Pod,
        shape: PodShape,
        rules: Sequence[TopologySpreadConstraint],
        nodes: Sequence[NodeState],
    ) -> list[float]:
        """Score the nodes from 0 to 100, as kube-scheduler does: fewer matching pods in their domains are better."""
        is_own = bool(shape.soft_spread)
        keys = [rule.topology_key for rule in rules] if is_own else []
        judged = [node for node in nodes if _has_all(node, keys)]
        raw = dict.fromkeys((node.name for node in judged), 0.0)
        for rule in rules:
            self._add(pod, rule, judged, keys, raw)
        rounded = {name: math.floor(score + 0.5) for name, score in raw.items()}
        most, least = max(rounded.values(), default=0), min(rounded.values(), default=0)
        if not most:
            return [100.0 if node.name in rounded else 0.0 for node in nodes]
        return [
            100.0 * (most + least - rounded[node.name]) / most if node.name in rounded else 0.0
            for node in nodes
        ]

    def _add(
        self,
        pod: Pod,
        rule: TopologySpreadConstraint,
        judged: Sequence[NodeState],
        keys: Sequence[str],
        raw: dict[str, float],
    ) -> None:
        """Add the score of one rule to every node."""
        selector = selector_with_keys(rule, pod.metadata.labels or {})
        if rule.topology_key == HOSTNAME_LABEL:
            by_node = self._census(pod.metadata.namespace, selector).by_value
            weight = math.log(len(judged) + 2)
            for node in judged:
                if rule.topology_key in node.labels:
                    raw[node.name] += by_node.get(node.name, 0) * weight + rule.max_skew - 1
            return
        values = {node.labels.get(rule.topology_key, "") for node in judged}
        weight = math.log(len(values) + 2)
        everywhere = [node for node in self._state.nodes.values() if _has_all(node, keys)]
        counts = self._domains(pod, rule, selector, everywhere)
        for node in judged:
            value = node.labels.get(rule.topology_key)
            if value is not None:
                raw[node.name] += counts.get(value, 0) * weight + rule.max_skew - 1


def _has_all(node: NodeState, keys: Sequence[str]) -> bool:
    return all(key in node.labels for key in keys)


def _takes_part(pod: Pod, rule: TopologySpreadConstraint, node: NodeState) -> bool:
    """Return whether a node's domain takes part in the skew (nodeAffinityPolicy, nodeTaintsPolicy)."""
    if (rule.node_affinity_policy or "Honor") == "Honor":
        if any(node.labels.get(key) != value for key, value in (pod.spec.node_selector or {}).items()):
            return False
        affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
        required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
        if required is not None and not matches_node(required, node.name, node.labels):
            return False
    if rule.node_taints_policy == "Honor":
        return first_untolerated(node.node.spec.taints, pod.spec.tolerations) is None
    return True


def selector_with_keys(rule: TopologySpreadConstraint, labels: Mapping[str, str]) -> LabelSelector | None:
    """Fold matchLabelKeys into the selector, with the pod's own values."""
    extra = [
        LabelSelectorRequirement(key=key, operator="In", values=[labels[key]])
        for key in rule.match_label_keys
        if key in labels
    ]
    if not extra or rule.label_selector is None:
        return rule.label_selector
    return msgspec.structs.replace(
        rule.label_selector, match_expressions=[*rule.label_selector.match_expressions, *extra]
    )
