"""Objects to bytes and back, for storage and for answers.

Raw JSON parts (opaque parameters, device data) are kept byte by byte in both
directions; `dray.api.codec` knows where they are.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dray.api.kinds import Kind

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()


def encode(value: Any) -> bytes:
    """Encode an answer."""
    return _encoder.encode(value)


def encode_stored(obj: dict[str, Any]) -> bytes:
    """Encode an object for the store."""
    return _encoder.encode(obj)


def decode_stored(kind: Kind, value: bytes) -> dict[str, Any]:
    """Decode what `encode_stored` wrote."""
    obj: dict[str, Any] = _decoder.decode(value)
    return obj
