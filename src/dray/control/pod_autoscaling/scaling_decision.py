"""`decide(autoscaler, target, readings, history, now) -> Decision`: how many replicas, and what to say about it.

A pure function with the rules of kube-controller-manager. The metrics' proposals come from `replica_counts`; the largest
counts. A metric that tells nothing never lowers the count: when the others would, nothing changes.

Then the proposal is made steady. Without `behavior`, the highest proposal of the last five minutes counts when scaling
down, and the count at most doubles (or reaches 4) when scaling up. With `behavior`, each direction has its
stabilization window and its policies, which look at what was changed within their periods.

The history is all that a decision remembers: former proposals and changes. It is kept in memory, so after a restart it begins
with the present count, which counts as a proposal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dray.api.conditions import is_true
from dray.api.pod_autoscalers import (
    Behavior,
    HorizontalPodAutoscaler,
    MetricSpec,
    ScalingRules,
)
from dray.api.quantity import Quantity, parse_quantity
from dray.control.pod_autoscaling.replica_counts import (
    MOST_REPLICAS,
    MetricUnavailableError,
    ObservedPod,
    Proposal,
    Tolerances,
    by_average,
    by_utilization,
    by_value,
    per_pod,
)

DOWN_WINDOW = 300.0  # seconds of stabilization when nothing else is said
GROWTH_FACTOR, GROWTH_LEAST = 2, 4  # without behavior
ABLE, ACTIVE, LIMITED, AT_ZERO = "AbleToScale", "ScalingActive", "ScalingLimited", "ScaledToZero"
MOST_MEMORIES = 1_000  # proposals, and changes, that are remembered of one autoscaler

PodValues = Mapping[str, int]  # pod -> thousandths
Reading = (
    PodValues | int | MetricUnavailableError
)  # of one metric: of each pod, of all together, or why there is none


@dataclass(frozen=True, slots=True)
class Target:
    """What is scaled, as it is now."""

    wanted: int  # spec.replicas
    existing: int  # status.replicas
    pods_by_metric: Sequence[Sequence[ObservedPod]]  # for each metric, with the request of its resource


@dataclass(frozen=True, slots=True)
class Memory:
    """Something that was proposed or changed."""

    at: float
    replicas: int


@dataclass(frozen=True, slots=True)
class History:
    """What an autoscaler remembers."""

    proposals: tuple[Memory, ...] = ()
    added: tuple[Memory, ...] = ()
    removed: tuple[Memory, ...] = ()


@dataclass(frozen=True, slots=True)
class Condition:
    """One statement for the status."""

    type: str
    status: str
    reason: str
    message: str


@dataclass(slots=True)
class Decision:
    """What to do and what to say."""

    replicas: int  # what the target should have; its present count means: no change
    reason: str = ""  # of a change
    conditions: list[Condition] = field(default_factory=list)
    metrics: list[dict[str, Any]] = field(default_factory=list)  # status.currentMetrics
    warnings: list[tuple[str, str]] = field(default_factory=list)  # reason and message of events
    history: History = field(default_factory=History)
    is_failure: bool = False  # nothing could be decided; status.desiredReplicas stays

    def say(self, kind: str, status: str, reason: str, message: str) -> None:
        """Set a condition."""
        self.conditions = [each for each in self.conditions if each.type != kind]
        self.conditions.append(Condition(kind, status, reason, message))


def decide(
    autoscaler: HorizontalPodAutoscaler,
    target: Target,
    readings: Sequence[Reading],
    history: History,
    now: float,
) -> Decision:
    """Return how many replicas the target should have. `now` is in seconds of a clock that only goes forward."""
    spec = autoscaler.spec
    least = 1 if spec.min_replicas is None else spec.min_replicas
    current = target.wanted
    history = history if history.proposals else History((Memory(now, current),))
    decision = Decision(current, history=history)
    message = "the HPA controller was able to get the target's current scale"
    decision.say(ABLE, "True", "SucceededGetScale", message)
    was_scaled_to_zero = is_true(autoscaler.status.conditions, AT_ZERO)
    can_measure_nothing = any(metric.type in ("Object", "External") for metric in spec.metrics)
    if current == 0 and not (was_scaled_to_zero and (least != 0 or can_measure_nothing)):
        message = "scaling is disabled since the replica count of the target is zero"
        decision.say(ACTIVE, "False", "ScalingDisabled", message)
        return decision
    if current > spec.max_replicas:
        decision.replicas = spec.max_replicas
        decision.reason = "Current number of replicas above Spec.MaxReplicas"
    elif 0 < current < least:
        decision.replicas = least
        decision.reason = "Current number of replicas below Spec.MinReplicas"
    else:
        _follow_metrics(decision, autoscaler, target, readings, least, now)
        if decision.is_failure:
            return decision
    if decision.replicas != current:
        _remember_change(decision, spec.behavior, current, now)
        to_zero = current > 0 and decision.replicas == 0 and least == 0 and can_measure_nothing
        decision.say(
            AT_ZERO,
            "True" if to_zero else "False",
            "ScaledToZero" if to_zero else "NotScaledToZero",
            f"the HPA controller {'scaled' if to_zero else 'did not scale'} the workload to zero",
        )
    return decision


# --- metrics --------------------------------------------------------------------------


def _follow_metrics(
    decision: Decision,
    autoscaler: HorizontalPodAutoscaler,
    target: Target,
    readings: Sequence[Reading],
    least: int,
    now: float,
) -> None:
    spec, current = autoscaler.spec, target.wanted
    found = _proposed(decision, spec.metrics, target, readings, _tolerances(spec.behavior))
    if found is None:
        decision.is_failure = True
        return
    proposed, name = found
    if proposed > current:
        decision.reason = f"{name} above target"
    elif proposed < current:
        decision.reason = "All metrics below target"
    steady = _stabilized(decision, spec.behavior, current, proposed, now)
    limited, reason, message = _limited(
        decision.history, spec.behavior, current, steady, (least, spec.max_replicas), now
    )
    decision.say(LIMITED, "False" if limited == steady else "True", reason, message)
    if current == 0 and limited < least:
        limited = least
        decision.reason = decision.reason or "Current number of replicas below Spec.MinReplicas"
    decision.replicas = limited


def _proposed(
    decision: Decision,
    metrics: Sequence[MetricSpec],
    target: Target,
    readings: Sequence[Reading],
    tolerances: Tolerances,
) -> tuple[int, str] | None:
    """Return the largest proposal and its metric; None when nothing can be decided, with the conditions set."""
    best: tuple[int, str] | None = None
    failures: list[tuple[str, str]] = []
    for spec, reading, pods in zip(metrics, readings, target.pods_by_metric, strict=True):
        try:
            proposal = _proposal(spec, reading, target, pods, tolerances)
        except MetricUnavailableError as error:
            failures.append((f"FailedGet{spec.type}Metric", str(error)))
            decision.warnings.append(failures[-1])
            decision.metrics.append({"type": ""})
            continue
        decision.metrics.append(metric_status(spec, proposal))
        if best is None or proposal.replicas > best[0]:
            best = (proposal.replicas, metric_text(spec))
    if failures and (best is None or best[0] < target.wanted):
        reason, why = failures[0]
        message = f"the HPA was unable to compute the replica count: {why}"
        decision.say(ACTIVE, "False", reason, message)
        text = f"invalid metrics ({len(failures)} invalid out of {len(metrics)}), first error is: {why}"
        decision.warnings.append(("FailedComputeMetricsReplicas", text))
        return None
    if best is None:
        return None
    message = f"the HPA was able to successfully calculate a replica count from {best[1]}"
    decision.say(ACTIVE, "True", "ValidMetricFound", message)
    return best


def _proposal(
    spec: MetricSpec,
    reading: Reading,
    target: Target,
    pods: Sequence[ObservedPod],
    tolerances: Tolerances,
) -> Proposal:
    if isinstance(reading, MetricUnavailableError):
        raise reading
    wanted = spec.source.target
    average = None if wanted.average_value is None else _milli(wanted.average_value)
    if isinstance(reading, int):
        if average is not None:
            return by_average(target.existing, reading, average, tolerances)
        return by_value(target.wanted, pods, reading, _milli(wanted.value or 1), tolerances)
    if average is not None:
        return per_pod(target.wanted, pods, reading, average, tolerances)
    return by_utilization(target.wanted, pods, reading, wanted.average_utilization or 1, tolerances)


def _milli(quantity: Any) -> int:
    return max(1, parse_quantity(quantity).milli_value())


def metric_text(spec: MetricSpec) -> str:
    """Return a metric for people, as it stands in conditions and events."""
    source = spec.source
    share = " utilization (percentage of request)" if source.target.average_value is None else ""
    match spec.type:
        case "Pods":
            return f"pods metric {source.metric.name}"
        case "Object":
            return f"{source.described_object.kind} metric {source.metric.name}"
        case "External":
            return f"external metric {source.metric.name}"
        case "ContainerResource":
            return f"{source.name} container resource{share}"
    return f"{source.name} resource{share}"


def metric_status(spec: MetricSpec, proposal: Proposal) -> dict[str, Any]:
    """Return what `status.currentMetrics` says of a metric."""
    source = spec.source
    usage = str(Quantity.of_milli(proposal.usage))
    is_whole = spec.type in ("Object", "External") and source.target.average_value is None
    current: dict[str, Any] = {"value" if is_whole else "averageValue": usage}
    if proposal.utilization is not None:
        current["averageUtilization"] = proposal.utilization
    body: dict[str, Any] = {"current": current}
    if source.metric.name:
        body["metric"] = {"name": source.metric.name}
    else:
        body["name"] = source.name
    if spec.type == "ContainerResource":
        body["container"] = source.container
    if spec.type == "Object":
        described = source.described_object
        body["describedObject"] = {"kind": described.kind, "name": described.name}
        if described.api_version:
            body["describedObject"]["apiVersion"] = described.api_version
    field_name = spec.type[0].lower() + spec.type[1:]
    return {"type": spec.type, field_name: body}


def _tolerances(behavior: Behavior | None) -> Tolerances:
    if behavior is None:
        return Tolerances()

    def of(rules: ScalingRules) -> float:
        given = rules.tolerance
        return 0.1 if given is None else parse_quantity(given).as_approximate_float()

    return Tolerances(of(behavior.scale_up), of(behavior.scale_down))


# --- stabilization ----------------------------------------------------------------------


def _stabilized(
    decision: Decision, behavior: Behavior | None, current: int, proposed: int, now: float
) -> int:
    """Return the proposal as former ones leave it, and remember it."""
    history = decision.history
    up_window, down_window = 0.0, DOWN_WINDOW
    if behavior is not None:
        up_window = float(behavior.scale_up.stabilization_window_seconds or 0)
        given = behavior.scale_down.stabilization_window_seconds
        down_window = DOWN_WINDOW if given is None else float(given)
    lowest, highest = proposed, proposed
    for each in history.proposals:
        if each.at > now - up_window:
            lowest = min(lowest, each.replicas)
        if each.at > now - down_window:
            highest = max(highest, each.replicas)
    steady = highest if behavior is None else min(max(current, lowest), highest)
    kept = [each for each in history.proposals if each.at > now - max(up_window, down_window)]
    proposals = _shortened([*kept, Memory(now, proposed)])
    decision.history = History(proposals, history.added, history.removed)
    if steady == proposed:
        decision.say(ABLE, "True", "ReadyForNewScale", "recommended size matches current size")
    elif behavior is not None and proposed >= current:
        message = (
            "recent recommendations were lower than current one, applying the lowest recent recommendation"
        )
        decision.say(ABLE, "True", "ScaleUpStabilized", message)
    else:
        message = (
            "recent recommendations were higher than current one, applying the highest recent recommendation"
        )
        decision.say(ABLE, "True", "ScaleDownStabilized", message)
    return steady


def _shortened(memories: Sequence[Memory]) -> tuple[Memory, ...]:
    return tuple(memories[-MOST_MEMORIES:])


# --- limits -----------------------------------------------------------------------------


def _limited(
    history: History,
    behavior: Behavior | None,
    current: int,
    desired: int,
    bounds: tuple[int, int],
    now: float,
) -> tuple[int, str, str]:
    """Return the count within its bounds and rates, and the reason and message of the condition."""
    least, most = bounds
    fastest = max(GROWTH_FACTOR * current, GROWTH_LEAST)
    slowest = 0
    if behavior is not None:
        fastest = max(current, _limit(behavior.scale_up, history, current, now, upwards=True))
        slowest = min(current, _limit(behavior.scale_down, history, current, now, upwards=False))
    if desired > current or behavior is None:
        if desired > min(most, fastest):
            if most > fastest:
                return (
                    fastest,
                    "ScaleUpLimit",
                    "the desired replica count is increasing faster than the maximum scale rate",
                )
            return most, "TooManyReplicas", "the desired replica count is more than the maximum replica count"
    if desired < current or behavior is None:
        if desired < max(least, slowest):
            if least < slowest:
                return (
                    slowest,
                    "ScaleDownLimit",
                    "the desired replica count is decreasing faster than the maximum scale rate",
                )
            return least, "TooFewReplicas", "the desired replica count is less than the minimum replica count"
    return desired, "DesiredWithinRange", "the desired count is within the acceptable range"


def _limit(rules: ScalingRules, history: History, current: int, now: float, *, upwards: bool) -> int:
    """Return how far the policies of one direction let the count go."""
    if rules.select_policy == "Disabled":
        return current
    proposed = []
    for policy in rules.policies:
        since = now - policy.period_seconds
        start = current - _changed(history.added, since) + _changed(history.removed, since)
        if policy.type == "Pods":
            proposed.append(start + policy.value if upwards else start - policy.value)
        elif upwards:
            proposed.append(math.ceil(start * (100 + policy.value) / 100))
        else:
            proposed.append(int(start * (100 - policy.value) / 100))
    if not proposed:
        return current
    # The largest change is the highest count upwards, and the lowest downwards.
    choose: Callable[[list[int]], int] = max if upwards == (rules.select_policy != "Min") else min
    return min(choose(proposed), MOST_REPLICAS)


def _changed(memories: Sequence[Memory], since: float) -> int:
    return sum(each.replicas for each in memories if each.at > since)


def _remember_change(decision: Decision, behavior: Behavior | None, current: int, now: float) -> None:
    """Note the change for the policies that look back; it is made right after the decision."""
    if behavior is None:
        return
    history, change = decision.history, decision.replicas - current

    def kept(memories: Sequence[Memory], rules: ScalingRules, new: int) -> tuple[Memory, ...]:
        longest = max((policy.period_seconds for policy in rules.policies), default=0)
        recent = [each for each in memories if each.at > now - longest]
        return _shortened([*recent, *([Memory(now, new)] if new > 0 else [])])

    decision.history = History(
        history.proposals,
        kept(history.added, behavior.scale_up, change),
        kept(history.removed, behavior.scale_down, -change),
    )
