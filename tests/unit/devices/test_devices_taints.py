"""Tolerations and taint rules, as upstream's allocator and its eviction controller read them."""

import pytest

from dray.api.meta import ObjectMeta
from dray.api.resource import (
    DeviceTaint,
    DeviceTaintRule,
    DeviceTaintRuleSpec,
    DeviceTaintSelector,
    DeviceToleration,
)
from dray.api.tolerations import tolerates
from dray.devices import rule_selects, tolerates_eviction

TAINT = DeviceTaint(key="broken", value="yes", effect="NoExecute")


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        ({"key": "broken", "value": "yes"}, True),
        ({"key": "broken", "value": "yes", "operator": "Equal"}, True),
        ({"key": "broken", "value": "no"}, False),
        ({"key": "broken", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "worn", "operator": "Exists"}, False),
        ({"key": "broken", "operator": "Exists", "effect": "NoSchedule"}, False),
        ({"key": "broken", "operator": "Exists", "effect": "NoExecute"}, True),
        ({"key": "broken", "operator": "Like", "value": "yes"}, False),
    ],
)
def test_a_toleration_covers_a_taint(toleration, expected):
    given = DeviceToleration(**toleration)
    assert tolerates(given, TAINT) is expected
    assert tolerates_eviction(given, TAINT) is (expected and given.effect == "NoExecute")


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (None, True),
        ({}, True),
        ({"driver": "d"}, True),
        ({"driver": "d", "pool": "p", "device": "x"}, True),
        ({"driver": "e"}, False),
        ({"pool": "q"}, False),
        ({"device": "y"}, False),
    ],
)
def test_a_rule_selects_devices(selector, expected):
    chosen = None if selector is None else DeviceTaintSelector(**selector)
    rule = DeviceTaintRule(
        metadata=ObjectMeta(name="r"), spec=DeviceTaintRuleSpec(device_selector=chosen, taint=TAINT)
    )
    assert rule_selects(rule, "d", "p", "x") is expected
    # Asked about the pool alone, the name of the device is left open.
    assert rule_selects(rule, "d", "p", None) is (expected or selector == {"device": "y"})
