"""What people may know of the queue and of each other: place, expected start, what holds a job back, shares, limits,
and who holds which devices until when.

The scheduler keeps it in the ConfigMap `kube-system/dray-queue`, which every user may read. Jobs are named by uid, so that
nobody learns the names of other people's jobs; users by their namespace. `dray queue`, `dray explain` and `dray run`
show of it what belongs to the pods that the caller sees. Devices that others hold are no secret on a shared machine: without
them every tool of a user would call them free.

Pure. What cannot be read is left out: the report only informs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from dray.api.json_types import JsonObject
from dray.api.parsing import ParseError, load_json
from dray.api.resource import DeviceRequestAllocationResult
from dray.scheduler.limits import Holding, Limits
from dray.scheduler.user_limits import format_entry, parse_entry

NAMESPACE: Final = "kube-system"
NAME: Final = "dray-queue"
MOST_JOBS: Final = 1000
MOST_USERS: Final = 1000
MOST_HELD: Final = 4000  # devices; an entry has about 120 bytes, a ConfigMap at most 1 MiB


@dataclass(frozen=True, slots=True)
class JobReport:
    """One waiting job."""

    place: int  # from 1
    waiting: int  # how many wait
    starts: float | None = None  # expected, at the latest; None: not foreseeable
    is_head: bool = False  # its moment is reserved: nothing starts that would delay it
    held_back: str = ""  # by a limit or by the head of the queue; empty: it does not fit

    def lines(self, format_moment: Any) -> list[str]:
        """Return it in words; `format_moment` formats seconds since 1970."""
        found = [f"number {self.place} of {self.waiting} that wait"]
        if self.is_head:
            found.append("it is at the head of the queue: nothing starts that would delay it")
        if self.held_back:
            found.append(f"held back: {self.held_back}")
        if self.starts is not None:
            found.append(
                f"expected to start {format_moment(self.starts)} at the latest, if nobody goes before it"
            )
        elif not self.held_back:
            found.append("expected start: not foreseeable, because running jobs have no time limit (--time)")
        return found


@dataclass(frozen=True, slots=True)
class UserReport:
    """One user: share of the device time, what is held, and the limits."""

    used: float = 0.0  # fraction of the device time of late
    entitled: float = 0.0
    holding: Holding = field(default_factory=Holding)
    limits: Limits = field(default_factory=Limits)

    def lines(self) -> list[str]:
        """Return it in words.

        >>> UserReport(0.75, 0.5, Holding(devices=2, running=1), Limits(devices=4)).lines()[1]
        'limits: devices 2 of 4'
        """
        share = f"share: {self.used:.0%} of the device time lately, the fair share is {self.entitled:.0%}"
        held = (
            ("devices", self.holding.devices, self.limits.devices),
            ("device memory", self.holding.device_memory, self.limits.device_memory),
            ("running jobs", self.holding.running, self.limits.running),
        )
        limited = [f"{name} {has} of {most}" for name, has, most in held if most is not None]
        return [share.replace("%", " %"), *([f"limits: {', '.join(limited)}"] if limited else [])]


@dataclass(frozen=True, slots=True)
class HeldDevices:
    """What one claim holds."""

    user: str  # namespace
    until: float | None  # at the latest; None: without a time limit
    devices: tuple[DeviceRequestAllocationResult, ...]  # identity, share and consumed capacity only


@dataclass(frozen=True, slots=True)
class QueueReport:
    """All of it."""

    jobs: Mapping[str, JobReport] = field(default_factory=dict)  # by uid of the pod
    users: Mapping[str, UserReport] = field(default_factory=dict)  # by namespace
    held: Sequence[HeldDevices] = ()

    def to_data(self) -> dict[str, str]:
        """Return the data of the ConfigMap, bounded in size."""
        jobs = {uid: _job_data(job) for uid, job in list(self.jobs.items())[:MOST_JOBS]}
        users = {name: _user_data(user) for name, user in list(self.users.items())[:MOST_USERS]}
        held: list[JsonObject] = []
        left = MOST_HELD
        for each in self.held:
            left -= len(each.devices)
            if left < 0:
                break
            held.append(_held_data(each))
        return {"jobs": json.dumps(jobs), "users": json.dumps(users), "held": json.dumps(held)}


def parse_report(data: Mapping[str, Any]) -> QueueReport:
    """Read the data of the ConfigMap."""
    return QueueReport(
        {uid: job for uid, value in _entries(data, "jobs") if (job := _job(value)) is not None},
        {name: user for name, value in _entries(data, "users") if (user := _user(value)) is not None},
        [held for value in _list(data, "held")[:MOST_HELD] if (held := _held(value)) is not None],
    )


def _job_data(job: JobReport) -> JsonObject:
    found: JsonObject = {"place": job.place, "waiting": job.waiting, "starts": job.starts}
    return (
        found
        | ({"isHead": True} if job.is_head else {})
        | ({"heldBack": job.held_back} if job.held_back else {})
    )


def _user_data(user: UserReport) -> JsonObject:
    holding = user.holding
    return {
        "used": round(user.used, 2),
        "entitled": round(user.entitled, 2),
        "holding": [holding.devices, holding.device_memory, holding.running],
        "limits": format_entry(user.limits),
    }


def _held_data(held: HeldDevices) -> JsonObject:
    results = [
        {"request": "", "driver": each.driver, "pool": each.pool, "device": each.device}
        | ({"shareID": each.share_id} if each.share_id else {})
        | ({"consumedCapacity": dict(each.consumed_capacity)} if each.consumed_capacity else {})
        for each in held.devices
    ]
    return {"user": held.user, "until": held.until, "devices": results}


def _held(value: Any) -> HeldDevices | None:
    try:
        until = value["until"]
        devices = tuple(msgspec.convert(each, DeviceRequestAllocationResult) for each in value["devices"])
        return HeldDevices(str(value["user"]), None if until is None else float(until), devices)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None


def _parsed(data: Mapping[str, Any], key: str) -> Any:
    text = data.get(key)
    try:
        return load_json(text) if isinstance(text, str) else None
    except ParseError:
        return None


def _entries(data: Mapping[str, Any], key: str) -> Sequence[tuple[str, Any]]:
    found = _parsed(data, key)
    return list(found.items()) if isinstance(found, dict) else ()


def _list(data: Mapping[str, Any], key: str) -> Sequence[Any]:
    found = _parsed(data, key)
    return found if isinstance(found, list) else ()


def _job(value: Any) -> JobReport | None:
    try:
        starts = value["starts"]
        return JobReport(
            int(value["place"]),
            int(value["waiting"]),
            None if starts is None else float(starts),
            bool(value.get("isHead")),
            str(value.get("heldBack") or ""),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None


def _user(value: Any) -> UserReport | None:
    try:
        devices, memory, running = (int(number) for number in value["holding"])
        limits = parse_entry(str(value["limits"]))
        return UserReport(
            float(value["used"]), float(value["entitled"]), Holding(devices, memory, running), limits
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None
