"""`dray whatif`: would these pods fit, where, and how many more nodes are needed."""

from __future__ import annotations

import argparse
from typing import Any

from dray.api.wording import plural
from dray.cli.arguments import add_flags
from dray.cli.manifests import valid_objects
from dray.cli.output import CommandError, add_output_flag, emit, table
from dray.cli.policies import load_policy
from dray.cli.progress import doing
from dray.cli.sources import add_source_flags, load_source, need
from dray.sim.hardware import parse_hardware
from dray.sim.snapshot import Snapshot
from dray.workbench.experiments import Experiment
from dray.workbench.workload_pods import pods_of, templates_of


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add(
        "files",
        nargs="*",
        metavar="FILE",
        help="manifests to try: pods, workloads of any kind with pod templates, claims, templates, classes",
    )
    add(
        "--add-node",
        action="append",
        default=[],
        metavar="PROFILE[:N]",
        help="add N nodes with this hardware; repeatable",
    )
    add(
        "--drain",
        action="append",
        default=[],
        metavar="NODE",
        help="remove this node and place its pods on others; repeatable",
    )
    add("--need", metavar="PROFILE", help="also find out how many more nodes with this hardware are needed")
    add_flags(parser, "--policy", default="first-fit")
    add_output_flag(parser)
    add_source_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Try; exit code 0 when everything fits, 1 when something does not, 2 for bad input."""
    if not args.files and not args.drain:
        raise CommandError("nothing to try", "give manifests, or --drain NODE")
    added = parse_hardware(args.add_node)
    needed = parse_hardware([args.need])[0][0] if args.need else None
    wanted = Snapshot()
    for obj in valid_objects(args.files):
        wanted.add(obj)
        for made in (*templates_of(obj), *pods_of(obj)):
            wanted.add(made)
    base = load_source(args, offline=bool(added))
    need(base, "resourceslices", "nodes", "deviceclasses")
    experiment = Experiment(base, wanted, added, args.drain, load_policy(args.policy))
    doing(f"placing {plural(len(wanted.pods), 'pod')}")
    outcome, moved = experiment.run()
    answer: dict[str, Any] = {
        "placed": [{"pod": p.pod, "node": p.node, "devices": p.devices} for p in outcome.placed],
        "refused": [{"pod": r.pod, "reason": r.reason} for r in outcome.refused],
        "drained": moved,
        "added": {profile.name: count for profile, count in added},
    }
    if needed is not None and outcome.refused:
        doing(f"counting the nodes that are needed ({needed.name})")
        answer["needed"] = experiment.needed(needed)
    if args.output == "table":
        _print(answer)
    else:
        emit(answer, args.output)
    return 0 if not answer["refused"] else 1


def _print(answer: dict[str, Any]) -> None:
    if answer["drained"]:
        print(f"draining moves {plural(len(answer['drained']), 'pod')}: {', '.join(answer['drained'])}")
    if answer["placed"]:
        rows = []
        for placed in answer["placed"]:
            devices = [device.rpartition("/")[2] for group in placed["devices"].values() for device in group]
            rows.append([placed["pod"], placed["node"], ", ".join(devices) or "-"])
        table(["POD", "NODE", "DEVICES"], rows)
    for refused in answer["refused"]:
        print(f"does not fit: {refused['pod']}: {refused['reason']}")
    total = len(answer["placed"]) + len(answer["refused"])
    print(f"{len(answer['placed'])} of {plural(total, 'pod')} fit")
    needed = answer.get("needed")
    if needed:
        more = plural(needed["nodes"], "more node") if needed["nodes"] else needed["note"]
        print(f"needed: {more} ({needed['profile']})")
