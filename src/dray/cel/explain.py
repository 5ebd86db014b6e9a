"""Why a selector is false on a device, and what to write when it fails.

A selector is mostly a chain of `&&`. Its terms are tried one by one; the first
that is false (or fails) is the answer, with the values it read. Where it compares
an attribute with a text, the nearest value at hand is mentioned: most misses are
typing errors or another spelling.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from dray.cel.device import DeviceInput
from dray.cel.errors import EvaluationError
from dray.cel.program import Program, subprogram
from dray.cel.reads import ReadSet
from dray.cel.syntax import Call, Literal, Node, walk
from dray.cel.values import MISSING


@dataclass(frozen=True, slots=True)
class FalseTerm:
    """The part of an expression that decided against a device."""

    text: str  # as it is written in the expression
    start: int  # offsets into the expression
    end: int
    values: dict[str, str]  # what it read: name → value as text, or "(missing)"
    error: str = ""  # the term failed instead of being false
    hint: str = ""


def explain_false(program: Program, device: DeviceInput) -> FalseTerm | None:
    """Return the first term of the top-level `&&` chain that is not true; None if all are."""
    for node in _terms(program.tree):
        term = subprogram(program, node)
        error = ""
        try:
            if term.evaluate(device):
                continue
        except EvaluationError as failure:
            error = str(failure)
        start, end = _span(program.expression, node, program.tree)
        return FalseTerm(
            text=program.expression[start:end].strip(),
            start=start,
            end=end,
            values=_values(term.reads, device),
            error=error,
            hint=key_hint(error, device) if error else _nearest_value(node, term.reads, device),
        )
    return None


def key_hint(message: str, device: DeviceInput) -> str:
    """Return advice for a `no such key` error: the nearest known names, and how to guard."""
    _, found, key = message.partition("no such key: ")
    if not found:
        return ""
    known = sorted(
        {str(name) for domains in (device.attributes, device.capacity) for name in _names(domains)}
    )
    near = difflib.get_close_matches(key, known, n=3, cutoff=0.6)
    parts = [f"did you mean {' or '.join(near)}?"] if near else []
    parts.append(f"use .?{key}.orValue(...) or has(...) where devices may lack it")
    return "; ".join(parts)


def _names(domains: dict[object, object]) -> list[object]:
    return [name for inner in domains.values() if isinstance(inner, dict) for name in inner]


def _terms(node: Node) -> list[Node]:
    if isinstance(node, Call) and node.function == "_&&_":
        return [term for arg in node.args for term in _terms(arg)]
    return [node]


def _span(expression: str, node: Node, tree: Node) -> tuple[int, int]:
    """Return where a term stands: between the operators of the chain around it."""
    operators = sorted(n.offset for n in walk(tree) if isinstance(n, Call) and n.function == "_&&_")
    chain = [offset for offset in operators if offset in _chain_offsets(tree)]
    inner = [part.offset for part in walk(node)]
    first = min(inner)
    before = [offset for offset in chain if offset < first]
    after = [offset for offset in chain if offset > max(inner)]
    start = before[-1] + 2 if before else 0
    end = after[0] if after else len(expression)
    while start < end and expression[start].isspace():
        start += 1
    while end > start and expression[end - 1].isspace():
        end -= 1
    return start, end


def _chain_offsets(node: Node) -> set[int]:
    if isinstance(node, Call) and node.function == "_&&_":
        return {node.offset}.union(*(_chain_offsets(arg) for arg in node.args))
    return set()


def _values(reads: ReadSet, device: DeviceInput) -> dict[str, str]:
    values: dict[str, str] = {}
    if reads.driver:
        values["driver"] = device.driver
    for kind, keys, domains in (
        ("attributes", reads.attributes, device.attributes),
        ("capacity", reads.capacities, device.capacity),
    ):
        for domain, name in sorted(keys):
            inner = domains.get(domain)
            value = inner.get(name, MISSING) if isinstance(inner, dict) else MISSING
            values[f"{kind} {domain}/{name}"] = "(missing)" if value is MISSING else _shown(value)
    if reads.allow_multiple_allocations:
        values["allowMultipleAllocations"] = _shown(device.allow_multiple_allocations)
    return values


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _nearest_value(node: Node, reads: ReadSet, device: DeviceInput) -> str:
    """Return the text nearest to a literal that an attribute was compared with."""
    if not (isinstance(node, Call) and node.function == "_==_"):
        return ""
    wanted = next(
        (arg.value for arg in node.args if isinstance(arg, Literal) and isinstance(arg.value, str)), None
    )
    if wanted is None:
        return ""
    candidates = []
    for domain, name in sorted(reads.attributes):
        inner = device.attributes.get(domain)
        value = inner.get(name) if isinstance(inner, dict) else None
        candidates.append(value) if isinstance(value, str) else None
    if reads.driver:
        candidates.append(device.driver)
    near = difflib.get_close_matches(wanted.lower(), [text.lower() for text in candidates], n=1, cutoff=0.5)
    if not near:
        return ""
    actual = next(text for text in candidates if text.lower() == near[0])
    return f'wanted "{wanted}", the device has "{actual}"'
