"""Parse an expression into a syntax tree, expanding macros on the way.

Precedence climbing over a token list. Depth is counted the way cel-go counts it
(nesting per grammar rule, and nodes on one path), so that ten thousand brackets
give its `recursion limit exceeded` and not a Python RecursionError.

Parsing stops at the first syntax error. What to say about it, and about those behind it, is left to a parser
that goes on after errors as upstream's does (`recovery`).
"""

from __future__ import annotations

from dray.cel.building import RESERVED, NodeBuilder, TooBigError
from dray.cel.errors import CelError
from dray.cel.lexer import Token, tokenize
from dray.cel.recovery_report import report_syntax_errors
from dray.cel.source import Complaints
from dray.cel.syntax import Call, Entry, Field, Ident, ListNode, Literal, MapNode, Node, Select, Struct

MAX_DEPTH = 250
MAX_CODE_POINTS = 100_000
_RELATIONS = {"<": "_<_", "<=": "_<=_", ">=": "_>=_", ">": "_>_", "==": "_==_", "!=": "_!=_", "in": "@in"}
_SUMS = {"+": "_+_", "-": "_-_"}
_PRODUCTS = {"*": "_*_", "/": "_/_", "%": "_%_"}
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


class _SyntaxStop(CelError):
    """Parsing cannot go on."""


def parse(complaints: Complaints) -> Node | None:
    """Parse the complaints' source; None (and complaints) if it is not an expression."""
    n_points = len(complaints.source.text)
    if n_points > MAX_CODE_POINTS:
        complaints.add(
            -1, f"expression code point size exceeds limit: size: {n_points}, limit {MAX_CODE_POINTS}"
        )
        return None
    tokens = tokenize(complaints)
    parser = _Parser(Complaints(complaints.source), tokens)
    try:
        node = parser.whole()
    except TooBigError:
        complaints.extend(parser.complaints)
        return None
    except _SyntaxStop:
        # What was noted on the way is found again.
        report_syntax_errors(complaints, tokens)
        if not complaints:
            complaints.add(parser.offset, "Syntax error: unexpected input")
        return None
    complaints.extend(parser.complaints)
    return None if complaints else node


