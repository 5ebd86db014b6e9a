"""Everything that happens before the clock starts: the cluster is filled, and everybody is awake."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator

import msgspec

from bench.scheduling import objects
from bench.scheduling.contenders import Contender
from bench.scheduling.following import get
from bench.scheduling.hardware import Object
from bench.scheduling.workloads import CLASSES, ONE, Workload
from bench.server.load import Connection, drive, prepared
from bench.stacks import Stack

N_CLIENTS = 16
SETTLING = 2.0  # seconds between the last preparation and the first pod
DELETE_NOW = b'{"gracePeriodSeconds":0}'


async def fill(stack: Stack, workload: Workload) -> None:
    """Create namespaces, classes, templates, nodes, slices, and the claims that hold devices already."""
    first = [
        *(_post("/api/v1/namespaces", objects.namespace(name)) for name in _namespaces()),
        *(_post(objects.CLASSES, objects.device_class(*each)) for each in CLASSES.items()),
        *(_post(objects.templates_path(), objects.template(*each)) for each in workload.claims.items()),
        _post(objects.templates_path(objects.PROBE), objects.template("probe", ONE)),
    ]
    await drive(stack.port, first, 1)
    nodes = [_post(objects.NODES, objects.node(number)) for number in range(workload.n_nodes)]
    await drive(stack.port, nodes, N_CLIENTS)
    await drive(stack.port, [_post(objects.SLICES, each) for each in objects.slices(workload)], N_CLIENTS)
    taken = workload.room(workload.n_nodes).taken
    path = objects.claims_path(objects.TAKEN)

    def claims() -> Iterator[tuple[Object, Object]]:
        for number, (spec, place) in enumerate(taken):
            yield objects.taken_claim(number, spec), {"allocation": objects.allocation(place)}

    await drive(stack.port, [_post(path, claim) for claim, _ in claims()], N_CLIENTS)
    statuses = [
        prepared("PUT", f"{path}/{claim['metadata']['name']}/status", {**claim, "status": status})
        for claim, status in claims()
    ]
    await drive(stack.port, statuses, N_CLIENTS)


def _namespaces() -> tuple[str, ...]:
    return objects.BENCH, objects.TAKEN, objects.PROBE


def _post(path: str, body: Object) -> bytes:
    return prepared("POST", path, msgspec.json.encode(body))


async def wake(stack: Stack, contender: Contender, workload: Workload) -> float:
    """Start the scheduler; return the seconds until it had bound a pod without claims.

    Before, a pod that is nobody's gets its claim, and the claim goes with it: the controllers work.
    """
    connection = await Connection.open(stack.port)
    pods, claims = objects.pods_path(objects.PROBE), objects.claims_path(objects.PROBE)

    async def n_claims() -> int:
        return len((await get(connection, claims))["items"])

    await _send(connection, "POST", pods, msgspec.json.encode(objects.pod("nobody", "probe", "nobody")))
    await _until(stack, "no claim was made", n_claims, 1)
    await _send(connection, "DELETE", f"{pods}/nobody", DELETE_NOW)
    await _until(stack, "the claim of a deleted pod stayed", n_claims, 0)
    started = time.perf_counter()
    stack.start("scheduler", *contender.command(stack, workload))
    await _send(connection, "POST", pods, msgspec.json.encode(objects.pod("first")))

    async def is_bound() -> int:
        return "nodeName" in (await get(connection, f"{pods}/first"))["spec"]

    await _until(stack, "the scheduler bound nothing", is_bound, 1)
    seconds = time.perf_counter() - started
    await _send(connection, "DELETE", f"{pods}/first", DELETE_NOW)
    connection.close()
    await asyncio.sleep(SETTLING)
    return seconds


async def _send(connection: Connection, method: str, path: str, body: bytes) -> None:
    status, answer = await connection.ask(prepared(method, path, body))
    if status >= 300:
        raise RuntimeError(f"{method} {path} was answered with {status}: {answer[:300]!r}")


async def _until(stack: Stack, complaint: str, ask: Callable[[], Awaitable[int]], wanted: int) -> None:
    deadline = time.monotonic() + 120
    while await ask() != wanted:
        stack.check()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{complaint} within two minutes")
        await asyncio.sleep(0.05)
