"""How many replicas an autoscaler decides on: tolerance, missing values, windows, policies, bounds."""

import msgspec
import pytest

from dray.api.pod_autoscalers import HorizontalPodAutoscaler
from dray.control.pod_autoscaling.replica_counts import (
    MetricUnavailableError,
    ObservedPod,
    Tolerances,
    by_average,
    by_utilization,
    by_value,
    per_pod,
)
from dray.control.pod_autoscaling.scaling_decision import History, Memory, Target, decide

TEN = Tolerances()


def pods(count, **facts):
    facts.setdefault("is_ready", True)
    return [ObservedPod(f"p{index}", **facts) for index in range(count)]


def values(*amounts):
    return {f"p{index}": amount for index, amount in enumerate(amounts) if amount is not None}


# --- one metric -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("current", "amounts", "target", "expected"),
    [
        (3, (20, 20, 20), 10, 6),
        (3, (5, 5, 5), 10, 2),
        (3, (11, 11, 11), 10, 3),  # within the tolerance
        (3, (9, 9, 9), 10, 3),
        (3, (12, 11, 11), 10, 3),  # the average is a whole number of thousandths
        (4, (30, 10, 10, 10), 10, 6),
        (2, (0, 0), 10, 0),
    ],
)
def test_replicas_follow_the_ratio_of_usage_and_target(current, amounts, target, expected):
    assert per_pod(current, pods(len(amounts)), values(*amounts), target, TEN).replicas == expected


def test_a_pod_without_a_value_counts_as_idle_when_more_are_asked_for():
    # 20 of 10 for two pods; with the third as idle it is 13 of 10.
    assert per_pod(3, pods(3), values(20, 20, None), 10, TEN).replicas == 4
    assert per_pod(3, pods(3), values(14, 14, None), 10, TEN).replicas == 3  # 9 of 10: the other way


def test_a_pod_without_a_value_counts_as_at_its_target_when_fewer_are_asked_for():
    assert per_pod(4, pods(4), values(2, 2, 2, None), 10, TEN).replicas == 2
    assert per_pod(2, pods(2), values(5, None), 10, TEN).replicas == 2


def test_pods_that_have_not_started_keep_a_count_from_growing_twice():
    group = [*pods(2), ObservedPod("p2", is_ready=False, is_pending=True)]
    assert per_pod(3, group, values(20, 20), 10, TEN).replicas == 4
    assert per_pod(3, group, values(5, 5), 10, TEN).replicas == 1


def test_pods_that_end_do_not_count():
    group = [*pods(2), ObservedPod("p2", is_ready=True, is_ending=True)]
    assert per_pod(2, group, values(10, 10, 900), 10, TEN).replicas == 2


@pytest.mark.parametrize(
    ("group", "readings", "message"),
    [
        ([], {}, "no pods returned by selector"),
        (pods(2, is_pending=True), values(5, 5), "did not receive metrics for targeted pods"),
        (pods(2), {}, "did not receive metrics for targeted pods"),
    ],
)
def test_a_metric_without_a_value_is_no_answer(group, readings, message):
    with pytest.raises(MetricUnavailableError, match=message):
        per_pod(2, group, readings, 10, TEN)


def test_utilization_is_compared_with_requests_in_whole_percents():
    answer = by_utilization(3, pods(3, request=1000), values(300, 500, 700), 30, TEN)
    assert (answer.replicas, answer.utilization, answer.usage) == (5, 50, 500)
    # A pod without a value is as busy as it may be: 100 % of its request.
    assert by_utilization(3, pods(3, request=1000), values(100, 100, None), 50, TEN).replicas == 3
    with pytest.raises(MetricUnavailableError, match="missing request"):
        by_utilization(1, pods(1), values(1), 50, TEN)


def test_one_value_for_all_multiplies_the_ready_pods():
    group = [*pods(2), ObservedPod("p2", is_ready=False)]
    assert by_value(3, group, 200, 100, TEN).replicas == 4
    assert by_value(3, group, 105, 100, TEN).replicas == 3
    assert by_value(0, [], 250, 100, TEN).replicas == 3  # from zero


def test_one_value_divided_among_the_pods():
    assert by_average(2, 90, 10, TEN).replicas == 9
    assert by_average(2, 21, 10, TEN).replicas == 2
    assert by_average(2, 21, 10, TEN).usage == 11
    assert by_average(0, 0, 10, TEN).replicas == 0


# --- the decision -----------------------------------------------------------------------


