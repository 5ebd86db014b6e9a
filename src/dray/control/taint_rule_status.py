"""The condition `EvictionInProgress` of a DeviceTaintRule: what it says, given the counts.

Reasons and texts are those of kube-controller-manager, because people and programs look for them:

| effect | status | reason |
|---|---|---|
| NoExecute, pods still to be evicted | True | `PodsPendingEviction` |
| NoExecute, all of them evicted | False | `Completed` |
| NoExecute, none so far | False | `NotStarted` |
| None | False | `NoEffect`: what would happen, counted once per generation of the rule |
| NoSchedule | False | `OtherEffect` |

A pod counts as still to be evicted until somebody has deleted it: one that terminates does not count any
more, and one that is evicted is counted once (tests/unit/control/test_control_taints.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dray.api.meta import Condition
from dray.api.resource import DeviceTaintRule
from dray.api.times import format_time
from dray.api.tolerations import NO_EXECUTE
from dray.api.wording import plural

CONDITION = "EvictionInProgress"


@dataclass(frozen=True, slots=True)
class RuleCounts:
    """What a rule touches."""

    pending: int = 0  # pods that have to go, or would have to
    namespaces: int = 0  # of those pods
    evicted: int = 0  # pods, since the controller started
    published: int = 0  # devices in the newest slices
    allocated: int = 0  # devices in claims


def eviction_condition(rule: DeviceTaintRule, counts: RuleCounts, now: datetime) -> dict[str, Any]:
    """Return the condition as it should be; `needs_write` says whether it must be written."""
    status, sentences = "False", []
    if rule.spec.taint.effect == NO_EXECUTE:
        reason = "Completed" if counts.evicted else "NotStarted"
        if counts.pending:
            status, reason = "True", "PodsPendingEviction"
            sentences.append(
                f"{_pods(counts.pending, 'needs', 'need')} to be evicted in {_namespaces(counts)}."
            )
    elif rule.spec.taint.effect == "None":
        reason = "NoEffect"
        sentences += [
            f"{plural(counts.published, 'published device')} selected.",
            f"{plural(counts.allocated, 'allocated device')} selected.",
            f"{_pods(counts.pending, 'would', 'would')} be evicted in {_namespaces(counts)} "
            "if the effect was NoExecute.",
            "This information will not be updated again. Recreate the DeviceTaintRule to trigger an update.",
        ]
    else:
        reason = "OtherEffect"
        sentences.append("Eviction only happens for the NoExecute effect.")
    if counts.evicted:
        sentences.append(f"{plural(counts.evicted, 'pod')} evicted since starting the controller.")
    return {
        "type": CONDITION,
        "status": status,
        "reason": reason,
        "message": " ".join(sentences),
        "observedGeneration": rule.metadata.generation,
        "lastTransitionTime": format_time(now),
    }


def needs_write(previous: Condition | None, condition: dict[str, Any]) -> bool:
    """Return whether a condition says anything else than the one before, its date aside."""
    return previous is None or (
        previous.status,
        previous.reason,
        previous.message,
        previous.observed_generation,
    ) != tuple(condition[key] for key in ("status", "reason", "message", "observedGeneration"))


def _pods(count: int, one: str, many: str) -> str:
    return f"{plural(count, 'pod')} {one if count == 1 else many}"


def _namespaces(counts: RuleCounts) -> str:
    return "1 namespace" if counts.namespaces == 1 else f"{counts.namespaces} different namespaces"
