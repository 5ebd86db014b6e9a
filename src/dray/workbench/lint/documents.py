"""Manifests with the line of every field.

The values come from the same reader that the API server uses; the lines come from
composing the text a second time into YAML nodes, which remember where they stood.
A path in the words of the API (`spec.devices.requests[0].exactly.count`) is then
followed through the nodes. Where it leads nowhere (a required field that is missing),
the nearest enclosing field answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from dray.api.parsing import ParseError, decode_text, parse_json
from dray.api.yaml_text import compose_documents, load_documents

_LINE = re.compile(r"line (\d+), column (\d+)")
_INDEX = re.compile(r"\[(\d+)\]")
# Steps that exist in one version's shape only: paths of validation are those of v1.
_SHAPE_STEPS = ("exactly", "basic")


class SyntaxProblem(Exception):
    """The text cannot be parsed; knows where."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


@dataclass(frozen=True, slots=True)
class Document:
    """One object of a file."""

    file: str
    value: Any
    node: yaml.Node

    def place(self, path: str) -> tuple[int, int, bool]:
        """Return line and column of a field, and whether its text is a block that starts a line later."""
        node, mark = follow(self.node, path)
        is_block = isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")
        return mark.line + 1, mark.column + 1, is_block


def read_documents(file: str, data: bytes) -> list[Document]:
    """Return the objects of a file, the items of lists one by one; raise SyntaxProblem."""
    text = decode_text(data)
    is_json = text.lstrip()[:1] in ("{", "[")
    try:
        values = [parse_json(data)] if is_json else load_documents(text)
    except ParseError as error:
        if not is_json:
            raise _problem(str(error)) from None
        try:  # YAML in braces, or several JSON objects after each other
            values = load_documents(text)
        except ParseError:
            raise _json_problem(text, str(error)) from None
    try:
        # YAML forbids tabs between tokens, JSON does not; a tab in a JSON string is an error anyway.
        nodes = compose_documents(text.replace("\t", " ") if is_json else text)
    except ParseError as error:
        raise _problem(str(error)) from None
    documents: list[Document] = []
    # An empty document composes to nothing in some positions, and constructs to None in all.
    nodes = [node for node in nodes if not _is_empty(node)]
    values = [value for value in values if value is not None]
    for value, node in zip(values, nodes, strict=True):
        documents += _objects(file, value, node)
    return documents


def _is_empty(node: yaml.Node | None) -> bool:
    return node is None or (isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null")


def _objects(file: str, value: Any, node: yaml.Node) -> Iterator[Document]:
    if isinstance(value, list) and isinstance(node, yaml.SequenceNode):
        for item, inner in zip(value, node.value, strict=True):
            yield from _objects(file, item, inner)
        return
    if (
        isinstance(value, dict)
        and isinstance(value.get("items"), list)
        and str(value.get("kind", "List")).endswith(("List", "Snapshot"))
    ):
        items, _ = follow(node, "items")
        kind = str(value.get("kind", "")).removesuffix("List")
        if isinstance(items, yaml.SequenceNode):
            for item, inner in zip(value["items"], items.value, strict=True):
                # Items of a typed list carry no kind of their own.
                if isinstance(item, dict) and "kind" not in item and kind:
                    item = {"apiVersion": value.get("apiVersion"), "kind": kind, **item}
                yield Document(file, item, inner)
            return
    yield Document(file, value, node)


def follow(node: yaml.Node, path: str) -> tuple[yaml.Node, Any]:
    """Return the node of a path and the mark of its key; the nearest enclosing one if there is none."""
    mark = node.start_mark
    rest = path
    while rest:
        rest = rest.removeprefix(".")
        if isinstance(node, yaml.SequenceNode):
            found = _INDEX.match(rest)
            if found is None or int(found[1]) >= len(node.value):
                return node, mark
            node = node.value[int(found[1])]
            mark, rest = node.start_mark, rest[found.end() :]
            continue
        if not isinstance(node, yaml.MappingNode):
            return node, mark
        step = _longest_key(node, rest)
        if step is None:
            skipped = next((word for word in _SHAPE_STEPS if _begins(rest, word)), None)
            if skipped is None:
                return node, mark
            rest = rest[len(skipped) :]
            continue
        key, value, length = step
        node, mark, rest = value, key.start_mark, rest[length:]
    return node, mark


def _longest_key(node: yaml.MappingNode, rest: str) -> tuple[yaml.Node, yaml.Node, int] | None:
    best: tuple[yaml.Node, yaml.Node, int] | None = None
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        for spelling in (key.value, f"[{key.value}]"):
            if _begins(rest, spelling) and (best is None or len(spelling) > best[2]):
                best = key, value, len(spelling)
    return best


def _begins(rest: str, word: str) -> bool:
    return rest.startswith(word) and rest[len(word) : len(word) + 1] in ("", ".", "[")


def _problem(message: str) -> SyntaxProblem:
    places = _LINE.findall(message)
    line, column = places[-1] if places else ("1", "1")
    words = " ".join(message.split()).removeprefix("yaml: ")
    return SyntaxProblem(words, int(line), int(column))


def _json_problem(text: str, message: str) -> SyntaxProblem:
    found = re.search(r"offset (\d+)", message)
    offset = int(found[1]) if found else max(0, len(text.rstrip()) - 1)
    line = text.count("\n", 0, offset) + 1
    return SyntaxProblem(message, line, offset - text.rfind("\n", 0, offset))
