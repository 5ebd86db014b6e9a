"""`dray ps`: jobs, who runs them, on which devices, since when and until when."""

from __future__ import annotations

import argparse
import asyncio
import time

from dray.cli.arguments import add_flags
from dray.cli.job_lookup import list_jobs, visible_jobs
from dray.cli.output import add_output_flag, emit, table
from dray.scheduler.limits import format_seconds
from dray.workbench.jobs import OVER, JobState


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("-a", "--all", action="store_true", help="show jobs that are over, too")
    add_output_flag(parser)
    add_flags(parser, "--namespace", help="only jobs of this namespace (default: all that you may see)")
    add_flags(parser, "--kubeconfig", "--context")


def run(args: argparse.Namespace) -> int:
    """List jobs."""
    jobs = [job for job in asyncio.run(_jobs(args)) if args.all or job.state not in OVER]
    if args.output == "table":
        print_jobs(jobs, time.time())
    else:
        emit([job.to_json() for job in jobs], args.output)
    return 0


async def _jobs(args: argparse.Namespace) -> list[JobState]:
    from dray.cli.sources import connect

    async with connect(args.kubeconfig, args.context) as client:
        return await (list_jobs(client, args.namespace) if args.namespace else visible_jobs(client))


def print_jobs(jobs: list[JobState], now: float) -> None:
    """Print jobs as a table."""
    headers = ("NAMESPACE", "JOB", "STATE", "AGE", "LEFT", "DEVICES", "COMMAND")
    table(headers, [_row(job, now) for job in jobs])


def _row(job: JobState, now: float) -> tuple[str, ...]:
    state = job.state if not job.exit_code else f"{job.state} ({job.exit_code})"
    since = job.started if job.started is not None else job.created
    until = job.ended if job.ended is not None else now
    left = format_seconds(max(0.0, job.ends - now)) if job.ends is not None else "-"
    devices = f"{len(job.devices)} of {', '.join(job.wanted)}" if job.devices else ", ".join(job.wanted)
    age = format_seconds(max(0.0, until - since))
    command = "".join(c if c.isprintable() else " " for c in job.command)
    return (job.namespace, job.name, state, age, left, devices or "-", command)
