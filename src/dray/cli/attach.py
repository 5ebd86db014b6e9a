"""`dray attach`: follow a job that was started with `--detach`; Ctrl-C leaves it running."""

from __future__ import annotations

import argparse
import asyncio

from dray.cli.following import follow
from dray.cli.job_lookup import add_job_arguments, get_pod


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_job_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Follow; the exit code is the job's."""
    return asyncio.run(_run(args))


async def _run(args: argparse.Namespace) -> int:
    from dray.cli.sources import connect

    async with connect(args.kubeconfig, args.context) as client:
        namespace = args.namespace or client.namespace
        await get_pod(client, namespace, args.name)
        return await follow(client, namespace, args.name)
