"""`dray logs`: the output of a job."""

from __future__ import annotations

import argparse
import asyncio

from dray.cli.arguments import whole_number
from dray.cli.following import print_log
from dray.cli.job_lookup import add_job_arguments, get_pod
from dray.cli.output import CommandError
from dray.workbench.run_manifests import is_started


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the job ends")
    parser.add_argument(
        "--tail", type=whole_number(0, 10**9), metavar="N", help="only the last N lines (default: all)"
    )
    add_job_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the output."""
    return asyncio.run(_run(args))


async def _run(args: argparse.Namespace) -> int:
    from dray.cli.sources import connect

    async with connect(args.kubeconfig, args.context) as client:
        namespace = args.namespace or client.namespace
        pod = await get_pod(client, namespace, args.name)
        if not is_started(pod):
            raise CommandError(
                f"job {namespace}/{args.name} has not started",
                f"`dray attach {args.name}` waits for it",
                code=1,
            )
        query = f"follow={str(args.follow).lower()}"
        if args.tail is not None:
            query += f"&tailLines={args.tail}"
        await print_log(client, namespace, args.name, query)
        return 0
