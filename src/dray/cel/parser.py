"""Parse an expression into a syntax tree, expanding macros on the way.

Precedence climbing over a token list. Depth is counted the way cel-go counts it
(nesting per grammar rule, and nodes on one path), so that ten thousand brackets
give its `recursion limit exceeded` and not a Python RecursionError.

Parsing stops at the first syntax error: cel-go's recovery finds more of them,
but the first is the one that its clients compare.
"""

from __future__ import annotations

import math

from dray.cel.errors import CelError
from dray.cel.lexer import Token, tokenize
from dray.cel.literals import unescape
from dray.cel.macros import MacroError, Maker, expand
from dray.cel.source import Complaints
from dray.cel.syntax import Call, Entry, Field, Ident, ListNode, Literal, MapNode, Node, Select, Struct
from dray.cel.values import INT64_MAX, INT64_MIN, UINT64_MAX, Uint

MAX_DEPTH = 250
MAX_CODE_POINTS = 100_000
# optMap() and optFlatMap() write their receiver twice, so a chain of them doubles with every link. Upstream
# has no such bound and compiles twelve links for minutes; no text that is not copied comes near it.
MIN_MAX_NODES = 20_000
MAX_NODES_PER_CHARACTER = 2

RESERVED = frozenset(
    [
        "as",
        "break",
        "const",
        "continue",
        "else",
        "false",
        "for",
        "function",
        "if",
        "import",
        "in",
        "let",
        "loop",
        "package",
        "namespace",
        "null",
        "return",
        "true",
        "var",
        "void",
        "while",
    ]
)
_RELATIONS = {"<": "_<_", "<=": "_<=_", ">=": "_>=_", ">": "_>_", "==": "_==_", "!=": "_!=_", "in": "@in"}
_SUMS = {"+": "_+_", "-": "_-_"}
_PRODUCTS = {"*": "_*_", "/": "_/_", "%": "_%_"}
_EXPRESSION_START = "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}"
_STARTERS = frozenset(
    {
        "[",
        "{",
        "(",
        ".",
        "-",
        "!",
        "true",
        "false",
        "null",
        "FLOAT",
        "INT",
        "UINT",
        "STRING",
        "BYTES",
        "IDENT",
    }
)
# Where in the list of expected tokens another one is named.
_ALSO = {")": "')', '.', '-', '!'", "?": "'.', '-', '!', '?'"}
_TOKEN_NAMES = {
    "IDENT": "IDENTIFIER",
    "INT": "NUM_INT",
    "UINT": "NUM_UINT",
    "FLOAT": "NUM_FLOAT",
    "ESCAPED": "ESC_IDENTIFIER",
    "EOF": "<EOF>",
}


class _SyntaxStop(CelError):
    """Parsing cannot go on; the complaint has been noted."""


def parse(complaints: Complaints) -> Node | None:
    """Parse the complaints' source; None (and complaints) if it is not an expression."""
    n_points = len(complaints.source.text)
    if n_points > MAX_CODE_POINTS:
        complaints.add(
            -1, f"expression code point size exceeds limit: size: {n_points}, limit {MAX_CODE_POINTS}"
        )
        return None
    tokens = tokenize(complaints)
    try:
        node = _Parser(complaints, tokens).whole()
    except _SyntaxStop:
        return None
    return None if complaints else node


