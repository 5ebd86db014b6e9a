"""Durations for people: exact when short, coarse when long."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from dray.api.caching import cached_by_text

UNKNOWN = "<unknown>"
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def human_duration(seconds: float) -> str:
    """Return a duration in at most two units.

    >>> [human_duration(s) for s in (-5, 0, 119, 150, 3600, 4 * 3600 + 60, 3 * 86400 + 3600, 800 * 86400)]
    ['<invalid>', '0s', '119s', '2m30s', '60m', '4h1m', '3d1h', '2y70d']
    """
    total = int(seconds)
    if total < -1:
        return "<invalid>"  # clocks disagree by more than they should
    total = max(total, 0)
    if total < 2 * _MINUTE:
        return f"{total}s"
    if total < 10 * _MINUTE:
        return _two(total // _MINUTE, "m", total % _MINUTE, "s")
    if total < 3 * _HOUR:
        return f"{total // _MINUTE}m"
    hours = total // _HOUR
    if hours < 8:
        return _two(hours, "h", total // _MINUTE % 60, "m")
    if hours < 48:
        return f"{hours}h"
    days = hours // 24
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 2 * 365:
        return f"{days}d"
    if days < 8 * 365:
        return _two(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


@dataclass(frozen=True, slots=True)
class Since:
    """A cell that changes with time: how long ago something was, in a text.

    Rows are kept between two tables, so what depends on the time is left open.

    >>> Since(1000.0, "3 (", " ago)").at(1030.0)
    '3 (30s ago)'
    """

    moment: float  # epoch seconds
    before: str = ""
    after: str = ""

    def at(self, now: float) -> str:
        """Return the text at a time."""
        return f"{self.before}{human_duration(now - self.moment)}{self.after}"


def age(timestamp: str | None) -> Since | str:
    """Return the cell that shows the time since an RFC 3339 timestamp."""
    then = epoch(timestamp) if timestamp else None
    return UNKNOWN if then is None else Since(then)


@cached_by_text(maxsize=8192, longest=64)
def epoch(timestamp: str) -> float | None:
    """Return a timestamp as seconds, None when it is none. Objects of one moment share theirs."""
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except ValueError:
        return None


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}{small}{small_unit}" if small else f"{large}{large_unit}"
