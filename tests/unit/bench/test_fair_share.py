"""The experiment with twenty users: its own arithmetic, on weeks small enough to check by hand."""

import pytest

from bench.fair_share import GPUS, Arrival, jain, max_min, picture, waits


def test_max_min_gives_what_small_users_want_and_divides_the_rest():
    assert max_min({"a": 1.0, "b": 5.0, "c": 9.0}, 9.0) == {"a": 1.0, "b": 4.0, "c": 4.0}


def test_jains_index():
    assert jain([2.0, 2.0, 2.0]) == pytest.approx(1.0)
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)


def jobs():
    """Ann submits three jobs that each need all GPUs, then Bob one."""
    mine = [Arrival(f"a{n}", "ann", float(n), GPUS, 100.0, 0) for n in range(3)]
    return [*mine, Arrival("b", "bob", 10.0, GPUS, 100.0, 0)]


@pytest.mark.parametrize(("order", "bob"), [("FIFO", 290.0), ("priority", 290.0), ("fair share", 90.0)])
def test_a_user_who_had_nothing_is_next_by_fair_share_only(order, bob):
    found, got = waits(jobs(), order)
    assert found["b"] == bob
    assert got == {"ann": 300.0 * GPUS, "bob": 100.0 * GPUS}


def test_priority_goes_before_age_and_fifo_ignores_it():
    urgent = [*jobs(), Arrival("u", "ann", 20.0, GPUS, 100.0, 1000)]
    assert waits(urgent, "priority")[0]["u"] == 80.0
    assert waits(urgent, "FIFO")[0]["u"] == 380.0


def test_the_picture_has_a_curve_for_each_order():
    assert picture([[0.0, 1.0], [0.0, 2.0], [0.0, 0.0], [0.0, 3.0]]).count("<polyline") == 4


def test_with_a_reservation_a_large_job_is_passed_by_short_ones_only():
    def at(name, when, gpus, hours):
        return Arrival(name, "ann", when, gpus, hours * 3600.0, 0)

    queue = [at("first", 0.0, GPUS // 2, 4.0), at("large", 1.0, GPUS, 1.0)]
    small = [at("short", 2.0, GPUS // 2, 0.5), at("long", 3.0, GPUS // 2, 12.0)]
    passed = waits([*queue, *small], "fair share")[0]
    kept = waits([*queue, *small], "fair share, reservation")[0]
    assert passed["short"] == kept["short"] == 0.0
    assert passed["large"] > 12 * 3600 > kept["large"] == 4 * 3600 - 1
    assert kept["long"] > passed["long"]
