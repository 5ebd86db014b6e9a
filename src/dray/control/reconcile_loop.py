"""What every controller stands on: shared caches, a queue of keys, and a loop that retries.

A controller is level-triggered: its handlers only say *which* object to look at
(`enqueue`), and `reconcile(key)` compares what is with what should be and does
the next step. So events may be lost, doubled or late without harm, and a failed
step is simply tried again.

Theory of operation. Each key is in one of three places: waiting (due at a time),
being worked on, or nowhere. A key that is enqueued while it is worked on is
looked at once more afterwards, so no change is missed and no key is worked on by
two workers. Failures back off exponentially, from 50 ms to 30 s; a conflict with
another writer is not a failure: the key is looked at again at once.

A process that did not run for a while (SIGSTOP, a suspended machine) wakes up with old caches and with timers that
are all due. `Caches` notices that by its own tick, has every cache listed again, and no key is worked on before.

Invariants (tests/unit/control/test_control_reconcile_loop.py):
  * a key is never worked on by two workers at a time;
  * after a pause of the process no key is worked on before the caches are fresh;
  * an enqueue during work leads to another look.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from dray.client import Client, ClientError, Conflict, HasMetadata, Informer, NotFound
from dray.client.resources import Resource
from dray.host.clock import utc_now

log = logging.getLogger("dray.control")

T = TypeVar("T", bound=HasMetadata)
Clock = Callable[[], datetime]

LONGEST_WAIT = 60.0  # seconds until a date is looked at again, in case the wall clock was changed
FIRST_BACKOFF = 0.05
LONGEST_BACKOFF = 30.0
TICK = 1.0  # seconds
LONGEST_TICK = 10.0  # seconds; a tick that took longer means that the process did not run


def steady_now() -> float:
    """Return seconds that only ever go forward: for "how long ago", which a changed wall clock must not falsify."""
    return asyncio.get_running_loop().time()


class Caches:
    """The informers that the controllers of one process share, one per resource."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._informers: dict[Resource, Informer[Any]] = {}
        self._ticked_at: float | None = None
        self._refreshing: asyncio.Task[None] | None = None

    def of(self, resource: Resource, view: type[T], *, optional: bool = False) -> Informer[T]:
        """Return the cache of a resource, made at the first call."""
        found = self._informers.get(resource)
        if found is None:
            found = self._informers[resource] = Informer(self.client, resource, view, optional=optional)
        return found

    def existing(self, resource: Resource) -> Informer[Any] | None:
        """Return the cache of a resource if somebody has one, whatever its view."""
        return self._informers.get(resource)

    async def run(self) -> None:
        """Follow all resources until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tick())
            for informer in self._informers.values():
                group.create_task(informer.run())

    async def _tick(self) -> None:
        while True:
            self._notice_pause()
            await asyncio.sleep(TICK)

    def _notice_pause(self) -> None:
        now, before = steady_now(), self._ticked_at
        self._ticked_at = now
        if before is not None and now - before > LONGEST_TICK and self._refreshing is None:
            log.warning("this process did not run for %.0f s: listing everything again", now - before)
            self._refreshing = asyncio.create_task(self._refresh())

    async def _refresh(self) -> None:
        try:
            await asyncio.gather(*(informer.refresh() for informer in self._informers.values()))
        finally:
            self._refreshing = None

    async def wait_fresh(self) -> None:
        """Return at once, except after a pause of this process: then when every cache was listed again."""
        if self._ticked_at is not None and steady_now() - self._ticked_at > LONGEST_TICK:
            self._notice_pause()  # here too: the timers that are due may run before the tick
        while self._refreshing is not None:
            await asyncio.shield(self._refreshing)

    async def wait_synced(self) -> None:
        """Wait until every cache has its first list."""
        for informer in list(self._informers.values()):
            await informer.wait_synced()


class KeyQueue:
    """Keys that wait to be looked at, each at most once, earliest first.

    A key that becomes due wakes one waiting worker, not all of them; who takes a key while
    another one is due passes the word on. For dates in the future there is one timer.
    """

    def __init__(self) -> None:
        self._due: dict[str, float] = {}  # waiting key -> loop time
        self._heap: list[tuple[float, int, str]] = []
        self._order = itertools.count()
        self._working: set[str] = set()
        self._again: dict[str, float] = {}  # enqueued while being worked on
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.Handle | None = None
        self._timer_at = math.inf

    def add(self, key: str, delay: float = 0.0) -> None:
        """Look at the key after the delay, or earlier if somebody asked for that."""
        due = asyncio.get_running_loop().time() + delay
        dates = self._again if key in self._working else self._due
        if key in dates and dates[key] <= due:
            return
        dates[key] = due
        if dates is self._due:
            heapq.heappush(self._heap, (due, next(self._order), key))
            if delay <= 0:
                self._wake_one()
            else:
                self._set_timer()

    async def take(self) -> str:
        """Wait for the next due key and hand it out; give it back with `done`."""
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            if self._next_due() <= now:
                key = heapq.heappop(self._heap)[2]
                del self._due[key]
                self._working.add(key)
                if self._next_due() <= now:
                    self._wake_one()
                else:
                    self._set_timer()
                return key
            self._set_timer()
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
                else:
                    self._wake_one()  # woken and stopped at once: somebody else must look
                raise

    def done(self, key: str) -> None:
        """Say that the work on a key is over; a look asked for meanwhile is queued."""
        self._working.discard(key)
        again = self._again.pop(key, None)
        if again is not None:
            self.add(key, max(0.0, again - asyncio.get_running_loop().time()))

    def _next_due(self) -> float:
        heap = self._heap
        while heap and self._due.get(heap[0][2]) != heap[0][0]:
            heapq.heappop(heap)  # superseded by an earlier date, or taken
        return heap[0][0] if heap else math.inf

    def _wake_one(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _set_timer(self) -> None:
        """Make sure that somebody is woken at the next date."""
        due = self._next_due()
        if due >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = asyncio.get_running_loop().call_at(due, self._time_has_come)

    def _time_has_come(self) -> None:
        self._timer, self._timer_at = None, math.inf
        self._wake_one()

    def __len__(self) -> int:
        return len(self._due) + len(self._working)


class Controller(ABC):
    """One loop: registers handlers in `watch`, does one step in `reconcile`."""

    name: str = ""
    workers: int = 4

    def __init__(self, caches: Caches, clock: Clock = utc_now) -> None:
        self.caches = caches
        self.client = caches.client
        self.clock = clock
        self.queue = KeyQueue()
        self._failures: dict[str, int] = {}

    @abstractmethod
    def watch(self) -> None:
        """Name the caches this controller reads and what each change makes it look at."""

    @abstractmethod
    async def reconcile(self, key: str) -> float | None:
        """Bring one object a step further; return seconds after which to look again, if any."""

    def enqueue(self, key: str, delay: float = 0.0) -> None:
        """Ask for a look at a key."""
        self.queue.add(key, delay)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self.workers):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key = await self.queue.take()
            delay: float | None
            try:
                await self.caches.wait_fresh()
                delay = await self.reconcile(key)
                self._failures.pop(key, None)
            except Conflict as error:
                # Somebody else wrote first: our cache will show it in a moment.
                log.debug("%s %s: %s", self.name, key, error)
                delay = FIRST_BACKOFF
            except (ClientError, OSError, TimeoutError) as error:
                delay = self._backoff(key)
                log.warning("%s %s: %s; again in %.1f s", self.name, key, error, delay)
            except Exception:
                # A bug in one object's handling must not stop the others.
                delay = self._backoff(key)
                log.exception("%s %s failed; again in %.1f s", self.name, key, delay)
            if delay is not None:
                self.queue.add(key, delay)
            self.queue.done(key)

    def _backoff(self, key: str) -> float:
        count = self._failures[key] = self._failures.get(key, 0) + 1
        return float(min(FIRST_BACKOFF * 2.0**count, LONGEST_BACKOFF))


async def run_controllers(caches: Caches, controllers: Sequence[Controller]) -> None:
    """Run controllers on shared caches until cancelled."""
    for controller in controllers:
        controller.watch()
    async with asyncio.TaskGroup() as group:
        group.create_task(caches.run())
        await caches.wait_synced()
        for controller in controllers:
            group.create_task(controller.run())


def wait_until(moment: datetime, now: datetime) -> float:
    """Return how long to wait for a date; never so long that a clock put forward goes unnoticed."""
    return min(max(0.0, (moment - now).total_seconds()), LONGEST_WAIT)


async def ignoring_absence(work: Any) -> Any:
    """Await a call whose object may already be gone; None then."""
    try:
        return await work
    except NotFound:
        return None
