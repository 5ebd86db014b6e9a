"""JSON that belongs to somebody else and is kept byte by byte.

Opaque driver parameters and device status data mean something only to a driver.
Kubernetes stores their bytes as they came, and compares claims by those bytes: the
same parameters with another space are another spec, which is immutable. So a field
of schema type `raw` holds a `RawJson` in the plain objects that the server works on.

Three forms of one value matter:

  as sent      `RawJson(b'{"b": 1, "a": 2.0}')`; what is stored and compared
  compacted    `.compacted()`: without whitespace; what readers get, and hence what
               a merge patch or JSON patch starts from
  rebuilt      `RawJson.of(value)`: keys sorted, numbers rewritten; what comes out
               when somebody parsed and wrote it: strategic patches, apply, YAML

A `RawJson` is a leaf: copying an object may share it. `seal` and `open_raw` in
`codec` put values into this form and take them out.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from dray.api.parsing import ParseError, load_json

__all__ = ["RawJson", "go_json"]


class RawJson:
    """One JSON value as bytes; immutable; equal if the bytes are.

    >>> RawJson.of({"b": 1, "a": [True]}).raw
    b'{"a":[true],"b":1}'
    """

    __slots__ = ("raw",)

    raw: bytes

    def __init__(self, raw: bytes) -> None:
        object.__setattr__(self, "raw", raw)

    @classmethod
    def of(cls, value: Any) -> RawJson:
        """Write a value as Go writes one that it parsed before."""
        return cls(go_json(value))

    @property
    def value(self) -> Any:
        """Parse the bytes; raise ValueError if they are not JSON."""
        try:
            return load_json(self.raw)
        except ParseError as error:
            raise ValueError(str(error)) from None

    def compacted(self) -> RawJson:
        """Return the value as readers see it: no whitespace, and <, >, & escaped."""
        try:
            text = msgspec.json.format(self.raw, indent=-1)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self
        compact = _escape_html(text)
        return self if compact == self.raw else RawJson(compact)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"RawJson is immutable: cannot set {name}")

    def __eq__(self, other: object) -> bool:
        return self.raw == other.raw if isinstance(other, RawJson) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.raw)

    def __copy__(self) -> RawJson:
        return self

    def __deepcopy__(self, memo: object) -> RawJson:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return (RawJson, (self.raw,))

    def __repr__(self) -> str:
        return f"RawJson({self.raw!r})"


def go_json(value: Any) -> bytes:
    """Write JSON as Go does: no whitespace, sorted keys, whole floats without a point, <, >, & escaped."""
    text = json.dumps(_go_numbers(value), ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return _escape_html(text.encode("utf-8", "replace"))


def _go_numbers(value: Any) -> Any:
    """Replace floats that are whole by ints, which is how Go prints them up to 1e21."""
    if isinstance(value, dict):
        return {key: _go_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_go_numbers(item) for item in value]
    if isinstance(value, RawJson):
        return _go_numbers(value.value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        return int(value)
    return value


def _escape_html(text: bytes) -> bytes:
    # In JSON these can only stand inside strings, so plain replacement is safe.
    for character, escaped in ((b"<", b"\\u003c"), (b">", b"\\u003e"), (b"&", b"\\u0026")):
        if character in text:
            text = text.replace(character, escaped)
    if b"\xe2\x80" in text:
        text = text.replace("\u2028".encode(), b"\\u2028").replace("\u2029".encode(), b"\\u2029")
    return text
