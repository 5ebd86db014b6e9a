"""Times and durations: parts, zones, texts."""

import pytest
from cel_builders import error_of, value_of

LEAP = "timestamp('2024-02-29T23:59:58.123456789Z')"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (f"{LEAP}.getFullYear()", 2024),
        (f"{LEAP}.getMonth()", 1),  # from 0
        (f"{LEAP}.getDate()", 29),  # from 1
        (f"{LEAP}.getDayOfMonth()", 28),  # from 0
        (f"{LEAP}.getDayOfWeek()", 4),  # Sunday is 0; a Thursday
        (f"{LEAP}.getDayOfYear()", 59),  # from 0
        (f"{LEAP}.getHours()", 23),
        (f"{LEAP}.getMinutes()", 59),
        (f"{LEAP}.getSeconds()", 58),
        (f"{LEAP}.getMilliseconds()", 123),
        (f"{LEAP}.getHours('+01:00')", 0),
        (f"{LEAP}.getDate('+01:00')", 1),
        (f"{LEAP}.getMonth('+01:00')", 2),
        (f"{LEAP}.getMinutes('-02:30')", 29),
        (f"{LEAP}.getHours('02:00')", 1),  # a sign may be missing
        (f"{LEAP}.getHours('UTC')", 23),
        ("timestamp('2024-07-01T12:00:00Z').getHours('Europe/Berlin')", 14),
        ("timestamp('2024-01-01T12:00:00Z').getHours('Europe/Berlin')", 13),
        ("duration('3661.5s').getHours()", 1),
        ("duration('3661.5s').getMinutes()", 61),
        ("duration('3661.5s').getSeconds()", 3661),
        ("duration('3661.5s').getMilliseconds()", 3_661_500),
        ("duration('-90s').getMinutes()", -1),
        ("string(duration('1.5s'))", "1.5s"),
        ("string(duration('-1ms'))", "-0.001s"),
        ("duration('1h') == duration('60m') && duration('1us') == duration('1000ns')", True),
        ("string(timestamp('2024-01-01T00:00:00.100Z'))", "2024-01-01T00:00:00.1Z"),
        ("int(timestamp('1969-12-31T23:59:59Z'))", -1),
        ("timestamp(1).getSeconds()", 1),
    ],
)
def test_results(text, value):
    found = value_of(text)
    assert (type(found), found) == (type(value), value)


def test_a_zone_that_nobody_knows_is_an_error():
    assert "unknown time zone" in error_of(f"{LEAP}.getHours('Nowhere/Land')")


@pytest.mark.parametrize(
    "text", ["", "1", "h", "1x", "1h 2m", "--1s", "1h-2m", ".s", "9223372036854775808ns", "300000000h"]
)
def test_texts_that_are_no_durations(text):
    assert "type conversion error from 'string' to 'google.protobuf.Duration'" in error_of(
        f"['{text}'].map(each, duration(each))"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2024-01-01",
        "2024-01-01 00:00:00Z",
        "2024-01-01T00:00:00",
        "2024-13-01T00:00:00Z",
        "2023-02-29T00:00:00Z",
        "2024-01-01T24:00:00Z",
        "2024-01-01T00:00:60Z",
    ],
)
def test_texts_that_are_no_timestamps(text):
    assert "type conversion error from 'string' to 'google.protobuf.Timestamp'" in error_of(
        f"['{text}'].map(each, timestamp(each))"
    )
