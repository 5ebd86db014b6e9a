"""The wait for binding conditions, by a clock that does not jump."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from dray.api.resource import ResourceClaim
from dray.control.scheduling.waiting import BindingWaits

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Clocks:
    """A wall clock that may jump and a steady one that may not."""

    def __init__(self, timeout=600.0):
        self.wall, self.steady = NOON, 1000.0
        self.waits = BindingWaits(lambda: self.wall, lambda: self.steady, timeout)

    def pass_time(self, seconds):
        self.wall += timedelta(seconds=seconds)
        self.steady += seconds


def claim(allocated_at=None, device="g0", conditions=("attached",)):
    status = {}
    if allocated_at is not None:
        result = {"request": "r", "driver": "d", "pool": "p", "device": device}
        result |= {"bindingConditions": list(conditions)}
        stamp = allocated_at.strftime("%Y-%m-%dT%H:%M:%SZ")
        status = {"allocation": {"devices": {"results": [result]}, "allocationTimestamp": stamp}}
    return msgspec.convert({"metadata": {"name": "c", "uid": "u"}, "status": status}, ResourceClaim)


@pytest.mark.parametrize("jump", [-3600, 3600])
def test_what_was_allocated_before_our_eyes_is_counted_steadily(jump):
    clocks = Clocks()
    clocks.wall += timedelta(seconds=jump)  # wrong from the beginning
    mine = claim(NOON)
    clocks.waits.see(claim(), mine)
    clocks.pass_time(20)
    assert clocks.waits.seconds(mine) == 20
    clocks.wall += timedelta(seconds=jump)  # and again
    assert clocks.waits.seconds(mine) == 20
    clocks.waits.see(mine, mine)
    assert clocks.waits.seconds(mine) == 20, "a report of the driver begins nothing anew"


def test_what_was_there_before_us_has_the_age_that_its_timestamp_says():
    clocks = Clocks()
    found = claim(NOON - timedelta(seconds=200))
    clocks.waits.see(None, found)
    assert clocks.waits.seconds(found) == 200
    clocks.pass_time(20)
    assert clocks.waits.seconds(found) == 220


@pytest.mark.parametrize(("offset", "age"), [(timedelta(hours=1), 0), (-timedelta(hours=1), 300)])
def test_a_timestamp_counts_for_half_of_the_time_at_most(offset, age):
    clocks = Clocks()
    found = claim(NOON + offset)
    clocks.waits.see(None, found)
    assert clocks.waits.seconds(found) == age


def test_a_new_allocation_begins_anew():
    clocks = Clocks()
    first, second = claim(NOON), claim(NOON, device="g1")
    clocks.waits.see(claim(), first)
    clocks.pass_time(50)
    clocks.waits.see(first, second)
    assert clocks.waits.seconds(second) == 0
    clocks.pass_time(50)
    clocks.waits.see(second, claim())
    assert clocks.waits.seconds(claim()) == 0
    clocks.waits.see(claim(), second)
    clocks.waits.see(second, None)
    assert clocks.waits.seconds(second) == 0, "gone is forgotten"


def test_allocations_without_conditions_wait_for_nobody():
    clocks = Clocks()
    plain = claim(NOON - timedelta(hours=1), conditions=())
    clocks.waits.see(None, plain)
    clocks.pass_time(50)
    assert clocks.waits.seconds(plain) == 0
