"""`dray sim run`: simulate a trace in virtual time under several policies, with the scheduler's own code.

Every run (one policy, one seed) is appended to `runs.jsonl` in the output folder when it is finished; the same command again
goes on behind the last one. Results: results.json, results.csv and report.html.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from dray.api.parsing import ParseError, load_json, load_yaml
from dray.api.wording import plural
from dray.cli.arguments import POLICIES, policy_name, seconds, whole_number
from dray.cli.output import CommandError, add_output_flag, emit, say, table
from dray.cli.policies import load_policy
from dray.cli.progress import doing
from dray.cli.sources import profile_snapshot
from dray.client.bounded_files import read_file
from dray.scheduler.policies import NodePolicy, policy_named
from dray.sim.report import html_report, shown
from dray.sim.simulation import (
    RunResult,
    Settings,
    Simulation,
    as_data,
    drivers_asked_for,
    from_data,
)
from dray.sim.snapshot import Snapshot, load_snapshot
from dray.sim.statistics import MEASURES, compare, estimates
from dray.sim.trace import Trace, is_recording, read_recording
from dray.sim.trace_csv import OPENB, parse_mapping, read_nodes, read_pods

DEFAULT = "default"  # the scheduler without a policy
_MOST_SEEDS = 1000
_BAR = 24  # characters


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands and flags."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    run_ = actions.add_parser("run", help="simulate a trace under one or more policies and write a report")
    add = run_.add_argument
    add(
        "--trace",
        required=True,
        metavar="FILE",
        help="openb pod list, other CSV (with --mapping), or a file of `dray record`",
    )
    add("--mapping", metavar="FILE", help="which column of a CSV file means what (YAML)")
    add(
        "--nodes",
        action="append",
        default=[],
        metavar="NODES",
        help="the cluster: an openb node list, a snapshot, or a hardware profile such as dgx-h100:20; repeatable",
    )
    add(
        "--policy",
        type=policy_list,
        default=[DEFAULT, "frag"],
        metavar="NAME,…",
        help=f"policies to compare: {DEFAULT} (no policy), {', '.join(POLICIES[:4])}, MODULE:CLASS (default: {DEFAULT},frag)",
    )
    add(
        "--seeds",
        type=whole_number(1, _MOST_SEEDS),
        default=3,
        metavar="N",
        help="runs of each policy (default: 3)",
    )
    add(
        "--first-seed",
        type=whole_number(0, 1 << 31),
        default=42,
        metavar="N",
        help="the first seed (default: 42)",
    )
    add(
        "--arrivals",
        choices=("shuffle", "trace", "poisson", "fill"),
        default="shuffle",
        help="shuffle: recorded times, pods in random order (the default); trace: as recorded; poisson: random times; "
        "fill: one after the other until 130 %% of the capacity has arrived, nobody leaves",
    )
    add(
        "--load",
        type=_load,
        metavar="X",
        help="stretch times so that pods ask for X of the capacity, for example 0.9",
    )
    add(
        "--pods",
        type=whole_number(1, 5_000_000),
        metavar="N",
        help="how many pods (default: those of the trace)",
    )
    add("--drop", action="store_true", help="drop pods that fit nowhere instead of letting them wait")
    add(
        "--mtbf",
        type=seconds(1.0, 1e9),
        metavar="SECONDS",
        help="mean time between failures of a node (default: none fail)",
    )
    add(
        "--mttr",
        type=seconds(1.0, 1e9),
        default=3600.0,
        metavar="SECONDS",
        help="mean time to repair (default: 3600)",
    )
    add(
        "--out",
        type=Path,
        default=Path("sim-results"),
        metavar="DIR",
        help="folder of the results (default: sim-results)",
    )
    add_output_flag(run_)


def policy_list(text: str) -> list[str]:
    """Read policies separated by commas; the type of `--policy`."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or len(names) > 20:
        raise argparse.ArgumentTypeError("give one to twenty policies, separated by commas")
    for name in names:
        if name == "topology":
            raise argparse.ArgumentTypeError("topology chooses devices within a node; it cannot be simulated")
        if name != DEFAULT:
            policy_name(name)
    return list(dict.fromkeys(names))


