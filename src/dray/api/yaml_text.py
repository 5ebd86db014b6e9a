"""YAML as Kubernetes' YAML library reads it: a way to write JSON.

Only what JSON can hold is constructed: timestamps stay text, keys become text, tags that
would make Python objects are refused. Anchors may not blow a small document up: the
size after expansion is counted before anything is constructed.
"""

from __future__ import annotations

import re
from typing import Any, Final

import yaml

from dray.api.parsing import ExactFloat, ParseError, collect_pairs

__all__ = ["load_documents"]

Json = Any
_MOST_EXPANDED_NODES: Final = 2_000_000  # of one document, aliases counted as often as used


def load_documents(text: str) -> list[Json]:
    """Return the documents of a stream, None for empty ones; raise ParseError."""
    loader = _Loader(text)
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
    return documents


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
    return collect_pairs(pairs)


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
