"""YAML as Kubernetes' YAML library reads it: a way to write JSON.

Only what JSON can hold is constructed: timestamps stay text, keys become text, other tags than those
of JSON's types are refused. Called through `dray.api.parsing`.

Theory of operation: PyYAML's own loaders compose and construct a document recursively, in C without
any check, so a deep document ends the process. Here libyaml is used only for what it does
iteratively: it turns text into events (scalar, start and end of lists and mappings, alias), and one
loop builds values from them on a stack of its own. Bounds are therefore checked while the
text is read, before anything large exists:

  depth           `MAX_DEPTH`, aliases counted with the depth of what they stand for
  nodes           `MAX_NODES` of a stream
  alias expansion `MAX_ALIAS_NODES`: nodes that exist only because an anchor is repeated
  directives      `MAX_DIRECTIVES`, because libyaml compares each `%TAG` with all others
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import yaml

from dray.api.json_types import JsonObject, JsonValue
from dray.api.parsed_values import MAX_DEPTH, ExactFloat, ParseError, collect_pairs

__all__ = ["MAX_ALIAS_NODES", "MAX_NODES", "compose_documents", "is_text", "load_documents"]

MAX_NODES: Final = 1_000_000  # of one stream, keys included: three megabytes of the shortest lists have more
MAX_ALIAS_NODES: Final = 100_000  # what aliases stand for, counted as often as used
MAX_DIRECTIVES: Final = 64

_TOO_DEEP: Final = f"yaml: exceeded max depth of {MAX_DEPTH}"
_DIRECTIVE: Final = re.compile(r"^%", re.MULTILINE)
_SafeLoader: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader, where built


def load_documents(text: str, *, plain: bool = False) -> list[JsonValue]:
    """Return the documents of a stream, None for empty ones; raise ParseError.

    `plain`: numbers are floats and repeated keys are forgotten.
    """
    builder = _Builder(plain=plain)
    for event in _events(text):
        builder.take(event)
    return builder.documents


def compose_documents(text: str) -> list[yaml.Node]:
    """Return PyYAML's nodes of a stream, which know their places; raise ParseError.

    The text is read twice: what passes the bounds is not too deep for the composer.
    """
    load_documents(text)
    try:
        return list(yaml.compose_all(text, _SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ParseError(f"yaml: {error}") from None


def _events(text: str) -> Iterator[yaml.Event]:
    if len(_DIRECTIVE.findall(text)) > MAX_DIRECTIVES:
        raise ParseError("yaml: too many directives")
    loader = None
    try:
        loader = _SafeLoader(text)
        while True:
            event = loader.get_event()
            if event is None or isinstance(event, yaml.StreamEndEvent):
                return
            yield event
    except yaml.YAMLError as error:
        raise ParseError(f"yaml: {error}") from None
    finally:
        if loader is not None:
            loader.dispose()


# --- building values --------------------------------------------------------------


class _Open:
    """A list or mapping whose end has not come."""

    __slots__ = ("anchor", "depth", "items", "key", "merged", "size", "value")

    def __init__(self, anchor: str | None, *, is_mapping: bool) -> None:
        self.anchor = anchor
        self.items: list[JsonValue] = []  # of a list
        self.value: list[tuple[str, JsonValue]] | None = [] if is_mapping else None  # of a mapping
        self.key: Any = _NO_KEY  # of a mapping: the key that waits for its value
        self.merged: list[JsonValue] = []  # of a mapping: values of `<<`
        self.size = 1  # nodes, aliases counted as what they stand for
        self.depth = 1  # levels


_NO_KEY: Final = object()
_MERGE: Final = object()  # the key `<<`


class _Builder:
    """Builds values from events."""

    def __init__(self, *, plain: bool) -> None:
        self.documents: list[JsonValue] = []
        self._plain = plain
        self._stack: list[_Open] = []
        self._anchors: dict[
            str, tuple[JsonValue, int, int] | None
        ] = {}  # value, size, depth; None: not ended
        self._n_nodes = 0
        self._n_alias_nodes = 0
        self._is_empty = True  # the document under way

    def take(self, event: Any) -> None:
        """Go on by one event; raise ParseError."""
        kind = type(event)
        if kind is yaml.ScalarEvent:
            self._count()
            value = _scalar(event, self._plain)
            if value is _MERGE and not self._expects_key():
                value = event.value
            if event.anchor is not None:
                self._anchors[event.anchor] = (value, 1, 0)
            self._add(value, 1, 0)
        elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
            self._begin(event, is_mapping=kind is yaml.MappingStartEvent)
        elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
            self._end()
        elif kind is yaml.AliasEvent:
            self._alias(event)
        elif kind is yaml.DocumentStartEvent:
            self._anchors.clear()
            self._is_empty = True
        elif kind is yaml.DocumentEndEvent and self._is_empty:
            self.documents.append(None)

    def _expects_key(self) -> bool:
        return bool(self._stack) and self._stack[-1].value is not None and self._stack[-1].key is _NO_KEY

    def _count(self) -> None:
        self._n_nodes += 1
        if self._n_nodes > MAX_NODES:
            raise ParseError(f"yaml: document has more than {MAX_NODES} nodes")

    def _begin(self, event: Any, *, is_mapping: bool) -> None:
        self._count()
        if len(self._stack) >= MAX_DEPTH:
            raise ParseError(_TOO_DEEP)
        wanted = "tag:yaml.org,2002:map" if is_mapping else "tag:yaml.org,2002:seq"
        if event.tag not in (None, "!", wanted):
            raise _problem(f"could not determine a constructor for the tag {event.tag!r}", event)
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        if self._expects_key():
            raise _problem("a key must be text", event)
        self._stack.append(_Open(event.anchor, is_mapping=is_mapping))

    def _end(self) -> None:
        ended = self._stack.pop()
        value: JsonValue = ended.items
        if ended.value is not None:
            pairs = ended.value
            if ended.merged:
                pairs = self._with_merged(ended)
            value = dict(pairs) if self._plain else collect_pairs(pairs)
        if ended.anchor is not None:
            self._anchors[ended.anchor] = (value, ended.size, ended.depth)
        self._add(value, ended.size, ended.depth)

    def _alias(self, event: Any) -> None:
        name = event.anchor
        if name not in self._anchors:
            raise _problem(f"unknown anchor '{name}' referenced", event)
        known = self._anchors[name]
        if known is None:
            raise ParseError(f"yaml: anchor '{name}' value contains itself")
        self._count()
        value, size, depth = known
        self._n_alias_nodes += size
        if self._n_alias_nodes > MAX_ALIAS_NODES:
            raise ParseError("yaml: document contains excessive aliasing")
        if len(self._stack) + depth > MAX_DEPTH:
            raise ParseError(_TOO_DEEP)
        self._add(value, size, depth)

    def _add(self, value: JsonValue, size: int, depth: int) -> None:
        """Put a value into what is open, or among the documents."""
        if not self._stack:
            self.documents.append(value)
            self._is_empty = False
            return
        parent = self._stack[-1]
        parent.size += size
        if parent.key is _MERGE:
            depth -= 1  # its members become those of the parent
        if depth >= parent.depth:
            parent.depth = depth + 1
        if parent.value is None:
            parent.items.append(value)
        elif parent.key is _NO_KEY:
            parent.key = value if value is _MERGE else _key(value)
        else:
            key, parent.key = parent.key, _NO_KEY
            if key is _MERGE:
                parent.merged.append(value)
            else:
                parent.value.append((key, value))

    def _with_merged(self, ended: _Open) -> list[tuple[str, JsonValue]]:
        """Return a mapping's members after those of `<<` that it does not have itself."""
        assert ended.value is not None
        own = {key for key, _ in ended.value}
        found: JsonObject = {}
        for value in ended.merged:
            for source in value if isinstance(value, list) else [value]:
                if not isinstance(source, dict):
                    raise ParseError("yaml: map merge requires map or sequence of maps as the value")
                self._n_alias_nodes += len(source)
                if self._n_alias_nodes > MAX_ALIAS_NODES:
                    raise ParseError("yaml: document contains excessive aliasing")
                for key, item in source.items():
                    if key not in own:
                        found.setdefault(key, item)
        return [*found.items(), *ended.value]


