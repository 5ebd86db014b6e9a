"""Text to plain values: the one place where JSON and YAML of others are parsed.

Request bodies, answers, manifests, kubeconfigs, checkpoints and state files all come
from outside. Every package parses them here, so that depth, size and expansion are bounded once and
in the same way (tests/unit/api/test_parsing_bounds.py; tests/unit/test_parsers.py checks that no other
module calls a parser).

Two families of functions, both raising `ParseError` and nothing else:

  parse_json, parse_yaml, parse_yaml_documents
      what the API server needs of a body: repeated keys are remembered (`Duplicates`), numbers with
      a fraction keep their text (`ExactFloat`, because quantities are exact), invalid UTF-8 and lone
      surrogates are replaced as Go replaces them
  load_json, load_yaml, load_yaml_documents, json_loader
      plain values, or values of a msgspec type, for files and answers; the last of equal keys wins

Theory of operation: depth is bounded *before* a parser sees the text. `check_depth` counts brackets:
a text with at most `MAX_DEPTH` of them cannot be deeper, which two C-level counts show for
nearly every body; otherwise innermost pairs of brackets are taken away a few times, and what is left is
summed up, still without a Python loop. YAML is read event by event (`yaml_text`), so its bounds apply while it is read.

`MAX_DEPTH` is one number for the whole system: what is accepted at this depth can be validated,
patched, compared, stored, written as JSON and YAML and read again by every part, each of which recurses
at most three Python frames per level (tests/unit/server/test_server_depth.py).
"""

from __future__ import annotations

import codecs
import json
import json.scanner
import re
from itertools import accumulate
from typing import Any, Final, NoReturn

import msgspec

from dray.api.json_types import JsonValue
from dray.api.parsed_values import (
    MAX_DEPTH,
    TOO_DEEP,
    Duplicates,
    ExactFloat,
    MismatchError,
    ParseError,
    collect_pairs,
)

__all__ = [
    "MAX_BYTES",
    "MAX_DEPTH",
    "TOO_DEEP",
    "Duplicates",
    "ExactFloat",
    "JsonLoader",
    "MismatchError",
    "ParseError",
    "check_depth",
    "depth_of",
    "json_loader",
    "load_json",
    "load_yaml",
    "load_yaml_documents",
    "parse_json",
    "parse_yaml",
    "parse_yaml_documents",
]

MAX_BYTES: Final = 256 * 1024 * 1024  # of one text, unless the caller has a smaller bound

# From so many commas on, JSON is read by a loop in Python, some three times more slowly: the loop in C does not
# let other threads run before it has come to the end, which for 250,000 members of one object is 0.1 s and more.
MANY_MEMBERS: Final = 20_000

_WHITESPACE: Final = " \t\n\r"
_SURROGATE_ESCAPE: Final = re.compile(r"\\u[dD][89a-fA-F]")


# --- bounds ---------------------------------------------------------------------


def check_depth(data: bytes, limit: int = MAX_DEPTH) -> None:
    """Raise ParseError if JSON text nests deeper than `limit`; linear, and not a check of the syntax.

    >>> check_depth(b"[" * 200 + b"]" * 200)
    >>> check_depth(b"[" * 201)
    Traceback (most recent call last):
    dray.api.parsed_values.ParseError: exceeded max depth
    """
    if data.count(b"[") + data.count(b"{") > limit:
        brackets = left = _brackets_of(data)
        # Taking innermost pairs away takes at most one level away each time, and most of an object.
        for n_removed, pair in enumerate(_PAIRS):
            if len(left) + n_removed <= limit:
                return
            left = left.replace(pair, b"")
        if _depth_of_brackets(brackets) > limit:
            raise ParseError(TOO_DEEP)


def depth_of(value: JsonValue) -> int:
    """Return how many levels of objects and lists a value has; does not recurse.

    >>> depth_of({"a": [1, {"b": 2}]})
    3
    """
    depth = 0
    level = [value] if isinstance(value, dict | list) else []
    while level:
        depth += 1
        level = [
            item
            for whole in level
            for item in (whole.values() if isinstance(whole, dict) else whole)
            if isinstance(item, dict | list)
        ]
    return depth


_PAIRS: Final = (b"{}", b"[]") * 4
_NOT_MARKS: Final = bytes(byte for byte in range(256) if byte not in b'[]{}"')
# Opening brackets as 1, closing ones as 255, which is -1 in a signed byte.
_STEPS: Final = bytes(1 if byte in b"[{" else 255 if byte in b"]}" else byte for byte in range(256))
_PIECE: Final = 1 << 16


def _brackets_of(data: bytes) -> bytes:
    """Return the brackets outside of strings; correct at least up to the first error of syntax."""
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Two quotes in a row are a string without brackets, or the space between two of them.
    marks = data.translate(None, _NOT_MARKS).replace(b'""', b"")
    # Every second piece between quotes is outside of strings.
    return b"".join(marks.split(b'"')[::2]) if b'"' in marks else marks


def _depth_of_brackets(brackets: bytes) -> int:
    steps = memoryview(brackets.translate(_STEPS)).cast("b")
    level = depth = 0
    # In pieces, so that another thread gets its turn in between.
    for start in range(0, len(steps), _PIECE):
        levels = list(accumulate(steps[start : start + _PIECE], initial=level))
        level, depth = levels[-1], max(depth, max(levels))
    return depth


def _bounded(data: bytes | str, max_bytes: int) -> bytes:
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")
    if len(data) > max_bytes:
        raise ParseError(f"the text has {len(data)} bytes; at most {max_bytes} are read")
    return data


