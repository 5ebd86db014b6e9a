"""`dray wait`: wait until jobs have ended; the exit code is the highest of theirs."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING

from dray.cli.arguments import seconds
from dray.cli.following import TIMED_OUT, pod_states
from dray.cli.job_lookup import add_job_arguments, named_jobs
from dray.cli.output import CommandError
from dray.workbench.run_manifests import exit_code_of

if TYPE_CHECKING:
    from dray.client import Client


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--timeout",
        type=seconds(),
        default=0.0,
        metavar="SECONDS",
        help="give up after this time (default: wait forever)",
    )
    add_job_arguments(parser, many=True)


def run(args: argparse.Namespace) -> int:
    """Wait."""
    return asyncio.run(_run(args))


async def _run(args: argparse.Namespace) -> int:
    from dray.cli.sources import connect

    async with connect(args.kubeconfig, args.context) as client:
        namespace = args.namespace or client.namespace
        names = await named_jobs(client, namespace, args.names)
        try:
            async with asyncio.timeout(args.timeout or None):
                codes = await asyncio.gather(*(ended(client, namespace, name) for name in names))
        except TimeoutError:
            raise CommandError(f"not all jobs ended within {args.timeout:g} s", code=TIMED_OUT) from None
        return max(codes)


async def ended(client: Client, namespace: str, name: str) -> int:
    """Return the exit code of a job when it has ended; 1 when it was deleted before."""
    async for pod in pod_states(client, namespace, name):
        code = exit_code_of(pod)
        if code is not None:
            return code
    return 1