def _key(value: JsonValue) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if value is None:
        return "null"
    raise ParseError("yaml: a key must be text")


def _problem(text: str, event: Any) -> ParseError:
    mark = event.start_mark
    return ParseError(f"yaml: line {mark.line + 1}, column {mark.column + 1}: {text}")


# --- scalars ----------------------------------------------------------------------------


def _scalar(event: Any, plain: bool) -> JsonValue:
    text: str = event.value
    tag: str | None = event.tag
    if tag is None or tag == "!":
        if not event.implicit[0]:
            return text  # in quotes, or a block
        tag = _resolved(text)
        if tag is None:
            return text
    construct = _CONSTRUCT.get(tag)
    if construct is None:
        raise _problem(f"could not determine a constructor for the tag {tag!r}", event)
    try:
        value = construct(text)
    except (ValueError, KeyError) as error:
        raise _problem(f"cannot read {text[:64]!r} as {tag.rpartition(':')[2]}: {error}", event) from None
    return float(value) if plain and isinstance(value, ExactFloat) else value


def is_text(text: str) -> bool:
    """Return whether a plain scalar is read as text."""
    return _resolved(text) is None


def _resolved(text: str) -> str | None:
    """Return the tag of a plain scalar; None for text."""
    candidates = _RESOLVERS.get(text[:1])
    if candidates is not None:
        for tag, matches in candidates:
            if matches(text):
                return tag
    return None