class _Parser(NodeBuilder):
    def __init__(self, complaints: Complaints, tokens: list[Token]) -> None:
        super().__init__(complaints)
        self._tokens = tokens
        self._index = 0
        self._token = tokens[0]
        self._rule_depth = {"expr": 0, "relation": 0, "calc": 0, "member": 0}

    @property
    def offset(self) -> int:
        """Where parsing has got to."""
        return self._token.offset

    # --- tokens ------------------------------------------------------------------

    def _advance(self) -> Token:
        token = self._token
        self._index += 1
        self._token = self._tokens[min(self._index, len(self._tokens) - 1)]
        return token

    def _take(self, kind: str) -> Token | None:
        return self._advance() if self._token.kind == kind else None

    def _expect(self, kind: str) -> Token:
        if self._token.kind == kind:
            return self._advance()
        raise _SyntaxStop

    def _enter(self, rule: str) -> None:
        self._rule_depth[rule] += 1
        if self._rule_depth[rule] > MAX_DEPTH:
            self.too_big(f"expression recursion limit exceeded: {MAX_DEPTH}")

    def _leave(self, rule: str, count: int = 1) -> None:
        self._rule_depth[rule] -= count

    # --- grammar -----------------------------------------------------------------

    def whole(self) -> Node:
        """Parse the whole text."""
        node = self._expression()
        self._expect("EOF")
        return node

    def _expression(self) -> Node:
        self._enter("expr")
        if self._token.kind not in _STARTERS:
            raise _SyntaxStop
        node = self._logic("||", "_||_")
        question = self._take("?")
        if question is not None:
            if_true = self._logic("||", "_||_")
            self._expect(":")
            if_false = self._expression()
            node = self.call(question.offset, "_?_:_", None, [node, if_true, if_false])
        self._leave("expr")
        return node

    def _logic(self, operator: str, function: str) -> Node:
        terms = [self._below(operator)]
        offsets: list[int] = []
        while self._token.kind == operator:
            offsets.append(self._advance().offset)
            terms.append(self._below(operator))
        return self.balanced(function, terms, offsets, 0, len(offsets) - 1) if offsets else terms[0]

    def _below(self, operator: str) -> Node:
        return self._logic("&&", "_&&_") if operator == "||" else self._relation()

    def _relation(self) -> Node:
        self._enter("relation")
        node = self._sum()
        levels = 1
        while self._token.kind in _RELATIONS:
            operator = self._advance()
            levels += 1
            self._enter("relation")
            right = self._sum()
            node = self.call(operator.offset, _RELATIONS[operator.kind], None, [node, right])
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
            node = self.call(operator.offset, _SUMS[operator.kind], None, [node, right])
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
            node = self.call(operator.offset, _PRODUCTS[operator.kind], None, [node, right])
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
        if self._token.kind not in _STARTERS or self._token.kind == "!":
            raise _SyntaxStop
        if self._token.kind == "-" and self._tokens[self._index + 1].kind not in ("INT", "FLOAT"):
            raise _SyntaxStop
        node = self._member()
        if count % 2 == 0:
            return node
        return self.call(first.offset, "!_" if kind == "!" else "-_", None, [node])

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
            name_token, name = self._field_name()
            literal = Literal(self.new_id(), name_token.offset, name)
            return Call(self.new_id(), dot.offset, "_?._", None, [operand, literal])
        name_token, name = self._field_name()
        opening = self._take("(") if name_token.kind == "IDENT" else None
        if opening is None:
            return Select(self.new_id(), dot.offset, operand, name)
        return self.call(opening.offset, name, operand, self._arguments())

    def _field_name(self) -> tuple[Token, str]:
        token = self._token
        if token.kind == "ESCAPED":
            self._advance()
            return token, token.text[1:-1]
        return self._expect("IDENT"), token.text

    def _index_of(self, operand: Node) -> Node:
        bracket = self._advance()
        optional = self._take("?") is not None
        index = self._expression()
        self._expect("]")
        return self.call(bracket.offset, "_[?_]" if optional else "_[_]", None, [operand, index])

    def _arguments(self) -> list[Node]:
        args: list[Node] = []
        if self._take(")"):
            return args
        while True:
            args.append(self._expression())
            if not self._take(","):
                break
        self._expect(")")
        return args

    def _primary(self) -> Node:
        token = self._token
        match token.kind:
            case "IDENT" | ".":
                return self._name()
            case "(":
                self._advance()
                node = self._expression()
                self._expect(")")
                return node
            case "[":
                return self._list()
            case "{":
                return self._map()
            case "-" | "INT" | "UINT" | "FLOAT":
                return self._number()
            case "STRING" | "BYTES":
                self._advance()
                return self.text(token)
            case "true" | "false" | "null":
                self._advance()
                return Literal(self.new_id(), token.offset, {"true": True, "false": False}.get(token.kind))
        raise _SyntaxStop

    def _name(self) -> Node:
        start = self._token
        prefix = "." if self._take(".") else ""
        token = self._expect("IDENT")
        struct = self._struct_name(prefix, token)
        if struct is not None:
            return self._struct(struct)
        if token.text in RESERVED:
            if self._token.kind == "(":
                self._advance()
                self._arguments()
            return self.error(start.offset, f"reserved identifier: {token.text}")
        opening = self._take("(")
        if opening is None:
            return Ident(self.new_id(), token.offset, prefix + token.text)
        return self.call(opening.offset, prefix + token.text, None, self._arguments())

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
            _, field_name = self._field_name()
            colon = self._expect(":")
            fields.append(Field(colon.offset, field_name, self._expression(), optional))
            if not self._take(","):
                break
        self._expect("}")
        return Struct(self.new_id(), brace.offset, name, fields)

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
        self._expect("]")
        return ListNode(self.new_id(), bracket.offset, elements, frozenset(optional))

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
        self._expect("}")
        return MapNode(self.new_id(), brace.offset, entries)

    def _number(self) -> Node:
        start = self._token
        sign = self._take("-")
        token = self._token
        if token.kind not in ("INT", "FLOAT") and (token.kind != "UINT" or sign):
            raise _SyntaxStop
        self._advance()
        return self.number(start, token, negative=sign is not None)
