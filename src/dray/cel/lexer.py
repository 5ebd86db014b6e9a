"""Split an expression into tokens.

One regular expression per token class, tried in the order in which CEL's grammar
resolves ties. Text that is not a token is complained about and skipped, as cel-go
does, so that the parser still sees what follows.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from dray.cel.source import Complaints

KEYWORDS = frozenset({"in", "true", "false", "null"})
_ESCAPE = r"""\\(?:[abfnrtv"'\\?`]|[0-3][0-7][0-7]|[xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})"""
_STRING = "|".join(
    (
        rf'"""(?:{_ESCAPE}|[^\\])*?"""',
        rf"'''(?:{_ESCAPE}|[^\\])*?'''",
        rf'"(?:{_ESCAPE}|[^\\"\n\r])*"',
        rf"'(?:{_ESCAPE}|[^\\'\n\r])*'",
        r'[rR]""".*?"""',
        r"[rR]'''.*?'''",
        r'[rR]"[^"\n\r]*"',
        r"[rR]'[^'\n\r]*'",
    )
)
_TOKEN = re.compile(
    rf"""
      (?P<SPACE>[\t\ \r\n\f]+|//[^\n]*)
    | (?P<BYTES>[bB](?:{_STRING}))
    | (?P<STRING>{_STRING})
    | (?P<FLOAT>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?)
    | (?P<UINT>0x[0-9a-fA-F]+[uU]|[0-9]+[uU])
    | (?P<INT>0x[0-9a-fA-F]+|[0-9]+)
    | (?P<IDENT>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<ESCAPED>`[A-Za-z0-9_.\-/ ]+`)
    | (?P<OP>==|!=|<=|>=|&&|\|\||[<>\[\]{{}}().,\-!?:+*/%])
    """,
    re.VERBOSE | re.DOTALL,
)


class Token(NamedTuple):
    """`kind` is a token class, or the text itself for operators and keywords."""

    kind: str
    text: str
    offset: int
    space: str = ""  # whitespace and comments before it


def tokenize(complaints: Complaints) -> list[Token]:
    """Return the tokens of the complaints' source, ending with one of kind EOF."""
    text = complaints.source.text
    tokens: list[Token] = []
    position = 0
    space = ""
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            # A string that never ends is one bad token up to where it broke off.
            end = _end_of_bad_token(text, position)
            complaints.add(position, f"Syntax error: token recognition error at: '{text[position:end]}'")
            position = end
            continue
        kind, word = str(found.lastgroup), found.group()
        if kind == "OP" or (kind == "IDENT" and word in KEYWORDS):
            kind = word
        if kind == "SPACE":
            space += word
        else:
            tokens.append(Token(kind, word, position, space))
            space = ""
        position = found.end()
    tokens.append(Token("EOF", "<EOF>", len(text), space))
    return tokens


def _end_of_bad_token(text: str, start: int) -> int:
    quote = text[start]
    if quote in "=&|":
        # The first half of an operator: the character that disappoints goes with it.
        return min(start + 2, len(text))
    if quote == "`":
        found = re.compile(r"`[A-Za-z0-9_.\-/ ]*").match(text, start)
        return min((found.end() if found else start) + 1, len(text))
    if quote not in "\"'":
        return start + 1
    if text.startswith(quote * 3, start):
        return len(text)
    position = start + 1
    while position < len(text) and text[position] not in "\n\r":
        if text[position] == "\\":
            escape = re.match(_ESCAPE, text[position:])
            if escape is None:
                return min(position + 2, len(text))
            position += escape.end()
        else:
            position += 1
    return min(position + 1, len(text))
