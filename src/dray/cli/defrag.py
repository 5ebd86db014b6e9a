"""`dray defrag`: which pods to move so that a waiting pod fits, or whole nodes become free. Prints a plan, changes nothing."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from dray.cli.arguments import whole_number
from dray.cli.output import CommandError, add_output_flag, emit, plural, table
from dray.cli.progress import doing
from dray.cli.sources import add_source_flags, load_source
from dray.workbench.defrag import MOST_MOVES, DefragPlan, plan_defrag_for, plan_free_nodes


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add("--for", dest="pod", metavar="POD", help="make room for this waiting pod: NAME, or NAMESPACE/NAME")
    add(
        "--free-whole",
        type=whole_number(1, 10_000),
        metavar="N",
        help="let N nodes have all their devices free",
    )
    add(
        "--max-moves",
        type=whole_number(1, MOST_MOVES),
        default=2,
        metavar="N",
        help="the most pods to move (default: 2)",
    )
    add_output_flag(parser)
    add_source_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Plan; exit code 0 when the goal can be reached, 1 when it cannot, 2 for bad input."""
    if (args.pod is None) == (args.free_whole is None):
        raise CommandError("what is to be reached?", "give --for POD, or --free-whole N")
    snapshot = load_source(args)
    doing("looking for moves")
    if args.pod is not None:
        name = args.pod if "/" in args.pod else f"{snapshot.default_namespace}/{args.pod}"
        plan = plan_defrag_for(snapshot, name, args.max_moves)
    else:
        plan = plan_free_nodes(snapshot, args.free_whole, args.max_moves)
    if args.output == "table":
        _print(plan)
    else:
        emit(plan_data(plan), args.output)
    return 0 if plan.is_reached else 1


def plan_data(plan: DefragPlan) -> dict[str, Any]:
    """Return the plan as JSON data."""
    found: dict[str, Any] = msgspec.to_builtins(plan)
    return {
        "goal": found["goal"],
        "reached": found["is_reached"],
        "note": found["note"],
        "cost": {"moves": len(plan.moves), "devices": sum(len(each.frees) for each in plan.moves)},
        "moves": found["moves"],
        "placed": found["result"],
        "freeNodes": found["freed_nodes"],
    }


def _print(plan: DefragPlan) -> None:
    if plan.moves:
        rows = [
            [number, each.pod, each.source, each.target, ", ".join(each.budgets) or "-", each.reason]
            for number, each in enumerate(plan.moves, start=1)
        ]
        table(["MOVE", "POD", "FROM", "TO", "BUDGETS", "BECAUSE"], rows)
    for placed in plan.result:
        devices = ", ".join(device for group in placed.devices.values() for device in group)
        print(
            f"then {placed.pod} fits on {placed.node}{f' with {devices}' if devices else ''} (replayed by the scheduler)"
        )
    if plan.freed_nodes:
        print(f"nodes with all devices free: {', '.join(plan.freed_nodes)}")
    cost = plural(len(plan.moves), "move")
    print(f"{plan.goal}: {plan.note or ('reached with ' + cost)}")
