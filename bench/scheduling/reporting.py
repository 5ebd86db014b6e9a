"""The tables: how the contenders compare, whether the targets are met, and every figure behind that.

Ratios are taken within a round, where both had the same machine, and their median is shown.
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable

from bench.scheduling.contenders import CONTENDERS, DRAY, FLOOR, KUBE, STACK, USUAL
from bench.scheduling.measuring import Outcome
from bench.scheduling.workloads import WORKLOADS
from bench.stacks import kubernetes_binaries

NEAR_FLOOR = 0.85  # pods/s of dray on kube-apiserver, of those that the mock reaches there
LITTLE_CPU = 3.0  # milliseconds of the scheduler per pod
WHOLE_STACK = 5.0  # pods/s of dray's whole stack, of those of Kubernetes' whole stack

MUCH_LOAD = 0.15  # share of the machine that others use, above which rates are doubtful

Figure = Callable[[Outcome], float]


def rate(outcome: Outcome) -> float:
    """Return the pods/s of a run."""
    return outcome.pods_per_second


def own_cpu(outcome: Outcome) -> float:
    """Return the CPU milliseconds per pod of the scheduler."""
    return outcome.cpu_ms["scheduler"]


class Table:
    """Outcomes by workload and contender."""

    def __init__(self, outcomes: list[Outcome]) -> None:
        self.outcomes = outcomes
        self.workloads = [name for name in WORKLOADS if any(each.workload == name for each in outcomes)]
        self.contenders = [name for name in CONTENDERS if any(each.contender == name for each in outcomes)]

    def runs(self, workload: str, contender: str, *, good: bool = True) -> list[Outcome]:
        """Return the rounds of one contender, without those that failed unless they are wanted."""
        return [
            each
            for each in self.outcomes
            if each.workload == workload and each.contender == contender and not (good and each.error)
        ]

    def median(self, workload: str, contender: str, figure: Figure) -> float | None:
        """Return the median of a figure over the rounds; None without a good round."""
        found = [figure(each) for each in self.runs(workload, contender)]
        return statistics.median(found) if found else None

    def ratio(self, workload: str, contender: str, other: str) -> float | None:
        """Return the median over rounds of the pods/s of one as a multiple of the other's."""
        others = {each.round: rate(each) for each in self.runs(workload, other)}
        found = [
            rate(each) / others[each.round] for each in self.runs(workload, contender) if each.round in others
        ]
        return statistics.median(found) if found else None


def report(outcomes: list[Outcome]) -> str:
    """Write the section of BENCHMARKS.md."""
    table = Table(outcomes)
    return "\n".join(["## Scheduling", "", _introduction(table), "", *_targets(table), "", *_all(table)])


def _introduction(table: Table) -> str:
    binaries = kubernetes_binaries()
    peers = "No Kubernetes here (`tools/peers/build` makes it), so dray ran alone"
    if binaries is not None:
        peers = f"Kubernetes {binaries.name}"
    n_rounds = max(each.round for each in table.outcomes) + 1
    good = [each for each in table.outcomes if not each.error]
    steady = [each.seconds for each in good if WORKLOADS[each.workload].mode == "steady"]
    lasting = f" for {statistics.median(steady):.0f} s" if steady else ""
    return (
        f"{peers}; Python {platform.python_version()}, {os.cpu_count()} cores ({platform.machine()});"
        f" {n_rounds} round{'s' if n_rounds > 1 else ''}, a fresh stack for every run, contenders in turn."
        " Every pod has a claim from a template, so the controllers that make and remove claims take part."
        f" Steady states: ten pods in flight{lasting}, each bound pod is deleted and replaced."
        " *Floor* is a mock that decides nothing and makes the same writes: the limit that server and controllers"
        " set. etcd runs without fsync, `dray server` durably. An independent checker followed every change of every"
        " claim and judged the end states. [How to read it](docs/benchmarks.md#scheduling)."
    )


# --- targets --------------------------------------------------------------------


