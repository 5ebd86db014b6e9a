"""Twenty users share 64 GPUs for a week: how long they wait by FIFO, by priority and age, and by fair share.

Virtual clock. Jobs are pods of the openb trace (GPUs, running time; at most a day), drawn with a fixed seed; arrivals are
uniform over the week. Users differ: two submit half of all work. The order is that of the scheduler: `fair_share.standing`
for fair share, priority and age for the others. A job that does not fit is passed by smaller ones; with a reservation only by those
that do not delay it (`backfill.reserve`, `is_harmless`), judged by time limits of 1, 4, 12 or 24 hours, whichever is enough.
Devices are counted, not placed, and nobody is evicted. The trace is read from `../shared/data/openb/csv` or DRAY_OPENB.
"""

from __future__ import annotations

import csv
import heapq
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, quantiles

from dray.scheduler.backfill import CandidateJob, RunningJob, is_harmless, reserve
from dray.scheduler.fair_share import Standing, UsageRecord, WaitingJob, Weights, standing

DEFAULT = Path(__file__).resolve().parents[3] / "shared" / "data" / "openb" / "csv"
PICTURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "fair-share.svg"
GPUS, USERS, WEEK, DAY = 64, 20, 7 * 86_400.0, 86_400.0
LOAD = 1.1  # demand of the week / what the GPUs can do in it
ORDERS = ("FIFO", "priority", "fair share", "fair share, reservation")
COLOURS = ("#888888", "#d08020", "#60a0e0", "#2060c0")
LIMITS = tuple(hours * 3600.0 for hours in (1, 4, 12, 24))  # times that people ask for
MOST_BEHIND = 100  # jobs behind the head that are tried
SEEDS = (42, 43, 44)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One job of the week."""

    name: str
    user: str
    at: float
    gpus: int
    seconds: float
    priority: int


def week(folder: Path, seed: int) -> list[Arrival]:
    """Return the jobs of a week, in the order of their arrival."""
    with (folder / "openb_pod_list_default.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if int(row["num_gpu"])]
    shapes = [
        (int(row["num_gpu"]), min(DAY, float(row["deletion_time"]) - float(row["creation_time"])))
        for row in rows
        if row["deletion_time"] and float(row["deletion_time"]) - float(row["creation_time"]) >= 60
    ]
    chance = random.Random(seed)  # a reproducible experiment
    names = [f"user-{number:02}" for number in range(USERS)]
    shares = [0.25, 0.25, *[0.5 / (USERS - 2)] * (USERS - 2)]
    jobs: list[Arrival] = []
    demand = 0.0
    while demand < LOAD * GPUS * WEEK:
        gpus, seconds = chance.choice(shapes)
        demand += gpus * seconds
        user = chance.choices(names, shares)[0]
        priority = chance.choices((-1000, 0, 1000), (0.2, 0.6, 0.2))[0]
        jobs.append(Arrival(f"job-{len(jobs)}", user, chance.uniform(0, WEEK), gpus, seconds, priority))
    return sorted(jobs, key=lambda job: job.at)


def waits(jobs: list[Arrival], order: str) -> tuple[dict[str, float], dict[str, float]]:
    """Return how long each job waits, and the device-seconds that each user gets within the week."""
    record, held = UsageRecord(), dict.fromkeys((job.user for job in jobs), 0.0)
    charged = 0.0
    free = GPUS
    waiting: list[Arrival] = []
    ends: list[tuple[float, str, Arrival]] = []
    running: dict[str, tuple[int, float]] = {}  # name -> GPUs, end at the latest
    found: dict[str, float] = {}
    got = dict.fromkeys(held, 0.0)
    upcoming = list(reversed(jobs))
    while upcoming or ends:
        now = min(upcoming[-1].at if upcoming else float("inf"), ends[0][0] if ends else float("inf"))
        for user, count in held.items():
            record.charge(user, count * (now - charged), now)
            got[user] += count * max(0.0, min(now, WEEK) - min(charged, WEEK))
        charged = now
        while ends and ends[0][0] <= now:
            ended = heapq.heappop(ends)[2]
            free += ended.gpus
            del running[ended.name]
            held[ended.user] -= ended.gpus
        while upcoming and upcoming[-1].at <= now:
            waiting.append(upcoming.pop())
        while free and (job := _next(waiting, order, (record, held), now, free, running)) is not None:
            waiting.remove(job)
            found[job.name] = now - job.at
            free -= job.gpus
            held[job.user] += job.gpus
            running[job.name] = (job.gpus, now + _limit(job))
            heapq.heappush(ends, (now + job.seconds, job.name, job))
    return found, got


def _limit(job: Arrival) -> float:
    return next(limit for limit in LIMITS if job.seconds <= limit)


def _next(
    waiting: list[Arrival],
    order: str,
    use: tuple[UsageRecord, dict[str, float]],
    now: float,
    free: int,
    running: dict[str, tuple[int, float]],
) -> Arrival | None:
    """Return the job that starts now, if any."""
    record, held = use
    fitting = waiting if "reservation" in order else [job for job in waiting if job.gpus <= free]
    if order == "FIFO":
        return min(fitting, key=lambda job: job.at, default=None)
    place = Standing({}, {}, {})
    if order.startswith("fair share"):
        place = standing(record, Weights(), dict.fromkeys(held, ""), now, held_by_user=held)

    def key(job: Arrival) -> tuple[int, float, float, str]:
        return place.key(WaitingJob(job.name, job.user, job.at, job.priority))

    first = min(fitting, key=key, default=None)
    if first is None or first.gpus <= free:
        return first
    return _backfilled(first, sorted(fitting, key=key)[1 : MOST_BEHIND + 1], now, free, running)


def _backfilled(
    head: Arrival, behind: list[Arrival], now: float, free: int, running: dict[str, tuple[int, float]]
) -> Arrival | None:
    """Return the first job behind the head that fits and does not delay it."""
    gpus = {job.name: job.gpus for job in (head, *behind)}

    def fits(job: str, *, ended: Sequence[str] = (), beside: Sequence[str] = ()) -> bool:
        freed = sum(running[name][0] for name in ended)
        return gpus[job] + sum(gpus[name] for name in beside) <= free + freed

    jobs = [RunningJob(name, end) for name, (_, end) in running.items()]
    reservation = reserve(head.name, jobs, now, fits)
    for job in behind:
        if job.gpus <= free and is_harmless(CandidateJob(job.name, _limit(job)), reservation, now, fits):
            return job
    return None


def max_min(demand: dict[str, float], capacity: float) -> dict[str, float]:
    """Return the max-min fair division of a capacity.

    >>> max_min({"a": 1.0, "b": 5.0, "c": 9.0}, 9.0)
    {'a': 1.0, 'b': 4.0, 'c': 4.0}
    """
    fair: dict[str, float] = {}
    left = capacity
    for number, (user, wanted) in enumerate(sorted(demand.items(), key=lambda item: item[1])):
        fair[user] = min(wanted, left / (len(demand) - number))
        left -= fair[user]
    return fair


def jain(values: list[float]) -> float:
    """Return Jain's index: 1 when all are equal, 1/n when one has everything."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def run(*, quick: bool) -> str:
    """Return the section; draws the picture."""
    folder = Path(os.environ.get("DRAY_OPENB", DEFAULT))
    if not folder.is_dir():
        return "## Fair share: who waits\n\nNot measured: the openb trace is not here (DRAY_OPENB).\n"
    lines = [
        "## Fair share: who waits\n",
        f"{USERS} users, {GPUS} GPUs, a week of arrivals under a virtual clock (jobs of the openb trace, at most a day each; demand "
        f"{LOAD:.0%} of the capacity; two users submit half of it; 20 % low, 60 % normal, 20 % high priority). The orders are those of the "
        "scheduler, devices are counted; `mean, 8 GPUs` is of normal and high jobs. Low jobs have no guarantee: at this load they are what waits. Hours of waiting (mean of the seeds); Jain index of the device time that each user gets in the "
        "week, relative to the max-min fair division. `bench/fair_share`.\n",
        "| order | median, 18 light users | p95, light | mean, light | mean, 2 heavy users | p95, normal and high | longest, normal and high | longest, low | "
        "mean, 8 GPUs | Jain index |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    curves = []
    for order in ORDERS:
        rows, curve = [], []
        for seed in SEEDS[:1] if quick else SEEDS:
            jobs = week(folder, seed)
            found, got = waits(jobs, order)
            row, light = _figures(jobs, found, got)
            rows.append(row)
            curve += light
        figures = [mean(column) for column in zip(*rows, strict=True)]
        lines.append(
            f"| {order} | " + " | ".join(f"{value:.1f}" for value in figures[:-1]) + f" | {figures[-1]:.3f} |"
        )
        curves.append(sorted(curve))
    if not quick:
        PICTURE.write_text(picture(curves), encoding="utf-8")
    lines.append("\n![Waiting times of the light users](docs/images/fair-share.svg)")
    return "\n".join(lines) + "\n"


def _figures(
    jobs: list[Arrival], found: dict[str, float], got: dict[str, float]
) -> tuple[tuple[float, ...], list[float]]:
    heavy = {"user-00", "user-01"}
    light = [found[job.name] / 3600 for job in jobs if job.user not in heavy]
    others = [found[job.name] / 3600 for job in jobs if job.user in heavy]
    demand = dict.fromkeys(got, 0.0)
    for job in jobs:
        demand[job.user] += job.gpus * job.seconds
    fair = max_min(demand, GPUS * WEEK)
    cuts = quantiles(light, n=20)
    normal = [found[job.name] / 3600 for job in jobs if job.priority >= 0]
    low = [found[job.name] / 3600 for job in jobs if job.priority < 0]
    large = [found[job.name] / 3600 for job in jobs if job.priority >= 0 and job.gpus >= 8]
    index = jain([got[user] / fair[user] for user in fair if fair[user]])
    row = (
        cuts[9],
        cuts[18],
        mean(light),
        mean(others),
        quantiles(normal, n=20)[18],
        max(normal),
        max(low),
        mean(large),
        index,
    )
    return row, light


def picture(curves: list[list[float]]) -> str:
    """Return the cumulative distributions as SVG."""
    longest = max(curve[int(len(curve) * 0.99)] for curve in curves) or 1.0
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 360" font-family="sans-serif" font-size="13">',
        '<rect width="640" height="360" fill="white"/>',
        '<path d="M60 20V310H620" fill="none" stroke="black"/>',
        '<text x="340" y="345" text-anchor="middle">hours of waiting (jobs of the 18 light users)</text>',
    ]
    for percent in (0, 50, 100):
        parts.append(f'<text x="52" y="{314 - 2.9 * percent:.0f}" text-anchor="end">{percent} %</text>')
    for step in range(5):
        parts.append(
            f'<text x="{60 + 140 * step}" y="326" text-anchor="middle">{longest * step / 4:.0f}</text>'
        )
    for number, (curve, colour, name) in enumerate(zip(curves, COLOURS, ORDERS, strict=True)):
        points = [
            f"{60 + 560 * min(1.0, curve[int(k / 200 * (len(curve) - 1))] / longest):.1f},{310 - 290 * k / 200:.1f}"
            for k in range(201)
        ]
        parts.append(
            f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        parts.append(f'<text x="600" y="{250 + 18 * number}" text-anchor="end" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