# --- what a server reads -----------------------------------------------------------


def parse_json(data: bytes, *, max_bytes: int = MAX_BYTES) -> JsonValue:
    """Parse one JSON value; raise ParseError."""
    if len(data) > max_bytes:
        _bounded(data, max_bytes)
    check_depth(data)
    text = decode_text(data)
    try:
        decoder = _DECODER if data.count(b",") < MANY_MEMBERS else _INTERRUPTIBLE_DECODER
        value, is_all = _scanned(text, decoder)
        if not is_all:
            value = decoder.decode(text)
    except RecursionError:  # the caller's own stack is nearly full
        raise ParseError(TOO_DEEP) from None
    except ValueError as error:
        raise ParseError(_json_complaint(error)) from None
    if "\\u" in text and _SURROGATE_ESCAPE.search(text):
        value = _without_lone_surrogates(value)
    return value


def _scanned(text: str, decoder: json.JSONDecoder) -> tuple[JsonValue, bool]:
    """Parse the value at the very start of a text; return also whether it was all of the text.

    This is what the decoder does after it looked for whitespace, which programs do not send.
    """
    try:
        value, end = decoder.raw_decode(text)
    except json.JSONDecodeError:
        return None, False
    return value, end == len(text) or not text[end:].strip(_WHITESPACE)


def decode_text(data: bytes) -> str:
    """Decode UTF-8, putting U+FFFD in place of each byte that is not valid, as Go does."""
    return data.decode("utf-8", _REPLACE_EACH_BYTE)


def parse_yaml(data: bytes, *, max_bytes: int = MAX_BYTES) -> JsonValue:
    """Parse one YAML document (JSON is YAML); raise ParseError. An empty document is None."""
    return _single(parse_yaml_documents(data, max_bytes=max_bytes))


def parse_yaml_documents(data: bytes, *, max_bytes: int = MAX_BYTES) -> list[JsonValue]:
    """Parse all documents of a YAML stream, leaving out empty ones; raise ParseError."""
    # The YAML library takes as long to import as all of this package; most programs never need it.
    from dray.api.yaml_text import load_documents

    text = decode_text(_bounded(data, max_bytes))
    return [document for document in load_documents(text) if document is not None]


def _single(documents: list[JsonValue]) -> JsonValue:
    if len(documents) > 1:
        raise ParseError("expected one YAML document, found several")
    return documents[0] if documents else None


# --- plain values, for files and answers -----------------------------------------------


def load_json(data: bytes | str, kind: Any = Any, *, max_bytes: int = MAX_BYTES) -> Any:
    """Return the plain value of JSON text, or one of a msgspec type; raise ParseError.

    >>> load_json('{"a": [1.5]}')
    {'a': [1.5]}
    """
    data = _bounded(data, max_bytes)
    check_depth(data)
    return json_loader(kind).decode(data)


class JsonLoader:
    """Reads JSON text as one msgspec type; raises MismatchError, and ParseError for all else."""

    __slots__ = ("_decode",)

    def __init__(self, kind: Any) -> None:
        self._decode = msgspec.json.Decoder(kind).decode

    def decode(self, data: bytes | msgspec.Raw) -> Any:
        """Return the value."""
        try:
            return self._decode(data)
        except msgspec.ValidationError as error:
            raise MismatchError(str(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ParseError(str(error)) from None
        except RecursionError:
            raise ParseError(TOO_DEEP) from None


def json_loader(kind: Any) -> JsonLoader:
    """Return the loader of a type, made once, for paths where speed matters.

    msgspec bounds its own recursion, and passes over members that the type does not have without
    building them, so the text is not counted first.
    """
    found = _LOADERS.get(kind)
    if found is None:
        found = _LOADERS[kind] = JsonLoader(kind)
    return found


_LOADERS: dict[Any, JsonLoader] = {}


def load_yaml(data: bytes | str, *, max_bytes: int = MAX_BYTES) -> JsonValue:
    """Return the plain value of one YAML document, None if it is empty; raise ParseError.

    >>> load_yaml("a: 1.5")
    {'a': 1.5}
    """
    return _single(load_yaml_documents(data, max_bytes=max_bytes))


def load_yaml_documents(data: bytes | str, *, max_bytes: int = MAX_BYTES) -> list[JsonValue]:
    """Return the plain values of all documents that are not empty; raise ParseError."""
    from dray.api.yaml_text import load_documents

    try:
        text = _bounded(data, max_bytes).decode()
    except UnicodeDecodeError as error:
        raise ParseError(f"not UTF-8: {error.reason} at byte {error.start}") from None
    return [document for document in load_documents(text, plain=True) if document is not None]


# --- JSON ---------------------------------------------------------------------


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"invalid character {name[0]!r} looking for beginning of value")


def _decoder() -> json.JSONDecoder:
    return json.JSONDecoder(
        object_pairs_hook=collect_pairs, parse_float=ExactFloat, parse_constant=_refuse_constant
    )


def _interruptible_decoder() -> json.JSONDecoder:
    """Return the decoder whose loop over members is Python code: other threads run in between."""
    decoder = _decoder()
    decoder.scan_once = json.scanner.py_make_scanner(decoder)  # type: ignore[attr-defined]
    return decoder


_DECODER: Final = _decoder()
_INTERRUPTIBLE_DECODER: Final = _interruptible_decoder()


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


def _without_lone_surrogates(value: JsonValue) -> JsonValue:
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
