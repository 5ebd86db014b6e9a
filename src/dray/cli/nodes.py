"""`dray nodes`: host several nodes in one process; what `dray up` starts for its nodes."""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path

from dray.cli.arguments import add_flags
from dray.cli.output import CommandError
from dray.cli.services import log_to_stderr, until_stopped
from dray.host.heap import keep_heap_compact
from dray.sim.hardware import parse_hardware
from dray.sim.snapshot import load_snapshot
from dray.sim.twin import make_twin


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add(
        "--root",
        type=Path,
        required=True,
        metavar="DIR",
        help="the nodes' directory; each has a folder of its name in it",
    )
    add(
        "--credentials",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder with node-NAME.kubeconfig and driver-NAME.kubeconfig",
    )
    add(
        "--client-ca",
        type=Path,
        metavar="FILE",
        help="CA of the client certificates that callers of the nodes' ports show",
    )
    add_flags(parser, "--sim", "--from", "--sim-nodes")
    add("--host", action="store_true", help="also make this machine a node, with the hardware that is found")
    add_flags(parser, "--host-name", "--runtime", "--log-format", "--verbose")


def run(args: argparse.Namespace) -> int:
    """Be nodes until stopped."""
    from dray.local.node_plans import Places, planned_nodes
    from dray.local.nodes import host_nodes

    log_to_stderr(args)
    keep_heap_compact()
    host = args.host_name if args.host else None
    twin = make_twin(load_snapshot([args.snapshot])) if args.snapshot is not None else None
    plans = planned_nodes(parse_hardware(args.sim), host, args.runtime, args.runtime, twin, args.sim_nodes)
    if not plans:
        raise CommandError("no node to host", "give --sim PROFILE, --from SNAPSHOT or --host")
    places = Places(args.root.absolute(), args.credentials.absolute(), args.client_ca)

    # Everything that agent and drivers leave below the node's folder is for this user alone.
    os.umask(0o077)

    async def main() -> None:
        ready = asyncio.Semaphore(0)
        announcing = asyncio.create_task(_announce(ready, len(plans)))
        try:
            await until_stopped(host_nodes(plans, places, ready))
        finally:
            announcing.cancel()

    asyncio.run(main())
    return 0


async def _announce(ready: asyncio.Semaphore, count: int) -> None:
    for _ in range(count):
        await ready.acquire()
    print(f"dray nodes ready: {count}", flush=True)
