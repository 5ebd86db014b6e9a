"""The queue and the loop that every controller stands on."""

import asyncio
from collections import Counter
from random import Random

import pytest
from conditions import until
from node_builders import eventually
from small_api import SmallApi

from dray.api.core import Node
from dray.client import Conflict
from dray.client.errors import Status
from dray.client.resources import NODES
from dray.control import reconcile_loop
from dray.control.reconcile_loop import Caches, Controller, KeyQueue, run_controllers

pytestmark = pytest.mark.usefixtures("virtual_time")


async def test_a_key_is_handed_out_once_however_often_it_was_added():
    queue = KeyQueue()
    for _ in range(3):
        queue.add("a")
    queue.add("b")
    assert [await queue.take(), await queue.take()] == ["a", "b"]
    assert len(queue) == 2


async def test_an_add_during_work_leads_to_another_look():
    queue = KeyQueue()
    queue.add("a")
    key = await queue.take()
    queue.add("a")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.take(), 0.05)  # never two workers on one key
    queue.done(key)
    assert await asyncio.wait_for(queue.take(), 30) == "a"


async def test_an_earlier_date_wins_over_a_later_one():
    queue = KeyQueue()
    queue.add("a", 60)
    queue.add("a", 0)
    assert await asyncio.wait_for(queue.take(), 30) == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_a_later_date_does_not_postpone():
    queue = KeyQueue()
    queue.add("a", 0.02)
    queue.add("a", 60)
    assert await asyncio.wait_for(queue.take(), 30) == "a"


async def test_a_worker_that_is_stopped_just_when_work_comes_stops():
    queue = KeyQueue()
    queue.add("later", 60)
    worker = asyncio.create_task(queue.take())
    await asyncio.sleep(0.01)
    queue.add("postponed", 30)
    worker.cancel()
    done, _ = await asyncio.wait({worker}, timeout=30)
    assert done and worker.cancelled()


class Flaky(Controller):
    name = "flaky"
    workers = 1

    def __init__(self, failures):
        super().__init__(Caches(client=None))
        self.failures = list(failures)
        self.looks = 0

    def watch(self):
        pass

    async def reconcile(self, key):
        self.looks += 1
        if self.failures:
            raise self.failures.pop(0)


async def test_a_failed_step_is_tried_again_and_a_bug_does_not_stop_the_loop():
    controller = Flaky([ValueError("bug"), Conflict(409, Status(), "PUT x")])
    working = asyncio.create_task(controller.run())
    controller.enqueue("a")
    await until(lambda: controller.looks >= 3, 60)
    working.cancel()
    assert controller.looks == 3


async def test_of_many_waiting_workers_each_due_key_reaches_one():
    queue = KeyQueue()
    takers = [asyncio.create_task(queue.take()) for _ in range(5)]
    await asyncio.sleep(0)
    queue.add("later", 0.05)
    for key in "abc":
        queue.add(key)
    await until(lambda: sum(taker.done() for taker in takers) >= 4, 30)
    assert sorted(taker.result() for taker in takers if taker.done()) == ["a", "b", "c", "later"]
    [waiting] = [taker for taker in takers if not taker.done()]
    waiting.cancel()


async def test_when_the_woken_worker_is_stopped_another_one_takes_the_key():
    queue = KeyQueue()
    first, second = asyncio.create_task(queue.take()), asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    queue.add("a")
    first.cancel()
    async with asyncio.timeout(30):
        assert await second == "a"


async def test_a_later_date_is_kept_while_others_take_what_is_due():
    """Whoever takes a key must leave a timer for the rest: the others are asleep."""
    queue = KeyQueue()
    takers = [asyncio.create_task(queue.take()) for _ in range(3)]
    await asyncio.sleep(0)
    queue.add("soon", 0.02)
    queue.add("sooner", 0.01)
    queue.add("last", 0.05)
    async with asyncio.timeout(30):
        assert sorted(await asyncio.gather(*takers)) == ["last", "soon", "sooner"]


@pytest.mark.parametrize("seed", range(5))
async def test_every_key_is_handed_out_under_a_random_load(seed):
    random = Random(seed)
    queue = KeyQueue()
    looked_at, wanted = Counter(), Counter()

    async def work():
        while True:
            key = await queue.take()
            looked_at[key] += 1
            await asyncio.sleep(random.choice((0, 0, 0.002)))
            queue.done(key)

    workers = [asyncio.create_task(work()) for _ in range(4)]
    for _ in range(150):
        key = str(random.randrange(20))
        before = looked_at[key]
        queue.add(key, random.choice((0, 0, 0.001, 0.01)))
        wanted[key] = before + 1
        if random.random() < 0.3:
            await asyncio.sleep(random.choice((0, 0.003)))
    await until(lambda: not (len(queue) or any(looked_at[key] < count for key, count in wanted.items())), 60)
    for worker in workers:
        worker.cancel()


class Reader(Controller):
    """Notes which nodes it saw when it looked."""

    name = "reader"
    workers = 1

    def __init__(self, caches):
        super().__init__(caches)
        self.nodes = caches.of(NODES, Node)
        self.seen = []

    def watch(self):
        pass

    async def reconcile(self, key):
        self.seen.append(set(self.nodes.items))


async def test_after_a_pause_of_the_process_nothing_is_done_before_the_caches_are_fresh(monkeypatch):
    api = SmallApi()
    await api.client().create(NODES, {"metadata": {"name": "old"}})
    caches = Caches(api.client())
    controller = Reader(caches)
    task = asyncio.create_task(run_controllers(caches, [controller]))
    await caches.wait_synced()
    controller.enqueue("a")
    await eventually(lambda: controller.seen == [{"old"}], what="a first look")
    # The process stops here; meanwhile things change, and what the watch has to tell is not read yet.
    monkeypatch.setattr(controller.nodes, "_take", lambda line: None)
    await api.client().delete(NODES, "old")
    await api.client().create(NODES, {"metadata": {"name": "new"}})
    steady = reconcile_loop.steady_now()
    monkeypatch.setattr(reconcile_loop, "steady_now", lambda: steady + 60)
    controller.enqueue("a")
    await eventually(lambda: len(controller.seen) == 2, what="a second look")
    assert controller.seen[1] == {"new"}
    assert controller.nodes.relists == 2
    controller.enqueue("a")
    await eventually(lambda: len(controller.seen) == 3, what="a third look")
    assert controller.nodes.relists == 2, "one pause, one list"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
