"""Time the families of expressions in dray and in upstream, and compare costs on the way."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bench.cel.families import DEVICE, FAMILIES, FEATURES, at_the_limit
from dray.api.resource import DeviceAttribute, DeviceCapacity
from dray.cel import DeviceInput, EvaluationError, Program, compile_selector

PEER = Path(__file__).resolve().parent / "peer"
ROUNDS = 5
_LEAST = 1.0  # milliseconds; the ratio of shorter times says nothing


@dataclass(slots=True)
class Row:
    """One family, measured."""

    name: str
    cost: int
    upstream: float | None  # milliseconds
    dray: float


class Peer:
    """Upstream's evaluation in a process of its own."""

    def __init__(self, binary: Path) -> None:
        self._process = subprocess.Popen([binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, expression: str, rounds: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({**DEVICE, "expression": expression, "rounds": rounds}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)


def build_peer(folder: Path) -> Path | None:
    """Build the peer, or return None where there is no Go."""
    if shutil.which("go") is None:
        return None
    binary = folder / "peer"
    subprocess.run(["go", "build", "-o", binary, "."], cwd=PEER, check=True, timeout=1200)
    return binary


def device() -> DeviceInput:
    """Return the device that both sides look at."""
    capacity = {name: {"value": value} for name, value in DEVICE["capacity"].items()}
    return DeviceInput.build(
        DEVICE["driver"],
        msgspec.convert(DEVICE["attributes"], dict[str, DeviceAttribute]),
        msgspec.convert(capacity, dict[str, DeviceCapacity]),
    )


def evaluated(program: Program, on: DeviceInput, rounds: int) -> tuple[float, bool | None]:
    """Return the fastest of several evaluations in milliseconds, and the result."""
    best, result = float("inf"), None
    for _ in range(rounds):
        start = time.perf_counter()
        try:
            result = program.evaluate(on)
        except EvaluationError:
            result = None
        best = min(best, (time.perf_counter() - start) * 1000)
    return best, result


def measure(peer: Peer | None, names: list[str], rounds: int) -> list[Row]:
    """Measure families one after the other, each in both."""
    rows = []
    on = device()
    for name in names:
        expression, _ = at_the_limit(FAMILIES[name])
        program = compile_selector(expression, features=FEATURES, stored=True)
        evaluated(program, on, 1)  # the first evaluation makes the function
        answer = peer.ask(expression, rounds) if peer is not None else None
        best, result = evaluated(program, on, rounds)
        cost = program.outcome(on).cost or 0
        if answer is not None:
            wanted = None if answer["error"] else answer["result"]
            if (wanted, answer["cost"], answer["maxCost"]) != (result, cost, program.max_cost):
                raise RuntimeError(f"{name}: upstream says {answer}, dray {result}, cost {cost}")
        row = Row(name, cost, None if answer is None else answer["ms"], best)
        rows.append(row)
        sys.stderr.write(f"  {line_of(row)}\n")
    return rows


def line_of(row: Row) -> str:
    """Return a row of the table."""
    if row.upstream is None:
        return f"| {row.name} | {row.cost:,} | | {row.dray:.1f} | |"
    ratio = f"{row.dray / row.upstream:.2f}" if max(row.upstream, row.dray) >= _LEAST else ""
    return f"| {row.name} | {row.cost:,} | {row.upstream:.1f} | {row.dray:.1f} | {ratio} |"


def run(*, quick: bool) -> str:
    """Measure all families (a few, if quick) and return the section."""
    names = list(FAMILIES)[:8] if quick else list(FAMILIES)
    with tempfile.TemporaryDirectory() as folder:
        binary = build_peer(Path(folder))
        peer = None if binary is None else Peer(binary)
        rows = measure(peer, names, 2 if quick else ROUNDS)
        if peer is not None:
            peer.close()
    compared = [row for row in rows if row.upstream and max(row.upstream, row.dray) >= _LEAST]
    worst = max(compared, key=lambda row: row.dray / (row.upstream or 1), default=None)
    said = "Go is not installed, so dray ran alone."
    if worst is not None:
        said = (
            f"The highest ratio is {worst.dray / (worst.upstream or 1):.2f} ({worst.name}); results, costs and "
            "estimates are the same on both sides, or the bench fails."
        )
    head = [
        "## Selectors at the cost limit",
        "",
        "Each row is a family of expressions, grown until Kubernetes admits no larger one (estimated cost up to 1,000,000, "
        "length up to 10 KiB), evaluated on one device: the fastest of several rounds, in milliseconds. Upstream is "
        "k8s.io/dynamic-resource-allocation/cel v0.37.1 (cel-go 0.29.2). Loops are nested in tens, "
        "where upstream is fastest: in a long loop its cost tracking takes the square of the length.",
        f"Python {platform.python_version()}. {said}",
        "",
        "| expression | cost | upstream | dray | ratio |",
        "|---|---:|---:|---:|---:|",
    ]
    return "\n".join([*head, *map(line_of, rows)])
