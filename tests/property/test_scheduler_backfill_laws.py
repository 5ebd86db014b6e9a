"""Backfill never delays the head of the queue; shown on a machine whose devices are only counted."""

from __future__ import annotations

from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from dray.scheduler.backfill import CandidateJob, RunningJob, is_harmless, reserve


class Machine:
    """`total` equal devices, and how many each job needs."""

    def __init__(self, total, needs, running):
        self.total, self.needs, self.running = total, needs, running

    def fits(self, job, *, ended=(), beside=()):
        held = sum(self.needs[name] for name in self.running if name not in ended)
        held += sum(self.needs[name] for name in beside if name not in ended)
        return held + self.needs[job] <= self.total


def startable(waiting, running, now, fits, most=100):
    """Yield the jobs that may start now, in order; at most `most` candidates behind the head are tried.

    Jobs are yielded while they fit; the first that does not becomes the head with the reservation.
    """
    started = []
    reservation = None
    tried = 0
    for job in waiting:
        if reservation is None:
            if fits(job.name, beside=started):
                started.append(job.name)
                yield job.name
                continue
            ends = [*running, *(RunningJob(c.name, now + c.seconds) for c in waiting if c.name in started)]
            reservation = reserve(job.name, ends, now, fits)
            continue
        tried += 1
        if tried > most:
            return
        if fits(job.name, beside=started) and is_harmless(job, reservation, now, fits, started):
            started.append(job.name)
            yield job.name


def run(total, needs, seconds, running_until, *, with_backfill):
    """Play the queue to its end; return when each job started."""
    running = dict(running_until)
    waiting = [name for name in needs if name not in running]
    starts, now = {}, 0.0
    while waiting:
        machine = Machine(total, needs, running)
        candidates = [CandidateJob(name, seconds[name]) for name in waiting]
        ends = [RunningJob(name, end) for name, end in running.items()]
        if with_backfill:
            started = list(startable(candidates, ends, now, machine.fits))
        else:
            started = []
            for name in waiting:
                if not machine.fits(name, beside=started):
                    break
                started.append(name)
        for name in started:
            starts[name] = now
            running[name] = now + seconds[name]
            waiting.remove(name)
        if waiting:
            now = min(end for end in running.values())
            running = {name: end for name, end in running.items() if end > now}
    return starts


@st.composite
def queues(draw):
    total = draw(st.integers(1, 6))
    n_running, n_waiting = draw(st.integers(0, 4)), draw(st.integers(1, 6))
    names = [f"r{index}" for index in range(n_running)] + [f"w{index}" for index in range(n_waiting)]
    needs = {name: draw(st.integers(1, total)) for name in names}
    running, free = {}, total
    for name in names[:n_running]:
        if needs[name] <= free:
            free -= needs[name]
            running[name] = float(draw(st.integers(1, 20)))
        else:
            del needs[name]
    seconds = {name: float(draw(st.integers(1, 20))) for name in needs}
    return total, needs, seconds, running


@settings(max_examples=400)
@given(queues())
def test_the_first_job_that_has_to_wait_is_not_delayed(queue):
    total, needs, seconds, running = queue
    plain = run(total, needs, seconds, running, with_backfill=False)
    filled = run(total, needs, seconds, running, with_backfill=True)
    head = next((name for name in plain if plain[name] > 0), None)
    if head is not None:
        assert filled[head] <= plain[head]


@settings(max_examples=200)
@given(queues())
def test_everybody_starts(queue):
    total, needs, seconds, running = queue
    assert set(run(total, needs, seconds, running, with_backfill=True)) == set(needs) - set(running)


def test_a_short_job_goes_first_and_a_long_one_does_not():
    needs = {"running": 1, "head": 2, "short": 1, "long": 1}
    machine = Machine(2, needs, ["running"])
    waiting = [CandidateJob("head", 100), CandidateJob("long", 50), CandidateJob("short", 10)]
    found = list(startable(waiting, [RunningJob("running", 10.0)], 0.0, machine.fits))
    assert found == ["short"]


def test_a_job_beside_the_reservation_may_be_as_long_as_it_likes():
    needs = {"running": 2, "head": 2, "small": 1}
    machine = Machine(3, needs, ["running"])
    waiting = [CandidateJob("head", 100), CandidateJob("small")]
    found = list(startable(waiting, [RunningJob("running", 10.0)], 0.0, machine.fits))
    assert found == ["small"]


def test_without_time_limits_there_is_no_reservation():
    machine = Machine(2, {"running": 1, "head": 2}, ["running"])
    assert reserve("head", [RunningJob("running")], 0.0, machine.fits).starts == inf


def test_the_number_of_candidates_is_bounded():
    needs = {"running": 1, "head": 2} | {f"c{index}": 1 for index in range(50)}
    machine = Machine(2, needs, ["running"])
    asked = []

    def fits(job, **how):
        asked.append(job)
        return machine.fits(job, **how)

    waiting = [CandidateJob("head")] + [CandidateJob(f"c{index}", 100.0) for index in range(50)]
    list(startable(waiting, [RunningJob("running", 10.0)], 0.0, fits, most=5))
    assert len({job for job in asked if job.startswith("c")}) == 5
