"""Texts that a program still has to fill in: what they are called, and who fills them in.

A template may well parse as YAML (`name: worker-{{.Index}}`), so nothing is concluded from its text alone: shell
scripts and environment variables of containers contain `${NAME}`, too. Only an error at a value with a placeholder
is said to come from it, because what replaces the placeholder decides whether the error exists.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from dray.workbench.lint.findings import ERROR, Problem


@dataclass(frozen=True, slots=True)
class _Style:
    pattern: re.Pattern[str]
    name: str
    hint: str


_GO = _Style(
    re.compile(r"\{\{.*?(?:\}\}|$)"),
    "a Go template (as in Helm charts)",
    "run `helm template` on its chart and check what it prints: … | dray check -",
)
_SHELL = _Style(
    re.compile(r"\$\{[A-Za-z_]\w*[^}]*\}|^\$[A-Za-z_]\w*$"),
    "a template with shell variables",
    "put in the values first: envsubst <FILE | dray check -",
)
_OTHER = _Style(
    re.compile(r"__[A-Z][A-Z0-9_]*__|<[A-Za-z][^<>]*>"),
    "a template",
    "put in the value first",
)
# Words in capitals (`KSA_NAME`, `FILLED BY THE OPERATOR`) are never names of objects. They may still be a mistake.
_CAPITALS = re.compile(r"[A-Z][A-Z0-9]*(?:[ _-][A-Z0-9]+)+")
_REFUSED_VALUE = re.compile(r'^Invalid value: "([^"\\]*)"')
_LEFT_OUT = re.compile(r"^\s*(?:- )?\.\.\.\s*$")


def from_placeholder(problem: Problem, value: Any) -> Problem:
    """Return an error at a value with a placeholder as one of a template, other problems as they are."""
    if problem.severity != ERROR:
        return problem
    # In an expression, `<` and `>` are operators.
    styles = (_GO, _SHELL) if problem.code.startswith("cel") else (_GO, _SHELL, _OTHER)
    for text in (value if isinstance(value, str) else "", problem.message):
        for style in styles:
            found = style.pattern.search(text)
            if found is not None:
                return replace(problem, code="template", message=_message(found[0], style), hint=style.hint)
    # The value that a message quotes is a key, for example of `limits`, where the value is another one.
    quoted = _REFUSED_VALUE.match(problem.message)
    named = quoted[1] if quoted is not None else value
    if problem.code == "invalid" and isinstance(named, str) and _CAPITALS.fullmatch(named):
        message = f"{named} looks like a placeholder that was not filled in. As it is: {problem.message}"
        return replace(problem, code="template", message=message, hint=_OTHER.hint)
    return problem


def unparsed(text: str, line: int) -> tuple[str, str, str] | None:
    """Return code, message and hint for a text that cannot be parsed before it is filled in; None for other texts.

    `line` is where the parser gave up. A Go template is recognised anywhere, because its directives stand on lines of
    their own; the others only at that line or the one before it.
    """
    if "{{" in text:
        return "template", f"{_GO.name}, not a manifest", _GO.hint
    near = text.split("\n")[max(0, line - 2) : line]
    found = _SHELL.pattern.search("\n".join(near))
    if found is not None:
        return "template", _message(found[0], _SHELL), _SHELL.hint
    if any(map(_LEFT_OUT.match, near)):
        return (
            "syntax",
            "`...` stands here for text that was left out; in YAML it has another meaning",
            "write out what is missing",
        )
    return None


def _message(placeholder: str, style: _Style) -> str:
    return f"{placeholder} was not filled in: this is {style.name}, not a manifest"
