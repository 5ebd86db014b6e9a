"""`dray stop`: end jobs, waiting or running, and give their devices back."""

from __future__ import annotations

import argparse
import asyncio

from dray.cli.following import pod_states
from dray.cli.job_lookup import add_job_arguments, named_jobs
from dray.cli.output import say

_AT_ONCE = 1  # second, as `kubectl delete --now`


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--now",
        action="store_true",
        help="do not wait for the job's grace period between SIGTERM and SIGKILL",
    )
    add_job_arguments(parser, many=True)


def run(args: argparse.Namespace) -> int:
    """Stop all that are named; unknown names are an error before any is stopped."""
    return asyncio.run(_run(args))


async def _run(args: argparse.Namespace) -> int:
    from dray.cli.sources import connect
    from dray.client import NotFound
    from dray.client.resources import PODS

    async with connect(args.kubeconfig, args.context) as client:
        namespace = args.namespace or client.namespace
        names = await named_jobs(client, namespace, args.names)
        for name in names:
            try:
                await client.delete(PODS, name, namespace, grace_seconds=_AT_ONCE if args.now else None)
            except NotFound:
                continue
        for name in names:
            async for _ in pod_states(client, namespace, name):
                pass
            say(f"stopped job {namespace}/{name}")
    return 0
