"""Pods that want to be near others, away from others, or spread evenly.

Every rule of this kind asks the same question: how many pods that match a selector
are in each topology domain (the nodes that share a label value)? For each distinct
question a `Census` keeps the counts per label value and is told of every pod that
comes or goes, so asking is a dictionary lookup and not a walk over all pods.

Pods already placed can also object to newcomers: the required anti-affinity of every
placed pod is kept as a census of *objections* with the roles exchanged.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from dray.api.core import Pod, PodAffinityTerm, TopologySpreadConstraint
from dray.api.label_selectors import matches_labels
from dray.api.meta import LabelSelector, LabelSelectorRequirement
from dray.scheduler.selecting import first_untolerated, matches_node
from dray.scheduler.shape import PodShape
from dray.scheduler.state import ClusterState, NodeState, PodUse

_encode = msgspec.json.Encoder(order="deterministic").encode
_MAX_CENSUSES = 128

NamespaceLabels = Callable[[str], Mapping[str, str]]


def _no_labels(_: str) -> Mapping[str, str]:
    return {}


@dataclass(slots=True, eq=False)
class _Census:
    """How many matching pods there are per value of a node label."""

    counts_pod: Callable[[PodUse], bool]
    topology_key: str
    by_value: dict[str, int] = field(default_factory=dict)
    total: int = 0


class Neighbours:
    """Counts pods per topology domain, incrementally."""

    def __init__(self, state: ClusterState, namespace_labels: NamespaceLabels = _no_labels) -> None:
        self._state = state
        self._namespace_labels = namespace_labels
        self._censuses: OrderedDict[bytes, _Census] = OrderedDict()
        self._objectors: dict[str, PodUse] = {}  # placed pods with required anti-affinity
        state.listeners.append(self._count)
        state.node_listeners.append(self._recount)

    # --- keeping count --------------------------------------------------------

    def _count(self, use: PodUse, sign: int) -> None:
        if use.shape.anti_affinity:
            if sign > 0:
                self._objectors[use.uid] = use
            else:
                self._objectors.pop(use.uid, None)
        if not self._censuses:
            return
        node = self._state.nodes.get(use.node)
        if node is None:
            return
        for census in self._censuses.values():
            value = node.labels.get(census.topology_key)
            if value is not None and census.counts_pod(use):
                census.by_value[value] = census.by_value.get(value, 0) + sign
                census.total += sign

    def _recount(self, _: NodeState) -> None:
        # Labels of nodes change rarely; counting anew is simpler than moving counts.
        self._censuses.clear()

    def _census(self, key: bytes, topology_key: str, counts_pod: Callable[[PodUse], bool]) -> _Census:
        found = self._censuses.get(key)
        if found is None:
            found = _Census(counts_pod, topology_key)
            for use in self._state.pods.values():
                node = self._state.nodes.get(use.node)
                value = node.labels.get(topology_key) if node is not None else None
                if value is not None and counts_pod(use):
                    found.by_value[value] = found.by_value.get(value, 0) + 1
                    found.total += 1
            self._censuses[key] = found
            while len(self._censuses) > _MAX_CENSUSES:
                self._censuses.popitem(last=False)
        else:
            self._censuses.move_to_end(key)
        return found

    def _census_of_term(self, term: PodAffinityTerm, namespace: str) -> _Census:
        return self._census(
            _encode((term, namespace)), term.topology_key, lambda use: self._term_picks(term, namespace, use)
        )

    def _term_picks(self, term: PodAffinityTerm, namespace: str, use: PodUse) -> bool:
        return self._in_namespaces(term, namespace, use.namespace) and matches_labels(
            term.label_selector, use.labels
        )

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
        """Whether any placed pod objects to some newcomers."""
        return bool(self._objectors)

    def refusal(self, pod: Pod, shape: PodShape) -> Callable[[NodeState], str | None]:
        """Return a judge of nodes for this pod: None, or why the neighbours do not allow it."""
        namespace, labels = pod.metadata.namespace, pod.metadata.labels or {}
        objections = self._objections(namespace, labels)
        away = [(term, self._census_of_term(term, namespace)) for term in shape.anti_affinity]
        near = [(term, self._census_of_term(term, namespace)) for term in shape.affinity]
        # The first pod of a group that wants to be near itself may go anywhere.
        is_first = bool(near) and all(
            census.total == 0
            and self._in_namespaces(term, namespace, namespace)
            and matches_labels(term.label_selector, labels)
            for term, census in near
        )
        spread = [self._spread_judge(pod, each) for each in shape.spread]

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
            for allows in spread:
                reason = allows(node)
                if reason:
                    return reason
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
                if (
                    value is not None
                    and self._in_namespaces(term, use.namespace, namespace)
                    and matches_labels(term.label_selector, labels)
                ):
                    found.setdefault(term.topology_key, set()).add(value)
        return found

    # --- spreading ------------------------------------------------------------

    def _spread_census(self, pod: Pod, rule: TopologySpreadConstraint) -> _Census:
        selector = _selector_with_keys(rule, pod.metadata.labels or {})
        namespace = pod.metadata.namespace
        return self._census(
            _encode(("spread", selector, rule.topology_key, namespace)),
            rule.topology_key,
            lambda use: (
                use.namespace == namespace and not use.is_terminating and matches_labels(selector, use.labels)
            ),
        )

    def _spread_judge(self, pod: Pod, rule: TopologySpreadConstraint) -> Callable[[NodeState], str | None]:
        census = self._spread_census(pod, rule)
        domains = {
            value
            for node in self._state.nodes.values()
            if (value := node.labels.get(rule.topology_key)) is not None and _counts_node(pod, rule, node)
        }
        lowest = min((census.by_value.get(value, 0) for value in domains), default=0)
        if rule.min_domains is not None and len(domains) < rule.min_domains:
            lowest = 0
        own = matches_labels(_selector_with_keys(rule, pod.metadata.labels or {}), pod.metadata.labels)

        def judge(node: NodeState) -> str | None:
            value = node.labels.get(rule.topology_key)
            if value is None:
                return "{do} not have the label of a topology spread constraint"
            if census.by_value.get(value, 0) + own - lowest > rule.max_skew:
                return "{do} not satisfy a topology spread constraint"
            return None

        return judge

    # --- preferences ----------------------------------------------------------

    def preference(self, pod: Pod, shape: PodShape) -> Callable[[NodeState], float]:
        """Return a score of nodes: preferred affinity and soft spreading, higher is better."""
        namespace = pod.metadata.namespace
        terms = [
            (weight, term.topology_key, self._census_of_term(term, namespace))
            for weight, term in shape.preferred_affinity
        ]
        soft = [(each.topology_key, self._spread_census(pod, each)) for each in shape.soft_spread]

        def score(node: NodeState) -> float:
            total = 0.0
            for weight, key, census in terms:
                total += weight * census.by_value.get(node.labels.get(key, ""), 0)
            for key, census in soft:
                value = node.labels.get(key)
                total -= census.by_value.get(value, 0) * 10 if value is not None else 1000
            return total

        return score


def _counts_node(pod: Pod, rule: TopologySpreadConstraint, node: NodeState) -> bool:
    """Whether a node's domain takes part in the skew (nodeAffinityPolicy, nodeTaintsPolicy)."""
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


def _selector_with_keys(rule: TopologySpreadConstraint, labels: Mapping[str, str]) -> LabelSelector | None:
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
