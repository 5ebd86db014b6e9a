"""CEL's grammar as a graph: what may stand where, for the parser that goes on after syntax errors.

The parser of well-formed text (`parser`) has the grammar in its code. This one is data, because messages and
recovery need to know what could have stood at a place: the tokens that may come next within a rule, and after
it. A rule is a chain of `Place`s; each is a token, a call of another rule, or a point where the parser decides
(an optional part, a loop, a choice). `next_tokens` says what may come next, as far as the rule goes.

The shape follows the published grammar (CEL.g4), including how its left-recursive rules become loops, since
that decides which tokens a message lists.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

EPSILON = ""  # among next tokens: the rule may end here

_TOKENS = (
    "EOF", "==", "!=", "in", "<", "<=", ">=", ">", "&&", "||", "[", "]", "{", "}", "(", ")", ".", ",", "-", "!", "?", ":",
    "+", "*", "/", "%", "true", "false", "null", "FLOAT", "INT", "UINT", "STRING", "BYTES", "IDENT", "ESCAPED",
)  # fmt: skip
_ORDER = {token: index for index, token in enumerate(_TOKENS)}
_NAMES = {
    "EOF": "<EOF>", "FLOAT": "NUM_FLOAT", "INT": "NUM_INT", "UINT": "NUM_UINT", "STRING": "STRING", "BYTES": "BYTES",
    "IDENT": "IDENTIFIER", "ESCAPED": "ESC_IDENTIFIER",
}  # fmt: skip
RELATIONS = frozenset({"==", "!=", "in", "<", "<=", ">=", ">"})
PRODUCTS = frozenset({"*", "/", "%"})
SUMS = frozenset({"+", "-"})


def in_order(tokens: frozenset[str]) -> list[str]:
    """Return tokens in the order of the grammar."""
    return sorted(tokens, key=_ORDER.__getitem__)


def missing_text(token: str) -> str:
    """Return the text that an assumed token has."""
    return f"<missing '{token}'>" if token not in _NAMES else "<missing undefined>"


def show(tokens: frozenset[str]) -> str:
    """Write a set of tokens as messages do."""
    names = [_NAMES.get(token, f"'{token}'") for token in in_order(tokens)]
    return names[0] if len(names) == 1 else "{" + ", ".join(names) + "}"


@dataclass(slots=True, eq=False)
class Place:
    """A place in a rule."""

    kind: str  # token, rule, optional, loop, again (the end of a round), repeat (at least once), choice, end
    after: Place | None = None
    label: str = ""  # under which the tree keeps what is found; with a + at its end it keeps a list
    tokens: frozenset[str] = frozenset()
    rule: str = ""
    precedence: int = 0
    branches: list[Place] = field(default_factory=list)
    names: tuple[str, ...] = ()  # of the branches of a choice
    again: Place | None = None  # of loops


_Part = tuple[Any, ...]


def _token(*tokens: str, label: str = "") -> _Part:
    return "token", frozenset(tokens), label


def _rule(name: str, label: str = "", precedence: int = 0) -> _Part:
    return "rule", name, label, precedence


def _maybe(*parts: _Part) -> _Part:
    return "optional", parts


def _loop(*parts: _Part) -> _Part:
    return "loop", parts


def _repeat(*parts: _Part) -> _Part:
    return "repeat", parts


def _choice(**branches: tuple[_Part, ...]) -> _Part:
    return "choice", tuple(branches), tuple(branches.values())


def _growing(**branches: tuple[_Part, ...]) -> _Part:
    """Return the loop of a left-recursive rule: every round takes what was found so far for its left side."""
    return "growing", tuple(branches), tuple(branches.values())


_ARGUMENTS = _maybe(_rule("exprList", "args"))
_LEADING_DOT = _maybe(_token(".", label="dot"))
_SIGN = _maybe(_token("-", label="sign"))

_RULES: dict[str, tuple[_Part, ...]] = {
    "start": (_rule("expr", "e"), _token("EOF")),
    "expr": (
        _rule("conditionalOr", "e"),
        _maybe(_token("?", label="op"), _rule("conditionalOr", "e1"), _token(":"), _rule("expr", "e2")),
    ),
    "conditionalOr": (
        _rule("conditionalAnd", "e"),
        _loop(_token("||", label="ops+"), _rule("conditionalAnd", "e1+")),
    ),
    "conditionalAnd": (_rule("relation", "e"), _loop(_token("&&", label="ops+"), _rule("relation", "e1+"))),
    "relation": (
        _rule("calc", "e"),
        _growing(compare=(_token(*RELATIONS, label="op"), _rule("relation", "right", 2))),
    ),
    "calc": (
        _rule("unary", "e"),
        _growing(
            product=(_token(*PRODUCTS, label="op"), _rule("calc", "right", 3)),
            sum=(_token(*SUMS, label="op"), _rule("calc", "right", 2)),
        ),
    ),
    "unary": (
        _choice(
            member=(_rule("member", "e"),),
            logical_not=(_repeat(_token("!", label="ops+")), _rule("member", "e")),
            negate=(_repeat(_token("-", label="ops+")), _rule("member", "e")),
        ),
    ),
    "member": (
        _rule("primary", "e"),
        _growing(
            select=(_token(".", label="op"), _maybe(_token("?", label="opt")), _rule("escapeIdent", "id")),
            call=(
                _token(".", label="op"), _token("IDENT", label="id"), _token("(", label="open"), _ARGUMENTS, _token(")"),
            ),
            index=(_token("[", label="op"), _maybe(_token("?", label="opt")), _rule("expr", "index"), _token("]")),
        ),
    ),
    "primary": (
        _choice(
            ident=(_LEADING_DOT, _token("IDENT", label="id")),
            global_call=(
                _LEADING_DOT, _token("IDENT", label="id"), _token("(", label="op"), _ARGUMENTS, _token(")"),
            ),
            nested=(_token("("), _rule("expr", "e"), _token(")")),
            list=(
                _token("[", label="op"), _maybe(_rule("listInit", "elems")), _maybe(_token(",")), _token("]"),
            ),
            map=(
                _token("{", label="op"), _maybe(_rule("mapInitializerList", "entries")), _maybe(_token(",")), _token("}"),
            ),
            message=(
                _LEADING_DOT, _token("IDENT", label="ids+"), _loop(_token("."), _token("IDENT", label="ids+")),
                _token("{", label="op"), _maybe(_rule("fieldInitializerList", "entries")), _maybe(_token(",")), _token("}"),
            ),
            literal=(_rule("literal", "e"),),
        ),
    ),
    "exprList": (_rule("expr", "e+"), _loop(_token(","), _rule("expr", "e+"))),
    "listInit": (_rule("optExpr", "e+"), _loop(_token(","), _rule("optExpr", "e+"))),
    "fieldInitializerList": (
        _rule("optField", "fields+"), _token(":", label="cols+"), _rule("expr", "values+"),
        _loop(_token(","), _rule("optField", "fields+"), _token(":", label="cols+"), _rule("expr", "values+")),
    ),
    "optField": (_maybe(_token("?", label="opt")), _rule("escapeIdent", "id")),
    "mapInitializerList": (
        _rule("optExpr", "keys+"), _token(":", label="cols+"), _rule("expr", "values+"),
        _loop(_token(","), _rule("optExpr", "keys+"), _token(":", label="cols+"), _rule("expr", "values+")),
    ),
    "escapeIdent": (_choice(simple=(_token("IDENT", label="id"),), escaped=(_token("ESCAPED", label="id"),)),),
    "optExpr": (_maybe(_token("?", label="opt")), _rule("expr", "e")),
    "literal": (
        _choice(
            int=(_SIGN, _token("INT", label="tok")),
            uint=(_token("UINT", label="tok"),),
            double=(_SIGN, _token("FLOAT", label="tok")),
            string=(_token("STRING", label="tok"),),
            bytes=(_token("BYTES", label="tok"),),
            true=(_token("true", label="tok"),),
            false=(_token("false", label="tok"),),
            null=(_token("null", label="tok"),),
        ),
    ),
}  # fmt: skip


def _chain(parts: tuple[_Part, ...], last: Place) -> Place:
    """Return the first place of parts that `last` follows."""
    place = last
    for part in reversed(parts):
        place = _place(part, place)
    return place


def _place(part: _Part, after: Place) -> Place:
    match part:
        case ("token", frozenset() as tokens, str(label)):
            return Place("token", after, label, tokens=tokens)
        case ("rule", str(name), str(label), int(precedence)):
            return Place("rule", after, label, rule=name, precedence=precedence)
        case ("optional", tuple(parts)):
            return Place("optional", after, branches=[_chain(parts, after)])
        case ("choice", tuple(names), tuple(branches)):
            return Place("choice", after, names=names, branches=[_chain(each, after) for each in branches])
        case (str(kind), *_, tuple(content)):
            loop = Place(kind, after)
            loop.again = Place("again", after)
            if kind == "growing":
                loop.names = part[1]
                loop.branches = [_chain(each, loop.again) for each in content]
            else:
                loop.branches = [_chain(content, loop.again)]
            loop.again.branches = loop.branches
            return loop
    raise AssertionError(part)


RULES: dict[str, Place] = {name: _chain(parts, Place("end")) for name, parts in _RULES.items()}


@cache
def next_tokens(place: Place) -> frozenset[str]:
    """Return what may come next at a place of a rule; EPSILON stands for the end of the rule."""
    match place.kind:
        case "token":
            return place.tokens
        case "rule":
            return next_tokens(RULES[place.rule])
        case "end":
            return frozenset({EPSILON})
    found: frozenset[str] = frozenset()
    for branch in place.branches:
        found |= next_tokens(branch)
    if place.kind in ("optional", "loop", "growing", "again"):
        assert place.after is not None
        found |= next_tokens(place.after)
    return found