def _load(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0.001 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number from 0.001 to 100")
    return value


def run(args: argparse.Namespace) -> int:
    """Simulate all policies and seeds that are not done yet, then write the results."""
    doing("reading the trace")
    trace = load_trace(args.trace, args.mapping, args.nodes)
    settings = Settings(
        arrivals=args.arrivals,
        load=args.load,
        drops=args.drop,
        mtbf=args.mtbf or 0.0,
        mttr=args.mttr,
        pods=args.pods or 0,
    )
    args.out.mkdir(parents=True, exist_ok=True)
    checkpoint = Checkpoint(args.out / "runs.jsonl", _identity(args, settings))
    done = {(each.policy, each.seed): each for each in checkpoint.runs}
    # Seeds outside, policies inside: when it is interrupted, every policy has about as many runs.
    wanted = [
        (policy, seed)
        for seed in range(args.first_seed, args.first_seed + args.seeds)
        for policy in args.policy
    ]
    if any(each in done for each in wanted):
        say(
            f"{sum(each in done for each in wanted)} of {plural(len(wanted), 'run')} are done already ({checkpoint.path})"
        )
    for number, (policy, seed) in enumerate(wanted):
        if (policy, seed) not in done:
            bar = _Bar(number, len(wanted), policy, seed)
            found = simulate(trace, settings, policy, seed, bar)
            checkpoint.append(found)
            done[policy, seed] = found
    runs = [done[each] for each in sorted(wanted, key=lambda each: (args.policy.index(each[0]), each[1]))]
    facts = _facts(args, trace)
    answer = write_results(args.out, facts, runs)
    if args.output == "table":
        _print(runs)
        say(f"report: {args.out / 'report.html'} (also results.json, results.csv)")
    else:
        emit(answer, args.output)
    return 0


def simulate(trace: Trace, settings: Settings, policy: str, seed: int, bar: _Bar) -> RunResult:
    """Run one simulation."""
    found = load_policy(policy) if policy != DEFAULT else ""
    chosen = found if isinstance(found, NodePolicy) else policy_named(found) if found else None
    return Simulation(trace, settings, chosen, seed, name=policy, on_progress=bar.show).run()


class _Bar:
    """The progress of one run among all."""

    def __init__(self, number: int, total: int, policy: str, seed: int) -> None:
        self._number, self._total, self._what = number, total, f"{policy}, seed {seed}"
        self._began = time.monotonic()
        self.show(0.0)

    def show(self, part: float) -> None:
        filled = int(_BAR * part)
        left = ""
        if part > 0.02:
            left = f", {(time.monotonic() - self._began) * (1 - part) / part:.0f} s left"
        bar = "#" * filled + "." * (_BAR - filled)
        doing(f"run {self._number + 1} of {self._total} [{bar}] {100 * part:.0f} % ({self._what}{left})")


# --- reading ----------------------------------------------------------------------


def load_trace(path: str, mapping: str | None, nodes: Sequence[str]) -> Trace:
    """Read a trace and the cluster that it runs on."""
    file = Path(path)
    if is_recording(file):
        trace = read_recording(file)
    else:
        columns = OPENB
        if mapping is not None:
            try:
                columns = parse_mapping(load_yaml(read_file(mapping)), mapping)
            except ParseError as error:
                raise CommandError(f"{mapping}: {error}") from error
        trace = read_pods(file, columns)
    if nodes:
        trace = trace.on(load_nodes(nodes))
    if not trace.nodes:
        raise CommandError(
            "the trace has no nodes", "name the cluster with --nodes: a node list, a snapshot, or dgx-h100:20"
        )
    return trace


def load_nodes(names: Sequence[str]) -> Snapshot:
    """Return the nodes and devices of node lists, snapshots and profiles."""
    merged = Snapshot()
    for name in names:
        path = Path(name)
        if not path.exists():
            found = profile_snapshot(name)
            if found is None:
                raise CommandError(
                    f"{name}: no such file or hardware profile", "for example --nodes dgx-h100:20"
                )
        elif path.suffix == ".csv":
            found = Snapshot()
            found.nodes, found.slices = read_nodes(path)
        else:
            found = load_snapshot([path])
        merged.nodes += found.nodes
        merged.slices += found.slices
        known = {each.metadata.name for each in merged.classes}
        merged.classes += [each for each in found.classes if each.metadata.name not in known]
    return merged


def _identity(args: argparse.Namespace, settings: Settings) -> str:
    """Return a mark of everything that a run depends on, beside policy and seed."""
    mark = hashlib.sha256(repr(settings).encode())
    for name in (args.trace, args.mapping, *args.nodes):
        mark.update(b"\0" + str(name).encode())
        if name and Path(name).is_file():
            mark.update(hashlib.sha256(read_file(name)).digest())
    return mark.hexdigest()[:16]


class Checkpoint:
    """Finished runs, one JSON line each; lines of other settings and a line cut short are left out."""

    def __init__(self, path: Path, identity: str) -> None:
        self.path, self._identity = path, identity
        self.runs: list[RunResult] = []
        if not path.exists():
            return
        for line in read_file(path).splitlines():
            try:
                entry = load_json(line)
                if isinstance(entry, dict) and entry.get("identity") == identity:
                    self.runs.append(from_data(entry["run"]))
            except (ParseError, msgspec.ValidationError, KeyError):
                continue  # the process was killed while it wrote

    def append(self, run: RunResult) -> None:
        """Keep a run for good."""
        line = msgspec.json.encode({"identity": self._identity, "run": as_data(run)})
        with self.path.open("ab") as file:
            file.write(b"\n" + line + b"\n")  # after a line cut short, begin a new one
            file.flush()
            os.fsync(file.fileno())


# --- writing ----------------------------------------------------------------------


def _facts(args: argparse.Namespace, trace: Trace) -> list[tuple[str, str]]:
    drivers = drivers_asked_for(trace)
    devices = sum(len(each.spec.devices) for each in trace.slices if each.spec.driver in drivers)
    facts = [
        ("trace", f"{Path(args.trace).name}, {len(trace.arrivals):,} pods, {len(trace.templates):,} kinds"),
        ("cluster", f"{len(trace.nodes):,} nodes, {devices:,} devices"),
        ("arrivals", args.arrivals + (f", load {args.load:g}" if args.load else "")),
        ("pods that fit nowhere", "are dropped" if args.drop or args.arrivals == "fill" else "wait"),
    ]
    if args.mtbf:
        facts.append(("failures", f"every {args.mtbf:g} s per node, repaired after {args.mttr:g} s"))
    return facts


def write_results(folder: Path, facts: list[tuple[str, str]], runs: Sequence[RunResult]) -> dict[str, Any]:
    """Write results.json, results.csv and report.html; return the data."""
    answer = {
        "settings": dict(facts),
        "policies": {
            policy: {key: msgspec.to_builtins(value) for key, value in row.items()}
            for policy, row in estimates(runs).items()
        },
        "comparisons": [{**msgspec.to_builtins(each), "isClear": each.is_clear} for each in compare(runs)],
        "runs": [as_data(run) for run in runs],
    }
    (folder / "results.json").write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")
    with (folder / "results.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["policy", "seed", "pods", "placed", *(measure.key for measure in MEASURES)])
        for run in runs:
            rows.writerow(
                [run.policy, run.seed, run.pods, run.placed, *(measure.value(run) for measure in MEASURES)]
            )
    report = html_report("Simulation of scheduling policies", facts, runs)
    (folder / "report.html").write_text(report, encoding="utf-8")
    return answer


def _print(runs: Sequence[RunResult]) -> None:
    found = estimates(runs)
    present = [each for each in MEASURES if any(each.key in row for row in found.values())]
    rows = []
    for measure in present:
        cells = [
            shown(row[measure.key], is_percent=measure.is_percent) if measure.key in row else "-"
            for row in found.values()
        ]
        rows.append([measure.title + (" (%)" if measure.is_percent else ""), *cells])
    table(["MEASURE", *found], rows)
