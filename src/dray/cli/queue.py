"""`dray queue`: the jobs that wait, in the order in which they are tried, and why they wait."""

from __future__ import annotations

import argparse
import asyncio
import time

from dray.api.json_types import JsonObject
from dray.api.wording import plural
from dray.cli.arguments import add_flags
from dray.cli.job_lookup import visible_jobs
from dray.cli.output import add_output_flag, emit, say, table
from dray.cli.queue_reports import jobs_of_others
from dray.scheduler.limits import format_seconds
from dray.scheduler.queue_report import JobReport, QueueReport
from dray.sim.other_users import fetch_report
from dray.workbench.jobs import JobState, holders, moment_text, queue_order

_MOST_CHARACTERS = 120  # of a reason


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add_output_flag(parser)
    add_flags(parser, "--kubeconfig", "--context")


def run(args: argparse.Namespace) -> int:
    """List what waits."""
    jobs, waiting, report = asyncio.run(_look(args))
    told = [report.jobs.get(job.uid) for job in waiting]
    if args.output != "table":
        emit(
            [
                _as_data(number, job, each, report)
                for number, (job, each) in enumerate(zip(waiting, told, strict=True), 1)
            ],
            args.output,
        )
        return 0
    now = time.time()
    rows = [
        (each.place if each else number, job.namespace, job.name, format_seconds(max(0.0, now - job.created)),
         job.priority, ", ".join(job.wanted) or "-", _start(each), _reason(job, each))
        for number, (job, each) in enumerate(zip(waiting, told, strict=True), 1)
    ]  # fmt: skip
    if rows:
        table(("#", "NAMESPACE", "JOB", "WAITING", "PRIORITY", "WANTS", "START", "REASON"), rows)
    else:
        say(_nobody_waits(report))
    for namespace in dict.fromkeys(job.namespace for job in waiting):
        for line in report.users[namespace].lines() if namespace in report.users else []:
            say(f"{namespace}: {line}")
    for line in holders([*jobs, *jobs_of_others(report, jobs)]) if rows else []:
        say(line)
    return 0


def _as_data(number: int, job: JobState, told: JobReport | None, report: QueueReport) -> JsonObject:
    data = {"position": told.place if told else number, **job.to_json()}
    if told is not None:
        data |= {"expectedStart": told.starts, "isHead": told.is_head, "heldBack": told.held_back}
    user = report.users.get(job.namespace)
    return data | ({"share": {"used": user.used, "entitled": user.entitled}} if user else {})


def _nobody_waits(report: QueueReport) -> str:
    """Return that no job waits, or none that the caller may see."""
    if not report.jobs:
        return "no job waits"
    return f"none of your jobs waits; {plural(len(report.jobs), 'job')} of others wait"


def _start(told: JobReport | None) -> str:
    return "-" if told is None or told.starts is None else moment_text(told.starts)


async def _look(args: argparse.Namespace) -> tuple[list[JobState], list[JobState], QueueReport]:
    from dray.cli.sources import connect

    async with connect(args.kubeconfig, args.context) as client:
        jobs = await visible_jobs(client)
        report = await fetch_report(client) or QueueReport()
        places = {uid: told.place for uid, told in report.jobs.items()}
        after = [job for job in jobs if job.state == "after"]
        return jobs, [*queue_order(jobs, places), *after], report


def _reason(job: JobState, told: JobReport | None) -> str:
    if job.state == "after":
        return f"begins after job {job.after}"
    if told is not None and told.held_back:
        return told.held_back
    if told is not None and told.is_head:
        return f"at the head of the queue: {_short(job.message)}"
    return _short(job.message) or "not tried yet"


def _short(message: str) -> str:
    text = " ".join(message.split())
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"
