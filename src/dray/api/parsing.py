"""Text to plain values: JSON and YAML as an API server reads them.

Bodies come from strangers. Parsing accepts what Kubernetes accepts (invalid UTF-8
is replaced, lone surrogates too) and refuses the rest with a `ParseError`; it never
hangs, and never returns what JSON could not hold.

Theory of operation: objects with a key given twice come back as `Duplicates`, a dict
that remembers which; the last value wins. Whoever walks the value with a schema (see
`codec`) turns that into paths. Numbers with a fraction or an exponent come back as
`ExactFloat`, which remembers its text, because quantities are exact.

YAML is read as Kubernetes' YAML library reads it: timestamps stay text, and
anchors may not blow a small document up.
"""

from __future__ import annotations

import codecs
import json
import re
from typing import Any, Final, NoReturn

import yaml

__all__ = ["Duplicates", "ExactFloat", "ParseError", "parse_json", "parse_yaml", "parse_yaml_documents"]

_SURROGATE_ESCAPE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_MOST_EXPANDED_NODES: Final = 2_000_000  # of one YAML document, aliases counted as often as used

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
        value = _DECODER.decode(text)
    except RecursionError:
        raise ParseError("exceeded max depth") from None
    except ValueError as error:
        raise ParseError(_json_complaint(error)) from None
    if _SURROGATE_ESCAPE.search(text):
        value = _without_lone_surrogates(value)
    return value


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
    loader = _Loader(decode_text(data))
    try:
        documents = []
        while loader.check_node():
            node = loader.get_node()
            _refuse_explosion(node)
            documents.append(loader.construct_document(node))
    except RecursionError:
        raise ParseError("yaml: exceeded max depth") from None
    except ParseError:
        raise
    except (yaml.YAMLError, ValueError) as error:
        raise ParseError(f"yaml: {error}") from None
    finally:
        loader.dispose()
    return [document for document in documents if document is not None]


# --- JSON ---------------------------------------------------------------------


def _collect(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
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
    object_pairs_hook=_collect, parse_float=ExactFloat, parse_constant=_refuse_constant
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


# --- YAML ---------------------------------------------------------------------


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # the C loader, where built
    """Constructs what JSON can hold and remembers duplicate keys."""


def _construct_mapping(loader: Any, node: yaml.MappingNode) -> dict[str, Json]:
    loader.flatten_mapping(node)
    pairs: list[tuple[str, Json]] = []
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if isinstance(key, bool):
            key = "true" if key else "false"
        elif isinstance(key, int | float):
            key = str(key)
        elif key is None:
            key = "null"
        elif not isinstance(key, str):
            raise yaml.constructor.ConstructorError(None, None, "a key must be text", key_node.start_mark)
        pairs.append((key, loader.construct_object(value_node, deep=True)))
    return _collect(pairs)


def _construct_float(loader: Any, node: yaml.ScalarNode) -> Json:
    text = node.value.replace("_", "")
    try:
        return ExactFloat(text)
    except ValueError:
        raise yaml.constructor.ConstructorError(None, None, "not a JSON number", node.start_mark) from None


def _construct_text(loader: Any, node: yaml.ScalarNode) -> str:
    return str(loader.construct_scalar(node))


_Loader.add_constructor("tag:yaml.org,2002:map", _construct_mapping)
_Loader.add_constructor("tag:yaml.org,2002:float", _construct_float)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _construct_text)
_Loader.add_constructor("tag:yaml.org,2002:binary", _construct_text)
_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag not in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# Like YAML 1.1, less the base-60 numbers that Go's library does not know either.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int",
    re.compile(r"^[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]+|0|[1-9][0-9_]*)$"),
    list("-+0123456789"),
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?$"),
    list("-+0123456789."),
)


def _refuse_explosion(root: Any) -> None:
    """Raise ParseError where aliases would make a document huge or endless once expanded."""
    sizes: dict[int, int] = {}

    def size_of(node: Any, inside: frozenset[int]) -> int:
        known = sizes.get(id(node))
        if known is not None:
            return known
        if id(node) in inside:
            raise ParseError("yaml: an anchor contains itself")
        total = 1
        if not isinstance(node, yaml.ScalarNode):
            inside = inside | {id(node)}
            for child in node.value:
                for part in child if isinstance(child, tuple) else (child,):
                    total += size_of(part, inside)
        if total > _MOST_EXPANDED_NODES:
            raise ParseError("yaml: document contains excessive aliasing")
        sizes[id(node)] = total
        return total

    size_of(root, frozenset())
