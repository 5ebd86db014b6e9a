"""What placing needs to know of a pod, computed once per kind of pod.

Thousands of pods come from one template. Everything about them that decides where
they fit is the same, so it is boiled down to a `PodShape`: hashable parts that serve
as keys of caches (which nodes pass the static rules, which fit).

`PodShape` is about the pod alone; claims are judged apart, because they live on
their own (see `claims`).
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from dray.api.core import Pod, PodAffinity, PodAffinityTerm, TopologySpreadConstraint, WeightedPodAffinityTerm
from dray.api.meta import LabelSelectorRequirement
from dray.scheduler.amounts import Requests, nominal_requests, pod_requests

HostPort = tuple[str, int, str]  # protocol, port, address ("" and 0.0.0.0 mean: all)
ClaimVolume = tuple[str, bool]  # name of a PersistentVolumeClaim, whether it is made for this pod (ephemeral)

_encode = msgspec.json.Encoder(order="deterministic").encode


@dataclass(frozen=True, slots=True)
class PodShape:
    """The demands of a pod in canonical form."""

    requests: Requests
    nominal: tuple[int, int]  # (millicpu, memory) for scoring
    static_key: bytes  # equal keys pass the same static node rules
    ports: tuple[HostPort, ...]
    affinity: tuple[PodAffinityTerm, ...]  # required
    anti_affinity: tuple[PodAffinityTerm, ...]  # required
    preferred_affinity: tuple[tuple[int, PodAffinityTerm], ...]  # weight (negative: away), term
    spread: tuple[TopologySpreadConstraint, ...]  # DoNotSchedule
    soft_spread: tuple[TopologySpreadConstraint, ...]  # ScheduleAnyway
    has_preferences: bool  # preferred node affinity
    volumes: tuple[ClaimVolume, ...]  # volumes that are claims
    key: bytes  # equal keys fit on the same nodes, as far as the pod alone decides

    @property
    def is_plain(self) -> bool:
        """Return whether other pods on the node do not matter, beyond the resources they use."""
        return not (
            self.ports
            or self.affinity
            or self.anti_affinity
            or self.preferred_affinity
            or self.spread
            or self.soft_spread
        )


def shape_of(pod: Pod, *, without: frozenset[str] = frozenset()) -> PodShape:
    """Boil a pod down; `without` names resources that devices provide instead of the node."""
    spec = pod.spec
    requests = pod_requests(pod, without=without)
    node_affinity = spec.affinity.node_affinity if spec.affinity else None
    pod_affinity = spec.affinity.pod_affinity if spec.affinity else None
    anti = spec.affinity.pod_anti_affinity if spec.affinity else None
    preferred = [
        *((each.weight, each.pod_affinity_term) for each in _preferred(pod_affinity)),
        *((-each.weight, each.pod_affinity_term) for each in _preferred(anti)),
    ]
    labels = pod.metadata.labels or {}
    spread = spec.topology_spread_constraints
    near = tuple(_with_keys(term, labels) for term in _required(pod_affinity))
    away = tuple(_with_keys(term, labels) for term in _required(anti))
    static_key, ports = static_key_of(pod), host_ports(pod)
    parts: tuple[object, ...] = (requests, static_key, ports)
    if near or away or spread:
        # Which pods count depends on namespace and labels.
        parts = (*parts, near, away, spread, pod.metadata.namespace, labels)
    volumes = claim_volumes(pod)
    if volumes:
        parts = (*parts, pod.metadata.namespace, volumes)
    return PodShape(
        requests=requests,
        nominal=nominal_requests(pod, requests),
        static_key=static_key,
        ports=ports,
        affinity=near,
        anti_affinity=away,
        preferred_affinity=tuple((weight, _with_keys(term, labels)) for weight, term in preferred),
        spread=tuple(each for each in spread if each.when_unsatisfiable == "DoNotSchedule"),
        soft_spread=tuple(each for each in spread if each.when_unsatisfiable == "ScheduleAnyway"),
        has_preferences=bool(
            node_affinity and node_affinity.preferred_during_scheduling_ignored_during_execution
        ),
        volumes=volumes,
        key=_encode(parts),
    )


def static_key_of(pod: Pod) -> bytes:
    """Return a key such that pods with equal keys pass the same static rules on every node."""
    spec = pod.spec
    if not (spec.node_selector or spec.affinity or spec.tolerations or spec.node_name):
        return b""
    node_affinity = spec.affinity.node_affinity if spec.affinity else None
    return _encode((spec.node_selector, node_affinity, spec.tolerations, spec.node_name))


def host_ports(pod: Pod) -> tuple[HostPort, ...]:
    """Return the ports of the node that the pod binds."""
    return tuple(
        sorted(
            {
                (port.protocol or "TCP", port.host_port, port.host_ip)
                for container in (*pod.spec.containers, *pod.spec.init_containers)
                for port in container.ports
                if port.host_port
            }
        )
    )


def claim_volumes(pod: Pod) -> tuple[ClaimVolume, ...]:
    """Return the PersistentVolumeClaims of the pod; that of an ephemeral volume is named after pod and volume."""
    found: list[ClaimVolume] = []
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            found.append((volume.persistent_volume_claim.claim_name, False))
        elif volume.ephemeral is not None:
            found.append((f"{pod.metadata.name}-{volume.name}", True))
    return tuple(found)


def _required(affinity: PodAffinity | None) -> list[PodAffinityTerm]:
    return affinity.required_during_scheduling_ignored_during_execution if affinity else []


def _preferred(affinity: PodAffinity | None) -> list[WeightedPodAffinityTerm]:
    return affinity.preferred_during_scheduling_ignored_during_execution if affinity else []


def _with_keys(term: PodAffinityTerm, labels: dict[str, str]) -> PodAffinityTerm:
    """Fold matchLabelKeys and mismatchLabelKeys into the selector, with the pod's own values."""
    extra = [
        LabelSelectorRequirement(key=key, operator=operator, values=[labels[key]])
        for operator, keys in (("In", term.match_label_keys), ("NotIn", term.mismatch_label_keys))
        for key in keys
        if key in labels
    ]
    if not extra or term.label_selector is None:
        return term
    selector = msgspec.structs.replace(
        term.label_selector, match_expressions=[*term.label_selector.match_expressions, *extra]
    )
    return msgspec.structs.replace(term, label_selector=selector, match_label_keys=[], mismatch_label_keys=[])
