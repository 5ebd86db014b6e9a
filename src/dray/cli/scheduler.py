"""`dray scheduler`: schedule pods that name it, on any Kubernetes API server ≥ 1.34."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import signal
import sys

from dray.allocator import POLICIES
from dray.api.features import KNOWN_GATES, Features
from dray.client import Client, ClientError
from dray.control.scheduling import SchedulerOptions, SchedulingLoop


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument(
        "--kubeconfig", metavar="FILE", help="default: $KUBECONFIG, in-cluster, ~/.kube/config"
    )
    parser.add_argument(
        "--context", metavar="NAME", help="context of the kubeconfig (default: its current one)"
    )
    parser.add_argument(
        "--name", default="dray", help="schedule pods with this spec.schedulerName (default: dray)"
    )
    parser.add_argument(
        "--policy", default="", choices=["", *POLICIES], help="choose nodes and devices by this policy"
    )
    parser.add_argument(
        "--feature-gates", metavar="NAME=true,…", default="", help="switch features as on kube-scheduler"
    )
    parser.add_argument(
        "--commits", type=int, default=16, metavar="N", help="pods written at the same time (default: 16)"
    )
    parser.add_argument(
        "--binding-timeout", type=float, default=600.0, metavar="SECONDS", help="wait for binding conditions"
    )
    parser.add_argument("-v", "--verbose", action="count", default=0, help="say more on stderr")


def parse_gates(text: str) -> Features:
    """Read `A=true,B=false` on top of the defaults; unknown gates are an error."""
    on: list[str] = []
    off: list[str] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, value = part.partition("=")
        if name not in KNOWN_GATES or value.lower() not in ("true", "false"):
            raise ValueError(
                f"cannot read gate {part!r}; write NAME=true or NAME=false with one of: {', '.join(KNOWN_GATES)}"
            )
        (on if value.lower() == "true" else off).append(name)
    return Features.default().switched(on, off)


def run(args: argparse.Namespace) -> int:
    """Run until interrupted."""
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(args.verbose, 2)]
    logging.basicConfig(
        level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    try:
        options = SchedulerOptions(
            name=args.name,
            policy=args.policy,
            features=parse_gates(args.feature_gates),
            max_commits=args.commits,
            binding_timeout=args.binding_timeout,
        )
        import uvloop

        uvloop.run(_serve(args, options))
    except (ValueError, ClientError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


async def _serve(args: argparse.Namespace, options: SchedulerOptions) -> None:
    async with Client.connect(
        args.kubeconfig, args.context, user_agent=f"dray-scheduler/{options.name}"
    ) as client:
        loop = SchedulingLoop(client, options)
        task = asyncio.create_task(loop.run())
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        ready = asyncio.create_task(loop.is_ready.wait())
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if loop.is_ready.is_set():
            # The caches live as long as the process: keep the collector from walking them.
            gc.collect()
            gc.freeze()
            gc.set_threshold(50_000, 20, 50)
            print(f"ready: scheduling pods with schedulerName {options.name!r}", flush=True)
        ready.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            try:
                await task
            except* ClientError as group:
                raise group.exceptions[0] from None
