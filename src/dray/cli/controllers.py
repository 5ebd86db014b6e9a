"""`dray controllers`: the loops that make claims, release devices and heal workloads."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys

from dray.client import Client, KubeconfigError
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
    parser.add_argument("-v", "--verbose", action="store_true", help="log every step")


def run(args: argparse.Namespace) -> int:
    """Run until stopped."""
    logging.basicConfig(
        level=logging.DEBUG if args.verbose else logging.INFO, format="%(levelname)s %(name)s %(message)s"
    )
    try:
        names = chosen_controllers(args.controllers.split(","))
        return asyncio.run(_serve(args.kubeconfig, names))
    except (UnknownController, KubeconfigError) as error:
        print(f"dray controllers: {error}", file=sys.stderr)
        return 2


async def _serve(kubeconfig: str | None, names: list[str]) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with Client.connect(kubeconfig, user_agent="dray-controllers") as client:
        caches = Caches(client)
        working = asyncio.create_task(run_controllers(caches, make_controllers(caches, names)))
        stopping = asyncio.create_task(stop.wait())
        print(f"dray controllers: running {', '.join(names)}", flush=True)
        done, _ = await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if working in done:
            working.result()  # raises what went wrong
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    return 0
