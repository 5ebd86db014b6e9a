"""Limits as they are stored: reading, bad entries, and what holds for a person."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.scheduler.limits import Limits
from dray.scheduler.user_limits import (
    UserLimits,
    effective_limits,
    entry_key,
    format_entry,
    parse_entry,
    parse_user_limits,
)

AMOUNTS = st.none() | st.integers(0, 1 << 50)


@given(st.builds(Limits, *[AMOUNTS] * 6))
def test_an_entry_is_read_as_it_was_written(limits):
    assert parse_entry(format_entry(limits)) == limits


@pytest.mark.parametrize(
    "text",
    ["", "[]", "nonsense", '{"device": 1}', '{"devices": -1}', '{"devices": true}', '{"devices": "2"}',
     '{"devices": 1.5}', '{"seconds": 1e400}', '{"devices": null}', " " * 5000 + "{}"],
)  # fmt: skip
def test_bad_entries_are_reported_and_the_others_hold(text):
    found = parse_user_limits({"user.ann": text, "default": '{"devices": 3}'})
    assert len(found.problems) == 1
    assert "user.ann" in found.problems[0]
    assert effective_limits(found, "ann", []).devices == 3


def test_the_own_entry_goes_before_the_strictest_group_and_that_before_the_default():
    stored = UserLimits(
        {
            "default": Limits(devices=1, running=1, waiting=9),
            "group.students": Limits(devices=2, running=5),
            "group.lab": Limits(devices=4, running=3),
            "user.ann": Limits(devices=8),
        }
    )
    groups = ["unix:students", "unix:lab", "system:authenticated"]
    assert effective_limits(stored, "ann", groups) == Limits(devices=8, running=3, waiting=9)
    assert effective_limits(stored, "bob", ["unix:students"]) == Limits(devices=2, running=5, waiting=9)
    assert effective_limits(stored, "eve", ["students"]) == Limits(devices=1, running=1, waiting=9)


def test_names_that_cannot_be_keys_are_refused():
    assert entry_key(user="ann") == "user.ann"
    with pytest.raises(ValueError, match="characters"):
        entry_key(group="domain users")
