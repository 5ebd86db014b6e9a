"""Bytes and plain values to typed views: decoders made once, nulls taken for what they mean."""

from __future__ import annotations

from typing import Any

from dray.api.parsing import json_loader

decoder_of = json_loader


def without_nulls(value: Any) -> Any:
    """Drop nulls: in the API they mean the same as an absent field."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [without_nulls(each) for each in value if each is not None]
    return value
