"""Say all that is wrong with a text that has syntax errors.

Beside the syntax errors themselves (`recovery`) upstream reports what is wrong with the parts that it could read:
reserved names, numbers that are too big, macros with the wrong arguments. So nodes are made of these parts as the
ordinary parser makes them, only to hear what is wrong with them; where a part is missing, something that is no name,
no list and no call stands in for it.
"""

from __future__ import annotations

from typing import cast

from dray.cel.building import RESERVED, NodeBuilder, TooBigError
from dray.cel.lexer import Token
from dray.cel.recovery import Recovery, Tree
from dray.cel.source import Complaints
from dray.cel.syntax import Entry, Ident, ListNode, Literal, MapNode, Node, Select

_NOWHERE = -2  # before the first column
_OPERATORS = {
    "<": "_<_", "<=": "_<=_", ">=": "_>=_", ">": "_>_", "==": "_==_", "!=": "_!=_", "in": "@in", "+": "_+_", "-": "_-_",
    "*": "_*_", "/": "_/_", "%": "_%_",
}  # fmt: skip


def report_syntax_errors(complaints: Complaints, tokens: list[Token]) -> None:
    """Note all errors of a text that the ordinary parser does not take."""
    tree = Recovery(complaints, tokens).parse()
    if tree is None:
        return
    reader = _Reader(Complaints(complaints.source))
    try:
        reader.node(tree)
    except TooBigError:
        pass
    complaints.extend(reader.complaints)


