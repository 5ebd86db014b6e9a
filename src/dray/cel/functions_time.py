"""Timestamps and durations: parsing, writing, and their parts."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
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
_DAY = 86_400
_SECONDS_OF_400_YEARS = _DAYS_OF_400_YEARS * _DAY
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_2000 = datetime(2000, 1, 1, tzinfo=UTC)
_START_OF_2000 = (_2000 - _EPOCH) // timedelta(seconds=1)


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


def _zone_offset(name: str, seconds: int) -> int:
    """Return by how many seconds a zone is ahead of UTC at a time; raises Fault."""
    if ":" in name:
        return _fixed_offset(name)
    if name in ("", "UTC", "Local"):
        return 0
    if ".." in name or name[0] in "/\\":
        raise Fault("time: invalid location name")
    if "\0" in name:
        raise Fault("invalid argument")  # what the system says of such a file's name
    try:
        zone = ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise Fault(f"unknown time zone {name}") from None
    # At the ends of the years that Python knows: rules of zones repeat with the calendar.
    period = _SECONDS_OF_400_YEARS if seconds < 0 else -_SECONDS_OF_400_YEARS
    near_end = not MIN_TIME + 2 * _DAY < seconds < MAX_TIME - 2 * _DAY
    moment = _EPOCH + timedelta(seconds=seconds + period * near_end)
    offset = moment.astimezone(zone).utcoffset()
    return int(offset.total_seconds()) if offset is not None else 0


def _fixed_offset(name: str) -> int:
    """Return the seconds of `hours:minutes`, of any size; upstream's arithmetic has 64 bits."""
    hours_text, _, minutes_text = name.partition(":")
    hours, minutes = _atoi(hours_text), _atoi(minutes_text)
    offset = _wrapped(hours * 60 - minutes if name[0] == "-" else hours * 60 + minutes)
    nanos = _wrapped(offset * 60 * NANOS)
    return nanos // NANOS if nanos >= 0 else -(-nanos // NANOS)


def _atoi(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise Fault(f"strconv.Atoi: parsing {quote_go(text)}: invalid syntax")
    number = int(text) if len(text) < 4000 else INT64_MAX + 1
    if not -INT64_MAX - 1 <= number <= INT64_MAX:
        raise Fault(f"strconv.Atoi: parsing {quote_go(text)}: value out of range")
    return number


def _wrapped(number: int) -> int:
    return (number + INT64_MAX + 1) % (2 * INT64_MAX + 2) - INT64_MAX - 1


def _local(timestamp: Timestamp, zone: str) -> tuple[datetime, int]:
    """Return a time in a zone as a moment of 2000 to 2399, and the years to add: the calendar repeats."""
    seconds = timestamp.nanos // NANOS
    periods, rest = divmod(seconds + _zone_offset(zone, seconds) - _START_OF_2000, _SECONDS_OF_400_YEARS)
    return _2000 + timedelta(seconds=rest), 400 * periods


_PARTS: dict[str, Callable[[datetime], int]] = {
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
    return lambda timestamp, zone="UTC": _PARTS[name](_local(timestamp, zone)[0])


def _year(timestamp: Timestamp, zone: str = "UTC") -> int:
    moment, more = _local(timestamp, zone)
    return moment.year + more


def _milliseconds(timestamp: Timestamp, zone: str = "UTC") -> int:
    _zone_offset(zone, timestamp.nanos // NANOS)
    return timestamp.nanos % NANOS // 1_000_000


def _in_units(unit: int) -> Callable[[Duration], int]:
    def convert(duration: Duration) -> int:
        count = abs(duration.nanos) // unit
        return count if duration.nanos >= 0 else -count

    return convert


TIME: dict[str, Callable[..., object]] = {
    **{f"timestamp_to_{name}": _part(name) for name in _PARTS},
    **{f"timestamp_to_{name}_with_tz": _part(name) for name in _PARTS},
    "timestamp_to_year": _year,
    "timestamp_to_year_with_tz": _year,
    "timestamp_to_milliseconds": _milliseconds,
    "timestamp_to_milliseconds_with_tz": _milliseconds,
    "duration_to_hours": _in_units(3600 * NANOS),
    "duration_to_minutes": _in_units(60 * NANOS),
    "duration_to_seconds": _in_units(NANOS),
    "duration_to_milliseconds": _in_units(1_000_000),
}
