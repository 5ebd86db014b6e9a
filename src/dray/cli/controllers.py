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
import sys
import uuid
from collections.abc import Awaitable, Callable

import uvloop

from dray.client import Client, ClientError, LeaderElection
from dray.control.clocks import ServerClock
from dray.control.reconciling import Caches, run_controllers
from dray.control.suite import CONTROLLERS, UnknownController, chosen_controllers, make_controllers


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
    parser.add_argument("-v", "--verbose", action="store_true", help="log every step")


def run(args: argparse.Namespace) -> int:
    """Run until stopped."""
    logging.basicConfig(
        level=logging.DEBUG if args.verbose else logging.INFO, format="%(levelname)s %(name)s %(message)s"
    )
    try:
        names = chosen_controllers(args.controllers.split(","))
        gc.set_threshold(50_000, 20, 50)  # the caches are large, live long, and hold no garbage
        uvloop.run(_serve(args, names))
    except UnknownController as error:
        print(f"dray controllers: {error}", file=sys.stderr)
        return 2
    except ClientError as error:
        print(f"dray controllers: {error}", file=sys.stderr)
        return 1
    return 0


async def _serve(args: argparse.Namespace, names: list[str]) -> None:
    async with Client.connect(args.kubeconfig, user_agent="dray-controllers") as client:

        async def work() -> None:
            # New caches every time: what a former leader knew is old.
            caches = Caches(client)
            clock = ServerClock(client)
            await clock.ask()
            print(f"dray controllers: running {', '.join(names)}", flush=True)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(clock.run())
                await run_controllers(caches, make_controllers(caches, names, clock))

        working = asyncio.create_task(_lead(args, client, work) if args.leader_elect else work())
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, working.cancel)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await working
        except BaseExceptionGroup as group:
            # For example: we may not list what a controller needs. The first one says enough.
            first = _first(group)
            raise (first if isinstance(first, ClientError) else group) from None


async def _lead(args: argparse.Namespace, client: Client, work: Callable[[], Awaitable[None]]) -> None:
    """Work while holding the lease; losing it ends the process, and its supervisor starts anew."""
    identity = f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:8]}"
    print(f"dray controllers: standing by as {identity}", flush=True)
    await LeaderElection(client, "dray-controllers", identity, namespace=args.leader_namespace).run(work)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
