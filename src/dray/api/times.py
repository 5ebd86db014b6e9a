"""Times on the wire: RFC 3339 in UTC, with seconds or with microseconds.

Kubernetes has two kinds of time. `Time` is written with seconds, and read with any
fraction (which is dropped). `MicroTime`, in leases and events, is written and read
with exactly six decimals. Both are always written in UTC.

Invariant: this is the only module that formats such times
(tests/unit/api/test_api_times.py searches the sources for another one).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
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
        raise TimeError(f'parsing time "{text}" as "{layout}": cannot parse "{text}" as "2006"')
    *parts, fraction, zone = match.groups()
    if layout is _MICRO_LAYOUT and (fraction is None or len(fraction) != 6):
        rest = zone if fraction is None else f".{fraction}{zone}"
        raise TimeError(f'parsing time "{text}" as "{layout}": cannot parse "{rest}" as ".000000"')
    year, month, day, hour, minute, second = map(int, parts)
    micro = int((fraction or "")[:6].ljust(6, "0"))
    try:
        moment = datetime(year, month, day, hour, minute, second, micro, tzinfo=_zone(zone))
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise TimeError(f'parsing time "{text}": out of range') from None


def _zone(text: str) -> timezone:
    if text == "Z":
        return UTC
    hours, minutes = int(text[1:3]), int(text[4:6])
    if hours > 24 or minutes > 59:
        raise ValueError(text)
    offset = timedelta(hours=hours, minutes=minutes)
    return timezone(-offset if text[0] == "-" else offset)
