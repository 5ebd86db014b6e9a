"""Times on the wire: RFC 3339 in UTC, with seconds or with microseconds.

Kubernetes has two kinds of time. `Time` is written with seconds, and read with any
fraction (which is dropped). `MicroTime`, in leases and events, is written and read
with exactly six decimals. Both are always written in UTC.

Invariant: this is the only module that formats such times
(tests/unit/api/test_api_times.py searches the sources for another one).
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, timezone
from functools import lru_cache
from typing import Final

__all__ = [
    "TimeError",
    "canonical_microtime",
    "canonical_time",
    "format_microtime",
    "format_time",
    "parse_time",
]

_RFC3339: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:[.,](\d+))?(Z|[+-]\d\d:\d\d)", re.ASCII
)
_SECONDS_LAYOUT: Final = "2006-01-02T15:04:05Z07:00"
_MICRO_LAYOUT: Final = "2006-01-02T15:04:05.000000Z07:00"
_ZERO: Final = datetime(1, 1, 1, tzinfo=UTC)


class TimeError(ValueError):
    """The text is not a time in the wanted format."""


def parse_time(text: str) -> datetime:
    """Parse RFC 3339 text, with or without a fraction, to a time in UTC; raise TimeError."""
    return _parse(text, _SECONDS_LAYOUT)


def format_time(moment: datetime | float) -> str:
    """Format a datetime, or seconds since 1970, as a `Time`; fractions of a second are dropped.

    >>> format_time(0.9)
    '1970-01-01T00:00:00Z'
    """
    if not isinstance(moment, datetime):
        moment = datetime.fromtimestamp(moment, UTC)
    elif moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC)
    return _second_text(moment.year, moment.month, moment.day, moment.hour, moment.minute, moment.second)


@lru_cache(maxsize=64)  # many objects are written within one second
def _second_text(year: int, month: int, day: int, hour: int, minute: int, second: int) -> str:
    return f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z"


def format_microtime(moment: datetime | float) -> str:
    """Format a datetime, or seconds since 1970, as a `MicroTime`.

    >>> format_microtime(0.5)
    '1970-01-01T00:00:00.500000Z'
    """
    if not isinstance(moment, datetime):
        moment = datetime.fromtimestamp(moment, UTC)
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def canonical_time(text: str) -> str | None:
    """Return the stored form of a `Time`; None for the zero time."""
    if len(text) == 20 and text[-1] == "Z" and _RFC3339.fullmatch(text) and text[:4] != "0001":
        # Already canonical; only the calendar remains to be checked.
        _check_calendar(text)
        return text
    moment = _parse(text, _SECONDS_LAYOUT)
    return None if moment == _ZERO else format_time(moment)


def canonical_microtime(text: str) -> str | None:
    """Return the stored form of a `MicroTime`; None for the zero time."""
    moment = _parse(text, _MICRO_LAYOUT)
    return None if moment == _ZERO else format_microtime(moment)


def _check_calendar(text: str) -> None:
    try:
        datetime.fromisoformat(text[:-1])
    except ValueError:
        raise TimeError(f'parsing time "{text}": out of range') from None


def _parse(text: str, layout: str) -> datetime:
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise TimeError(_complaint(text, layout))
    *parts, fraction, zone = match.groups()
    if layout is _MICRO_LAYOUT and (fraction is None or len(fraction) != 6):
        raise TimeError(_complaint(text, layout))
    year, month, day, hour, minute, second = map(int, parts)
    micro = int((fraction or "")[:6].ljust(6, "0"))
    try:
        moment = datetime(year, month, day, hour, minute, second, micro, tzinfo=_zone(zone))
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        named = _out_of_range(year, month, day, hour, minute, second)
        raise TimeError(f'parsing time "{text}": {named}out of range') from None


def _complaint(text: str, layout: str) -> str:
    """Return which part of the layout the text does not have, and what stands there."""
    at = 0
    for pattern, part in _LAYOUT_PARTS:
        if part == ".000000" and layout is not _MICRO_LAYOUT:
            pattern = _ANY_FRACTION
        found = pattern.match(text, at)
        if found is None:
            break
        at = found.end()
    else:
        return f'parsing time "{text}": extra text: "{text[at:]}"'
    return f'parsing time "{text}" as "{layout}": cannot parse "{text[at:]}" as "{part}"'


def _out_of_range(year: int, month: int, day: int, hour: int, minute: int, second: int) -> str:
    if not 1 <= month <= 12:
        return "month "
    if day < 1 or day > 31 or (year > 0 and day > _days_of(year, month)):
        return "day "
    limits = ((hour, 24, "hour "), (minute, 60, "minute "), (second, 60, "second "))
    return next((name for value, limit, name in limits if value >= limit), "")


def _days_of(year: int, month: int) -> int:
    following = (year, month + 1) if month < 12 else (year + 1, 1)
    return (date(*following, 1) - date(year, month, 1)).days if year < 9999 else 31


# The parts of both layouts, in order; a fraction is optional unless the layout has one.
_LAYOUT_PARTS: Final = tuple(
    (re.compile(pattern, re.ASCII), part)
    for pattern, part in (
        (r"\d{4}", "2006"),
        (r"-", "-"),
        (r"\d\d", "01"),
        (r"-", "-"),
        (r"\d\d", "02"),
        (r"T", "T"),
        (r"\d\d", "15"),
        (r":", ":"),
        (r"\d\d", "04"),
        (r":", ":"),
        (r"\d\d", "05"),
        (r"[.,]\d{6}", ".000000"),
        (r"Z|[+-]\d\d:\d\d", "Z07:00"),
    )
)
_ANY_FRACTION: Final = re.compile(r"([.,]\d+)?", re.ASCII)


def _zone(text: str) -> timezone:
    if text == "Z":
        return UTC
    hours, minutes = int(text[1:3]), int(text[4:6])
    if hours > 24 or minutes > 59:
        raise ValueError(text)
    offset = timedelta(hours=hours, minutes=minutes)
    return timezone(-offset if text[0] == "-" else offset)
