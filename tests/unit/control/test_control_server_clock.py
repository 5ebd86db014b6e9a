"""The server's time: followed, and carried on steadily in between."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from dray.client import Client, Response, TransportError
from dray.control import server_clock
from dray.control.server_clock import ServerClock

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Clocks:
    """A server with a clock, a steady clock, and a local one that is wrong."""

    def __init__(self, monkeypatch):
        self.server, self.local, self.steady = NOON, NOON + timedelta(hours=1), 500.0
        self.headers = True
        self.is_away = False
        monkeypatch.setattr(server_clock, "steady_now", lambda: self.steady)
        self.clock = ServerClock(Client(self), lambda: self.local)

    async def send(self, request):
        if self.is_away:
            raise TransportError("nobody there")
        headers = {"date": format_datetime(self.server, usegmt=True)} if self.headers else {}
        return Response(403, headers, b"")

    def pass_time(self, seconds):
        self.server += timedelta(seconds=seconds)
        self.local += timedelta(seconds=seconds)
        self.steady += seconds


@pytest.fixture
def clocks(monkeypatch):
    return Clocks(monkeypatch)


async def test_the_servers_time_counts_and_goes_on_steadily(clocks):
    assert clocks.clock() == clocks.local, "nothing better is known yet"
    await clocks.clock.ask()
    assert clocks.clock() == NOON
    clocks.pass_time(100)
    clocks.local += timedelta(hours=5)
    assert clocks.clock() == NOON + timedelta(seconds=100)


async def test_the_clock_does_not_go_back_for_the_fraction_that_a_date_leaves_out(clocks):
    clocks.server += timedelta(seconds=0.9)
    await clocks.clock.ask()
    assert clocks.clock() == NOON
    clocks.pass_time(0.2)
    await clocks.clock.ask()
    assert clocks.clock() == NOON + timedelta(seconds=1)
    clocks.pass_time(0.5)
    await clocks.clock.ask()
    assert clocks.clock() == NOON + timedelta(seconds=1.5)


async def test_a_server_whose_clock_was_set_right_is_followed(clocks):
    await clocks.clock.ask()
    clocks.server += timedelta(minutes=-10)
    await clocks.clock.ask()
    assert clocks.clock() == NOON - timedelta(minutes=10)


async def test_without_an_answer_or_a_date_the_clock_goes_on(clocks):
    await clocks.clock.ask()
    clocks.pass_time(10)
    clocks.is_away = True
    await clocks.clock.ask()
    clocks.is_away, clocks.headers = False, False
    await clocks.clock.ask()
    assert clocks.clock() == NOON + timedelta(seconds=10)
