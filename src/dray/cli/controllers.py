"""`dray controllers`: the loops that make claims, release devices and heal workloads."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import uuid
from collections.abc import Awaitable, Callable

import uvloop

from dray.client import Client, ClientError, LeaderElection
from dray.control.clocks import ServerClock
from dray.control.nodes import NodeMonitoring
from dray.control.reconciling import Caches, run_controllers
from dray.control.suite import CONTROLLERS, chosen_controllers, make_controllers

_LONGEST = 86_400  # seconds


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument(
        "--kubeconfig", metavar="FILE", help="how to reach the API server (default: $KUBECONFIG)"
    )
    parser.add_argument(
        "--controllers",
        default="*",
        metavar="LIST",
        help=f"comma-separated; '*' is all, '-name' leaves one out. Known: {', '.join(CONTROLLERS)}",
    )
    parser.add_argument(
        "--leader-elect", action="store_true", help="stand by while another process runs the controllers"
    )
    parser.add_argument(
        "--leader-namespace",
        default="kube-system",
        metavar="NS",
        help="where the lease is (default: kube-system)",
    )
    parser.add_argument(
        "--node-monitor-grace-period",
        type=_seconds,
        default=NodeMonitoring().grace,
        metavar="SECONDS",
        help="how long a node may be silent while the API server answers (default: 50)",
    )
    parser.add_argument(
        "--node-monitor-period",
        type=_seconds,
        default=NodeMonitoring().period,
        metavar="SECONDS",
        help="how often the API server and the nodes are looked at (default: 5)",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="log every step")


def _seconds(text: str) -> float:
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST:  # not true of nan
        raise argparse.ArgumentTypeError(f"a number of seconds above 0 and up to {_LONGEST}, not {text!r}")
    return seconds


def run(args: argparse.Namespace) -> int:
    """Run until stopped."""
    logging.basicConfig(
        level=logging.DEBUG if args.verbose else logging.INFO, format="%(levelname)s %(name)s %(message)s"
    )
    names = chosen_controllers(args.controllers.split(","))
    gc.set_threshold(50_000, 20, 50)  # the caches are large, live long, and hold no garbage
    uvloop.run(_serve(args, names))
    return 0


async def _serve(args: argparse.Namespace, names: list[str]) -> None:
    async with Client.connect(args.kubeconfig, user_agent="dray-controllers") as connected:
        election = _election(args, connected) if args.leader_elect else None
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

        working = asyncio.create_task(_lead(election, work) if election is not None else work())
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, working.cancel)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await working
        except BaseExceptionGroup as group:
            # For example: we may not list what a controller needs. The first one says enough.
            first = _first(group)
            raise (first if isinstance(first, ClientError) else group) from None


def _election(args: argparse.Namespace, client: Client) -> LeaderElection:
    identity = f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:8]}"
    return LeaderElection(client, "dray-controllers", identity, namespace=args.leader_namespace)


async def _lead(election: LeaderElection, work: Callable[[], Awaitable[None]]) -> None:
    """Work while holding the lease; losing it ends the process, and its supervisor starts anew."""
    print(f"dray controllers: standing by as {election.identity}", flush=True)
    await election.run(work)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
