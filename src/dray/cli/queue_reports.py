"""What the scheduler tells of the queue, for the commands that show it."""

from __future__ import annotations

from collections.abc import Iterable

from dray.devices import device_id_of
from dray.scheduler.queue_report import QueueReport
from dray.workbench.jobs import JobState, moment_text


def jobs_of_others(report: QueueReport | None, seen: Iterable[JobState]) -> list[JobState]:
    """Return jobs without names for devices that others hold; `seen` are the jobs that the caller may see."""
    known = {device for job in seen for device in job.devices}
    found = []
    for held in report.held if report is not None else ():
        devices = tuple(str(device_id_of(each)) for each in held.devices)
        if not known.intersection(devices):
            found.append(JobState(held.user, "", "running", 0.0, ends=held.until, devices=devices))
    return found


def report_lines(report: QueueReport | None, uid: str, namespace: str) -> list[str]:
    """Return what is told of a job and of its user: place, reservation, limit, expected start, share."""
    if report is None:
        return []
    job, user = report.jobs.get(uid), report.users.get(namespace)
    if job is None:
        return []
    return [*job.lines(moment_text), *(user.lines() if user is not None else [])]
