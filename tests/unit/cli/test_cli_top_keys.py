"""The keys of `dray top`."""

import pytest

from dray.cli.top_keys import Target, TopView

TRAIN, OTHER = Target("user-ann", "train"), Target("user-bob", "")


def view(**more):
    return TopView(targets=[TRAIN, OTHER], **more)


def typed(shown, text):
    return list(shown.take(text))


@pytest.mark.parametrize(
    ("keys", "chosen"), [("j", 1), ("jjj", 1), ("\x1b[B\x1b[A", 0), ("\x1b[6~", 1), ("k", 0)]
)
def test_a_line_is_chosen(keys, chosen):
    shown = view()
    assert typed(shown, keys) == []
    assert shown.chosen == chosen


def test_a_job_is_ended_after_a_question_only():
    shown = view()
    assert typed(shown, "x") == []
    assert shown.foot() == "end job user-ann/train? y ends it, any other key keeps it"
    assert typed(shown, "n") == []
    assert typed(shown, "y") == [], "nothing was asked"
    assert typed(shown, "xy") == [TRAIN]


def test_what_others_hold_cannot_be_ended():
    shown = view(chosen=1)
    assert typed(shown, "xy") == []
    assert (
        "no job that can be ended" in view(chosen=1, message="this line has no job that can be ended").foot()
    )
    assert typed(TopView(), "xy") == [], "there is no line"


def test_orders_take_turns():
    shown = view()
    found = []
    for _ in range(4):
        found.append(shown.sort)
        typed(shown, "s")
    assert found == ["use", "node", "name", "use"]


def test_a_filter_is_typed_changed_and_cleared():
    shown = view()
    assert typed(shown, "/gpx\x7fu q") == []
    assert (shown.filter, shown.is_over) == ("gpu q", False)
    typed(shown, "\r")
    assert "filter 'gpu q'" in shown.foot()
    typed(shown, "\x1b")
    assert shown.filter == ""
    typed(shown, "/" + "a" * 500)
    assert len(shown.filter) == 60


def test_q_ends_it():
    shown = view()
    typed(shown, "q")
    assert shown.is_over
