"""Arithmetic of estimates: bounds stick at their maximum, products are rounded up."""

import pytest

from dray.cel.ranges import MAX, ONE, UNKNOWN, ZERO, Range, fixed, scaled


@pytest.mark.parametrize(
    ("value", "factor", "product"),
    [
        (0, 0.1, 0),
        (1, 0.1, 1),
        (10, 0.1, 1),
        (11, 0.1, 2),
        (4, 0.25, 1),
        (MAX, 1.0, MAX),
        (MAX, 2.0, MAX),
        (3, 2.5, 8),
    ],
)
def test_products_are_rounded_up(value, factor, product):
    assert scaled(value, factor) == product


def test_bounds_are_added_and_multiplied_one_by_one():
    assert Range(1, 10).plus(Range(2, 20)) == Range(3, 30)
    assert Range(1, 10).times(Range(2, 20)) == Range(2, 200)
    assert Range(5, 15).scaled(0.1) == Range(1, 2)
    assert Range(5, 15).union(Range(1, 7)) == Range(1, 15)
    assert fixed(4) == Range(4, 4)


def test_bounds_stick_at_the_maximum():
    assert UNKNOWN.plus(ONE) == Range(1, MAX)
    assert UNKNOWN.times(Range(2, 2)) == Range(0, MAX)
    assert UNKNOWN.times(ZERO) == ZERO
    assert fixed(MAX).plus(fixed(MAX)) == fixed(MAX)
