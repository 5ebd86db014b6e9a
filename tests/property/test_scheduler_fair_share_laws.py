"""The laws of fair share."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dray.scheduler.fair_share import UsageRecord, WaitingJob, Weights, standing

USERS = st.sampled_from(["ann", "bob", "cid", "eve"])
AMOUNTS = st.floats(0, 1e6)
WEIGHT = st.floats(0.1, 10)
RECORDS = st.dictionaries(USERS, AMOUNTS, min_size=2)
GROUPS = st.sampled_from(["", "lab", "team"])


@given(RECORDS, st.dictionaries(USERS, WEIGHT), st.dictionaries(USERS, GROUPS), st.data())
def test_a_user_within_their_share_is_never_behind_one_above_it(used, weights, groups, data):
    record = UsageRecord()
    for user, amount in used.items():
        record.charge(user, amount, 0.0)
    where = standing(record, Weights(weights), {user: groups.get(user, "") for user in used}, 0.0)
    one, other = data.draw(st.permutations(sorted(used)))[:2]
    assume(where.used_by_user[one] < where.share_by_user[one] - 1e-9)
    assume(where.used_by_user[other] > where.share_by_user[other] + 1e-9)
    late = WaitingJob("late", one, submitted=100.0)
    early = WaitingJob("early", other, submitted=0.0)
    assert where.ordered([early, late]) == [late, early]


@given(st.lists(st.tuples(st.floats(0, 1e5), AMOUNTS), min_size=1, max_size=8), st.randoms())
def test_the_order_of_reports_does_not_matter(charges, random):
    in_order, mixed = UsageRecord(3600.0), UsageRecord(3600.0)
    for at, amount in sorted(charges):
        in_order.charge("ann", amount, at)
    random.shuffle(charges)
    for at, amount in charges:
        mixed.charge("ann", amount, at)
    end = max(at for at, _ in charges)
    assert math.isclose(in_order.of("ann", end), mixed.of("ann", end), rel_tol=1e-6, abs_tol=1e-6)


@given(AMOUNTS, AMOUNTS, st.floats(0, 1e5))
def test_time_alone_does_not_change_the_order(one, other, later):
    record = UsageRecord(3600.0)
    record.charge("ann", one, 0.0)
    record.charge("bob", other, 0.0)
    assume(abs(one - other) > 1e-3)
    users = {"ann": "", "bob": ""}
    before = standing(record, Weights(), users, 0.0).ratio_by_user
    after = standing(record, Weights(), users, later).ratio_by_user
    assert (before["ann"] < before["bob"]) == (after["ann"] < after["bob"])


def test_priority_comes_before_share_and_share_before_age():
    record = UsageRecord()
    record.charge("heavy", 1000.0, 0.0)
    where = standing(record, Weights(), {"heavy": "", "light": ""}, 0.0)
    jobs = [
        WaitingJob("old-heavy", "heavy", 0.0),
        WaitingJob("new-light", "light", 9.0),
        WaitingJob("old-light", "light", 5.0),
        WaitingJob("urgent", "heavy", 10.0, priority=1),
    ]
    assert [job.name for job in where.ordered(jobs)] == ["urgent", "old-light", "new-light", "old-heavy"]


def test_devices_held_now_count_before_any_use_is_on_record():
    where = standing(UsageRecord(), Weights(), {"ann": "", "bob": ""}, 0.0, held_by_user={"ann": 2})
    assert where.ratio_by_user["ann"] > where.ratio_by_user["bob"]


def test_a_large_group_has_no_more_than_its_weight():
    groups = {f"student-{index}": "class" for index in range(9)} | {"boss": ""}
    effective = Weights().effective(groups)
    assert sum(weight for user, weight in effective.items() if user != "boss") == pytest.approx(1.0)


def test_what_no_longer_counts_is_forgotten():
    record = UsageRecord(half_life=1.0)
    record.charge("ann", 1.0, 0.0)
    record.forget_negligible(100.0)
    assert record.state() == {}


def test_a_record_survives_being_stored():
    record = UsageRecord()
    record.charge("ann", 5.0, 7.0)
    again = UsageRecord()
    again.restore(record.state())
    assert again.of("ann", 7.0) == 5.0


@pytest.mark.parametrize("weight", [0.0, -1.0, math.inf, math.nan])
def test_weights_that_make_no_order_are_refused(weight):
    with pytest.raises(ValueError, match="weight of ann"):
        Weights({"ann": weight})
