"""All runs of a plan, contenders in turn, and the command line that makes the plan."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import uvloop

from bench.scheduling.contenders import CONTENDERS, STACK, USUAL
from bench.scheduling.measuring import Outcome, run_once
from bench.scheduling.reporting import report
from bench.scheduling.workloads import WORKLOADS, Workload
from bench.stacks import kubernetes_binaries

SHORT_SECONDS, FULL_SECONDS = 5.0, 10.0  # of a steady state
FULL_ROUNDS = 3
LARGE = 5000  # nodes; such workloads are for --full


@dataclass(frozen=True)
class Plan:
    """What is to be run."""

    workloads: list[Workload]
    contenders: list[str]
    rounds: int = 1
    seconds: float = SHORT_SECONDS


def usual_plan() -> Plan:
    """Return the plan of `make bench`."""
    small = [each.sized(is_short=True) for each in WORKLOADS.values() if each.n_nodes < LARGE]
    return Plan(small, USUAL)


def quick_plan() -> Plan:
    """Return a plan that takes a minute or two."""
    chosen = [WORKLOADS[name].sized(20) for name in ("burst", "half", "impossible")]
    return Plan(chosen, USUAL, seconds=3.0)


def possible(contenders: list[str]) -> list[str]:
    """Return those that can run here; says so when Kubernetes is missing."""
    if kubernetes_binaries() is not None:
        return contenders
    alone = [name for name in contenders if not CONTENDERS[name].on_kubernetes] or [STACK]
    if alone != contenders:
        _say(f"no Kubernetes here (tools/peers/build makes it): {', '.join(alone)} alone")
    return alone


def run_all(plan: Plan, keep: Callable[[Outcome], None] = lambda outcome: None) -> list[Outcome]:
    """Run everything; a run that fails is an outcome, too."""
    contenders = possible(plan.contenders)
    n_runs, outcomes = len(plan.workloads) * plan.rounds * len(contenders), []
    for workload in plan.workloads:
        for round_number in range(plan.rounds):
            for name in contenders:
                started = time.perf_counter()
                try:
                    outcome = uvloop.run(run_once(CONTENDERS[name], workload, round_number, plan.seconds))
                except Exception as error:  # the other runs are worth having all the same
                    outcome = Outcome(workload.name, name, round_number, workload.n_nodes, workload.n_pods)
                    outcome.error = _shortened(error)
                outcomes.append(outcome)
                keep(outcome)
                took = time.perf_counter() - started
                _say(f"{len(outcomes)}/{n_runs} {_line(outcome)} ({took:.0f} s in all)")
    return outcomes


def _shortened(error: Exception) -> str:
    """Return the first and the last line of an error: what failed, and what its log says last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    ends = lines if len(lines) == 1 else [lines[0], lines[-1]]
    return " … ".join(end[:200] for end in ends).replace("|", "¦")


def _line(outcome: Outcome) -> str:
    head = f"{outcome.workload}, round {outcome.round + 1}: {outcome.contender}: "
    if outcome.error:
        return f"{head}failed: {outcome.error}"
    text = (
        f"{head}{outcome.pods_per_second:.0f} pods/s, {outcome.cpu_ms['scheduler']:.2f} ms of CPU a pod,"
        f" first {outcome.first:.2f} s, p99 {outcome.p99:.2f} s, others {outcome.other_load:.0%}, {len(outcome.problems)} problems"
    )
    if outcome.unexplained:
        text += f", {outcome.unexplained} impossible pods without a condition"
    return "; ".join([text, *outcome.problems[:3]])


def _say(text: str) -> None:
    sys.stderr.write(f"scheduling: {text}\n")
    sys.stderr.flush()


def run(*, quick: bool) -> str:
    """Measure the usual plan and return the section; wrong allocations are no result but a failure."""
    plan = quick_plan() if quick else usual_plan()
    outcomes = run_all(plan)
    wrong = [(each.workload, each.contender, each.problems[:5]) for each in outcomes if each.problems]
    if wrong:
        raise RuntimeError(f"wrong allocations: {wrong}")
    failed = [f"{each.workload}: {each.contender}: {each.error}" for each in outcomes if each.error]
    if len(failed) == len(outcomes):
        raise RuntimeError(f"no run succeeded: {failed[:3]}")
    return report(outcomes)


# --- command line ---------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Run chosen workloads at chosen sizes and print the tables."""
    args = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are ended, too
    seconds = args.duration or (FULL_SECONDS if args.full else SHORT_SECONDS)
    if args.tables:
        outcomes = [each for path in args.tables for each in read_outcomes(path)]
        if not outcomes:
            _say("these files hold no runs: write some with --json FILE")
            return 2
    else:
        outcomes = run_all(_plan(args, seconds), _keeper(args.json))
    section = report(outcomes)
    if args.write:
        from bench.__main__ import write_section

        write_section("scheduling", section)
        _say("written to BENCHMARKS.md")
    sys.stdout.write(section + "\n")
    return int(any(each.error or each.problems for each in outcomes))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.scheduling",
        description="Schedulers side by side. Without options: what `make bench` runs.",
    )
    parser.add_argument(
        "--full", action="store_true",
        help=f"all pods, {LARGE} nodes too, {FULL_ROUNDS} rounds, {FULL_SECONDS:g} s of each steady state: hours",
    )  # fmt: skip
    parser.add_argument(
        "--workload", action="append", choices=list(WORKLOADS), metavar="NAME",
        help=f"may be repeated; one of {', '.join(WORKLOADS)}",
    )  # fmt: skip
    parser.add_argument(
        "--contender", action="append", choices=list(CONTENDERS), metavar="NAME",
        help="may be repeated; "
        + "; ".join(f"{each.name}: {each.about}" for each in CONTENDERS.values())
        + f" (default: {', '.join(USUAL)})",
    )  # fmt: skip
    parser.add_argument("--nodes", type=int, metavar="N", help="instead of those of the workload")
    parser.add_argument("--pods", type=int, metavar="N", help="of a burst; no more a node than at full size")
    parser.add_argument("--rounds", type=int, metavar="N", help="medians are shown")
    parser.add_argument("--duration", type=float, metavar="SECONDS", help="of each steady state")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="append each run to FILE, one JSON object a line"
    )
    parser.add_argument(
        "--tables", type=Path, action="append", metavar="FILE",
        help="run nothing: the tables of runs that --json has kept; may be repeated",
    )  # fmt: skip
    parser.add_argument("--write", action="store_true", help="replace the section of BENCHMARKS.md, too")
    return parser


def _plan(args: argparse.Namespace, seconds: float) -> Plan:
    names = args.workload or [
        name for name, each in WORKLOADS.items() if args.full or args.nodes or each.n_nodes < LARGE
    ]
    workloads = [WORKLOADS[name].sized(args.nodes, args.pods, is_short=not args.full) for name in names]
    rounds = args.rounds or (FULL_ROUNDS if args.full else 1)
    return Plan(workloads, args.contender or USUAL, rounds, seconds)


def _keeper(path: Path | None) -> Callable[[Outcome], None]:
    def keep(outcome: Outcome) -> None:
        if path is not None:
            with path.open("ab") as file:
                file.write(msgspec.json.encode(outcome) + b"\n")

    return keep


def read_outcomes(path: Path) -> list[Outcome]:
    """Return the runs that a file holds."""
    return [msgspec.json.decode(line, type=Outcome) for line in path.read_bytes().splitlines() if line]
