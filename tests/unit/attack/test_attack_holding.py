"""What held the event loop is named, with the request and the place."""

import asyncio
import gc
import json
import time
from asyncio.events import Handle

import pytest

from attack.holding import Holds, _request, summary
from dray.host.garbage import YOUNGEST, collect_in_small_steps


@pytest.fixture
def holds(tmp_path):
    run, callbacks = Handle._run, list(gc.callbacks)
    made = Holds(tmp_path / "holds.jsonl")
    made.install()
    yield made
    made.stop()
    Handle._run = run
    gc.callbacks[:] = callbacks


def busy_for(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def test_a_step_that_takes_long_is_written_with_its_request_and_place(holds, tmp_path):
    async def answer():
        _request.set("GET /slow")
        busy_for(0.08)

    async def quick():
        _request.set("GET /quick")

    await asyncio.gather(asyncio.create_task(answer()), asyncio.create_task(quick()))
    written = [json.loads(line) for line in (tmp_path / "holds.jsonl").read_text().splitlines()]
    found = [each for each in written if each["sort"] == "loop"]
    assert [each["request"] for each in found] == ["GET /slow"]
    assert found[0]["ms"] >= 80
    assert "busy_for" in str(found[0]["places"])
    assert any("busy_for" in line for line in summary(tmp_path / "holds.jsonl"))


def test_the_collector_of_long_running_processes_takes_small_steps():
    before = gc.get_threshold()
    try:
        collect_in_small_steps()
        assert gc.get_threshold()[0] == YOUNGEST <= 10_000
    finally:
        gc.set_threshold(*before)