def autoscaler(least=1, most=10, behavior=None, metrics=None, conditions=()):
    average = {"type": "AverageValue", "averageValue": "10"}
    metrics = metrics or [{"type": "Pods", "pods": {"metric": {"name": "queue"}, "target": average}}]
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "minReplicas": least,
        "maxReplicas": most,
        "metrics": metrics,
    }
    if behavior is not None:
        spec["behavior"] = behavior
    status = {"conditions": list(conditions)}
    return msgspec.convert(
        {"metadata": {"name": "web"}, "spec": spec, "status": status}, HorizontalPodAutoscaler
    )


def run(found, current, *amounts, history=None, now=1000.0):
    """Decide for pods that report these amounts (in units); text is the reason why there is none."""
    group = pods(current)
    readings, members = [], []
    for _ in found.spec.metrics:
        readings.append({f"p{index}": amount * 1000 for index, amount in enumerate(amounts)})
        members.append(group)
    return decide(found, Target(current, current, members), readings, history or History(), now)


def condition(decision, kind):
    (found,) = [each for each in decision.conditions if each.type == kind]
    return found.status, found.reason


def test_a_busy_service_grows():
    decision = run(autoscaler(), 2, 25, 25)
    assert (decision.replicas, decision.reason) == (4, "pods metric queue above target")  # at most 4 at first
    assert condition(decision, "ScalingActive") == ("True", "ValidMetricFound")
    assert condition(decision, "ScalingLimited") == ("True", "ScaleUpLimit")
    assert decision.metrics == [
        {"type": "Pods", "pods": {"current": {"averageValue": "25"}, "metric": {"name": "queue"}}}
    ]


def test_growth_ends_at_the_greatest_number():
    decision = run(autoscaler(most=5), 4, 90, 90, 90, 90)
    assert decision.replicas == 5
    assert condition(decision, "ScalingLimited") == ("True", "TooManyReplicas")


def test_an_idle_service_shrinks_after_five_minutes_and_not_below_the_least_number():
    found = autoscaler(least=2)
    decision = run(found, 4, 0, 0, 0, 0)
    assert decision.replicas == 4
    assert condition(decision, "AbleToScale") == ("True", "ScaleDownStabilized")
    later = run(found, 4, 0, 0, 0, 0, history=decision.history, now=1299)
    assert later.replicas == 4
    last = run(found, 4, 0, 0, 0, 0, history=later.history, now=1301)
    assert (last.replicas, last.reason) == (2, "All metrics below target")
    assert condition(last, "ScalingLimited") == ("True", "TooFewReplicas")


def test_what_is_outside_the_bounds_is_brought_back_at_once_without_metrics():
    above = decide(autoscaler(most=3), Target(5, 5, [[]]), [MetricUnavailableError("none")], History(), 0.0)
    assert (above.replicas, above.reason) == (3, "Current number of replicas above Spec.MaxReplicas")
    below = decide(autoscaler(least=3), Target(1, 1, [[]]), [MetricUnavailableError("none")], History(), 0.0)
    assert (below.replicas, below.reason) == (3, "Current number of replicas below Spec.MinReplicas")


def test_a_target_that_was_set_to_zero_is_left_alone():
    decision = decide(autoscaler(), Target(0, 0, [[]]), [{"p": 1}], History(), 0.0)
    assert decision.replicas == 0
    assert condition(decision, "ScalingActive") == ("False", "ScalingDisabled")


EXTERNAL = [
    {
        "type": "External",
        "external": {"metric": {"name": "queue"}, "target": {"type": "AverageValue", "averageValue": "10"}},
    }
]


def test_an_autoscaler_goes_to_zero_and_comes_back():
    found = autoscaler(least=0, metrics=EXTERNAL)
    idle = decide(found, Target(1, 1, [pods(1)]), [0], History((Memory(0.0, 0),)), 1000.0)
    assert idle.replicas == 0
    assert condition(idle, "ScaledToZero") == ("True", "ScaledToZero")
    at_zero = autoscaler(least=0, metrics=EXTERNAL, conditions=[{"type": "ScaledToZero", "status": "True"}])
    back = decide(at_zero, Target(0, 0, [[]]), [25_000], History((Memory(0.0, 0),)), 2000.0)
    assert back.replicas == 3
    assert condition(back, "ScaledToZero") == ("False", "NotScaledToZero")


TWO = [
    {
        "type": "Pods",
        "pods": {"metric": {"name": name}, "target": {"type": "AverageValue", "averageValue": "10"}},
    }
    for name in ("queue", "utilization")
]