class _Reader(NodeBuilder):
    """Makes nodes of what was understood."""

    def node(self, tree: Tree | None) -> Node:
        """Return the node of a tree."""
        while tree is not None:
            if tree.rule == "expr" and "op" in tree.found and tree.found["op"] is not None:
                return self._choice(tree)
            if tree.rule in ("conditionalOr", "conditionalAnd"):
                if tree.found.get("ops+"):
                    return self._terms(tree)
            elif tree.left is not None:
                return self._left_recursive(tree)
            elif tree.rule == "unary" and tree.branch != "member":
                return self._unary(tree)
            elif tree.rule == "primary" and tree.branch not in ("nested", "literal"):
                return self._primary(tree)
            elif tree.rule == "literal":
                return self._literal(tree)
            tree = cast("Tree | None", tree.found.get("e"))
        return self._unknown(_NOWHERE)

    def _unknown(self, offset: int) -> Node:
        return Literal(self.new_id(), offset, None)

    @staticmethod
    def _token(tree: Tree, label: str) -> Token | None:
        return cast("Token | None", tree.found.get(label))

    def _part(self, tree: Tree, label: str) -> Node:
        return self.node(cast("Tree | None", tree.found.get(label)))

    def _parts(self, tree: Tree | None, label: str = "e+") -> list[Tree]:
        return [] if tree is None else cast("list[Tree]", tree.found.get(label, []))

    def _choice(self, tree: Tree) -> Node:
        condition = self._part(tree, "e")
        operator = self._token(tree, "op")
        assert operator is not None
        branches = [self._part(tree, "e1"), self._part(tree, "e2")]
        return self.call(operator.offset, "_?_:_", None, [condition, *branches])

    def _terms(self, tree: Tree) -> Node:
        operator = "||" if tree.rule == "conditionalOr" else "&&"
        terms = [self._part(tree, "e")]
        rest = self._parts(tree, "e1+")
        offsets = [token.offset for token in cast("list[Token]", tree.found["ops+"])]
        for index in range(len(offsets)):
            if index >= len(rest):
                return self.error(tree.start.offset, f"unexpected character, wanted '{operator}'")
            terms.append(self.node(rest[index]))
        return self.balanced(f"_{operator}_", terms, offsets, 0, len(offsets) - 1)

    def _left_recursive(self, tree: Tree) -> Node:
        operator = self._token(tree, "op")
        if tree.rule == "member":
            return self._member(tree, operator)
        if operator is None:
            return self.error(tree.start.offset, "operator not found")
        left = self.node(tree.left)
        right = self._part(tree, "right")
        return self.call(operator.offset, _OPERATORS[operator.kind], None, [left, right])

    def _member(self, tree: Tree, operator: Token | None) -> Node:
        operand = self.node(tree.left)
        if operator is None:
            return self._unknown(tree.start.offset)
        if tree.branch == "index":
            index = self._part(tree, "index")
            name = "_[_]" if self._token(tree, "opt") is None else "_[?_]"
            return self.call(operator.offset, name, None, [operand, index])
        if tree.branch == "call":
            name_token = self._token(tree, "id")
            if name_token is None:
                return self._unknown(tree.start.offset)
            opening = self._token(tree, "open")
            offset = _NOWHERE if opening is None else opening.offset
            return self.call(offset, name_token.text, operand, self._arguments(tree))
        identifier = cast("Tree | None", tree.found.get("id"))
        if identifier is None:
            return self._unknown(tree.start.offset)
        if identifier.branch == "" or self._token(identifier, "id") is None:
            if identifier.branch == "":
                self.complaints.add(identifier.start.offset, "unsupported ident kind")
            return self._unknown(operator.offset)
        return Select(self.new_id(), operator.offset, operand, "")

    def _arguments(self, tree: Tree) -> list[Node]:
        arguments = cast("Tree | None", tree.found.get("args"))
        return [self.node(argument) for argument in self._parts(arguments)]

    def _unary(self, tree: Tree) -> Node:
        signs = cast("list[Token]", tree.found.get("ops+", []))
        if not tree.branch:
            return self._unknown(tree.start.offset)
        member = self._part(tree, "e")
        if len(signs) % 2 == 0:
            return member
        function = "!_" if tree.branch == "logical_not" else "-_"
        return self.call(signs[0].offset, function, None, [member])

    def _primary(self, tree: Tree) -> Node:
        match tree.branch:
            case "ident" | "global_call":
                return self._name(tree)
            case "list":
                elements = self._parts(cast("Tree | None", tree.found.get("elems")))
                nodes = [self._part(element, "e") for element in elements]
                return ListNode(self.new_id(), tree.start.offset, nodes, frozenset())
            case "map":
                return self._map(tree)
            case "message":
                return self._message(tree)
        return self._unknown(_NOWHERE)

    def _name(self, tree: Tree) -> Node:
        name = self._token(tree, "id")
        if name is None:
            return self._unknown(tree.start.offset)
        if name.text in RESERVED:
            return self.error(tree.start.offset, f"reserved identifier: {name.text}")
        prefix = "." if self._token(tree, "dot") is not None else ""
        if tree.branch == "ident":
            return Ident(self.new_id(), name.offset, prefix + name.text)
        opening = self._token(tree, "op")
        offset = _NOWHERE if opening is None else opening.offset
        return self.call(offset, prefix + name.text, None, self._arguments(tree))

    def _map(self, tree: Tree) -> Node:
        entries = cast("Tree | None", tree.found.get("entries"))
        found: list[Entry] = []
        keys, values = self._parts(entries, "keys+"), self._parts(entries, "values+")
        for index, colon in enumerate(cast("list[Token]", self._parts(entries, "cols+"))):
            if index >= len(keys) or index >= len(values):
                found = []
                break
            key = self._part(keys[index], "e")
            found.append(Entry(colon.offset, key, self.node(values[index]), optional=False))
        return MapNode(self.new_id(), tree.start.offset, found)

    def _message(self, tree: Tree) -> Node:
        entries = cast("Tree | None", tree.found.get("entries"))
        values, colons = self._parts(entries, "values+"), self._parts(entries, "cols+")
        for index, part in enumerate(self._parts(entries, "fields+")):
            if index >= len(colons) or index >= len(values):
                break
            identifier = cast("Tree | None", part.found.get("id"))
            if identifier is None or not identifier.branch:
                assert entries is not None
                self.complaints.add(entries.start.offset, "unsupported ident kind")
                continue
            self.node(values[index])
        brace = self._token(tree, "op")
        return self._unknown(_NOWHERE if brace is None else brace.offset)

    def _literal(self, tree: Tree) -> Node:
        token = self._token(tree, "tok")
        if token is None:
            return self._unknown(_NOWHERE)
        match tree.branch:
            case "int" | "uint" | "double":
                if token.text.startswith("<"):
                    return self.error(tree.start.offset, f"invalid {tree.branch} literal")
                return self.number(tree.start, token, negative=self._token(tree, "sign") is not None)
            case "string" | "bytes":
                return self.text(token)
        return Literal(self.new_id(), tree.start.offset, tree.branch == "true")
