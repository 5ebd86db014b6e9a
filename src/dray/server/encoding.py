"""Objects to bytes for answers and for the store; `dray.api.codec` keeps raw parts as they are."""

from __future__ import annotations

from typing import Any

import msgspec

from dray.api import codec
from dray.api.schema import Type

_plain = msgspec.json.Decoder()

encode = codec.encode


def decode_stored(schema: Type | None, value: bytes) -> dict[str, Any]:
    """Decode what was stored; custom kinds have no schema and no raw parts."""
    if schema is None:
        obj: dict[str, Any] = _plain.decode(value)
        return obj
    return codec.decode_stored(schema, value)