class _Parser:
    def __init__(self, complaints: Complaints, tokens: list[Token]) -> None:
        self._complaints = complaints
        self._tokens = tokens
        self._index = 0
        self._token = tokens[0]
        self._next_id = 0
        n_characters = len(complaints.source.text)
        self._max_nodes = max(MIN_MAX_NODES, MAX_NODES_PER_CHARACTER * n_characters)
        self._also = ""
        self._rule_depth = {"expr": 0, "relation": 0, "calc": 0, "member": 0}

    # --- tokens ------------------------------------------------------------------

    def _advance(self) -> Token:
        token = self._token
        self._index += 1
        self._token = self._tokens[min(self._index, len(self._tokens) - 1)]
        return token

    def _take(self, kind: str) -> Token | None:
        return self._advance() if self._token.kind == kind else None

    def _expect(self, kind: str, expecting: str = "") -> Token:
        if self._token.kind == kind:
            return self._advance()
        shown = expecting or _TOKEN_NAMES.get(kind, f"'{kind}'")
        raise self._stop(f"mismatched input '{self._token.text}' expecting {shown}")

    def _stop(self, message: str) -> _SyntaxStop:
        self._note(message)
        return _SyntaxStop(message)

    def _note(self, message: str) -> None:
        # An empty text has no column to point at.
        self._complaints.add(
            self._token.offset if self._complaints.source.text else -2, f"Syntax error: {message}"
        )

    def _following(self) -> Token:
        return self._tokens[min(self._index + 1, len(self._tokens) - 1)]

    def _skip_extra(self, wanted: frozenset[str], expecting: str) -> bool:
        """Skip one token that is too much, if the next one fits; complain about it."""
        if self._token.kind == "EOF" or self._following().kind not in wanted:
            return False
        self._note(f"extraneous input '{self._token.text}' expecting {expecting}")
        self._advance()
        return True

    def _close(self, kind: str) -> None:
        """Take a closing bracket, or complain that it is missing."""
        if self._take(kind):
            return
        if self._skip_extra(frozenset({kind}), f"'{kind}'"):
            self._advance()
            return
        if self._token.kind == "EOF":
            raise self._stop(f"missing '{kind}' at '<EOF>'")
        raise self._stop(f"mismatched input '{self._token.text}' expecting '{kind}'")

    # --- nodes -------------------------------------------------------------------

    def _id(self) -> int:
        self._next_id += 1
        if self._next_id > self._max_nodes:
            self._too_deep(f"expression is too big after expanding macros: more than {self._max_nodes} nodes")
        return self._next_id

    def _enter(self, rule: str) -> None:
        self._rule_depth[rule] += 1
        if self._rule_depth[rule] > MAX_DEPTH:
            self._too_deep(f"expression recursion limit exceeded: {MAX_DEPTH}")

    def _leave(self, rule: str, count: int = 1) -> None:
        self._rule_depth[rule] -= count

    def _too_deep(self, message: str) -> None:
        self._complaints.add(-1, message)
        raise _SyntaxStop(message)

    def _error(self, offset: int, message: str) -> Node:
        self._complaints.add(offset, message)
        return Literal(self._id(), offset, None)

    def _call(self, offset: int, function: str, target: Node | None, args: list[Node]) -> Node:
        maker = Maker(self._id, offset)
        try:
            expanded = expand(maker, function, target, args)
        except MacroError as error:
            return self._error(error.offset, str(error))
        return expanded or Call(self._id(), offset, function, target, args)

    # --- grammar -----------------------------------------------------------------

    def whole(self) -> Node:
        """Parse the whole text."""
        node = self._expression()
        if self._token.kind != "EOF":
            raise self._stop(f"{self._unexpected()} expecting <EOF>")
        return node

    def _unexpected(self) -> str:
        word = "extraneous" if self._next_ends() else "mismatched"
        return f"{word} input '{self._token.text}'"

    def _next_ends(self) -> bool:
        following = self._tokens[min(self._index + 1, len(self._tokens) - 1)]
        return self._token.kind != "EOF" and following.kind == "EOF"

    def _expression(self, also: str = "") -> Node:
        """Parse an expression; `also` is what else could stand here, for messages."""
        self._enter("expr")
        self._also, outer = also, self._also
        if self._token.kind not in _STARTERS:
            self._begin()
        self._also = outer
        node = self._logic("||", "_||_")
        question = self._take("?")
        if question is not None:
            if_true = self._logic("||", "_||_")
            self._expect(":")
            if_false = self._expression()
            node = self._call(question.offset, "_?_:_", None, [node, if_true, if_false])
        self._leave("expr")
        return node

    def _begin(self) -> None:
        """Complain about a token that starts no expression; go on if the next one does."""
        expecting = _EXPRESSION_START
        if self._also:
            expecting = expecting.replace("'.', '-', '!'", _ALSO[self._also])
        wanted = _STARTERS | {self._also} if self._also == ")" else _STARTERS
        if not self._skip_extra(wanted, expecting) or self._token.kind not in _STARTERS:
            if self._token.kind in _STARTERS or self._complaints:
                raise _SyntaxStop(expecting)
            raise self._stop(f"mismatched input '{self._token.text}' expecting {expecting}")

    def _logic(self, operator: str, function: str) -> Node:
        terms = [self._below(operator)]
        offsets: list[int] = []
        while self._token.kind == operator:
            offsets.append(self._advance().offset)
            terms.append(self._below(operator))
        return self._balanced(function, terms, offsets, 0, len(offsets) - 1) if offsets else terms[0]

    def _below(self, operator: str) -> Node:
        return self._logic("&&", "_&&_") if operator == "||" else self._relation()

    def _balanced(self, function: str, terms: list[Node], offsets: list[int], low: int, high: int) -> Node:
        """Build a balanced tree, so that a long chain of terms stays shallow."""
        middle = (low + high + 1) // 2
        left = terms[middle] if middle == low else self._balanced(function, terms, offsets, low, middle - 1)
        right = (
            terms[middle + 1]
            if middle == high
            else self._balanced(function, terms, offsets, middle + 1, high)
        )
        return Call(self._id(), offsets[middle], function, None, [left, right])

    def _relation(self) -> Node:
        self._enter("relation")
        node = self._sum()
        levels = 1
        while self._token.kind in _RELATIONS:
            operator = self._advance()
            levels += 1
            self._enter("relation")
            right = self._sum()
            node = self._call(operator.offset, _RELATIONS[operator.kind], None, [node, right])
        self._leave("relation", levels)
        return node

    def _sum(self) -> Node:
        self._enter("calc")
        node = self._product()
        levels = 1
        while self._token.kind in _SUMS:
            operator = self._advance()
            levels += 1
            self._enter("calc")
            right = self._product()
            node = self._call(operator.offset, _SUMS[operator.kind], None, [node, right])
        self._leave("calc", levels)
        return node

    def _product(self) -> Node:
        node = self._unary()
        levels = 0
        while self._token.kind in _PRODUCTS:
            operator = self._advance()
            levels += 1
            self._enter("calc")
            right = self._unary()
            node = self._call(operator.offset, _PRODUCTS[operator.kind], None, [node, right])
        self._leave("calc", levels)
        return node

    def _unary(self) -> Node:
        kind = self._token.kind
        if kind not in ("!", "-"):
            return self._member()
        first = self._token
        following = self._tokens[self._index + 1]
        if kind == "-" and following.kind in ("INT", "FLOAT"):
            # The sign belongs to the number: -9223372036854775808 is a literal.
            return self._member()
        count = 0
        while self._token.kind == kind:
            self._advance()
            count += 1
        if self._token.kind not in _STARTERS or self._token.kind in "!-":
            raise self._bad_operand(kind)
        node = self._member()
        if count % 2 == 0:
            return node
        return self._call(first.offset, "!_" if kind == "!" else "-_", None, [node])

    def _bad_operand(self, operator: str) -> _SyntaxStop:
        shown = self._token.text
        if operator == "!":
            return self._stop(f"extraneous input '{shown}' expecting {_EXPRESSION_START}")
        at_end = self._token.kind == "EOF"
        stop = self._stop(f"no viable alternative at input '-{'' if at_end else shown}'")
        return self._stop(f"mismatched input '{shown}' expecting {_EXPRESSION_START}") if at_end else stop

    def _member(self) -> Node:
        self._enter("member")
        node = self._primary()
        levels = 1
        while True:
            if self._token.kind == ".":
                node = self._selection(node)
            elif self._token.kind == "[":
                node = self._index_of(node)
            else:
                break
            levels += 1
            self._enter("member")
        self._leave("member", levels)
        return node

    def _selection(self, operand: Node) -> Node:
        dot = self._advance()
        if self._take("?"):
            name_token, name = self._field_name(after_dot=False)
            literal = Literal(self._id(), name_token.offset, name)
            return Call(self._id(), dot.offset, "_?._", None, [operand, literal])
        name_token, name = self._field_name()
        opening = self._take("(") if name_token.kind == "IDENT" else None
        if opening is None:
            return Select(self._id(), dot.offset, operand, name)
        return self._call(opening.offset, name, operand, self._arguments())

    def _field_name(self, *, after_dot: bool = True) -> tuple[Token, str]:
        token = self._token
        if token.kind == "ESCAPED":
            self._advance()
            return token, token.text[1:-1]
        if token.kind == "IDENT" or not after_dot:
            return self._expect("IDENT", "{IDENTIFIER, ESC_IDENTIFIER}"), token.text
        if token.kind in ("true", "false", "null"):
            raise self._stop(f"mismatched input '{token.text}' expecting IDENTIFIER")
        start = self._tokens[self._index - 1].offset
        raise self._stop(f"no viable alternative at input '{self._shown(start, token)}'")

    def _shown(self, start: int, token: Token) -> str:
        end = token.offset + (0 if token.kind == "EOF" else len(token.text))
        return (
            self._complaints.source.text[start:end]
            .replace("\n", "\\n")
            .replace("\t", "\\t")
            .replace("\r", "\\r")
        )

    def _index_of(self, operand: Node) -> Node:
        bracket = self._advance()
        optional = self._take("?") is not None
        index = self._expression("" if optional else "?")
        self._close("]")
        return self._call(bracket.offset, "_[?_]" if optional else "_[_]", None, [operand, index])

    def _arguments(self) -> list[Node]:
        args: list[Node] = []
        if self._take(")"):
            return args
        if self._token.kind not in _STARTERS and self._following().kind == ")":
            self._also = ")"
            self._begin()
        while True:
            args.append(self._expression("" if args else ")"))
            if not self._take(","):
                break
        self._close(")")
        return args

    def _primary(self) -> Node:
        token = self._token
        match token.kind:
            case "IDENT" | ".":
                return self._name()
            case "(":
                self._advance()
                node = self._expression()
                self._close(")")
                return node
            case "[":
                return self._list()
            case "{":
                return self._map()
            case "-" | "INT" | "UINT" | "FLOAT":
                return self._number()
            case "STRING" | "BYTES":
                self._advance()
                return self._text(token)
            case "true" | "false" | "null":
                self._advance()
                return Literal(self._id(), token.offset, {"true": True, "false": False}.get(token.kind))
        raise self._stop(f"mismatched input '{token.text}' expecting {_EXPRESSION_START}")

    def _name(self) -> Node:
        start = self._token
        prefix = "." if self._take(".") else ""
        if prefix and self._token.kind != "IDENT":
            raise self._stop(f"no viable alternative at input '{self._shown(start.offset, self._token)}'")
        token = self._expect("IDENT")
        struct = self._struct_name(prefix, token)
        if struct is not None:
            return self._struct(struct)
        if token.text in RESERVED:
            if self._token.kind == "(":
                self._advance()
                self._arguments()
            return self._error(start.offset, f"reserved identifier: {token.text}")
        opening = self._take("(")
        if opening is None:
            return Ident(self._id(), token.offset, prefix + token.text)
        return self._call(opening.offset, prefix + token.text, None, self._arguments())

    def _struct_name(self, prefix: str, first: Token) -> str | None:
        """Look ahead for `a.b.C{`; if it is there, move to the brace and return the name."""
        index = self._index
        words = [first.text]
        while (
            self._tokens[index].kind == "."
            and index + 1 < len(self._tokens)
            and self._tokens[index + 1].kind == "IDENT"
        ):
            words.append(self._tokens[index + 1].text)
            index += 2
        if self._tokens[index].kind != "{":
            return None
        self._index = index
        self._token = self._tokens[index]
        return prefix + ".".join(words)

    def _struct(self, name: str) -> Node:
        brace = self._advance()
        fields: list[Field] = []
        while self._token.kind != "}":
            optional = self._take("?") is not None
            _, field_name = self._field_name(after_dot=False)
            colon = self._expect(":")
            fields.append(Field(colon.offset, field_name, self._expression(), optional))
            if not self._take(","):
                break
        self._expect("}")
        return Struct(self._id(), brace.offset, name, fields)

    def _list(self) -> Node:
        bracket = self._advance()
        elements: list[Node] = []
        optional: set[int] = set()
        while self._token.kind != "]":
            if not elements and self._take(","):
                break
            if self._take("?"):
                optional.add(len(elements))
            elements.append(self._expression())
            if not self._take(","):
                break
            if self._token.kind not in _STARTERS | {"?"}:
                break
        self._close_literal("]", after_comma=self._tokens[self._index - 1].kind == ",")
        return ListNode(self._id(), bracket.offset, elements, frozenset(optional))

    def _close_literal(self, kind: str, *, after_comma: bool) -> None:
        if self._take(kind):
            return
        expecting = f"'{kind}'" if after_comma else f"{{'{kind}', ','}}"
        if not self._skip_extra(frozenset({kind}), expecting):
            raise self._stop(f"mismatched input '{self._token.text}' expecting {expecting}")
        self._advance()

    def _map(self) -> Node:
        brace = self._advance()
        entries: list[Entry] = []
        while self._token.kind != "}":
            if not entries and self._take(","):
                break
            optional = self._take("?") is not None
            key = self._expression()
            colon = self._expect(":")
            entries.append(Entry(colon.offset, key, self._expression(), optional))
            if not self._take(","):
                break
            if self._token.kind not in _STARTERS | {"?"}:
                break
        self._close_literal("}", after_comma=self._tokens[self._index - 1].kind == ",")
        return MapNode(self._id(), brace.offset, entries)

    def _number(self) -> Node:
        start = self._token
        sign = -1 if self._take("-") else 1
        token = self._token
        if token.kind not in ("INT", "FLOAT") and (token.kind != "UINT" or sign < 0):
            raise self._stop(f"mismatched input '{token.text}' expecting {_EXPRESSION_START}")
        self._advance()
        if token.kind == "FLOAT":
            number = float(token.text)
            if math.isinf(number):
                return self._error(start.offset, "invalid double literal")
            return Literal(self._id(), start.offset, sign * number)
        if token.kind == "UINT":
            value = _whole(token.text[:-1])
            if value > UINT64_MAX:
                return self._error(start.offset, "invalid uint literal")
            return Literal(self._id(), start.offset, Uint(value))
        value = sign * _whole(token.text)
        if not INT64_MIN <= value <= INT64_MAX:
            return self._error(start.offset, "invalid int literal")
        return Literal(self._id(), start.offset, value)

    def _text(self, token: Token) -> Node:
        try:
            value = unescape(token.text, is_bytes=token.kind == "BYTES")
        except ValueError as error:
            return self._error(token.offset, str(error))
        return Literal(self._id(), token.offset, value)


def _whole(text: str) -> int:
    digits, base = (text[2:], 16) if text.startswith("0x") else (text, 10)
    # Longer texts are out of range anyway, and Python refuses to parse very long ones.
    return int(digits, base) if len(digits.lstrip("0")) <= 20 else UINT64_MAX + 1
