"""The wall clock. Who needs it takes it as an argument, so that tests pass one of their own."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> datetime:
    """Return what time it is."""
    return datetime.now(UTC)
