"""Moments as the API spells them."""

from __future__ import annotations

from datetime import datetime


def timestamp(moment: datetime) -> str:
    """Spell a moment, in whole seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_timestamp(text: str | None) -> datetime | None:
    """Read a moment; None stays None."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None
