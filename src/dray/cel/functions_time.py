"""Timestamps and durations: parsing, writing, and their parts."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from dray.api.quoting import quote_go
from dray.cel.errors import Fault
from dray.cel.operators import MAX_TIME, MIN_TIME
from dray.cel.values import INT64_MAX, NANOS, Duration, Timestamp

_UNITS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": NANOS,
    "m": 60 * NANOS,
    "h": 3600 * NANOS,
}
_DURATION_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|µs|μs|ms|s|m|h)")
_RFC3339 = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})T(\d{1,2}):(\d{2}):(\d{2})(?:[.,](\d+))?(Z|[+-]\d{2}:\d{2})\Z", re.ASCII
)
_DAYS_OF_400_YEARS = 146_097
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_duration(text: str) -> Duration:
    """Parse `1h30m`, `-1.5s`; raise ValueError."""
    sign = -1 if text.startswith("-") else 1
    rest = text[1:] if text[:1] in ("-", "+") else text
    if rest == "0":
        return Duration(0)
    if not rest:
        raise ValueError(text)
    nanos = 0
    while rest:
        part = _DURATION_PART.match(rest)
        if part is None or not (part.group(1) or part.group(2)):
            raise ValueError(text)
        unit = _UNITS[part.group(3)]
        fraction = (part.group(2) or "")[:20]
        nanos += int(part.group(1)[:25] or "0") * unit + (
            int(fraction) * unit // 10 ** len(fraction) if fraction else 0
        )
        rest = rest[part.end() :]
    if nanos > INT64_MAX + (sign < 0):
        raise ValueError(text)
    return Duration(sign * nanos)


def show_duration(duration: Duration) -> str:
    """Write a duration in seconds, as CEL does."""
    seconds, nanos = divmod(abs(duration.nanos), NANOS)
    sign = "-" if duration.nanos < 0 else ""
    fraction = f".{nanos:09d}".rstrip("0") if nanos else ""
    return f"{sign}{seconds}{fraction}s"


def parse_timestamp(text: str) -> Timestamp:
    """Parse RFC 3339; raise ValueError."""
    found = _RFC3339.match(text)
    if found is None:
        raise ValueError(text)
    year, month, day, hour, minute, second = (int(found.group(index)) for index in range(1, 7))
    moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    zone, offset = found.group(8), 0
    seconds = (moment - _EPOCH) // timedelta(seconds=1)
    if zone != "Z":
        hours, minutes = int(zone[1:3]), int(zone[4:6])
        if hours > 24 or minutes > 60:
            raise ValueError(text)
        offset = (hours * 3600 + minutes * 60) * (-1 if zone[0] == "-" else 1)
        seconds -= offset
    if not MIN_TIME <= seconds <= MAX_TIME:
        raise ValueError(text)
    fraction = (found.group(7) or "")[:9]
    return Timestamp(seconds * NANOS + int(fraction.ljust(9, "0") or "0"), offset)


def show_timestamp(timestamp: Timestamp) -> str:
    """Write RFC 3339 with the offset that the timestamp was written with, and as many decimals as needed."""
    seconds, nanos = divmod(timestamp.nanos, NANOS)
    # The local time may lie outside of the years that Python knows: the calendar repeats.
    seconds += timestamp.offset
    years = 400 if seconds < MIN_TIME else -400 if seconds > MAX_TIME else 0
    moment = _EPOCH + timedelta(seconds=seconds, days=years // 400 * _DAYS_OF_400_YEARS)
    fraction = f".{nanos:09d}".rstrip("0") if nanos else ""
    minutes = abs(timestamp.offset) // 60
    sign = "-" if timestamp.offset < 0 else "+"
    zone = f"{sign}{minutes // 60:02d}:{minutes % 60:02d}" if timestamp.offset else "Z"
    return f"{moment.year - years:04d}-{moment:%m-%dT%H:%M:%S}{fraction}{zone}"


def _zone(name: str) -> tzinfo:
    if ":" in name:
        return _fixed_zone(name)
    if name in ("", "UTC", "Local"):
        return UTC
    if ".." in name or name[0] in "/\\":
        raise Fault("time: invalid location name")
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise Fault(f"unknown time zone {name}") from None


def _fixed_zone(name: str) -> tzinfo:
    hours_text, _, minutes_text = name.partition(":")
    for text in (hours_text, minutes_text):
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
            raise Fault(f"strconv.Atoi: parsing {quote_go(text)}: invalid syntax")
    hours, minutes = int(hours_text), int(minutes_text)
    offset = hours * 60 - minutes if name[0] == "-" else hours * 60 + minutes
    if abs(offset) >= 24 * 60:
        raise Fault(f"time zone offset out of range: {name}")
    return timezone(timedelta(minutes=offset))


def _moment(timestamp: Timestamp, zone: str) -> datetime:
    try:
        return (_EPOCH + timedelta(seconds=timestamp.nanos // NANOS)).astimezone(_zone(zone))
    except OverflowError:
        raise Fault("timestamp overflow") from None


_PARTS: dict[str, Callable[[datetime], int]] = {
    "year": lambda moment: moment.year,
    "month": lambda moment: moment.month - 1,
    "day_of_year": lambda moment: moment.timetuple().tm_yday - 1,
    "day_of_month": lambda moment: moment.day - 1,
    "day_of_month_1_based": lambda moment: moment.day,
    "day_of_week": lambda moment: moment.isoweekday() % 7,
    "hours": lambda moment: moment.hour,
    "minutes": lambda moment: moment.minute,
    "seconds": lambda moment: moment.second,
}


def _part(name: str) -> Callable[..., int]:
    return lambda timestamp, zone="UTC": _PARTS[name](_moment(timestamp, zone))


def _milliseconds(timestamp: Timestamp, zone: str = "UTC") -> int:
    _zone(zone)
    return timestamp.nanos % NANOS // 1_000_000


def _in_units(unit: int) -> Callable[[Duration], int]:
    def convert(duration: Duration) -> int:
        count = abs(duration.nanos) // unit
        return count if duration.nanos >= 0 else -count

    return convert


TIME: dict[str, Callable[..., object]] = {
    **{f"timestamp_to_{name}": _part(name) for name in _PARTS},
    **{f"timestamp_to_{name}_with_tz": _part(name) for name in _PARTS},
    "timestamp_to_milliseconds": _milliseconds,
    "timestamp_to_milliseconds_with_tz": _milliseconds,
    "duration_to_hours": _in_units(3600 * NANOS),
    "duration_to_minutes": _in_units(60 * NANOS),
    "duration_to_seconds": _in_units(NANOS),
    "duration_to_milliseconds": _in_units(1_000_000),
}
