"""What parsing gives beside plain values: errors, objects with repeated keys, numbers with their text.

The readers of JSON (`parsing`) and of YAML (`yaml_text`) share these, and the one bound on depth. Other modules import them
from `parsing`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dray.api.json_types import JsonObject, JsonValue

MAX_DEPTH: Final = 200  # levels of objects and lists; Kubernetes' own kinds need fewer than 50
TOO_DEEP: Final = "exceeded max depth"

_AT_ONCE: Final = 10_000  # members; a dict of 250,000 made in one go keeps other threads waiting for 90 ms


class ParseError(msgspec.DecodeError):
    """The text is not JSON or YAML, or is larger or deeper than this program reads."""


class MismatchError(ParseError, msgspec.ValidationError):
    """The text is JSON, but not a value of the asked-for type."""


class Duplicates(JsonObject):
    """An object in which some keys were given more than once."""

    __slots__ = ("names",)

    names: list[str]


class ExactFloat(float):
    """A JSON number that is not a plain int, with the text it had."""

    __slots__ = ("text",)

    text: str

    def __new__(cls, text: str) -> ExactFloat:
        """Parse the text and keep it."""
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __deepcopy__(self, memo: object) -> ExactFloat:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return (ExactFloat, (self.text,))


def collect_pairs(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    """Make an object of its members; the last of equal names wins and is remembered."""
    collected = dict(pairs if len(pairs) <= _AT_ONCE else pairs[:_AT_ONCE])
    for start in range(_AT_ONCE, len(pairs), _AT_ONCE):
        collected.update(pairs[start : start + _AT_ONCE])
    if len(collected) == len(pairs):
        return collected
    marked = Duplicates(collected)
    seen: set[str] = set()
    repeated: dict[str, None] = {}
    for name, _ in pairs:
        if name in seen:
            repeated[name] = None
        seen.add(name)
    marked.names = list(repeated)
    return marked
