"""Changes written into the text of a YAML file: comments, order and style of everything else stay.

    rewritten(text, [[extra object, changed object], [same object]])

Theory of operation: each document is compared with what it should be. Fields that moved one level deeper or higher
(`exactly`, `basic`, `source`) are moved as text, indented; then fields are added, replaced or deleted by their
lines. The result is parsed again: if it is not exactly what was wanted (anchors, unusual layouts), None is returned, and the
caller writes the objects anew. So a mistake here can lose comments, never change a manifest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from dray.api.json_types import JsonObject
from dray.api.parsing import ParseError
from dray.api.yaml_text import compose_documents, load_documents
from dray.workbench.conversion.yaml_texts import as_yaml

_MOST_PASSES = 6


@dataclass(frozen=True, slots=True)
class _Edit:
    """Lines `start` to `end` (not included) become other lines."""

    start: int
    end: int
    lines: tuple[str, ...]


class _NotEditable(Exception):
    """The layout is one that is not edited here."""


_Compare = Callable[[yaml.Node, Any, Any, "list[str]"], "list[_Edit]"]


def rewritten(text: str, wanted: Sequence[Sequence[JsonObject]], comments: Sequence[str] = ()) -> str | None:
    """Return the text with every document as wanted, the further objects before it; None: it cannot be edited.

    `comments` are lines to put before the documents, one text per document.
    """
    try:
        for _ in range(_MOST_PASSES):
            moved = _pass(text, wanted, _moves)
            if moved == text:
                break
            text = moved
        text = _pass(text, wanted, _changes)
        result = _with_others(text, wanted, comments)
        flat = [obj for group in wanted for obj in group]
        return result if _plain(_documents(result)[1]) == _plain(flat) else None
    except (_NotEditable, ParseError, IndexError):
        return None


def _documents(text: str) -> tuple[list[Any], list[Any]]:
    nodes = [node for node in compose_documents(text) if isinstance(node, yaml.MappingNode)]
    values = [value for value in load_documents(text) if value is not None]
    if len(nodes) != len(values):
        raise _NotEditable
    return nodes, values


def _pass(text: str, wanted: Sequence[Sequence[JsonObject]], compare: _Compare) -> str:
    nodes, values = _documents(text)
    if len(values) != len(wanted):
        raise _NotEditable
    lines = text.splitlines()
    edits: list[_Edit] = []
    for node, value, group in zip(nodes, values, wanted, strict=True):
        if not isinstance(value, dict) or isinstance(value.get("items"), list):
            raise _NotEditable  # a list of objects
        edits += compare(node, value, group[-1], lines)
    previous = len(lines)
    # From the end; of insertions at one line the later one first, so that the earlier (deeper) one stands above.
    ordered = sorted(enumerate(edits), key=lambda pair: (pair[1].start, pair[1].end, pair[0]), reverse=True)
    for _, edit in ordered:
        if edit.end > previous:
            raise _NotEditable  # two changes of one line
        lines[edit.start : edit.end] = edit.lines
        previous = edit.start
    return "\n".join(lines) + ("\n" if lines else "")


def _with_others(text: str, wanted: Sequence[Sequence[JsonObject]], comments: Sequence[str]) -> str:
    nodes, _ = _documents(text)
    lines = text.splitlines()
    for index in reversed(range(len(nodes))):
        others, comment = wanted[index][:-1], comments[index] if comments else ""
        at = nodes[index].start_mark.line
        while at > 0 and not lines[at - 1].startswith("---"):
            at -= 1
        new = [line for obj in others for line in (*as_yaml(obj).splitlines(), "---")]
        lines[at:at] = [*new, *comment.splitlines()]
    return "\n".join(lines) + "\n"


def _plain(value: Any) -> str:
    """Return a value in a form that is equal for equal documents, whatever the order of their keys."""
    return json.dumps(value, default=str, sort_keys=True)


# --- where things stand ---------------------------------------------------------------------


def _last_line(node: yaml.Node) -> int:
    """Return the last line of a value."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style and node.value:
        return _last_line(node.value[-1][1])
    if isinstance(node, yaml.SequenceNode) and not node.flow_style and node.value:
        return _last_line(node.value[-1])
    line: int = node.end_mark.line
    if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">") and node.end_mark.column == 0:
        line -= 1
    return max(line, node.start_mark.line)


def _is_block(node: yaml.Node) -> bool:
    return isinstance(node, yaml.CollectionNode) and not node.flow_style and bool(node.value)


def _entries(node: yaml.MappingNode) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    return {str(key.value): (key, value) for key, value in node.value}


def _first_is_on_a_dash(node: yaml.MappingNode, lines: list[str]) -> bool:
    mark = node.value[0][0].start_mark
    return "-" in lines[mark.line][: mark.column]


# --- moves ------------------------------------------------------------------------------------


def _moves(node: yaml.Node, old: Any, new: Any, lines: list[str]) -> list[_Edit]:
    if isinstance(node, yaml.SequenceNode) and _is_block(node) and isinstance(new, list):
        pairs = zip(node.value, old, new, strict=False)
        return [edit for inner, before, after in pairs for edit in _moves(inner, before, after, lines)]
    if not isinstance(node, yaml.MappingNode) or not _is_block(node) or not isinstance(new, dict):
        return []
    entries = _entries(node)
    gone, added = [key for key in entries if key not in new], [key for key in new if key not in entries]
    for key in added:
        inside = [name for name in gone if isinstance(new[key], dict) and name in new[key]]
        if inside and set(inside) == set(new[key]):
            return [_deeper(key, [entries[name] for name in inside], list(entries), lines)]
    for key in gone:
        value = entries[key][1]
        if isinstance(value, yaml.MappingNode) and _is_block(value) and set(_entries(value)) <= set(added):
            return [_higher(entries[key][0], value, lines)]
    return [
        edit
        for key, (_, value) in entries.items()
        if key in new
        for edit in _moves(value, old[key], new[key], lines)
    ]


