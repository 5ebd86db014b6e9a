"""Times on the wire: one module formats and parses them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

import dray
from dray.api.times import TimeError, format_microtime, format_time, parse_time

SOURCES = Path(dray.__file__).parent
# strftime or a format specification with a date and a time of day: RFC 3339 formatted by hand.
BY_HAND = re.compile(r"%Y-%m-%dT%H|fromisoformat\([^)\n]*replace\(")
# CEL's timestamps have nanoseconds and a custom resource's date-time format keeps what the client wrote.
EXCEPTIONS = {"server/custom/schema_validation.py"}


@pytest.mark.parametrize(
    ("moment", "seconds", "micro"),
    [
        (0, "1970-01-01T00:00:00Z", "1970-01-01T00:00:00.000000Z"),
        (1.25, "1970-01-01T00:00:01Z", "1970-01-01T00:00:01.250000Z"),
        (datetime(2026, 2, 3, 4, 5, 6, 7, UTC), "2026-02-03T04:05:06Z", "2026-02-03T04:05:06.000007Z"),
        (datetime(33, 1, 1, tzinfo=UTC), "0033-01-01T00:00:00Z", "0033-01-01T00:00:00.000000Z"),
    ],
)
def test_a_time_is_formatted_with_seconds_and_a_microtime_with_six_decimals(
    moment: datetime | float, seconds: str, micro: str
) -> None:
    assert format_time(moment) == seconds
    assert format_microtime(moment) == micro


def test_another_time_zone_is_converted_to_utc() -> None:
    moment = datetime(2026, 1, 1, 1, 30, tzinfo=timezone(timedelta(hours=2)))
    assert format_time(moment) == "2025-12-31T23:30:00Z"
    assert format_microtime(moment) == "2025-12-31T23:30:00.000000Z"


def test_what_was_formatted_is_parsed_to_the_same_moment() -> None:
    moment = datetime(2026, 7, 8, 9, 10, 11, 121314, UTC)
    assert parse_time(format_microtime(moment)) == moment
    assert parse_time(format_time(moment)) == moment.replace(microsecond=0)


@pytest.mark.parametrize("text", ["", "2026-01-01", "2026-01-01T00:00:00", "2026-02-30T00:00:00Z", "noon"])
def test_text_that_is_not_a_time_is_refused(text: str) -> None:
    with pytest.raises(TimeError):
        parse_time(text)


def test_no_other_module_formats_or_parses_rfc_3339_by_hand() -> None:
    found = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        if BY_HAND.search(path.read_text(encoding="utf-8"))
    }
    assert found == EXCEPTIONS
