"""Tolerations against taints: nodes and devices follow the same rules."""

import pytest

from dray.api.core import Taint, Toleration
from dray.api.resource import DeviceTaint, DeviceToleration
from dray.api.tolerations import first_untolerated, tolerates

PAIRS = [(Toleration, Taint), (DeviceToleration, DeviceTaint)]


@pytest.mark.parametrize(("toleration_type", "taint_type"), PAIRS)
@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        ({"key": "broken", "value": "yes"}, True),
        ({"key": "broken", "value": "yes", "operator": ""}, True),
        ({"key": "broken", "value": "no"}, False),
        ({"key": "worn", "value": "yes"}, False),
        # Upstream compares the value alone where the key is empty.
        ({"value": "yes", "operator": "Equal"}, True),
        ({"value": "no", "operator": "Equal"}, False),
        ({"operator": "Exists"}, True),
        ({"key": "broken", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "broken", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "broken", "operator": "Like", "value": "yes"}, False),
    ],
)
def test_nodes_and_devices_are_tolerated_alike(toleration_type, taint_type, toleration, expected):
    taint = taint_type(key="broken", value="yes", effect="NoSchedule")
    assert tolerates(toleration_type(**toleration), taint) is expected


@pytest.mark.parametrize(
    ("value", "operator", "than", "expected"),
    [
        ("10", "Gt", "9", True),
        ("9", "Gt", "9", False),
        ("8", "Lt", "9", True),
        ("high", "Gt", "9", False),
        ("10", "Gt", "low", False),
    ],
)
def test_only_node_taints_are_compared_as_numbers(value, operator, than, expected):
    fields = {"key": "wear", "operator": operator, "value": than}
    assert tolerates(Toleration(**fields), Taint("wear", value, "NoSchedule")) is expected
    assert tolerates(DeviceToleration(**fields), DeviceTaint("wear", value, "NoSchedule")) is False


def test_the_first_taint_that_blocks_is_named():
    taints = [
        Taint("soft", effect="PreferNoSchedule"),
        Taint("known", effect="NoSchedule"),
        Taint("other", effect="NoExecute"),
    ]
    known = Toleration("known", "Exists")
    assert first_untolerated(taints, [known]) == taints[2]
    assert first_untolerated(taints, []) == taints[1]
    assert first_untolerated(taints, [known, Toleration("other", "Exists")]) is None
    assert first_untolerated([DeviceTaint("informs", effect="None")], []) is None
