"""Make the nodes of a syntax tree, with macros expanded: what the two parsers share."""

from __future__ import annotations

import math

from dray.cel.errors import CelError
from dray.cel.lexer import Token
from dray.cel.literals import unescape
from dray.cel.macros import MacroError, Maker, expand
from dray.cel.source import Complaints
from dray.cel.syntax import Call, Literal, Node
from dray.cel.values import INT64_MAX, INT64_MIN, UINT64_MAX, Uint

# optMap() and optFlatMap() write their receiver twice, so a chain of them doubles with every link. Upstream
# has no such bound and compiles twelve links for minutes; no text that is not copied comes near it.
MIN_MAX_NODES = 20_000
MAX_NODES_PER_CHARACTER = 2

RESERVED = frozenset(
    {
        "as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in", "let", "loop",
        "package", "namespace", "null", "return", "true", "var", "void", "while",
    }
)  # fmt: skip


class TooBigError(CelError):
    """The expression is bigger or deeper than it may be; the complaint has been noted."""


class NodeBuilder:
    """Makes nodes, and notes what is wrong with them."""

    def __init__(self, complaints: Complaints) -> None:
        self.complaints = complaints
        self._next_id = 0
        n_characters = len(complaints.source.text)
        self._max_nodes = max(MIN_MAX_NODES, MAX_NODES_PER_CHARACTER * n_characters)

    def new_id(self) -> int:
        """Return an id that no node has."""
        self._next_id += 1
        if self._next_id > self._max_nodes:
            self.too_big(f"expression is too big after expanding macros: more than {self._max_nodes} nodes")
        return self._next_id

    def too_big(self, message: str) -> None:
        """Note that the expression is too big, and raise TooBigError."""
        self.complaints.add(-1, message)
        raise TooBigError(message)

    def error(self, offset: int, message: str) -> Node:
        """Note a complaint, and return something in place of a node."""
        self.complaints.add(offset, message)
        return Literal(self.new_id(), offset, None)

    def call(self, offset: int, function: str, target: Node | None, args: list[Node]) -> Node:
        """Return a call, or what the macro of its name makes of it."""
        maker = Maker(self.new_id, offset)
        try:
            expanded = expand(maker, function, target, args)
        except MacroError as error:
            return self.error(error.offset, str(error))
        return expanded or Call(self.new_id(), offset, function, target, args)

    def balanced(self, function: str, terms: list[Node], offsets: list[int], low: int, high: int) -> Node:
        """Build a balanced tree, so that a long chain of terms stays shallow."""
        middle = (low + high + 1) // 2
        left = terms[middle] if middle == low else self.balanced(function, terms, offsets, low, middle - 1)
        right = (
            terms[middle + 1] if middle == high else self.balanced(function, terms, offsets, middle + 1, high)
        )
        return Call(self.new_id(), offsets[middle], function, None, [left, right])

    def number(self, start: Token, token: Token, *, negative: bool) -> Node:
        """Return the literal of a number, which begins at `start`."""
        sign = -1 if negative else 1
        if token.kind == "FLOAT":
            number = float(token.text)
            if math.isinf(number):
                return self.error(start.offset, "invalid double literal")
            return Literal(self.new_id(), start.offset, sign * number)
        if token.kind == "UINT":
            value = _whole(token.text[:-1])
            if value > UINT64_MAX:
                return self.error(start.offset, "invalid uint literal")
            return Literal(self.new_id(), start.offset, Uint(value))
        value = sign * _whole(token.text)
        if not INT64_MIN <= value <= INT64_MAX:
            return self.error(start.offset, "invalid int literal")
        return Literal(self.new_id(), start.offset, value)

    def text(self, token: Token) -> Node:
        """Return the literal of a string or of bytes."""
        try:
            value = unescape(token.text, is_bytes=token.kind == "BYTES")
        except ValueError as error:
            return self.error(token.offset, str(error))
        return Literal(self.new_id(), token.offset, value)


def _whole(text: str) -> int:
    digits, base = (text[2:], 16) if text.startswith("0x") else (text, 10)
    # Longer texts are out of range anyway, and Python refuses to parse very long ones.
    return int(digits, base) if len(digits.lstrip("0")) <= 20 else UINT64_MAX + 1
