"""Pods that want to be near others, or away from others.

How many pods that match a term are in each topology domain (the nodes that share a label value) is counted by `pod_counts`.

Pods already placed have a say, too: the required anti-affinity of every placed pod is kept as a list of *objectors* with the roles
exchanged, and their preferred terms, with a small bonus for required affinity, add to the score of nodes near them, as in kube-scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from dray.api.core import Pod, PodAffinityTerm
from dray.api.label_selectors import matches_labels
from dray.scheduler.pod_counts import Census, PodCounts
from dray.scheduler.shape import PodShape
from dray.scheduler.state import ClusterState, NodeState, PodUse

HARD_AFFINITY_WEIGHT = 1  # what the required affinity of a placed pod counts for newcomers that match it

_encode = msgspec.json.Encoder(order="deterministic").encode

NamespaceLabels = Callable[[str], Mapping[str, str]]


def _no_labels(_: str) -> Mapping[str, str]:
    return {}


class InterPodAffinity:
    """Judges and scores nodes by the pods that are near them."""

    def __init__(
        self,
        state: ClusterState,
        namespace_labels: NamespaceLabels = _no_labels,
        counts: PodCounts | None = None,
    ) -> None:
        self._state = state
        self._namespace_labels = namespace_labels
        self.counts = counts if counts is not None else PodCounts(state)
        self._objectors: dict[str, PodUse] = {}  # placed pods with required anti-affinity
        self._attractors: dict[str, PodUse] = {}  # placed pods with preferences, or required affinity
        state.listeners.append(self._keep)

    def _keep(self, use: PodUse, sign: int) -> None:
        shape = use.shape
        if shape.anti_affinity:
            _toggle(self._objectors, use, sign)
        if shape.preferred_affinity or shape.affinity:
            _toggle(self._attractors, use, sign)

    def _census_of_term(self, term: PodAffinityTerm, namespace: str) -> Census:
        return self.counts.census(
            _encode((term, namespace)), term.topology_key, lambda use: self._term_picks(term, namespace, use)
        )

    def _term_picks(self, term: PodAffinityTerm, namespace: str, use: PodUse) -> bool:
        return self._matches(term, namespace, use.namespace, use.labels)

    def _matches(self, term: PodAffinityTerm, own: str, namespace: str, labels: Mapping[str, str]) -> bool:
        """Return whether a term of a pod in namespace `own` picks a pod with these labels."""
        return self._in_namespaces(term, own, namespace) and matches_labels(term.label_selector, labels)

    def _in_namespaces(self, term: PodAffinityTerm, own: str, other: str) -> bool:
        if term.namespace_selector is None and not term.namespaces:
            return own == other
        if other in term.namespaces:
            return True
        return term.namespace_selector is not None and matches_labels(
            term.namespace_selector, self._namespace_labels(other)
        )

    # --- required rules -------------------------------------------------------

    def objects(self) -> bool:
        """Return whether any placed pod objects to some newcomers."""
        return bool(self._objectors)

    def refusal(self, pod: Pod, shape: PodShape) -> Callable[[NodeState], str | None]:
        """Return a judge of nodes for this pod: None, or why the affinity do not allow it."""
        namespace, labels = pod.metadata.namespace, pod.metadata.labels or {}
        objections = self._objections(namespace, labels)
        away = [(term, self._census_of_term(term, namespace)) for term in shape.anti_affinity]
        near = [(term, self._census_of_term(term, namespace)) for term in shape.affinity]
        # The first pod of a group that wants to be near itself may go anywhere.
        is_first = bool(near) and all(
            census.total == 0 and self._matches(term, namespace, namespace, labels) for term, census in near
        )

        def judge(node: NodeState) -> str | None:
            for key, values in objections.items():
                if node.labels.get(key) in values:
                    return "{have} pods whose anti-affinity rules do not allow this pod"
            for term, census in away:
                if census.by_value.get(node.labels.get(term.topology_key, ""), 0) > 0:
                    return "{do} not match pod anti-affinity rules"
            for term, census in near:
                value = node.labels.get(term.topology_key)
                if value is None or (census.by_value.get(value, 0) == 0 and not is_first):
                    return "{do} not match pod affinity rules"
            return None

        return judge

    def _objections(self, namespace: str, labels: Mapping[str, str]) -> dict[str, set[str]]:
        """Return topology key -> values where a placed pod wants no pod like this."""
        found: dict[str, set[str]] = {}
        for use in self._objectors.values():
            node = self._state.nodes.get(use.node)
            if node is None:
                continue
            for term in use.shape.anti_affinity:
                value = node.labels.get(term.topology_key)
                if value is not None and self._matches(term, use.namespace, namespace, labels):
                    found.setdefault(term.topology_key, set()).add(value)
        return found

    # --- preferences ----------------------------------------------------------

    def prefers(self, shape: PodShape) -> bool:
        """Return whether any preference, of the pod or of pods that are placed, may matter for this pod."""
        return bool(shape.preferred_affinity or self._attractors)

    def preference(self, pod: Pod, shape: PodShape, nodes: Sequence[NodeState]) -> list[float]:
        """Score the nodes from 0 to 100 by preferred affinity, relative to each other."""
        namespace, labels = pod.metadata.namespace, pod.metadata.labels or {}
        terms = [
            (weight, term.topology_key, self._census_of_term(term, namespace))
            for weight, term in shape.preferred_affinity
        ]
        attraction = self._attraction(namespace, labels)
        raw = [
            sum(weight * census.by_value.get(node.labels.get(key, ""), 0) for weight, key, census in terms)
            + sum(values.get(node.labels.get(key, ""), 0) for key, values in attraction.items())
            for node in nodes
        ]
        least, most = min(raw), max(raw)
        if least == most:
            return [0.0] * len(raw)
        return [100.0 * (each - least) / (most - least) for each in raw]

    def _attraction(self, namespace: str, labels: Mapping[str, str]) -> dict[str, dict[str, int]]:
        """Return topology key -> value -> how much placed pods want a pod like this there."""
        found: dict[str, dict[str, int]] = {}
        for use in self._attractors.values():
            node = self._state.nodes.get(use.node)
            if node is None:
                continue
            hard = [(HARD_AFFINITY_WEIGHT, term) for term in use.shape.affinity]
            for weight, term in (*use.shape.preferred_affinity, *hard):
                value = node.labels.get(term.topology_key)
                if value is not None and self._matches(term, use.namespace, namespace, labels):
                    values = found.setdefault(term.topology_key, {})
                    values[value] = values.get(value, 0) + weight
        return found


def _toggle(kept: dict[str, PodUse], use: PodUse, sign: int) -> None:
    if sign > 0:
        kept[use.uid] = use
    else:
        kept.pop(use.uid, None)
