"""Limits of users and groups."""

from __future__ import annotations

import pytest

from dray.scheduler.limits import Ask, Holding, Limits, check_start, check_submission, time_of

GIB = 1 << 30


@pytest.mark.parametrize(
    ("limits", "holding", "ask", "limit"),
    [
        (Limits(devices=2), Holding(devices=1), Ask(devices=1), None),
        (Limits(devices=2), Holding(devices=2), Ask(devices=1), "devices"),
        (Limits(devices=2), Holding(devices=2), Ask(), None),
        (Limits(device_memory=80 * GIB), Holding(device_memory=60 * GIB), Ask(1, 40 * GIB), "device_memory"),
        (Limits(running=1), Holding(running=1), Ask(), "running"),
        (Limits(), Holding(1000, 1000, 1000, 1000), Ask(1000), None),
    ],
)
def test_a_job_waits_while_its_user_holds_too_much(limits, holding, ask, limit):
    found = check_start(limits, holding, ask)
    assert (found.limit if found else None) == limit
    assert found is None or (found.action == "wait" and found.message)


@pytest.mark.parametrize(
    ("limits", "ask", "limit"),
    [
        (Limits(devices=2), Ask(devices=3), "devices"),
        (Limits(seconds=60), Ask(seconds=61), "seconds"),
        (Limits(waiting=0), Ask(), "waiting"),
        (Limits(seconds=60), Ask(seconds=60), None),
        (Limits(seconds=60), Ask(), None),
    ],
)
def test_what_can_never_run_is_refused_at_once(limits, ask, limit):
    found = check_submission(limits, Holding(), ask)
    assert (found.limit if found else None) == limit
    assert found is None or found.action == "refuse"


@pytest.mark.parametrize(
    ("limits", "asked", "expected"),
    [
        (Limits(), None, None),
        (Limits(), 10, 10),
        (Limits(default_seconds=60), None, 60),
        (Limits(seconds=60), None, 60),
        (Limits(seconds=60, default_seconds=3600), None, 60),
        (Limits(seconds=60), 90, 60),
    ],
)
def test_the_time_of_a_job(limits, asked, expected):
    assert time_of(limits, asked) == expected
