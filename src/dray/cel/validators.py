"""Checks on literals that are made after types are known: patterns, times, homogeneous lists."""

from __future__ import annotations

from dray.cel.errors import Fault
from dray.cel.functions import implementation
from dray.cel.functions_strings import compile_pattern
from dray.cel.kinds import CelType, show, unwrap_optional
from dray.cel.source import Complaints
from dray.cel.string_format import FormatProblem, check_template
from dray.cel.syntax import Call, ListNode, Literal, MapNode, Node, walk


def validate(tree: Node, complaints: Complaints) -> None:
    """Complain about literals that can only fail."""
    in_format = _inside_format(tree)
    for node in walk(tree):
        if isinstance(node, Call):
            _validate_call(node, complaints)
            _validate_format(node, complaints)
        elif node.id in in_format:
            continue
        elif isinstance(node, ListNode):
            _validate_list(node, complaints)
        elif isinstance(node, MapNode):
            _validate_map(node, complaints)


def _validate_call(node: Call, complaints: Complaints) -> None:
    if node.function not in ("duration", "timestamp", "matches") or not node.args:
        return
    literal = node.args[0]
    if not isinstance(literal, Literal):
        return
    try:
        if node.function == "matches":
            compile_pattern(str(literal.value))
        else:
            implementation(node.function, node.overloads)(literal.value)
    except Fault:
        complaints.add(literal.offset, f"invalid {node.function} argument")


def _inside_format(tree: Node) -> set[int]:
    """Return the ids of what stands inside calls of format: there, types may be mixed."""
    calls = [node for node in walk(tree) if isinstance(node, Call) and node.function == "format"]
    return {part.id for call in calls for part in walk(call)}


def _validate_format(node: Call, complaints: Complaints) -> None:
    if (
        node.function != "format"
        or not isinstance(node.target, Literal)
        or not isinstance(node.args[0], ListNode)
    ):
        return
    try:
        check_template(str(node.target.value), node.args[0].elements)
    except FormatProblem as problem:
        blamed = problem.argument or node
        complaints.add(blamed.offset, str(problem))


def _mismatch(complaints: Complaints, node: Node, expected: CelType, found: CelType) -> None:
    complaints.add(node.offset, f"expected type '{show(expected)}' but found '{show(found)}'")


def _validate_list(node: ListNode, complaints: Complaints) -> None:
    expected: CelType | None = None
    for index, element in enumerate(node.elements):
        kind = unwrap_optional(element.type)[0] if index in node.optional else element.type
        if expected is None:
            expected = kind
        elif kind != expected:
            _mismatch(complaints, element, expected, kind)
            break


def _validate_map(node: MapNode, complaints: Complaints) -> None:
    expected: tuple[CelType, CelType] | None = None
    for entry in node.entries:
        value = unwrap_optional(entry.value.type)[0] if entry.optional else entry.value.type
        if expected is None:
            expected = entry.key.type, value
            continue
        if entry.key.type != expected[0]:
            _mismatch(complaints, entry.key, expected[0], entry.key.type)
        if value != expected[1]:
            _mismatch(complaints, entry.value, expected[1], value)
