"""When a device taint makes a pod go, and when a node taint does."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from dray.api.core import Node, Pod, Taint
from dray.api.resource import DeviceTaint, DeviceTaintRule, DeviceToleration, ResourceClaim, ResourceSlice
from dray.control.nodes import merged_taints, pod_departure
from dray.control.tainting import DeviceTaints, departure_time, earliest_departure, rule_matches

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
ADDED = "2026-01-01T11:59:00Z"
TAINT = DeviceTaint(key="broken", value="yes", effect="NoExecute", time_added=ADDED)


def toleration(**fields):
    return DeviceToleration(**({"effect": "NoExecute", "key": "broken", "operator": "Exists"} | fields))


@pytest.mark.parametrize(
    ("tolerations", "stay_seconds"),
    [
        ([], 0),
        ([toleration()], None),
        ([toleration(toleration_seconds=90)], 90),
        ([toleration(toleration_seconds=90), toleration(toleration_seconds=30)], 30),
        ([toleration(toleration_seconds=-5)], 0),
        ([toleration(effect="")], 0),  # unlike scheduling, only NoExecute counts here
        ([toleration(effect="NoSchedule")], 0),
        ([toleration(key="other")], 0),
        ([toleration(key="")], None),
        ([toleration(operator="Equal", value="yes")], None),
        ([toleration(operator="Equal", value="no")], 0),
    ],
)
def test_the_shortest_matching_toleration_decides(tolerations, stay_seconds):
    at = departure_time(TAINT, tolerations, NOW)
    if stay_seconds is None:
        assert at is None
    else:
        assert at == datetime(2026, 1, 1, 11, 59, tzinfo=UTC) + timedelta(seconds=stay_seconds)


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        (None, False),
        ({}, True),
        ({"driver": "d"}, True),
        ({"driver": "other"}, False),
        ({"driver": "d", "pool": "p", "device": "gpu-0"}, True),
        ({"device": "gpu-1"}, False),
    ],
)
def test_a_rule_without_a_selector_evicts_nobody_and_an_empty_one_everybody(selector, matches):
    rule = msgspec.convert({"spec": {"deviceSelector": selector}}, DeviceTaintRule)
    assert rule_matches(rule, ("d", "p", "gpu-0")) is matches


def published(generation, tainted):
    taints = [{"key": "broken", "effect": "NoExecute", "timeAdded": ADDED}] if tainted else []
    return msgspec.convert(
        {
            "spec": {
                "driver": "d",
                "pool": {"name": "p", "generation": generation, "resourceSliceCount": 1},
                "devices": [{"name": "gpu-0", "taints": taints}],
            }
        },
        ResourceSlice,
    )


CLAIM = msgspec.convert(
    {"status": {"allocation": {"devices": {"results": [{"driver": "d", "pool": "p", "device": "gpu-0"}]}}}},
    ResourceClaim,
)


def test_only_the_newest_generation_of_a_pool_counts():
    taints = DeviceTaints()
    taints.set_slice("old", published(1, tainted=True))
    assert earliest_departure([CLAIM], taints, NOW) is not None
    taints.set_slice("new", published(2, tainted=False))
    assert earliest_departure([CLAIM], taints, NOW) is None


def test_a_rule_counts_even_when_the_device_is_not_published():
    taints = DeviceTaints()
    rule = msgspec.convert(
        {
            "metadata": {"name": "r"},
            "spec": {"deviceSelector": {"driver": "d"}, "taint": msgspec.to_builtins(TAINT)},
        },
        DeviceTaintRule,
    )
    taints.rules["r"] = rule
    departure = earliest_departure([CLAIM], taints, NOW)
    assert departure is not None
    assert departure.rule == "r"


def test_a_ready_node_loses_its_lifecycle_taints_and_keeps_the_others():
    node = msgspec.convert(
        {
            "spec": {
                "taints": [
                    {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"},
                    {"key": "dedicated", "value": "ml", "effect": "NoSchedule"},
                ]
            }
        },
        Node,
    )
    assert merged_taints(node, "True", NOW) == [{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}]


def test_a_silent_node_becomes_unreachable_with_a_time():
    assert {
        (taint["key"], taint["effect"], "timeAdded" in taint)
        for taint in merged_taints(Node(), "Unknown", NOW)
    } == {
        ("node.kubernetes.io/unreachable", "NoSchedule", False),
        ("node.kubernetes.io/unreachable", "NoExecute", True),
    }


def test_a_node_that_is_right_already_is_not_written():
    assert merged_taints(Node(), "True", NOW) is None


def test_a_pod_leaves_after_its_toleration_seconds():
    pod = msgspec.convert(
        {
            "spec": {
                "tolerations": [
                    {"key": "x", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
                ]
            }
        },
        Pod,
    )
    taint = Taint(key="x", effect="NoExecute", time_added="2026-01-01T12:00:00Z")
    assert pod_departure(pod, [taint], NOW) == NOW + timedelta(seconds=300)
    assert pod_departure(Pod(), [taint], NOW) == NOW
    assert pod_departure(Pod(), [Taint(key="x", effect="NoSchedule")], NOW) is None
