"""A refused pod learns why, even if the server was away when it was first said."""

import asyncio
from datetime import UTC, datetime

import pytest

from dray.api.core import Pod
from dray.api.meta import ObjectMeta
from dray.client import TransportError
from dray.control.scheduling import reporting
from dray.control.scheduling.reporting import Reporter

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
    async with asyncio.timeout(60):
        while not client.written:
            await asyncio.sleep(0.01)


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