def _targets(table: Table) -> list[str]:
    lines = [
        "### Targets",
        "",
        f"On kube-apiserver: at least {NEAR_FLOOR:.0%} of the floor's pods/s, and at most {LITTLE_CPU:g} ms of the"
        f" scheduler's CPU a pod. Whole stack: at least {WHOLE_STACK:g} times the pods/s of Kubernetes' whole stack.",
        "",
        "| workload | kube | floor | dray | dray ÷ floor | dray ÷ kube | CPU ms a pod | whole stack | whole stack ÷ kube |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    scores: dict[str, list[bool]] = {"floor": [], "cpu": [], "stack": []}
    for name in table.workloads:
        near = _verdict(table.ratio(name, DRAY, FLOOR), NEAR_FLOOR, scores["floor"], is_least=True)
        cpu = table.median(name, DRAY, own_cpu)
        little = _verdict(cpu, LITTLE_CPU, scores["cpu"], is_least=False)
        times = _verdict(table.ratio(name, STACK, KUBE), WHOLE_STACK, scores["stack"], is_least=True)
        speeds = [_number(table.median(name, each, rate)) for each in (KUBE, FLOOR, DRAY)]
        lines.append(
            f"| {name} | {' | '.join(speeds)} | {near} | {_number(table.ratio(name, DRAY, KUBE))} | {little} |"
            f" {_number(table.median(name, STACK, rate))} | {times} |"
        )
    named = [("within 15 % of the floor", "floor"), ("little CPU", "cpu"), ("whole stack", "stack")]
    counts = [f"{what}: {sum(scores[key])} of {len(scores[key])}" for what, key in named if scores[key]]
    if counts:
        lines += ["", f"Met, of the workloads that were measured: {'; '.join(counts)}."]
    busiest = max(each.other_load for each in table.outcomes)
    if busiest > MUCH_LOAD:
        lines += [
            "",
            f"Not a quiet machine: other processes used up to {busiest:.0%} of the machine during a run, so rates and"
            " their ratios say little; CPU a pod says most.",
        ]
    return lines


def _verdict(value: float | None, target: float, scores: list[bool], *, is_least: bool) -> str:
    if value is None:
        return "–"
    is_met = value >= target if is_least else value <= target
    scores.append(is_met)
    return f"{_number(value)} {'met' if is_met else 'missed'}"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


# --- every figure ---------------------------------------------------------------

HEADER = (
    "| workload | contender | pods/s | steady/s | p50 s | p99 s | scheduler ms | server ms | etcd ms |"
    " controllers ms | scheduler MB | stack MB | other load | problems |"
)


def _all(table: Table) -> list[str]:
    lines = ["### All figures", "", *_legend(table), "", HEADER, "|---|---|" + "---:|" * 12]
    for workload in table.workloads:
        for contender in table.contenders:
            lines += _row(table, workload, contender)
    skipped = [CONTENDERS[name].about for name in USUAL if name not in table.contenders]
    if skipped:
        lines += ["", f"Not run: {', '.join(skipped)}."]
    return lines


def _legend(table: Table) -> list[str]:
    lines = []
    for name in table.workloads:
        first = next(each for each in table.outcomes if each.workload == name)
        workload = WORKLOADS[name]
        pods = f", {first.pods} pods" if workload.mode != "steady" else ""
        lines.append(f"- *{name}*: {first.nodes} nodes{pods}; {workload.about}")
    return lines


def _problems(runs: list[Outcome]) -> str:
    """Return the number of wrong allocations, and what else was not as it should be."""
    n_failed, n_unexplained = sum(bool(each.error) for each in runs), sum(each.unexplained for each in runs)
    text = str(sum(len(each.problems) for each in runs))
    text += f", {n_unexplained} impossible pods without a condition" if n_unexplained else ""
    return text + (f", {n_failed} of {len(runs)} runs failed" if n_failed else "")


def _row(table: Table, workload: str, contender: str) -> list[str]:
    runs = table.runs(workload, contender, good=False)
    failed = [each.error for each in runs if each.error]
    about = CONTENDERS[contender].about
    if len(failed) == len(runs):
        return [f"| {workload} | {about} | failed: {failed[0]} |" + " |" * 11] if failed else []

    def shown(figure: Figure) -> str:
        return _number(table.median(workload, contender, figure))

    def cpu(part: str) -> str:
        return shown(lambda each: each.cpu_ms.get(part, 0.0))

    figures = [
        shown(rate), shown(lambda each: each.steady), shown(lambda each: each.p50), shown(lambda each: each.p99),
        cpu("scheduler"), cpu("server"), cpu("etcd"), cpu("controllers"),
        shown(lambda each: each.megabytes["scheduler"]), shown(lambda each: sum(each.megabytes.values())),
        f"{table.median(workload, contender, lambda each: each.other_load) or 0:.0%}",
        _problems(runs),
    ]  # fmt: skip
    return [f"| {workload} | {about} | {' | '.join(figures)} |"]
