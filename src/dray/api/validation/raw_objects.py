"""Raw JSON inside objects: opaque parameters and device status data.

Their meaning belongs to a driver, so validation looks at size and outermost
type only. Size is that of the bytes as they were sent.
"""

from __future__ import annotations

from typing import Any

from dray.api.raw_json import RawJson
from dray.api.validation.fields import FieldError, Path, invalid, required, too_long


def raw_json(value: Any) -> RawJson | None:
    """Return a value in its raw form; a plain Python value stands for its compact encoding."""
    if value is None or isinstance(value, RawJson):
        return value
    return RawJson.of(value)


def validate_raw_object(value: Any, path: Path, *, limit: int, stored: bool = False) -> list[FieldError]:
    """Check that a value is a JSON object within its size limit (which stored values may exceed)."""
    raw = raw_json(value)
    if raw is None or not raw.raw:
        return [required(path)]
    if not stored and len(raw.raw) > limit:
        return [too_long(path, limit)]
    try:
        parsed = raw.value
    except ValueError as error:
        return [invalid(path, "<value omitted>", f"error parsing data as JSON: {error}")]
    if parsed is None:
        return [required(path)]
    return (
        [] if isinstance(parsed, dict) else [invalid(path, "<value omitted>", "must be a valid JSON object")]
    )
