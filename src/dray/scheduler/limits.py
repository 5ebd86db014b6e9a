"""Limits of users and groups: how much they may hold and queue, and for how long.

Pure: what somebody holds and asks for come in as values; the answer is the reason, in words a user can act
upon, or nothing. A limit of None is no limit. Unlike a ResourceQuota, which refuses the creation of an object,
these limits make a job wait (`devices`, `device_memory`, `running`) or refuse it for good (`seconds`, `waiting`,
or more devices than could ever be allowed).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Limits:
    """What one user or group may have; None means: as much as there is."""

    devices: int | None = None  # held at once
    device_memory: int | None = None  # bytes held at once
    running: int | None = None  # jobs at once
    waiting: int | None = None  # jobs in the queue
    seconds: float | None = None  # longest time of a job
    default_seconds: float | None = None  # time of a job that names none


@dataclass(frozen=True, slots=True)
class Holding:
    """What somebody has now."""

    devices: int = 0
    device_memory: int = 0
    running: int = 0
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class Ask:
    """What a job wants."""

    devices: int = 0
    device_memory: int = 0
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a job may not start, and whether waiting helps."""

    limit: str
    message: str
    action: Literal["wait", "refuse"]


def check_submission(limits: Limits, holding: Holding, ask: Ask) -> Refusal | None:
    """Judge a job when it is submitted: refuse what can never run, and queues that are full."""
    if limits.seconds is not None and ask.seconds is not None and ask.seconds > limits.seconds:
        return Refusal(
            "seconds",
            f"the longest time of a job is {format_seconds(limits.seconds)}, "
            f"this one asks for {format_seconds(ask.seconds)}",
            "refuse",
        )
    if limits.waiting is not None and holding.waiting >= limits.waiting:
        return Refusal(
            "waiting", f"{holding.waiting} jobs wait already, at most {limits.waiting} may", "refuse"
        )
    for name, unit, format_value in _AMOUNTS:
        most, wanted = getattr(limits, name), getattr(ask, name)
        if most is not None and wanted > most:
            return Refusal(
                name,
                f"{format_value(wanted)} {unit} are asked for, at most {format_value(most)} are allowed",
                "refuse",
            )
    return None


def check_start(limits: Limits, holding: Holding, ask: Ask) -> Refusal | None:
    """Judge a job when it could start: it waits while its user holds too much."""
    if limits.running is not None and holding.running >= limits.running:
        return Refusal("running", f"{holding.running} jobs run already, at most {limits.running} may", "wait")
    for name, unit, format_value in _AMOUNTS:
        most, held, wanted = getattr(limits, name), getattr(holding, name), getattr(ask, name)
        if most is not None and wanted and held + wanted > most:
            return Refusal(
                name,
                f"{format_value(held)} {unit} are held already and {format_value(wanted)} more are asked for; "
                f"at most {format_value(most)} are allowed",
                "wait",
            )
    return None


def time_of(limits: Limits, asked: float | None) -> float | None:
    """Return how long a job may run: what it asks for, the default, or the longest time; None: no limit."""
    wanted = asked if asked is not None else limits.default_seconds
    if limits.seconds is None:
        return wanted
    return limits.seconds if wanted is None else min(wanted, limits.seconds)


def format_seconds(seconds: float) -> str:
    """Format a time span as people say it.

    >>> format_seconds(5400), format_seconds(45), format_seconds(90_000)
    ('1h30m', '45s', '1d1h')
    """
    rest = int(seconds)
    parts = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2]) or "0s"


def _format_bytes(count: int) -> str:
    return f"{count / (1 << 30):g} GiB"


_AMOUNTS = (("devices", "devices", str), ("device_memory", "of device memory", _format_bytes))
