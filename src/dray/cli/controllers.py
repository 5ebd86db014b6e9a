"""`dray controllers`: the loops that create claims, release devices, evict pods and run workloads."""

from __future__ import annotations

import argparse
import asyncio

import uvloop

from dray.cli.arguments import add_flags, seconds
from dray.cli.services import log_to_stderr, make_election, until_stopped, work_as_leader
from dray.client import Client
from dray.control.manager import CONTROLLERS, chosen_controllers, make_controllers
from dray.control.node_lifecycle import NodeMonitoring
from dray.control.reconcile_loop import Caches, run_controllers
from dray.control.server_clock import ServerClock
from dray.host.garbage import collect_in_small_steps
from dray.host.heap import keep_heap_compact

_LONGEST = 86_400  # seconds


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add_flags(parser, "--kubeconfig", "--context")
    parser.add_argument(
        "--controllers",
        default="*",
        metavar="LIST",
        help=f"comma-separated; '*' is all, '-name' leaves one out. Known: {', '.join(CONTROLLERS)}",
    )
    add_flags(parser, "--leader-elect", "--leader-namespace")
    monitoring = NodeMonitoring()
    for flag, default, what in (
        (
            "--node-monitor-grace-period",
            monitoring.grace,
            "how long a node may be silent before it is NotReady",
        ),
        ("--node-monitor-period", monitoring.period, "how often the API server and the nodes are checked"),
    ):
        parser.add_argument(
            flag,
            type=seconds(0.001, _LONGEST),
            default=default,
            metavar="SECONDS",
            help=f"{what} (default: {default:g})",
        )
    add_flags(parser, "--log-format", "--verbose")


def run(args: argparse.Namespace) -> int:
    """Run until stopped."""
    log_to_stderr(args)
    keep_heap_compact()
    names = chosen_controllers(args.controllers.split(","))
    collect_in_small_steps()  # the caches are large, live long, and hold no garbage
    uvloop.run(_serve(args, names))
    return 0


async def _serve(args: argparse.Namespace, names: list[str]) -> None:
    async with Client.connect(args.kubeconfig, args.context, user_agent="dray-controllers") as connected:
        election = None
        if args.leader_elect:
            election = make_election(connected, "dray-controllers", args.leader_namespace)
        client = election.fence(connected) if election is not None else connected

        async def work() -> None:
            # New caches every time: what a former leader knew is old.
            caches = Caches(client)
            clock = ServerClock(client)
            await clock.ask()
            print(f"dray controllers: running {', '.join(names)}", flush=True)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(clock.run())
                monitoring = NodeMonitoring(args.node_monitor_grace_period, args.node_monitor_period)
                await run_controllers(caches, make_controllers(caches, names, clock, monitoring=monitoring))

        await until_stopped(work_as_leader(election, work) if election is not None else work())
