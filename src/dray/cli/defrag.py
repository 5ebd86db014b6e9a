"""`dray defrag`: which pods to move so that a waiting pod fits, or whole nodes become free.

Prints a plan and changes nothing; with `--execute` the plan is carried out.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from dray.api.wording import plural
from dray.cli.arguments import add_flags, seconds, whole_number
from dray.cli.output import CommandError, add_output_flag, emit, say, table
from dray.cli.policies import load_policy
from dray.cli.progress import doing
from dray.cli.sources import add_source_flags, connect, load_source
from dray.client import Client
from dray.workbench.defrag import MOST_MOVES, DefragPlan
from dray.workbench.defrag_execution import Execution, Executor, Goal, Unfinished, uncordon_nodes


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
    add(
        "--execute",
        action="store_true",
        help="carry the plan out: one pod at a time, within disruption budgets; repeat the command to continue",
    )
    add("--stop", action="store_true", help="uncordon the nodes that an unfinished --execute has cordoned")
    add(
        "--timeout",
        type=seconds(1, 86_400),
        default=300.0,
        metavar="SECONDS",
        help="--execute: the longest wait for one eviction, and for one replacement (default: 300)",
    )
    add_flags(
        parser,
        "--policy",
        help="the policy of the scheduler that places the moved pods (default: it has none)",
    )
    add_output_flag(parser)
    add_source_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Plan, or plan and act; exit code 0 when the goal can be (or was) reached, 1 when not, 2 for bad input."""
    if args.stop:
        return _on_cluster(args, _stop)
    if (args.pod is None) == (args.free_whole is None):
        raise CommandError("no goal was given", "--for POD, or --free-whole N")
    if args.execute:
        return _on_cluster(args, _execute)
    snapshot = load_source(args)
    doing("looking for moves")
    plan = _goal(args, snapshot.default_namespace).plan(snapshot, args.max_moves)
    if args.output == "table":
        _print(plan)
    else:
        emit(plan_data(plan), args.output)
    return 0 if plan.is_reached else 1


def _goal(args: argparse.Namespace, namespace: str) -> Goal:
    if args.pod is None:
        return Goal(free_nodes=args.free_whole, policy=load_policy(args.policy))
    return Goal(args.pod if "/" in args.pod else f"{namespace}/{args.pod}", policy=load_policy(args.policy))


def _on_cluster(args: argparse.Namespace, act: Callable[[argparse.Namespace, Client], Awaitable[int]]) -> int:
    if args.against:
        raise CommandError(
            "moves are made on a running cluster, not on --against",
            "name it with --kubeconfig, or leave both out",
        )

    async def main() -> int:
        async with connect(args.kubeconfig, args.context) as client:
            return await act(args, client)

    return asyncio.run(main())


async def _stop(args: argparse.Namespace, client: Client) -> int:
    found = await uncordon_nodes(client)
    say(f"uncordoned {', '.join(found)}" if found else "no node is cordoned by a defragmentation")
    return 0


async def _execute(args: argparse.Namespace, client: Client) -> int:
    executor = Executor(
        client, _goal(args, client.namespace), args.max_moves, seconds=args.timeout, report=say
    )
    show = _print if args.output == "table" else _show_nothing
    try:
        result = await executor.run(show)
    except Unfinished as error:
        raise CommandError(
            str(error), "finish it with the command that began it, or give it up with --stop", code=1
        ) from error
    if args.output != "table":
        emit(execution_data(result), args.output)
    _conclude(result)
    return 0 if result.is_reached else 1


def _show_nothing(plan: DefragPlan) -> None:
    """With -o json the plan is part of the result."""


def _conclude(result: Execution) -> None:
    if result.moved:
        how = "as previewed" if result.is_as_previewed else "not as previewed"
        say(f"{plural(len(result.moved), 'move')} made, {how}")
    if result.reason:
        say(f"stopped: {result.reason}; all nodes are uncordoned again")
    elif result.node:
        say(f"{result.goal}: it is on {result.node}")


def execution_data(result: Execution) -> dict[str, Any]:
    """Return what was done as JSON data."""
    return {
        "goal": result.goal,
        "reached": result.is_reached,
        "reason": result.reason,
        "asPreviewed": result.is_as_previewed,
        "node": result.node,
        "preview": plan_data(result.preview) if result.preview is not None else None,
        "moved": [
            {"pod": each.move.pod, "from": each.move.source, "to": each.node, "expected": each.move.target,
             "replacement": each.replacement}
            for each in result.moved
        ],
    }  # fmt: skip


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
