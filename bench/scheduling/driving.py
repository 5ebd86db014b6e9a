"""The load: pods in a burst, in a steady state, or one after the other.

`Drive` creates pods and sees in a watch when each is bound; changes of claims are kept as
they came and judged when the clock has stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import NamedTuple

import msgspec

from bench.scheduling import objects
from bench.scheduling.following import follow, get
from bench.scheduling.hardware import Object
from bench.scheduling.preparing import DELETE_NOW
from bench.scheduling.workloads import Workload
from bench.server.load import Connection, prepared
from bench.stacks import Stack

N_CLIENTS = 16
PATIENCE = 120.0  # seconds without any new binding until a run counts as stuck
EXPLAINING = 15.0  # seconds that impossible pods may take to get their condition, once the others are bound
clock = time.perf_counter


class _Metadata(msgspec.Struct):
    name: str


class _Condition(msgspec.Struct):
    reason: str = ""


class _Status(msgspec.Struct):
    conditions: list[_Condition] = []


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class _Pod(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec
    status: _Status


class _Event(msgspec.Struct):
    object: _Pod


class Stuck(Exception):
    """Pods that can be bound were not."""


class Drive:
    """One run's pods."""

    def __init__(self, stack: Stack, workload: Workload, seconds: float) -> None:
        self.stack, self.workload, self.seconds = stack, workload, seconds
        self.created: dict[str, float] = {}
        self.bound: dict[str, float] = {}
        self.unschedulable: set[str] = set()
        self.claims_before: list[Object] = []
        self.claim_lines: list[bytes] = []
        self.begin = self.end = 0.0
        self._on_bound: Callable[[str], None] = lambda name: None
        self._decode = msgspec.json.Decoder(_Event).decode
        self._connections: list[Connection] = []
        self._watches: list[asyncio.Task[None]] = []

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Watch pods and claims, have connections open."""
        port = self.stack.port
        self._connections = [await Connection.open(port) for _ in range(N_CLIENTS)]
        pods, claims = objects.pods_path(), f"{objects.RESOURCE}/resourceclaims"
        listed = [await get(self._connections[0], path) for path in (pods, claims)]
        self.claims_before = listed[1]["items"]
        versions = [each["metadata"]["resourceVersion"] for each in listed]
        self._watches = [
            asyncio.create_task(follow(port, pods, versions[0], self._see_pod)),
            asyncio.create_task(follow(port, claims, versions[1], self.claim_lines.append)),
        ]
        try:
            await asyncio.sleep(0.5)
            yield
        finally:
            for watch in self._watches:
                watch.cancel()
            await asyncio.gather(*self._watches, return_exceptions=True)
            for connection in self._connections:
                connection.close()

    async def run(self) -> None:
        """Make the load; `begin` and `end` are the time that counts."""
        modes = {"burst": self._burst, "steady": self._steady, "serial": self._serial}
        self.begin = clock()
        await modes[self.workload.mode]()

    def n_impossible(self) -> int:
        """Return how many pods of a burst no node can serve."""
        return sum(map(self.workload.is_impossible, range(self.workload.n_pods)))

    async def explanations(self) -> int:
        """Wait for the impossible pods to be told so; return how many were not in time."""
        wanted = self.n_impossible() if self.workload.mode == "burst" else 0
        deadline = clock() + EXPLAINING
        while (n_missing := wanted - len(self.unschedulable - self.bound.keys())) > 0 and clock() < deadline:
            await asyncio.sleep(0.1)
        return max(0, n_missing)

    # --- modes ------------------------------------------------------------------

    async def _burst(self) -> None:
        requests = iter([(name, self._post(name)) for name in map(_name, range(self.workload.n_pods))])
        n_wanted = self.workload.n_pods - self.n_impossible()
        self.begin = clock()

        async def create(connection: Connection) -> None:
            for name, request in requests:
                await self._create(connection, name, request)

        async with _workers([create(each) for each in self._connections]) as workers:
            await self._until(lambda: len(self.bound) >= n_wanted, workers)
            await asyncio.gather(*workers)  # the last pods may be impossible ones
        self.end = max(self.bound.values())

    async def _steady(self) -> None:
        to_replace: asyncio.Queue[str] = asyncio.Queue()
        self._on_bound = to_replace.put_nowait
        numbers = iter(range(10**9))
        self.begin = clock()
        end = self.begin + self.seconds

        async def replace(connection: Connection) -> None:
            while True:
                name = await to_replace.get()
                if name:
                    await self._ask(
                        connection, prepared("DELETE", f"{objects.pods_path()}/{name}", DELETE_NOW)
                    )
                if clock() < end:
                    name = _name(next(numbers))
                    await self._create(connection, name, self._post(name))

        for _ in range(self.workload.n_pods):
            to_replace.put_nowait("")
        async with _workers([replace(each) for each in self._connections]) as workers:
            await self._until(lambda: clock() >= end, workers, is_timed=True)
            self.end = clock()
            self._on_bound = lambda name: None
            if not self.bound:
                raise Stuck(f"no pod was bound in {self.seconds} s")

    async def _serial(self) -> None:
        connection = self._connections[0]
        for number in range(self.workload.n_pods):
            name = _name(number)
            await self._create(connection, name, self._post(name))
            await self._until(partial(self.bound.__contains__, name), [])
            if number + 1 < self.workload.n_pods:
                await self._ask(connection, prepared("DELETE", f"{objects.pods_path()}/{name}", DELETE_NOW))
                while (await get(connection, objects.claims_path()))["items"]:
                    self._check([])
                    await asyncio.sleep(0.02)
                await asyncio.sleep(0.3)  # schedulers hear of it, too
        self.end = clock()

    # --- what they have in common -----------------------------------------------

    def _post(self, name: str) -> bytes:
        pod = objects.pod(name, self.workload.kind_of(int(name.split("-")[1])))
        return prepared("POST", objects.pods_path(), msgspec.json.encode(pod))

    async def _create(self, connection: Connection, name: str, request: bytes) -> None:
        self.created[name] = clock()
        await self._ask(connection, request)

    async def _ask(self, connection: Connection, request: bytes) -> None:
        status, body = await connection.ask(request)
        if status >= 300:
            raise RuntimeError(f"{request[:200]!r} was answered with {status}: {body[:300]!r}")

    def _see_pod(self, line: bytes) -> None:
        now, pod = clock(), self._decode(line).object
        name = pod.metadata.name
        if pod.spec.node_name:
            if name not in self.bound and not self.end:
                self.bound[name] = now
                self._on_bound(name)
        elif any(condition.reason == "Unschedulable" for condition in pod.status.conditions):
            self.unschedulable.add(name)

    async def _until(
        self, is_done: Callable[[], bool], workers: list[asyncio.Task[None]], *, is_timed: bool = False
    ) -> None:
        last, n_before = clock(), 0
        while not is_done():
            self._check(workers)
            if len(self.bound) > n_before:
                last, n_before = clock(), len(self.bound)
            if clock() - last > PATIENCE and not is_timed:
                raise Stuck(f"only {n_before} pods were bound, and none for {PATIENCE:.0f} s")
            await asyncio.sleep(0.02)  # when a pod was bound the watch knows better

    def _check(self, workers: list[asyncio.Task[None]]) -> None:
        self.stack.check()
        for task in (*self._watches, *workers):
            if task.done():
                task.result()  # raises what went wrong


@contextlib.asynccontextmanager
async def _workers(coroutines: list[Coroutine[None, None, None]]) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Run coroutines beside the body; they end with it."""
    tasks = [asyncio.create_task(each) for each in coroutines]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _name(number: int) -> str:
    return f"pod-{number:05}"


class Rates(NamedTuple):
    """How quick a run was."""

    pods_per_second: float  # first pod created to last one bound
    steady: float  # without its beginning and end
    p50: float  # seconds from POST to bound
    p99: float


def rates(drive: Drive) -> Rates:
    """Return the rates of a run.

    A burst is steady between a tenth and nine tenths of its pods, a steady state after two
    seconds. Serial pods count per second that one of them waited, in both rates.
    """
    waits = sorted(at - drive.created[name] for name, at in drive.bound.items())
    done = sorted(at - drive.begin for at in drive.bound.values())
    p50, p99 = waits[len(waits) // 2], waits[min(len(waits) - 1, int(len(waits) * 0.99))]
    total = steady = len(done) / (drive.end - drive.begin)
    if drive.workload.mode == "serial":
        total = steady = len(waits) / sum(waits)
    elif drive.workload.mode == "steady" and drive.seconds > 2:
        steady = sum(at >= 2 for at in done) / (drive.end - drive.begin - 2)
    elif drive.workload.mode == "burst" and len(done) >= 10:
        low, high = len(done) // 10, len(done) * 9 // 10
        steady = (high - low) / max(done[high] - done[low], 1e-9)
    return Rates(total, steady, p50, p99)
