"""Backfill: a small job may go first if it does not delay the one at the head of the queue.

A large job at the head waits until enough devices are free at once. If every free device went to whoever
fits, it might wait for ever; if nothing else started, devices would idle. So the head gets a *reservation*:
the earliest moment at which it fits, judged by when running jobs end at the latest (their time limit). Another
job may start before it if it ends by that moment, or if the head fits at that moment all the same.

Theory of operation. Whether a job fits is not decided here: `Fits` asks the scheduler, on the snapshot in
which some running jobs have ended and some waiting ones hold their devices. Jobs without a time limit never
end as far as is known: they give no reservation and may be backfilled only beside the head. A job that the head
may evict delays nobody: it fills what would be idle until the head's turn comes.

Invariant (tests/property/test_scheduler_backfill_laws.py): with true end times, the head starts no later than
it would have without backfill.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that runs."""

    name: str
    ends: float = inf  # at the latest; infinite without a time limit


@dataclass(frozen=True, slots=True)
class CandidateJob:
    """A job that waits, in the order of the queue."""

    name: str
    seconds: float = inf  # how long it may run; infinite without a time limit
    is_evictable: bool = False  # the head may evict it when its turn comes


class Fits(Protocol):
    """Asks whether a job fits once some running jobs have ended, beside jobs that start now."""

    def __call__(self, job: str, *, ended: Sequence[str] = (), beside: Sequence[str] = ()) -> bool:
        """Return whether it fits."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """When the head of the queue can start."""

    job: str
    starts: float  # infinite means: not foreseeable
    ended: tuple[str, ...]  # the running jobs that have ended by then


def reserve(head: str, running: Iterable[RunningJob], now: float, fits: Fits) -> Reservation:
    """Return the earliest moment at which the head fits."""
    if fits(head):
        return Reservation(head, now, ())
    by_end = sorted((job for job in running if job.ends < inf), key=lambda job: (job.ends, job.name))
    names = tuple(job.name for job in by_end)
    # More devices are free when more jobs have ended, so the first moment can be found by halving.
    low, high = 1, len(names)
    if not names or not fits(head, ended=names):
        return Reservation(head, inf, names)
    while low < high:
        middle = (low + high) // 2
        if fits(head, ended=names[:middle]):
            high = middle
        else:
            low = middle + 1
    return Reservation(head, max(now, by_end[low - 1].ends), names[:low])


def is_harmless(
    job: CandidateJob, reservation: Reservation, now: float, fits: Fits, started: Sequence[str] = ()
) -> bool:
    """Return whether a job that starts now leaves the reservation of the head as it is."""
    if job.is_evictable or now + job.seconds <= reservation.starts < inf:
        return True
    # Where nobody knows when the head can start, what starts now must leave it no less.
    beside = [name for name in (*started, job.name) if name not in reservation.ended]
    return fits(reservation.job, ended=reservation.ended, beside=beside)
