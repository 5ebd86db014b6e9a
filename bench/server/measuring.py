"""Rounds of measurements on each stack, and the table that comes of them."""

from __future__ import annotations

import asyncio
import os
import platform
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import msgspec
import uvloop

from bench import stacks
from bench.server import objects
from bench.server.load import JSON, TABLE, Connection, Driven, drive, prepared
from bench.stacks import Stack

SETTLE = 0.3  # seconds of quiet before a measurement
BUDGET = 240.0  # seconds after which no new round begins, so that `make bench` ends on slow machines too


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    rounds: int
    seconds: float  # of load per rate
    nodes: int
    slices: int
    lists: int
    watchers: tuple[int, ...]


FULL = Size(rounds=3, seconds=2.0, nodes=500, slices=5000, lists=7, watchers=(100, 1000))
QUICK = Size(rounds=1, seconds=1.0, nodes=50, slices=500, lists=3, watchers=(100,))


@dataclass(frozen=True)
class Measure:
    """One row of the table."""

    key: str
    title: str
    unit: str
    more_is_better: bool
    target: str = ""
    wanted_ratio: float = 0.0  # dray must be so many times as good
    wanted_value: float = 0.0  # or: dray must be below this


MEASURES = [
    Measure("ready", "start to ready, empty store", "s", False, "< 1 s", wanted_value=1.0),
    Measure("memory", "resident with 500 nodes' objects", "MB", False, "< 120 MB", wanted_value=120.0),
    Measure("create 1", "claims created, 1 client", "/s", True, "≥ 2×", wanted_ratio=2.0),
    Measure("create 16", "claims created, 16 clients", "/s", True, "≥ 2×", wanted_ratio=2.0),
    Measure("create 64", "claims created, 64 clients", "/s", True, "≥ 2×", wanted_ratio=2.0),
    Measure("status 1", "claims allocated (status), 1 client", "/s", True, "≥ 2×", wanted_ratio=2.0),
    Measure("status 16", "claims allocated (status), 16 clients", "/s", True, "≥ 2×", wanted_ratio=2.0),
    Measure("status 64", "claims allocated (status), 64 clients", "/s", True, "≥ 2×", wanted_ratio=2.0),
    Measure("get 16", "claims read, 16 clients", "/s", True),
    Measure("list", "list of 5,000 slices", "ms", False, "≥ 1×", wanted_ratio=1.0),
    Measure("table", "the same as a table", "ms", False, "≥ 1×", wanted_ratio=1.0),
    Measure("watch 100", "events to 100 watchers", "/s", True, "≥ 1×", wanted_ratio=1.0),
    Measure("watch 1000", "events to 1,000 watchers", "/s", True, "≥ 1×", wanted_ratio=1.0),
]


@dataclass
class Sample:
    """One measurement."""

    value: float
    server_cpu: float  # share of one core; 2.0 are two cores
    load_cpu: float
    other_load: float  # share of the machine


@dataclass
class Results:
    """All samples of a stack by measure."""

    samples: dict[str, list[Sample]] = field(default_factory=lambda: defaultdict(list))

    def median(self, key: str) -> float:
        return statistics.median(each.value for each in self.samples[key])