_MAX_DIGITS: Final = 1024  # of an integer


def _int(text: str) -> int:
    text = text.replace("_", "")
    sign = -1 if text[:1] == "-" else 1
    digits = text.lstrip("+-")
    base = 10
    if digits.startswith(("0b", "0x")):
        base, digits = 2 if digits[1] == "b" else 16, digits[2:]
    elif len(digits) > 1 and digits[0] == "0":
        base = 8
    if len(digits) > _MAX_DIGITS:
        raise ValueError("too many digits")
    return sign * int(digits, base)


def _float(text: str) -> ExactFloat:
    number = ExactFloat(text.replace("_", ""))
    if number - number != 0:  # infinite, or not a number at all
        raise ValueError("not a JSON number")
    return number


def _bool(text: str) -> bool:
    return _BOOLS[text.lower()]


def _text(text: str) -> str:
    return text


_BOOLS: Final = {
    **dict.fromkeys(("yes", "true", "on"), True),
    **dict.fromkeys(("no", "false", "off"), False),
}
_PREFIX: Final = "tag:yaml.org,2002:"
_CONSTRUCT: Final[dict[str, Callable[[str], JsonValue]]] = {
    f"{_PREFIX}str": _text,
    f"{_PREFIX}int": _int,
    f"{_PREFIX}float": _float,
    f"{_PREFIX}bool": _bool,
    f"{_PREFIX}null": lambda text: None,
    f"{_PREFIX}timestamp": _text,
    f"{_PREFIX}binary": _text,
    f"{_PREFIX}value": _text,
    f"{_PREFIX}merge": lambda text: _MERGE,
}

# YAML 1.1, less the base-60 numbers that Go's library does not know either.
_FORMS: Final = (
    (f"{_PREFIX}bool", r"yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF", "yYnNtTfFoO"),
    (f"{_PREFIX}int", r"[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]+|0|[1-9][0-9_]*)", "-+0123456789"),
    (f"{_PREFIX}float", r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?", "-+0123456789."),
    (f"{_PREFIX}null", r"~|null|Null|NULL|", "~nN"),
    (f"{_PREFIX}merge", r"<<", "<"),
)  # fmt: skip
_RESOLVERS: Final[dict[str, list[tuple[str, Callable[[str], Any]]]]] = {}
for _tag, _pattern, _firsts in _FORMS:
    for _first in [*_firsts, *([""] if _tag.endswith("null") else [])]:
        _RESOLVERS.setdefault(_first, []).append((_tag, re.compile(_pattern).fullmatch))
