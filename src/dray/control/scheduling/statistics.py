"""What the scheduler counts and times, for /metrics and tests.

Every label has few values: results and reasons come from fixed tables, never from objects.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from dray.host.metrics_text import Histogram
from dray.scheduler import Decision, NotReady, QueueingHint, ReleaseFirst, Unplaceable

# Seconds: decisions take microseconds to seconds, waiting for devices seconds to hours.
DECISION_BOUNDS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
ALLOCATION_BOUNDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400)
RESULTS = ("scheduled", "unschedulable", "not_ready", "release_first")

# The stage of placing that left no node -> reason.
_REASON_BY_STAGE = {
    "static": "node_rules",
    "resources": "node_resources",
    "ports": "host_ports",
    "volumes": "volumes",
    "claim": "allocated_claim",
    "affinity": "affinity",
    "devices": "devices",
}
# Every value of the label `reason`, with what it means.
REASONS = {
    "node_rules": "node selector, affinity, taints or name of the node",
    "node_resources": "cpu, memory or another resource of the nodes",
    "host_ports": "a host port is in use",
    "volumes": "volumes cannot be used on any node that is left",
    "allocated_claim": "a claim of the pod is allocated elsewhere",
    "affinity": "affinity to other pods, or spreading",
    "devices": "no node has free devices that fit",
    "search_limit": "the search for devices was given up after --filter-timeout",
    "invalid_claim": "a claim or class has an error that no node can cure",
    "gang": "too few pods of the group are there, or they do not fit together",
    "equal_pod": "an equal pod was refused before, and nothing has changed since",
    "other": "any other reason",
}


def reason_of(refusal: Unplaceable) -> str:
    """Return why a pod was refused, as one of REASONS."""
    if refusal.gave_up:
        return "search_limit"
    if refusal.is_fatal:
        return "invalid_claim"
    if QueueingHint.GROUP in refusal.hints:
        return "gang"
    stage = next((stage for stage, left in refusal.stages if not left), "")
    return _REASON_BY_STAGE.get(stage, "other")


@dataclass(slots=True)
class Statistics:
    """Counters and times since the process began."""

    placed: int = 0
    bound: int = 0
    conflicts: int = 0
    failures: int = 0
    preemptions: int = 0
    refusals: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(REASONS, 0)))
    attempts: dict[str, Histogram] = field(
        default_factory=lambda: {result: Histogram(DECISION_BOUNDS) for result in RESULTS}
    )
    allocations: Histogram = field(default_factory=lambda: Histogram(ALLOCATION_BOUNDS))
    _queued_at: dict[str, float] = field(default_factory=dict)  # pod uid -> loop time, while it waits

    @property
    def refused(self) -> int:
        """Return how many attempts found no node."""
        return self.refusals.total()

    def decided(self, decision: Decision, seconds: float) -> None:
        """Note how long one decision took."""
        match decision:
            case Unplaceable():
                result = "unschedulable"
            case NotReady():
                result = "not_ready"
            case ReleaseFirst():
                result = "release_first"
            case _:
                result = "scheduled"
        self.attempts[result].observe(seconds)

    def queued(self, uid: str, now: float) -> None:
        """Note that a pod waits; the first time counts."""
        self._queued_at.setdefault(uid, now)

    def left(self, uid: str) -> None:
        """Note that a pod waits no longer."""
        self._queued_at.pop(uid, None)

    def was_bound(self, uid: str, now: float, *, has_claims: bool) -> None:
        """Count a binding; that of a pod with claims ends an allocation."""
        self.bound += 1
        begun = self._queued_at.pop(uid, None)
        if has_claims and begun is not None:
            self.allocations.observe(now - begun)
