"""Objects to bytes for answers and for the store; `dray.api.codec` keeps raw parts as they are."""

from __future__ import annotations

from typing import Any

from dray.api import codec
from dray.api.parsing import json_loader
from dray.api.schema import Type

_plain = json_loader(Any)

encode = codec.encode


def decode_stored(schema: Type | None, value: bytes) -> dict[str, Any]:
    """Decode what was stored; custom kinds have no schema and no raw parts."""
    if schema is None:
        obj: dict[str, Any] = _plain.decode(value)
        return obj
    return codec.decode_stored(schema, value)


def encode_yaml(value: Any) -> bytes:
    """Encode an answer as YAML."""
    # Most answers are JSON: the writer and PyYAML are imported when first asked for.
    from dray.server.requests.yaml_writer import write_yaml

    return write_yaml(_plain.decode(encode(value))).encode()


_INT64 = 2**63


def reread(value: Any) -> Any:
    """Return a JSON value as Go reads it into free form: whole numbers beyond 64 bits become floats."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if -_INT64 <= value < _INT64 else float(value)
    if isinstance(value, dict):
        return {key: reread(item) for key, item in value.items()}
    if isinstance(value, list):
        return [reread(item) for item in value]
    return value


def copy_json(value: Any) -> Any:
    """Copy a JSON value deeply; leaves are shared."""
    if isinstance(value, dict):
        # Leaves are most of a document; asking here spares them a call.
        return {
            key: copy_json(item) if isinstance(item, (dict, list)) else item for key, item in value.items()
        }
    if isinstance(value, list):
        return [copy_json(item) if isinstance(item, (dict, list)) else item for item in value]
    return value
