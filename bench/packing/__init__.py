"""How full the GPUs of a recorded cluster get under each policy, beside the published figures.

Reads the openb traces from `../shared/data/openb/csv`, or from the directory named in
DRAY_OPENB; without it the section says so. Every arrival is decided by the scheduler's own placer and
allocator (`dray.sim.simulation`). All traces with ten seeds take hours of CPU; `python -m bench.packing` takes
traces, seeds and policies as arguments.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean

from bench.packing.bound import upper_bound
from dray.scheduler.policies import policy_named
from dray.sim.simulation import Settings, Simulation
from dray.sim.trace import Trace
from dray.sim.trace_csv import read_nodes, read_pods

FIRST_SEED = 42
FILL = Settings(arrivals="fill")
DEFAULT = Path(__file__).resolve().parents[3] / "shared" / "data" / "openb" / "csv"
TRACES = ("default", "gpushare40", "gpushare100", "multigpu20", "gpuspec33", "cpu050")
POLICIES = ("first-fit", "pack", "frag")

# FGD at 130 % arrived, mean of ten seeds (Weng et al., USENIX ATC 2023).
PUBLISHED = {
    "default": 95.39,
    "gpushare40": 94.15,
    "gpushare100": 86.90,
    "multigpu20": 95.65,
    "gpuspec33": 94.55,
    "cpu050": 95.21,
}

HEAD = """## Packing: how full GPUs get

The openb traces (Alibaba, 1,213 nodes, 6,212 GPUs; pods want shares of a GPU or several whole ones): pods arrive one
at a time in random order, nobody leaves, a pod that fits nowhere is dropped. Each is decided by the scheduler's placer and
allocator, with DRA claims. Allocated share of the GPUs, in percent, when demand of 100 % and of 130 % of the capacity
has arrived, mean of the seeds; CPU milliseconds per pod. FGD: published, mean of ten seeds, at 130 %. Bound: what a linear
programme that knows all arrivals cannot exceed, seed 42, at 130 % (`bench/packing/bound.py`; empty without highspy).

| trace | policy | seeds | at 100 % | at 130 % | FGD | bound | ms per pod |
|---|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One policy on one trace."""

    trace: str
    policy: str
    seeds: int
    at_100: float
    at_130: float
    bound: str  # percent
    milliseconds: float  # of CPU, per pod

    def __str__(self) -> str:
        published = f"{PUBLISHED[self.trace]:.2f}" if self.trace in PUBLISHED else ""
        return (
            f"| {self.trace} | {self.policy} | {self.seeds} | {self.at_100:.2f} | {self.at_130:.2f}"
            f" | {published} | {self.bound} | {self.milliseconds:.1f} |"
        )


def read_trace(directory: Path, trace: str) -> Trace:
    """Read the pods of a trace and the nodes with GPUs."""
    pods = read_pods(directory / f"openb_pod_list_{trace}.csv")
    pods.nodes, pods.slices = read_nodes(directory / "openb_node_list_gpu_node.csv")
    return pods


@cache
def bound_of(directory: Path, trace: str) -> str:
    """Return the upper bound of the first seed; empty without a solver."""
    if importlib.util.find_spec("highspy") is None:
        return ""
    filling = Simulation(read_trace(directory, trace), FILL, policy_named("first-fit"), FIRST_SEED)
    return f"{upper_bound(filling):.2f}"


def measure(directory: Path, trace: str, policy: str, seeds: Sequence[int]) -> Row:
    """Replay one trace under one policy with each seed."""
    pods = read_trace(directory, trace)
    runs = [Simulation(pods, FILL, policy_named(policy), seed, name=policy).run() for seed in seeds]
    fills = [run.allocated_at for run in runs]
    return Row(
        trace,
        policy,
        len(seeds),
        100 * mean(at["1"] for at in fills),
        100 * mean(at["1.3"] for at in fills),
        bound_of(directory, trace),
        1000 * sum(run.cpu_seconds for run in runs) / sum(run.pods for run in runs),
    )


def rows(traces: Iterable[str], policies: Sequence[str], n_seeds: int) -> Iterable[Row]:
    """Measure every policy on every trace."""
    seeds = range(FIRST_SEED, FIRST_SEED + n_seeds)
    for trace in traces:
        for policy in policies:
            yield measure(trace_directory(), trace, policy, seeds)


def trace_directory() -> Path:
    """Return where the traces are expected."""
    return Path(os.environ.get("DRAY_OPENB", DEFAULT))


def run(quick: bool) -> str:
    """Replay all traces with two seeds (`quick`: one trace, one seed) and return the section."""
    directory = trace_directory()
    if not directory.is_dir():
        return f"## Packing: how full GPUs get\n\nNot measured: the openb trace is not at {directory.name}/ (set DRAY_OPENB)."
    found = rows(("default",) if quick else TRACES, POLICIES, 1 if quick else 2)
    return HEAD + "\n".join(map(str, found)) + "\n"