class Meter:
    """Takes the CPU of all sides between two moments."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._marks = self._read()

    def restart(self) -> None:
        """Forget what was used until now."""
        self._marks = self._read()

    def _read(self) -> tuple[float, float, float, float]:
        return time.perf_counter(), self._stack.cpu(), time.process_time(), stacks.machine_busy()

    def sample(self, value: float, more_load: float = 0.0) -> Sample:
        """Return a sample with the CPU used since the meter was (re)started."""
        now = self._read()
        seconds, server, load, busy = (after - before for after, before in zip(now, self._marks, strict=True))
        load += more_load
        other = max(0.0, busy - server - load) / seconds / (os.cpu_count() or 1)
        return Sample(value, server / seconds, load / seconds, other)


async def measure(stack: Stack, size: Size, results: Results) -> None:
    """Take one round of everything on a fresh stack."""
    samples = results.samples
    samples["ready"].append(Sample(stack.ready_seconds, stack.ready_cpu / stack.ready_seconds, 0, 0))
    await drive(stack.port, objects.foundations(), 1)
    await drive(stack.port, cluster(size.nodes), 64)
    await asyncio.sleep(2)
    samples["memory"].append(Sample(stack.resident(), 0, 0, 0))
    stored: list[bytes] = []
    for n_clients in (1, 16, 64):
        requests = [objects.claim(f"new-{n_clients}-{i}") for i in range(int(4000 * size.seconds))]
        stored += (await _rate(stack, results, f"create {n_clients}", requests, n_clients, size)).answers
    claims = [msgspec.json.decode(each) for each in stored]
    writes = [objects.allocated(each, number) for number, each in enumerate(claims)]
    share = len(writes) // 3
    for position, n_clients in enumerate((1, 16, 64)):
        mine = writes[position * share : (position + 1) * share]
        await _rate(stack, results, f"status {n_clients}", mine, n_clients, size)
    names = [each["metadata"]["name"] for each in claims]
    reads = [prepared("GET", f"{objects.CLAIMS}/{names[i % len(names)]}") for i in range(30_000)]
    await _rate(stack, results, "get 16", reads, 16, size)
    await _watches(stack, size, results)
    await drive(stack.port, [objects.resource_slice(i) for i in range(size.nodes, size.slices)], 64)
    await _lists(stack, size, results)


def cluster(n_nodes: int) -> list[bytes]:
    """Return nodes, a slice of eight devices each, five pods each and their claims."""
    numbers = range(n_nodes * 5)
    return [
        *(objects.node(i) for i in range(n_nodes)),
        *(objects.resource_slice(i) for i in range(n_nodes)),
        *(objects.claim(f"claim-{i}") for i in numbers),
        *(objects.pod(i) for i in numbers),
    ]


async def _rate(
    stack: Stack, results: Results, key: str, requests: list[bytes], n_clients: int, size: Size
) -> Driven:
    await asyncio.sleep(SETTLE)
    meter = Meter(stack)
    driven = await drive(stack.port, requests, n_clients, size.seconds, meter.restart)
    results.samples[key].append(meter.sample(len(driven.answers) / driven.seconds))
    return driven


async def _lists(stack: Stack, size: Size, results: Results) -> None:
    for key, accept in (("list", JSON), ("table", TABLE)):
        connection = await Connection.open(stack.port)
        request = prepared("GET", objects.SLICES, accept=accept)
        for _ in range(size.lists):
            await asyncio.sleep(0.1)
            meter, started = Meter(stack), time.perf_counter()
            status, body = await connection.ask(request)
            seconds = time.perf_counter() - started
            n_items = body.count(b"gpus") if key == "table" else body.count(b'"generation":1,"resourceSlice')
            if status != 200 or n_items < size.slices:
                raise RuntimeError(f"{stack.name} answered a list with {status} and {n_items} items")
            results.samples[key].append(meter.sample(seconds * 1000))
        connection.close()


async def _watches(stack: Stack, size: Size, results: Results) -> None:
    path = f"/api/v1/namespaces/{objects.NAMESPACE}/configmaps"
    for n_watchers in size.watchers:
        n_events = 60_000 // n_watchers
        newest = msgspec.json.decode((await drive(stack.port, [prepared("GET", path)], 1)).answers[0])
        version = newest["metadata"]["resourceVersion"]
        watch = f"{path}?watch=1&resourceVersion={version}&timeoutSeconds=300"
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.server.watchers", str(stack.port), watch, str(n_watchers), str(n_events)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            if await asyncio.to_thread(process.stdout.readline) != "open\n":
                raise RuntimeError(f"{n_watchers} watches could not be opened on {stack.name}")
            bodies = [
                objects.create(path, "v1", "ConfigMap", f"m-{n_watchers}-{i}", data={"number": str(i), "text": "x" * 200})
                for i in range(n_events)
            ]  # fmt: skip
            await asyncio.sleep(SETTLE)
            meter, started = Meter(stack), time.clock_gettime(time.CLOCK_MONOTONIC)
            writing = asyncio.create_task(drive(stack.port, bodies, 4))
            words = (await asyncio.to_thread(process.stdout.readline)).split()
            await writing
            if not words or words[0] != "seen":
                raise RuntimeError(f"watchers of {stack.name} missed events: {words}")
            seconds = float(words[1]) - started
            sample = meter.sample(int(words[3]) / seconds, more_load=float(words[2]))
            if int(words[4]):
                sys.stderr.write(f"  {stack.name} cut off {words[4]} of {n_watchers} watchers\n")
            results.samples[f"watch {n_watchers}"].append(sample)
        finally:
            process.kill()
            process.wait(5)
            process.stdout.close()


Start = Callable[[], AbstractContextManager[Stack]]


def run(*, quick: bool) -> str:
    """Measure everything and return the section."""
    size = QUICK if quick else FULL
    contenders: dict[str, Start] = {"dray": stacks.dray}
    if stacks.kubernetes_binaries() is not None:
        contenders = {"kubernetes": stacks.kubernetes, **contenders}
    else:
        sys.stderr.write("server: no kube-apiserver (tools/peers/build makes it); dray runs alone\n")
    results = {name: Results() for name in contenders}
    started = time.monotonic()
    for number in range(size.rounds):
        if number and time.monotonic() - started > BUDGET:
            sys.stderr.write(f"server: {number} of {size.rounds} rounds took {BUDGET:.0f} s; no more\n")
            break
        for name, start in contenders.items():
            sys.stderr.write(f"server: round {number + 1} of {size.rounds}: {name}\n")
            with start() as stack:
                uvloop.run(measure(stack, size, results[name]))
            for measure_ in MEASURES:
                if results[name].samples[measure_.key]:
                    last = results[name].samples[measure_.key][-1]
                    sys.stderr.write(
                        f"  {measure_.title}: {last.value:,.1f} {measure_.unit} (server {last.server_cpu:.2f} cores,"
                        f" load {last.load_cpu:.2f}, others {last.other_load:.0%})\n"
                    )
    return report(results, size)


def report(results: dict[str, Results], size: Size) -> str:
    """Write the table."""
    beside = "kubernetes" in results
    version = (stacks.kubernetes_binaries() or stacks.CACHE).name if beside else ""
    about = (
        f"kube-apiserver {version} on etcd, fresh in every round, in turn with dray"
        if beside
        else "dray ran alone: no kube-apiserver on this machine (`tools/peers/build` makes it)"
    )
    lines = [
        "## API server",
        "",
        f"{about}; Python {platform.python_version()}, {os.cpu_count()} cores ({platform.machine()}). Both durable on"
        f" the same disk (etcd with fsync, SQLite with synchronous commits), both with TLS, tokens and RBAC, both"
        f" asked over HTTP/1.1 in JSON by the same client with prepared requests. Medians of {len(results['dray'].samples['ready'])} rounds of"
        f" {size.seconds:.0f} s. *Cores* is the CPU of the server / of the load; *other load* is the share of the"
        " machine that neither used (during the rounds of each): distrust rates where it is high. The servers and their load share the machine,"
        " so a rate is limited by both; *ms of CPU* counts the server alone and is disturbed least.",
        "",
        "| measure | kube-apiserver + etcd | cores | ms of CPU | dray | cores | ms of CPU | ratio | target | other load |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|---:|",
    ]
    for measure_ in MEASURES:
        if results["dray"].samples[measure_.key]:
            lines.append(_row(measure_, results))
    return "\n".join(lines)


def _row(measure_: Measure, results: dict[str, Results]) -> str:
    def cells(name: str) -> str:
        samples = results[name].samples[measure_.key] if name in results else []
        if not samples:
            return "– | – | –"
        value = statistics.median(each.value for each in samples)
        number = f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
        server = statistics.median(each.server_cpu for each in samples)
        load = statistics.median(each.load_cpu for each in samples)
        if not server:
            return f"{number} {measure_.unit} | | "
        per = [
            each.server_cpu / each.value * 1000 if measure_.more_is_better else each.server_cpu * each.value
            for each in samples
        ]
        each = statistics.median(per) * (1000 if measure_.unit == "s" else 1)
        cost = f"{each:.3f}" if each < 0.1 else f"{each:.2f}" if each < 10 else f"{each:,.0f}"
        return f"{number} {measure_.unit} | {server:.2f} / {load:.2f} | {cost}"

    dray = results["dray"].median(measure_.key)
    ratio, verdict = "–", ""
    if "kubernetes" in results:
        kubernetes = results["kubernetes"].median(measure_.key)
        times = dray / kubernetes if measure_.more_is_better else kubernetes / dray
        ratio = f"{times:.1f}×" if times < 20 else f"{times:,.0f}×"
        if measure_.wanted_ratio:
            verdict = "met" if times >= measure_.wanted_ratio else "missed"
    if measure_.wanted_value:
        verdict = "met" if dray < measure_.wanted_value else "missed"
    target = f"{measure_.target} {verdict}".strip()
    parts = [
        f"{statistics.median(each.other_load for each in result.samples[measure_.key]):.0%}"
        for result in results.values()
        if any(each.other_load for each in result.samples[measure_.key])
    ]
    others = " / ".join(parts)
    return f"| {measure_.title} | {cells('kubernetes')} | {cells('dray')} | {ratio} | {target} | {others} |"
