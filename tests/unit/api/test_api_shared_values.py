"""What many packages share: conditions, ranges of numbers, names in messages, limits of slices, selectors as text."""

import pytest

from dray.api.conditions import is_true, is_true_in
from dray.api.label_selectors import format_selector
from dray.api.meta import Condition
from dray.api.number_ranges import format_ranges, parse_ranges
from dray.api.resource import Device, DeviceAttribute, DeviceTaint
from dray.api.slice_limits import is_rich
from dray.api.wording import join_names, plural


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ([], False),
        ([("Ready", "True")], True),
        ([("Ready", "False")], False),
        ([("Ready", "Unknown")], False),
        ([("MemoryPressure", "True")], False),
        ([("MemoryPressure", "False"), ("Ready", "True")], True),
    ],
)
def test_a_condition_is_true_in_a_view_and_in_json_alike(conditions, expected):
    views = [Condition(type=kind, status=status) for kind, status in conditions]
    status = {"conditions": [{"type": kind, "status": status} for kind, status in conditions]}
    assert is_true(views, "Ready") is is_true_in(status, "Ready") is expected


@pytest.mark.parametrize("status", [{}, {"conditions": None}, {"conditions": [{}]}])
def test_a_status_without_conditions_has_none_that_is_true(status):
    assert is_true_in(status, "Ready") is False


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("", []), ("3", [3]), ("0-2,7", [0, 1, 2, 7]), ("0-1,3-4,6", [0, 1, 3, 4, 6]), ("10-10", [10])],
)
def test_ranges_are_read(text, numbers):
    assert parse_ranges(text) == parse_ranges(f"{text}\n") == numbers


def test_ranges_are_written_in_order_and_each_number_once():
    assert format_ranges([7, 1, 0, 2, 7]) == "0-2,7"
    assert format_ranges([]) == ""
    assert parse_ranges(format_ranges({5, 9, 8, 1})) == [1, 5, 8, 9]


def test_what_is_not_a_list_of_ranges_is_an_error():
    with pytest.raises(ValueError, match="x"):
        parse_ranges("1-x")


def test_a_noun_follows_its_number():
    assert [plural(1, "node"), plural(0, "node"), plural(2, "class"), plural(2, "batch")] == [
        "1 node",
        "0 nodes",
        "2 classes",
        "2 batches",
    ]


@pytest.mark.parametrize(
    ("names", "most", "text"),
    [
        ([], 3, ""),
        (["a"], 3, "a"),
        (["a", "b", "c"], 3, "a, b, c"),
        (["a", "b", "c", "d"], 3, "a, b, c and 1 more"),
        (iter("abcdef"), 2, "a, b and 4 more"),
    ],
)
def test_many_names_are_named_in_part(names, most, text):
    assert join_names(names, most) == text


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (Device(name="d"), False),
        (Device(name="d", attributes={"a": DeviceAttribute(string="x")}), False),
        (Device(name="d", attributes={"a": DeviceAttribute(strings=[])}), True),
        (Device(name="d", attributes={"a": DeviceAttribute(bools=[True])}), True),
        (Device(name="d", taints=[DeviceTaint(key="k", effect="NoExecute")]), True),
    ],
)
def test_a_device_with_taints_or_lists_is_rich(device, expected):
    assert is_rich(device) is expected


def test_a_selector_lists_its_requirements_by_key():
    selector = {
        "matchLabels": {"d": "1", "b": "2"},
        "matchExpressions": [
            {"key": "c", "operator": "NotIn", "values": ["y", "x"]},
            {"key": "a", "operator": "Exists"},
            {"key": "e", "operator": "DoesNotExist"},
        ],
    }
    assert format_selector(selector) == "a,b=2,c notin (x,y),d=1,!e"
    assert format_selector(None) == format_selector({}) == ""