def _deeper(key: str, moved: list[tuple[yaml.Node, yaml.Node]], order: list[str], lines: list[str]) -> _Edit:
    """Put neighbouring fields under a new one."""
    names = [str(each.value) for each, _ in moved]
    first = order.index(names[0])
    start, end = moved[0][0].start_mark.line, _last_line(moved[-1][1]) + 1
    if order[first : first + len(names)] != names or first == 0:
        raise _NotEditable
    column = moved[0][0].start_mark.column
    body = [f"  {line}" if line.strip() else line for line in lines[start:end]]
    return _Edit(start, end, (f"{' ' * column}{key}:", *body))


def _higher(key: yaml.Node, value: yaml.MappingNode, lines: list[str]) -> _Edit:
    """Take the fields of a mapping out of it."""
    start, first, end = key.start_mark.line, value.value[0][0].start_mark, _last_line(value) + 1
    by = first.column - key.start_mark.column
    between = lines[start + 1 : first.line]
    body = [line[by:] if line[:by].isspace() else line.lstrip() for line in lines[first.line : end]]
    prefix = lines[start][: key.start_mark.column]
    if prefix.strip():  # the field stood first in an item of a list
        body[0] = prefix + body[0][len(prefix) :]
    return _Edit(start, end, (*between, *body))


# --- changes ----------------------------------------------------------------------------------


def _changes(node: yaml.Node, old: Any, new: Any, lines: list[str]) -> list[_Edit]:
    if _plain(old) == _plain(new):
        return []
    if isinstance(node, yaml.MappingNode) and _is_block(node) and isinstance(new, dict) and new:
        return _changed_mapping(node, old, new, lines)
    if (
        isinstance(node, yaml.SequenceNode)
        and _is_block(node)
        and isinstance(new, list)
        and len(new) >= len(old)
    ):
        edits = [
            edit
            for inner, before, after in zip(node.value, old, new, strict=False)
            for edit in _changes(inner, before, after, lines)
        ]
        more = new[len(old) :]
        if more:
            at = _last_line(node) + 1
            edits.append(_Edit(at, at, tuple(_indented(as_yaml(more), node.start_mark.column))))
        return edits
    return [_replaced(node, new, lines)]


def _changed_mapping(node: yaml.MappingNode, old: Any, new: JsonObject, lines: list[str]) -> list[_Edit]:
    entries = _entries(node)
    column = node.value[0][0].start_mark.column
    edits: list[_Edit] = []
    kept = [key for key in entries if key in new]
    if not kept:
        return [_replaced(node, new, lines)]
    for key in entries:
        if key not in new:
            edits.append(_deleted(key, node, entries, kept[0], lines))
        elif _is_block(entries[key][1]) and (not isinstance(new[key], dict | list) or not new[key]):
            start, end = entries[key][0].start_mark.line, _last_line(entries[key][1]) + 1
            head = lines[start][: entries[key][0].start_mark.column]
            edits.append(_Edit(start, end, (f"{head}{as_yaml({key: new[key]}).rstrip()}",)))
        else:
            edits += _changes(entries[key][1], old[key], new[key], lines)
    after = kept[-1]
    for key in new:
        if key in entries:
            after = key
        else:
            at = _last_line(entries[after][1]) + 1
            edits.append(_Edit(at, at, tuple(_indented(as_yaml({key: new[key]}), column))))
    return edits


def _deleted(
    key: str,
    node: yaml.MappingNode,
    entries: dict[str, tuple[yaml.Node, yaml.Node]],
    kept: str,
    lines: list[str],
) -> _Edit:
    start, end = entries[key][0].start_mark.line, _last_line(entries[key][1]) + 1
    is_first = key == str(node.value[0][0].value)
    if not is_first or not _first_is_on_a_dash(node, lines):
        return _Edit(start, end, ())
    # The dash of the item goes to its next field, which must be the next one that stays.
    following = entries[kept][0].start_mark
    if str(node.value[1][0].value) != kept:
        raise _NotEditable
    prefix = lines[start][: following.column]
    return _Edit(start, following.line + 1, (prefix + lines[following.line][following.column :],))


def _replaced(node: yaml.Node, new: Any, lines: list[str]) -> _Edit:
    """Write a value anew: in its place if it is in one piece on its lines, else as a block below its field."""
    start, end = node.start_mark, node.end_mark
    if _is_block(node):
        last = _last_line(node) + 1
        head = lines[start.line][: start.column]
        body = _indented(as_yaml(new), start.column)
        if head.strip():
            body[0] = head + body[0].lstrip()
        return _Edit(start.line, last, tuple(body))
    if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
        raise _NotEditable
    flow = yaml.dump(new, default_flow_style=True, width=10**6, sort_keys=False, allow_unicode=True)
    flow = flow.removesuffix("\n").removesuffix("...").rstrip("\n")
    line = lines[start.line][: start.column] + flow + lines[end.line][end.column :]
    return _Edit(start.line, end.line + 1, (line,))


def _indented(text: str, column: int) -> list[str]:
    return [f"{' ' * column}{line}" if line else line for line in text.splitlines()]
