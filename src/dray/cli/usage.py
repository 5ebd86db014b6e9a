"""`dray usage`: device-hours per user and period, as the scheduler with `--fair-share` records them."""

from __future__ import annotations

import argparse
import asyncio
import csv
import re
import sys
from datetime import UTC, date, datetime

from dray.cli.arguments import add_flags
from dray.cli.output import CommandError, add_output_flag, emit, table
from dray.control.scheduling.sharing import USAGE_NAME, USAGE_NAMESPACE, parse_days

Days = dict[str, dict[str, float]]  # day -> user -> device-seconds
_HEADERS = ("PERIOD", "USER", "DEVICE-HOURS", "SHARE")


def day(text: str) -> str:
    """Return a date of the form 2026-01-31."""
    try:
        if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
            return str(date.fromisoformat(text))
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a date such as 2026-01-31")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add = parser.add_argument
    add(
        "--by",
        choices=("month", "day", "week", "total"),
        default="month",
        help="length of a period (default: month)",
    )
    add(
        "--since",
        type=day,
        metavar="DATE",
        default="0001-01-01",
        help="first day, for example 2026-01-31 (default: all)",
    )
    add("--until", type=day, metavar="DATE", default="9999-12-31", help="last day (default: today)")
    add("--csv", action="store_true", help="print comma-separated values with a header")
    add_output_flag(parser)
    add_flags(parser, "--kubeconfig", "--context")


def run(args: argparse.Namespace) -> int:
    """Print who used how much."""
    days = {d: used for d, used in asyncio.run(_days(args)).items() if args.since <= d <= args.until}
    rows = rows_of(days, args.by)
    if args.csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(("period", "user", "device_hours", "share"))
        writer.writerows(rows)
    elif args.output == "table":
        table(
            _HEADERS, [(period, user, f"{hours:.1f}", f"{share:.0%}") for period, user, hours, share in rows]
        )
    else:
        keys = ("period", "user", "deviceHours", "share")
        emit([dict(zip(keys, row, strict=True)) for row in rows], args.output)
    return 0


async def _days(args: argparse.Namespace) -> Days:
    from dray.cli.sources import connect
    from dray.client import NotFound
    from dray.client.resources import CONFIG_MAPS

    async with connect(args.kubeconfig, args.context) as client:
        try:
            stored = await client.get(CONFIG_MAPS, USAGE_NAME, USAGE_NAMESPACE)
        except NotFound:
            raise CommandError(
                "no device time is on record yet",
                "it is recorded once a minute on a shared machine (`dray up --shared`), and by `dray scheduler --fair-share`",
                code=1,
            ) from None
        return parse_days(stored.get("data") or {})


def rows_of(days: Days, by: str) -> list[tuple[str, str, float, float]]:
    """Return period, user, device-hours and share of the period, most first.

    >>> rows_of({"2026-01-30": {"ann": 7200.0}, "2026-02-01": {"ann": 1800.0, "bob": 5400.0}}, "month")
    [('2026-01', 'ann', 2.0, 1.0), ('2026-02', 'bob', 1.5, 0.75), ('2026-02', 'ann', 0.5, 0.25)]
    """
    periods: Days = {}
    for each, used in sorted(days.items()):
        period = periods.setdefault(_period(each, by), {})
        for user, seconds in used.items():
            period[user] = period.get(user, 0.0) + seconds
    return [
        (period, user, round(seconds / 3600, 3), round(seconds / (sum(used.values()) or 1.0), 4))
        for period, used in periods.items()
        for user, seconds in sorted(used.items(), key=lambda item: (-item[1], item[0]))
    ]


def _period(text: str, by: str) -> str:
    if by == "total":
        return "total"
    if by == "month":
        return text[:7]
    if by == "week":
        year, week, _ = datetime.fromisoformat(text).replace(tzinfo=UTC).isocalendar()
        return f"{year}-W{week:02}"
    return text
