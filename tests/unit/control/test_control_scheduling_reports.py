"""A refused pod learns why, even if the server was away when it was first said."""

import asyncio
from datetime import UTC, datetime

import pytest
from conditions import until

from dray.api.core import Pod
from dray.api.meta import ObjectMeta
from dray.client import TransportError
from dray.control.scheduling import reporting
from dray.control.scheduling.reporting import Reporter
from dray.scheduler import missing_members

pytestmark = pytest.mark.usefixtures("virtual_time")

POD = Pod(metadata=ObjectMeta(name="p", namespace="n", uid="u"))


class Away:
    """A client whose first calls fail."""

    def __init__(self, failures):
        self.failures = failures
        self.written = []

    async def call(self, method, path, body, **_):
        if self.failures:
            self.failures -= 1
            raise TransportError("the server is away")
        self.written.append(body["status"]["conditions"][0]["message"])


class Silent:
    def record(self, *_):
        pass


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(reporting, "RETRY_AFTER", 0.01)


async def started(client):
    reporter = Reporter(client, Silent(), lambda: datetime(2026, 1, 1, tzinfo=UTC))
    return reporter, asyncio.create_task(reporter.run())


async def written(client):
    await until(lambda: client.written, 60)


async def test_a_report_that_got_lost_is_repeated_until_it_arrives(soon):
    client = Away(3)
    reporter, running = await started(client)
    reporter.refused(POD, "0/1 nodes: no room")
    await written(client)
    running.cancel()
    assert client.written == ["0/1 nodes: no room"]


async def test_a_pod_that_was_bound_meanwhile_is_left_alone(soon):
    client = Away(1)
    reporter, running = await started(client)
    reporter.refused(POD, "0/1 nodes: no room")
    while client.failures:
        await asyncio.sleep(0)
    reporter.forget("u")
    await asyncio.sleep(0.05)
    running.cancel()
    assert client.written == []


OTHER = Pod(metadata=ObjectMeta(name="other", namespace="n", uid="v"))


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(reporting, "NOT_READY_AFTER", 0.02)
    monkeypatch.setattr(reporting, "LONGEST_SILENCE", 0.3)


async def test_waiting_for_a_claim_is_said_when_nothing_else_goes_on(impatient):
    client = Away(0)
    reporter, running = await started(client)
    reporter.not_ready(POD, "waiting for the claim")
    await written(client)
    running.cancel()
    assert client.written == ["waiting for the claim"]


async def test_in_a_burst_waiting_is_not_talked_about_until_it_lasts_too_long(impatient):
    client = Away(0)
    reporter, running = await started(client)
    began = asyncio.get_running_loop().time()
    reporter.not_ready(POD, "waiting for the claim")
    async with asyncio.timeout(60):
        while not client.written:
            reporter.bound(OTHER, "node")
            await asyncio.sleep(0.01)
    assert asyncio.get_running_loop().time() - began >= 0.3
    await asyncio.sleep(0.1)
    running.cancel()
    assert client.written == ["waiting for the claim"]


# --- another cause is told soon, other counts later ---------------------------------------------


@pytest.fixture
def hurried(monkeypatch):
    monkeypatch.setattr(reporting, "NEWS_AFTER", 0.2)


async def quiet(client, count):
    """Wait until so many texts were written, and a while longer: there are no more."""
    await until(lambda: len(client.written) >= count, 60)
    await asyncio.sleep(0.4)
    return client.written


async def test_another_cause_is_told_although_nobody_tries_the_pod_again(hurried):
    client = Away(0)
    reporter, running = await started(client)
    reporter.refused(POD, "no room on 3", "room")
    assert reporter.refused(POD, lambda: "no devices on 3", "devices") == "no devices on 3"
    assert await quiet(client, 2) == ["no room on 3", "no devices on 3"]
    running.cancel()


async def test_other_counts_are_held_back(hurried):
    client = Away(0)
    reporter, running = await started(client)
    reporter.refused(POD, "no room on 3", "room")
    assert reporter.refused(POD, lambda: pytest.fail("not worth the work"), "room") == "no room on 3"
    assert await quiet(client, 1) == ["no room on 3"]
    running.cancel()


async def test_of_news_in_a_row_only_the_last_is_told(hurried):
    client = Away(0)
    reporter, running = await started(client)
    for number in range(9, 0, -1):
        reporter.refused(POD, f"{number} missing", str(number), may_settle=True)
    assert await quiet(client, 1) == ["1 missing"]
    running.cancel()


async def test_news_that_are_over_before_they_are_told_are_not_told(hurried):
    client = Away(0)
    reporter, running = await started(client)
    reporter.refused(POD, "1 missing", "1")
    reporter.refused(POD, "2 missing", "2")
    reporter.refused(POD, "1 missing", "1")
    assert await quiet(client, 1) == ["1 missing"]
    running.cancel()


async def test_what_is_not_told_yet_is_not_told_to_a_pod_that_has_a_place(hurried):
    client = Away(0)
    reporter, running = await started(client)
    reporter.refused(POD, "1 missing", "1", may_settle=True)
    reporter.refused(OTHER, "no room", "room")
    reporter.placed(POD)
    reporter.placed(OTHER)
    await asyncio.sleep(0.4)
    assert client.written == []
    reporter.refused(OTHER, "no room", "room")
    assert await quiet(client, 1) == ["no room"], "it was never said, so it is news"
    running.cancel()


async def test_a_failure_is_told_even_if_there_is_another_place_already(hurried):
    client = Away(0)
    reporter, running = await started(client)
    reporter.failed(POD, "forbidden")
    reporter.placed(POD)
    assert await quiet(client, 1) == ["forbidden"]
    running.cancel()


async def test_a_gang_of_a_hundred_that_comes_slowly_pod_by_pod_is_no_storm(monkeypatch):
    monkeypatch.setattr(reporting, "NEWS_AFTER", 0.0)  # as if a second passed between two pods
    client = Away(0)
    reporter, running = await started(client)
    pods = [Pod(metadata=ObjectMeta(name=f"p{i}", namespace="n", uid=f"u{i}")) for i in range(99)]
    for count in range(1, 100):
        refusal = missing_members(100 - count, "n/gang", 100)
        for each in pods[:count]:
            reporter.refused(each, refusal.explain, refusal.cause, may_settle=True)
        while reporter._next:
            await asyncio.sleep(0)
    running.cancel()
    assert client.written[-99:] == ["waiting for 1 more pod of group n/gang (it starts with 100)"] * 99
    assert client.written[0] == "waiting for more than 64 more pods of group n/gang (it starts with 100)"
    assert len(client.written) < 12 * 100
