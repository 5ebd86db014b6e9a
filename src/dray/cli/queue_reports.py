"""What the scheduler tells of the queue, for the commands that show it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dray.scheduler.queue_report import NAME, NAMESPACE, QueueReport, parse_report
from dray.workbench.jobs import moment_text

if TYPE_CHECKING:
    from dray.client import Client


async def fetch_report(client: Client) -> QueueReport:
    """Return the scheduler's report; an empty one where it makes none, or the caller may not read it."""
    from dray.client import ClientError
    from dray.client.resources import CONFIG_MAPS

    try:
        found = await client.get(CONFIG_MAPS, NAME, NAMESPACE)
    except ClientError:
        return QueueReport()
    return parse_report(found.get("data") or {})


def report_lines(report: QueueReport, uid: str, namespace: str) -> list[str]:
    """Return what is told of a job and of its user: place, reservation, limit, expected start, share."""
    job, user = report.jobs.get(uid), report.users.get(namespace)
    if job is None:
        return []
    return [*job.lines(moment_text), *(user.lines() if user is not None else [])]
