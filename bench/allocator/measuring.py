"""Run all questions through dray and through the peer, alternating, and write the table."""

from __future__ import annotations

import gc
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bench.allocator.instances import BIG_GPU, Inventory, Question, claim, cluster, questions, request
from dray.allocator import Allocator
from dray.allocator.cases import add_rest, read_case
from dray.api.resource import ResourceClaim, ResourceSlice

PEER = Path(__file__).resolve().parent / "peer"
LIMIT_MS = 5_000  # an upstream search that takes longer is stopped


class Peer:
    """Upstream's allocator in a process of its own."""

    def __init__(self, binary: Path) -> None:
        self._process = subprocess.Popen([binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def load(self, inventory: Inventory, folder: Path) -> None:
        path = folder / "inventory.json"
        path.write_bytes(msgspec.json.encode(inventory.data()))
        self._call({"load": str(path)})

    def ask(self, question: Question) -> dict[str, Any]:
        return self._call(
            {"claims": question.claims, "first": question.first, "limitMs": LIMIT_MS}, refuses=False
        )

    def _call(self, command: dict[str, Any], *, refuses: bool = True) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        if answer["error"] and (refuses or not answer["timedOut"]):
            raise RuntimeError(f"the peer failed: {answer['error']}")
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)


def build_peer(folder: Path) -> tuple[Path | None, str]:
    """Build the peer; return it, or None with the reason why there is none."""
    if shutil.which("go") is None:
        return None, "Go is not installed, so dray ran alone."
    binary = folder / "peer"
    built = subprocess.run(
        ["go", "build", "-o", binary, "."],
        cwd=PEER,
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    if built.returncode:
        return (
            None,
            f"The peer could not be built ({built.stderr.strip().splitlines()[-1]}), so dray ran alone.",
        )
    version = subprocess.run(["go", "version"], capture_output=True, text=True, check=True).stdout.split()[2]
    return binary, f"Upstream: k8s.io/dynamic-resource-allocation v0.37.1, {version}."


@dataclass
class Row:
    """One question, measured."""

    question: Question
    upstream: list[float] = field(default_factory=list)
    timed_out: bool = False
    first: float = 0.0  # dray, new question
    again: list[float] = field(default_factory=list)  # dray, same question by the next pod
    feasible: int = 0


def load_allocator(inventory: Inventory) -> Allocator:
    allocator = Allocator()
    data = inventory.data()
    for resource_slice in msgspec.convert(data["slices"], list[ResourceSlice]):
        allocator.set_slice(resource_slice)
    case = read_case({**data, "slices": None})
    add_rest(allocator, case)
    for node in allocator.nodes:
        allocator.view(node)
    # What is loaded stays: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    return allocator


def ask(allocator: Allocator, claims: list[ResourceClaim], first: int) -> tuple[float, int]:
    started = time.perf_counter()
    answers = allocator.plan_nodes(claims, first=first or None, budget=1_000_000)
    for plan in answers.plans:
        plan.allocations  # noqa: B018  # built when read; upstream builds them, too
    return (time.perf_counter() - started) * 1000, len(answers.plans)


def measure(rows: list[Row], peer: Peer | None, folder: Path) -> None:
    loaded: Inventory | None = None
    allocator = Allocator()
    for row in rows:
        question = row.question
        if question.inventory is not loaded:
            loaded = question.inventory
            gc.unfreeze()
            allocator = load_allocator(loaded)
            if peer is not None:
                peer.load(loaded, folder)
        claims = msgspec.convert(question.claims, list[ResourceClaim])
        for number in range(question.rounds):
            if peer is not None and not row.timed_out:
                answer = peer.ask(question)
                row.timed_out = answer["timedOut"]
                if not row.timed_out:
                    row.upstream.append(answer["ms"])
                    row.feasible = answer["feasible"]
            if number == 0:
                row.first, found = ask(allocator, claims, question.first)
            ms, found = ask(allocator, claims, question.first)
            row.again.append(ms)
            if peer is not None and not row.timed_out and found != row.feasible:
                raise RuntimeError(f"{question.name}: dray finds {found} nodes, upstream {row.feasible}")
            row.feasible = found
        sys.stderr.write(f"  {question.inventory.name}: {question.name}: {line_of(row)}\n")


def line_of(row: Row) -> str:
    again = statistics.median(row.again)
    if row.timed_out:
        upstream, ratio, ratio_first = (
            f"> {LIMIT_MS / 1000:.0f} s",
            f"> {LIMIT_MS / again:,.0f}×",
            f"> {LIMIT_MS / row.first:,.0f}×",
        )
    elif row.upstream:
        ms = statistics.median(row.upstream)
        upstream, ratio, ratio_first = f"{ms:,.2f}", f"{ms / again:,.0f}×", f"{ms / row.first:,.1f}×"
    else:
        upstream, ratio, ratio_first = "–", "–", "–"
    return f"{upstream} | {row.first:.2f} | {ratio_first} | {again:.2f} | {ratio}"


def upkeep(n_nodes: int) -> list[str]:
    """Measure loading and keeping up to date."""
    gc.unfreeze()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    texts = [msgspec.json.encode(s) for s in cluster(n_nodes).slices]
    decoder = msgspec.json.Decoder(ResourceSlice)
    started = time.perf_counter()
    slices = [decoder.decode(text) for text in texts]
    decoded = time.perf_counter()
    allocator = Allocator()
    for resource_slice in slices:
        allocator.set_slice(resource_slice)
    parsed = time.perf_counter()
    nodes = [resource_slice.spec.node_name or "" for resource_slice in slices[::2]]
    for node in nodes:
        allocator.view(node)
    viewed = time.perf_counter()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    add_rest(allocator, read_case({**cluster(1).data(), "slices": None}))
    claims = msgspec.convert(
        [
            {
                "metadata": {"name": "c"},
                "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}},
            }
        ],
        list[ResourceClaim],
    )
    plan = allocator.plan(nodes[0], claims)
    times: dict[str, list[float]] = {"slice": [], "taken": [], "undone": []}
    for index in range(200):
        t0 = time.perf_counter()
        allocator.set_slice(slices[index * 2])
        t1 = time.perf_counter()
        undo = allocator.take("claim", plan.allocations[0])  # type: ignore[union-attr]
        t2 = time.perf_counter()
        undo()
        t3 = time.perf_counter()
        for name, value in zip(times, (t1 - t0, t2 - t1, t3 - t2), strict=True):
            times[name].append(value * 1e6)
    median = {name: statistics.median(values) for name, values in times.items()}
    return [
        f"- cold load of {n_nodes:,} nodes ({len(slices):,} slices, {n_nodes * 10:,} devices): decode"
        f" {(decoded - started) * 1000:.0f} ms, parse {(parsed - decoded) * 1000:.0f} ms,"
        f" pools of all nodes {(viewed - parsed) * 1000:.0f} ms",
        f"- one slice replaced: {median['slice']:.0f} µs; one allocation booked: {median['taken']:.0f} µs;"
        f" taken back: {median['undone']:.0f} µs",
        f"- memory for that inventory: about {max(0, after - before) / 1024:.0f} MiB above {before / 1024:.0f} MiB before",
    ]


def pods_in_a_row(n_nodes: int, n_pods: int) -> str:
    """Measure what a scheduler does all day: ask, take one of the first 100 nodes, ask for the next pod."""
    allocator = load_allocator(cluster(n_nodes))
    claims = msgspec.convert(claim(request("gpu", "gpu", 1, BIG_GPU)), list[ResourceClaim])
    allocator.plan_nodes(claims, first=100)
    started = time.perf_counter()
    for number in range(n_pods):
        plans = allocator.plan_nodes(claims, first=100).plans
        allocator.take(f"pod-{number}", plans[number % len(plans)].allocations[0])
    per_pod = (time.perf_counter() - started) / n_pods * 1e6
    return (
        f"- {n_pods:,} pods in a row, one GPU each, {n_nodes:,} nodes: {per_pod:.0f} µs per pod"
        " (100 feasible nodes found, one allocation built and booked)"
    )


def run(*, quick: bool) -> str:
    """Measure everything and return the report."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="dray-bench-") as name:
        folder = Path(name)
        binary, about_peer = build_peer(folder)
        keeping = upkeep(500 if quick else 5000)
        keeping.append(pods_in_a_row(500 if quick else 5000, 1000))
        peer = Peer(binary) if binary is not None else None
        rows = [Row(question) for question in questions(quick=quick)]
        try:
            measure(rows, peer, folder)
        finally:
            if peer is not None:
                peer.close()
    return report(rows, about_peer, keeping, load)


def report(rows: list[Row], about_peer: str, keeping: list[str], load: float) -> str:
    lines = [
        "## Allocator",
        "",
        f"{about_peer} dray on Python {platform.python_version()}, {os.cpu_count()} cores ({platform.machine()}),"
        " one process, one thread. Both sides have their inventory loaded; a run is one pod's question, allocations"
        " built. Rounds alternate; medians in milliseconds. *First* is dray meeting the question for the first time"
        " (selectors are compiled and evaluated, nodes sorted into groups), *again* is the next pod with an equal claim"
        " (two lookups per node, allocations built anew); the targets are for *again*. Exponential searches of upstream"
        f" are stopped after {LIMIT_MS / 1000:.0f} s. Load average of the machine at the start: {load:.1f}.",
        "",
        "| inventory | question | nodes found | upstream | dray, first | ratio | dray, again | ratio | target |",
        "|---|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        question = row.question
        target = f"≥ {question.target:.0f}×" if question.target else ""
        lines.append(
            f"| {question.inventory.name} | {question.name} | {row.feasible} | {line_of(row)} | {target} |"
        )
    lines += ["", "Upkeep:", "", *keeping]
    return "\n".join(lines)
