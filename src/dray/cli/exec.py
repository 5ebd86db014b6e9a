"""`dray exec`: run a command in a job, with its devices, directory and environment."""

from __future__ import annotations

import argparse
import asyncio

from dray.cli.job_lookup import add_job_arguments, get_pod
from dray.cli.output import CommandError


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("-i", "--stdin", action="store_true", help="pass on standard input")
    parser.add_argument("-t", "--tty", action="store_true", help="give the command a terminal")
    add_job_arguments(parser)
    parser.add_argument("words", nargs="*", metavar="CMD", help="the command, after --")


def run(args: argparse.Namespace) -> int:
    """Run; the exit code is the command's."""
    if not args.words:
        raise CommandError("no command", f"put it after --, for example: dray exec -it {args.name} -- sh")
    return asyncio.run(_run(args))


async def _run(args: argparse.Namespace) -> int:
    from dray.cli.sources import connect
    from dray.cli.terminal import run_in_job

    async with connect(args.kubeconfig, args.context) as client:
        namespace = args.namespace or client.namespace
        await get_pod(client, namespace, args.name)
        return await run_in_job(
            client, namespace, args.name, args.words, with_stdin=args.stdin, with_tty=args.tty
        )
