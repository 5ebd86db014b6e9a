"""The options of `pods/log` (PodLogOptions) as query parameters: read, checked, written again.

The API server and the node agent both take them, so both use this module: what one
accepts, the other understands. Numbers, booleans and times are read as Kubernetes
reads query parameters; the first value of a parameter counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from dray.api.times import format_time, parse_time
from dray.api.validation.fields import FieldError, forbidden, invalid

_INTEGER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_LONGEST_INTEGER: Final = 64  # characters; a longer one is out of range, and is not worth parsing
_POSITIVE: Final = "must be greater than 0"
_NOT_NEGATIVE: Final = "must be greater than or equal to 0"


@dataclass(frozen=True, slots=True)
class PodLogOptions:
    """Which part of whose log is wanted."""

    container: str = ""
    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    since_seconds: int | None = None
    since_time: datetime | None = None
    tail_lines: int | None = None
    limit_bytes: int | None = None
    stream: str | None = None


def parse_integer(text: str) -> int:
    """Read a 64-bit integer of a query parameter; raise ValueError with Kubernetes' text.

    >>> parse_integer("-5")
    -5
    """
    if _INTEGER.fullmatch(text) is None:
        raise ValueError(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    value = int(text) if len(text) <= _LONGEST_INTEGER else 1 << 64
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f'strconv.ParseInt: parsing "{text}": value out of range')
    return value


def parse_boolean(text: str) -> bool:
    """Read a boolean of a query parameter: only "false" and "0" are false."""
    return text.lower() not in ("false", "0")


def parse_log_options(query: Iterable[tuple[str, str]]) -> PodLogOptions:
    """Read the options; raise ValueError for a value that cannot be read (400)."""
    values: dict[str, str] = {}
    for key, value in query:
        values.setdefault(key, value)

    def boolean(name: str) -> bool:
        return name in values and parse_boolean(values[name])

    def integer(name: str) -> int | None:
        return parse_integer(values[name]) if name in values else None

    since_time = values.get("sinceTime", "")
    return PodLogOptions(
        container=values.get("container", ""),
        follow=boolean("follow"),
        previous=boolean("previous"),
        timestamps=boolean("timestamps"),
        since_seconds=integer("sinceSeconds"),
        since_time=parse_time(since_time) if since_time not in ("", "null") else None,
        tail_lines=integer("tailLines"),
        limit_bytes=integer("limitBytes"),
        stream=values.get("stream"),
    )


def validate_log_options(options: PodLogOptions) -> list[FieldError]:
    """Return what is wrong with options that could be read (422)."""
    problems: list[FieldError] = []
    if options.tail_lines is not None and options.tail_lines < 0:
        problems.append(invalid("tailLines", options.tail_lines, _NOT_NEGATIVE))
    if options.limit_bytes is not None and options.limit_bytes < 1:
        problems.append(invalid("limitBytes", options.limit_bytes, _POSITIVE))
    if options.since_seconds is not None and options.since_time is not None:
        problems.append(forbidden("", "at most one of `sinceTime` or `sinceSeconds` may be specified"))
    elif options.since_seconds is not None and options.since_seconds < 1:
        problems.append(invalid("sinceSeconds", options.since_seconds, _POSITIVE))
    if options.stream is not None:
        # The gate PodLogsQuerySplitStreams is alpha and off.
        problems.append(forbidden("stream", "may not be specified"))
    return problems


def log_query(options: PodLogOptions) -> list[tuple[str, str]]:
    """Write the options for a node agent (or kubelet); the container is in the path there."""
    query = [
        (name, "true")
        for name, is_set in (
            ("follow", options.follow),
            ("previous", options.previous),
            ("timestamps", options.timestamps),
        )
        if is_set
    ]
    for name, number in (
        ("sinceSeconds", options.since_seconds),
        ("tailLines", options.tail_lines),
        ("limitBytes", options.limit_bytes),
    ):
        if number is not None:
            query.append((name, str(number)))
    if options.since_time is not None:
        query.append(("sinceTime", format_time(options.since_time)))
    return query
