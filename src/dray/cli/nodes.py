"""`dray nodes`: host several nodes in one process; what `dray up` starts for its nodes."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from pathlib import Path

from dray.cli.output import CommandError, fail
from dray.cli.whatif import parse_nodes


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--root", type=Path, required=True, metavar="DIR", help="one folder per node is made here"
    )
    parser.add_argument(
        "--credentials",
        type=Path,
        required=True,
        metavar="DIR",
        help="node-NAME.kubeconfig and driver-NAME.kubeconfig",
    )
    parser.add_argument(
        "--client-ca",
        type=Path,
        metavar="FILE",
        help="CA of the client certificates that callers of the nodes' ports show",
    )
    parser.add_argument("--sim", action="append", default=[], metavar="PROFILE[:N]", help="simulated nodes")
    parser.add_argument("--host", action="store_true", help="this machine too, with the hardware found")
    parser.add_argument(
        "--host-name", default=socket.gethostname().lower(), help="name of this machine's node"
    )
    parser.add_argument(
        "--runtime", default="process", choices=("process", "runc", "none"), help="how containers run"
    )
    parser.add_argument("-v", "--verbose", action="store_true")


def run(args: argparse.Namespace) -> int:
    """Be nodes until stopped."""
    from dray.client import ClientError
    from dray.sim.nodes import Places, host_nodes, planned_nodes

    level = logging.DEBUG if args.verbose else logging.INFO
    logging.basicConfig(
        level=level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    try:
        plans = planned_nodes(
            parse_nodes(args.sim), args.host_name if args.host else None, args.runtime, args.runtime
        )
        if not plans:
            raise CommandError("no node to host", "give --sim PROFILE or --host")
    except CommandError as error:
        return fail("nodes", error)
    places = Places(args.root.absolute(), args.credentials.absolute(), args.client_ca)

    # Everything that agent and drivers leave below the node's folder is for this user alone.
    os.umask(0o077)

    async def main() -> None:
        ready = asyncio.Semaphore(0)
        task = asyncio.create_task(host_nodes(plans, places, ready))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        announced = asyncio.create_task(_announce(ready, len(plans)))
        with contextlib.suppress(asyncio.CancelledError):
            await task
        announced.cancel()

    try:
        asyncio.run(main())
    except ExceptionGroup as errors:
        expected, unexpected = errors.split((ClientError, OSError))
        if unexpected is not None or expected is None:
            raise
        print(f"dray nodes: {expected.exceptions[0]}", file=sys.stderr)
        return 1
    return 0


async def _announce(ready: asyncio.Semaphore, count: int) -> None:
    for _ in range(count):
        await ready.acquire()
    print(f"dray nodes ready: {count}", flush=True)
