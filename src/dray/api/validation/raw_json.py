"""Raw JSON inside objects: opaque parameters and device status data.

The API keeps such values byte by byte, because their meaning belongs to a
driver. The codec hands them over as raw bytes; validators here look at size and
outermost type only. A plain Python value is accepted, too, and stands for its
compact encoding.
"""

from __future__ import annotations

import json
from typing import Any

from dray.api.validation.fields import FieldError, Path, invalid, required, too_long


def raw_bytes(value: Any) -> bytes:
    """Return the bytes of a raw JSON value; absent is empty."""
    if value is None:
        return b""
    if isinstance(value, bytes):
        return value
    inner = getattr(value, "raw", None)
    if isinstance(inner, bytes):
        return inner
    if isinstance(inner, str):
        return inner.encode()
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def validate_raw_object(value: Any, path: Path, *, limit: int, stored: bool = False) -> list[FieldError]:
    """Check that a value is a JSON object within its size limit (which stored values may exceed)."""
    raw = raw_bytes(value)
    if not raw:
        return [required(path)]
    if not stored and len(raw) > limit:
        return [too_long(path, limit)]
    try:
        parsed = json.loads(raw)
    except ValueError as error:
        return [invalid(path, "<value omitted>", f"error parsing data as JSON: {error}")]
    if parsed is None:
        return [required(path)]
    return (
        [] if isinstance(parsed, dict) else [invalid(path, "<value omitted>", "must be a valid JSON object")]
    )