def test_the_metric_that_asks_for_most_counts():
    found = autoscaler(metrics=TWO)
    readings = [values(1000, 1000), values(20_000, 20_000)]
    decision = decide(found, Target(2, 2, [pods(2)] * 2), readings, History(), 0.0)
    assert (decision.replicas, decision.reason) == (4, "pods metric utilization above target")


def test_a_metric_that_tells_nothing_lets_others_grow_and_never_shrink():
    found = autoscaler(metrics=TWO)
    nothing = MetricUnavailableError("no such metric")
    grows = decide(found, Target(2, 2, [pods(2)] * 2), [nothing, values(20_000, 20_000)], History(), 0.0)
    assert grows.replicas == 4
    assert grows.warnings == [("FailedGetPodsMetric", "no such metric")]
    stays = decide(found, Target(2, 2, [pods(2)] * 2), [nothing, values(1000, 1000)], History(), 0.0)
    assert (stays.replicas, stays.is_failure) == (2, True)
    assert condition(stays, "ScalingActive") == ("False", "FailedGetPodsMetric")
    none = decide(found, Target(2, 2, [pods(2)] * 2), [nothing, nothing], History(), 0.0)
    assert none.is_failure
    assert tuple({reason for reason, _ in none.warnings} - {"FailedGetPodsMetric"}) == (
        "FailedComputeMetricsReplicas",
    )


# --- behavior ---------------------------------------------------------------------------

UP = {"policies": [{"type": "Pods", "value": 2, "periodSeconds": 60}], "stabilizationWindowSeconds": 0}
DOWN = {"policies": [{"type": "Percent", "value": 50, "periodSeconds": 60}], "stabilizationWindowSeconds": 0}


def test_a_policy_looks_at_what_was_changed_within_its_period():
    found = autoscaler(behavior={"scaleUp": UP, "scaleDown": DOWN})
    first = run(found, 2, 90, 90)
    assert first.replicas == 4
    second = run(found, 4, 90, 90, 90, 90, history=first.history, now=1030)
    assert second.replicas == 4
    assert condition(second, "ScalingLimited") == ("True", "ScaleUpLimit")
    third = run(found, 4, 90, 90, 90, 90, history=second.history, now=1061)
    assert third.replicas == 6


def test_a_percentage_bounds_how_fast_a_count_falls():
    found = autoscaler(behavior={"scaleUp": UP, "scaleDown": DOWN})
    first = run(found, 9, *[0] * 9)
    assert first.replicas == 4  # half of nine, rounded down
    assert condition(first, "ScalingLimited") == ("True", "ScaleDownLimit")
    assert run(found, 4, 0, 0, 0, 0, history=first.history, now=1030).replicas == 4
    assert run(found, 4, 0, 0, 0, 0, history=first.history, now=1061).replicas == 2


@pytest.mark.parametrize(("select", "expected"), [("Max", 8), ("Min", 5), ("Disabled", 4)])
def test_one_of_several_policies_is_selected(select, expected):
    policies = [
        {"type": "Pods", "value": 1, "periodSeconds": 60},
        {"type": "Percent", "value": 100, "periodSeconds": 60},
    ]
    rules = {"policies": policies, "selectPolicy": select, "stabilizationWindowSeconds": 0}
    found = autoscaler(behavior={"scaleUp": rules, "scaleDown": DOWN})
    assert run(found, 4, 90, 90, 90, 90).replicas == expected


def test_a_window_for_growth_takes_the_lowest_recent_proposal():
    rules = {**UP, "stabilizationWindowSeconds": 60}
    found = autoscaler(behavior={"scaleUp": rules, "scaleDown": DOWN})
    first = run(found, 2, 30, 30)
    assert first.replicas == 2  # the present count is a proposal
    assert condition(first, "AbleToScale") == ("True", "ScaleUpStabilized")
    assert run(found, 2, 30, 30, history=first.history, now=1061).replicas == 4


def test_a_tolerance_of_its_own_for_each_direction():
    found = autoscaler(
        behavior={"scaleUp": {**UP, "tolerance": "0.5"}, "scaleDown": {**DOWN, "tolerance": "0.01"}}
    )
    assert run(found, 4, 14, 14, 14, 14).replicas == 4
    assert run(found, 4, 16, 16, 16, 16).replicas == 6
    assert run(autoscaler(), 10, *[9] * 10).replicas == 10
    assert run(found, 10, *[9] * 10).replicas == 9
