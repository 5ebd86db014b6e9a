"""Text to plain values: JSON and YAML as an API server reads them.

Bodies come from strangers. Parsing accepts what Kubernetes accepts (invalid UTF-8
is replaced, lone surrogates too) and refuses the rest with a `ParseError`; it never
hangs, and never returns what JSON could not hold.

Theory of operation: objects with a key given twice come back as `Duplicates`, a dict
that remembers which; the last value wins. Whoever walks the value with a schema (see
`codec`) turns that into paths. Numbers with a fraction or an exponent come back as
`ExactFloat`, which remembers its text, because quantities are exact.

YAML is read by `yaml_text`.
"""

from __future__ import annotations

import codecs
import json
import re
from typing import Any, Final, NoReturn

__all__ = ["Duplicates", "ExactFloat", "ParseError", "parse_json", "parse_yaml", "parse_yaml_documents"]

_BLANKS: Final = " \t\n\r"
_SURROGATE_ESCAPE: Final = re.compile(r"\\u[dD][89a-fA-F]")

Json = Any  # None, bool, int, float, str, list and dict of these


class ParseError(ValueError):
    """The text is neither JSON nor YAML that this server reads."""


class Duplicates(dict[str, Json]):
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


def parse_json(data: bytes) -> Json:
    """Parse one JSON value; raise ParseError."""
    text = decode_text(data)
    try:
        value, is_all = _scanned(text)
        if not is_all:
            value = _DECODER.decode(text)
    except RecursionError:
        raise ParseError("exceeded max depth") from None
    except ValueError as error:
        raise ParseError(_json_complaint(error)) from None
    if "\\u" in text and _SURROGATE_ESCAPE.search(text):
        value = _without_lone_surrogates(value)
    return value


def _scanned(text: str) -> tuple[Json, bool]:
    """Parse the value at the very start of a text; tell whether it was all of the text.

    This is what the decoder does after it looked for blanks, which programs do not send.
    """
    try:
        value, end = _DECODER.raw_decode(text)
    except json.JSONDecodeError:
        return None, False
    return value, end == len(text) or not text[end:].strip(_BLANKS)


def decode_text(data: bytes) -> str:
    """Decode UTF-8, putting U+FFFD in place of each byte that is none, as Go does."""
    return data.decode("utf-8", _REPLACE_EACH_BYTE)


def parse_yaml(data: bytes) -> Json:
    """Parse one YAML document (JSON is YAML); raise ParseError. An empty document is None."""
    documents = parse_yaml_documents(data)
    if len(documents) > 1:
        raise ParseError("expected one YAML document, found several")
    return documents[0] if documents else None


def parse_yaml_documents(data: bytes) -> list[Json]:
    """Parse all documents of a YAML stream, leaving out empty ones; raise ParseError."""
    # The YAML library takes as long to import as all of this room; most programs never need it.
    from dray.api.yaml_text import load_documents

    return [document for document in load_documents(decode_text(data)) if document is not None]


# --- JSON ---------------------------------------------------------------------


def collect_pairs(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    """Make an object of its members; the last of equal names wins and is remembered."""
    collected = dict(pairs)
    if len(collected) == len(pairs):
        return collected
    marked = Duplicates(collected)
    seen: set[str] = set()
    marked.names = []
    for name, _ in pairs:
        if name in seen and name not in marked.names:
            marked.names.append(name)
        seen.add(name)
    return marked


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"invalid character {name[0]!r} looking for beginning of value")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=collect_pairs, parse_float=ExactFloat, parse_constant=_refuse_constant
)


def _json_complaint(error: ValueError) -> str:
    if not isinstance(error, json.JSONDecodeError):
        # Python refuses to convert ints of more than 4300 digits; its advice is not for our users.
        return str(error).partition(";")[0]
    if error.pos >= len(error.doc):
        return "unexpected end of JSON input"
    found = error.doc[error.pos]
    if error.msg == "Extra data":
        return f"invalid character {found!r} after top-level value"
    return f"invalid character {found!r}: {error.msg} (offset {error.pos})"


def _without_lone_surrogates(value: Json) -> Json:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_without_lone_surrogates(item) for item in value]
    if isinstance(value, dict):
        cleaned = {
            _without_lone_surrogates(key): _without_lone_surrogates(item) for key, item in value.items()
        }
        if isinstance(value, Duplicates):
            marked = Duplicates(cleaned)
            marked.names = value.names
            return marked
        return cleaned
    return value


_REPLACE_EACH_BYTE: Final = "dray-replace-each-byte"
codecs.register_error(_REPLACE_EACH_BYTE, lambda error: ("\ufffd" * (error.end - error.start), error.end))  # type: ignore[attr-defined]
