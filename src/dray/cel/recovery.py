"""Parse a text with syntax errors as upstream does, to say what it says.

Upstream's parser is made by ANTLR. Met with a token that does not fit, it reports it, repairs the text in its
mind (drops the token, assumes one that is missing, or skips to where an outer rule can go on), and parses on;
what it reports afterwards depends on every such step. This parser takes the same steps, on the grammar as a
graph (`grammar`). It is slow and runs only when the ordinary parser has found an error.

Theory of operation. A rule is walked place by place. `_follow` holds, for each rule under way, the place where
its caller goes on; with it the tokens that may follow are known beyond the rule. Before a decision the parser
looks whether the next token can belong (`_sync`); at a token that does not match it tries the two repairs
(`_repaired`); otherwise the rule is given up (`_Mismatch`) and tokens are skipped until some caller has a use for
one (`_skip`). While it recovers nothing is reported, until a token matches.

Where one token does not tell which branch is meant, ANTLR looks further, and its report then spans all it looked
at. In this grammar two or three tokens tell, but for the names of messages (`a.b.c{`).

Invariants: parsing ends: each report skips a token or leaves a rule, and their number is bounded.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dray.cel.errors import CelError
from dray.cel.grammar import (
    EPSILON,
    PRODUCTS,
    RELATIONS,
    RULES,
    SUMS,
    Place,
    in_order,
    missing_text,
    next_tokens,
    show,
)
from dray.cel.lexer import Token
from dray.cel.source import Complaints

MAX_REPORTS = 100
MAX_RECOVERIES = 30
MAX_SKIPPED = 256  # tokens, for one recovery
MAX_DEPTH = 250
_NUMBERS = ("INT", "FLOAT")
_EXPRESSION = next_tokens(RULES["expr"])
_OPERAND = next_tokens(RULES["member"])


@dataclass(slots=True)
class Tree:
    """What was found of a rule: tokens and trees by the labels of the grammar."""

    rule: str
    start: Token
    branch: str = ""  # of the choice that the rule is
    found: dict[str, object] = field(default_factory=dict)
    left: Tree | None = None  # of a left-recursive rule

    def put(self, label: str, value: object) -> None:
        """Keep something under a label."""
        if label.endswith("+"):
            several = self.found.setdefault(label, [])
            assert isinstance(several, list)
            several.append(value)
        elif label:
            self.found[label] = value


class _Mismatch(CelError):
    """A rule cannot go on: what to report, and at which token."""

    def __init__(self, message: str, token: Token) -> None:
        super().__init__(message)
        self.token = token


class _GiveUp(CelError):
    """There were too many errors; parsing ends here."""


class Recovery:
    """Parses once."""

    def __init__(self, complaints: Complaints, tokens: list[Token]) -> None:
        self._complaints = complaints
        self._tokens = tokens
        self._index = 0
        self._state: Place = RULES["start"]
        self._follow: list[Place] = []
        self._recovering = False
        self._last_error = -1
        self._error_states: set[int] = set()
        self._n_recoveries = 0
        self._n_reports = 0
        self._depth = 0

    def parse(self) -> Tree | None:
        """Return what was understood; None if parsing was given up."""
        try:
            return self._walk_rule("start", 0)
        except _GiveUp:
            # Upstream has not seen what lies behind.
            self._complaints.forget_behind(self._token(1).offset)
            return None

    # --- tokens --------------------------------------------------------------------

    def _token(self, ahead: int = 0) -> Token:
        return self._tokens[min(self._index + ahead, len(self._tokens) - 1)]

    def _kind(self, ahead: int = 0) -> str:
        return self._token(ahead).kind

    def _consume(self) -> None:
        if self._kind() != "EOF":
            self._index += 1

    def _matched(self) -> None:
        self._recovering = False
        self._last_error = -1
        self._error_states.clear()

    # --- reports -------------------------------------------------------------------

    def _report(self, message: str, token: Token) -> None:
        """Report once; then nothing until a token matches."""
        if self._recovering:
            return
        self._recovering = True
        self._note(message, token)

    def _note(self, message: str, token: Token) -> None:
        # An empty text has no column to point at.
        offset = token.offset if self._complaints.source.text else -2
        if self._n_reports == MAX_REPORTS:
            self._complaints.add(offset, f"Syntax error: More than {MAX_REPORTS} syntax errors")
            raise _GiveUp
        self._n_reports += 1
        self._complaints.add(offset, f"Syntax error: {message}")

    def _expected(self) -> frozenset[str]:
        """Return what could stand here, in this rule and after it."""
        return self._beyond(next_tokens(self._state))

    def _beyond(self, tokens: frozenset[str], depth: int = 0) -> frozenset[str]:
        """Replace the end of a rule by what its callers expect; `depth` of them are left out."""
        callers = self._follow[: len(self._follow) - depth]
        while EPSILON in tokens and callers:
            tokens = (tokens - {EPSILON}) | next_tokens(callers.pop())
        return (tokens - {EPSILON}) | {"EOF"} if EPSILON in tokens else tokens

    def _use_of_callers(self) -> frozenset[str]:
        found: frozenset[str] = frozenset()
        for place in self._follow:
            found |= next_tokens(place)
        return found - {EPSILON}

    def _unwanted(self) -> None:
        token = self._token()
        self._report(f"extraneous input {quoted(token.text)} expecting {show(self._expected())}", token)

    def _mismatch(self) -> _Mismatch:
        token = self._token()
        expected = show(self._expected())
        return _Mismatch(f"mismatched input {quoted(token.text)} expecting {expected}", token)

    def _no_alternative(self, ahead: int = 0) -> _Mismatch:
        """Return the error of a decision that no branch survives `ahead` tokens from here."""
        last = min(self._index + ahead, len(self._tokens) - 1)
        first = self._token()
        text = first.text
        for token in self._tokens[self._index + 1 : last + 1]:
            text += token.space + ("" if token.kind == "EOF" else token.text)
        message = f"no viable alternative at input {quoted(text)}"
        word = text[1:]
        if len(text) > 1 and word in ("true", "false", "null"):
            message = f"mismatched input {quoted(word)} expecting IDENTIFIER"
        return _Mismatch(message, self._tokens[last])

    # --- recovery ------------------------------------------------------------------

    def _count_recovery(self) -> None:
        if self._n_recoveries == MAX_RECOVERIES:
            self._note(f"error recovery attempt limit exceeded: {MAX_RECOVERIES}", self._token())
            raise _GiveUp
        self._n_recoveries += 1

    def _skip(self, wanted: frozenset[str], limit: int = 1 << 30) -> None:
        while self._kind() != "EOF" and self._kind() not in wanted:
            if limit <= 0:
                self._complaints.add(-1, f"error recovery token lookahead limit exceeded: {MAX_SKIPPED}")
                raise _GiveUp
            limit -= 1
            self._consume()

    def _recover(self) -> None:
        """Skip to where a caller can go on."""
        self._count_recovery()
        limit = MAX_SKIPPED
        if self._last_error == self._index and id(self._state) in self._error_states:
            # The same place again, and nothing was skipped: skip one token lest it never ends.
            self._consume()
            limit -= 1
        self._last_error = self._index
        self._error_states.add(id(self._state))
        self._skip(self._use_of_callers(), limit)

    def _without_next(self) -> bool:
        """Drop the next token if the one after it fits."""
        if self._kind(1) not in self._expected() or (self._kind() == "EOF"):
            return False
        self._unwanted()
        self._consume()
        self._matched()
        return True

    def _sync(self, *, at_end_of_round: bool = False) -> None:
        """Look whether the next token can belong to the decision at this place."""
        possible = next_tokens(self._state)
        if self._recovering or EPSILON in possible or self._kind() in possible:
            return
        if at_end_of_round:
            self._unwanted()
            self._skip(self._expected() | self._use_of_callers())
        elif not self._without_next():
            raise self._mismatch()

    def _repaired(self, place: Place) -> Token:
        """Return a token for one that does not match, dropped or assumed; raise _Mismatch if neither helps."""
        self._count_recovery()
        if self._without_next():
            token = self._token()
            self._consume()
            return token
        assert place.after is not None
        token = self._token()
        if token.kind not in self._beyond(next_tokens(place.after)):
            raise self._mismatch()
        expected = self._expected()
        self._report(f"missing {show(expected)} at {quoted(token.text)}", token)
        assumed = in_order(expected)[0]
        at = self._tokens[self._index - 1] if token.kind == "EOF" and self._index else token
        return Token(assumed, missing_text(assumed), at.offset)

    # --- rules ---------------------------------------------------------------------

    def _walk_rule(self, rule: str, precedence: int) -> Tree:
        trees = [Tree(rule, self._token())]  # the last one grows
        self._depth += rule == "expr"
        if self._depth > MAX_DEPTH:
            self._complaints.add(-1, f"expression recursion limit exceeded: {MAX_DEPTH}")
            raise _GiveUp
        try:
            self._walk(RULES[rule], trees, precedence)
        except _Mismatch as error:
            self._report(str(error), error.token)
            self._recover()
        self._depth -= rule == "expr"
        return trees[-1]

    def _walk(self, place: Place, trees: list[Tree], precedence: int) -> None:
        """Walk from a place to the end of a rule, or of a round of a loop."""
        while place.kind not in ("end", "again"):
            self._state = place
            match place.kind:
                case "token":
                    trees[-1].put(place.label, self._match(place))
                case "rule":
                    assert place.after is not None
                    self._follow.append(place.after)
                    trees[-1].put(place.label, self._walk_rule(place.rule, place.precedence))
                    self._follow.pop()
                case "optional":
                    self._sync()
                    if self._kind() in next_tokens(place.branches[0]):
                        place = place.branches[0]
                        continue
                case "choice":
                    self._sync()
                    number = self._chosen(trees[-1].rule)
                    trees[-1].branch = place.names[number]
                    place = place.branches[number]
                    continue
                case "growing":
                    self._grow(place, trees, precedence)
                case _:
                    self._rounds(place, trees)
            assert place.after is not None
            place = place.after

    def _match(self, place: Place) -> Token:
        token = self._token()
        if token.kind not in place.tokens:
            return self._repaired(place)
        self._matched()
        self._consume()
        return token

    def _rounds(self, place: Place, trees: list[Tree]) -> None:
        assert place.again is not None
        self._sync()
        goes_on = place.kind == "repeat" or self._enters(place, trees[-1].rule)
        while goes_on:
            self._walk(place.branches[0], trees, 0)
            self._state = place.again
            self._sync(at_end_of_round=True)
            goes_on = self._enters(place, trees[-1].rule)

    def _enters(self, place: Place, rule: str) -> bool:
        """Return whether a loop has another round."""
        if self._kind() not in next_tokens(place.branches[0]):
            if (
                place.kind == "repeat"
                and next_tokens(place.branches[0]) == {"-"}
                and self._kind() not in _OPERAND
            ):
                raise self._no_alternative()
            return False
        match rule:
            case "listInit" | "mapInitializerList":
                return self._kind(1) in _EXPRESSION | {"?"}
            case "fieldInitializerList":
                return self._kind(1) in ("?", "IDENT", "ESCAPED")
            case "unary" if self._kind() == "-":
                if self._kind(1) not in _OPERAND:
                    raise self._no_alternative(1)
        return True

    def _grow(self, place: Place, trees: list[Tree], precedence: int) -> None:
        while True:
            self._state = place
            branch = self._growing_branch(trees[-1].rule, precedence)
            if branch is None:
                return
            before = trees[-1]
            trees.append(Tree(before.rule, before.start, place.names[branch], left=before))
            self._walk(place.branches[branch], trees, 0)

    def _growing_branch(self, rule: str, precedence: int) -> int | None:
        """Return the branch that extends what was found so far."""
        kind = self._kind()
        if rule == "relation":
            return 0 if kind in RELATIONS and precedence <= 1 else None
        if rule == "calc":
            if kind in PRODUCTS:
                return 0 if precedence <= 2 else None
            return 1 if kind in SUMS and precedence <= 1 else None
        if kind == "[":
            return 2
        if kind != ".":
            return None
        match self._kind(1):
            case "?" | "ESCAPED":
                return 0
            case "IDENT":
                return 1 if self._kind(2) == "(" else 0
        raise self._no_alternative(1)

    # --- choices -------------------------------------------------------------------

    def _chosen(self, rule: str) -> int:
        """Return the branch of a choice; raise _Mismatch if there is none."""
        kind = self._kind()
        match rule:
            case "unary":
                return self._unary(kind)
            case "primary":
                return self._primary(kind)
            case "literal" if kind == "-":
                if self._kind(1) not in _NUMBERS:
                    raise self._no_alternative(1)
                return 0 if self._kind(1) == "INT" else 2
        place = self._state
        for number, branch in enumerate(place.branches):
            if kind in next_tokens(branch):
                return number
        raise self._no_alternative()

    def _unary(self, kind: str) -> int:
        if kind == "!":
            return 1
        if kind != "-":
            if kind not in _OPERAND:
                raise self._no_alternative()
            return 0
        after = self._kind(1)
        if after in _NUMBERS:
            # Sign or operator: where both are possible the first branch is taken.
            return 0
        if after not in _OPERAND:
            raise self._no_alternative(1)
        return 2

    def _primary(self, kind: str) -> int:
        branch = {"(": 2, "[": 3, "{": 4}.get(kind)
        if branch is not None:
            return branch
        if kind not in ("IDENT", "."):
            if kind not in _OPERAND:
                raise self._no_alternative()
            return 6
        ahead = 1
        if kind == ".":
            if self._kind(1) != "IDENT":
                raise self._no_alternative(1)
            ahead = 2
        if self._kind(ahead) == "(":
            return 1
        while self._kind(ahead) == "." and self._kind(ahead + 1) == "IDENT":
            ahead += 2
        return 5 if self._kind(ahead) == "{" else 0


def quoted(text: str) -> str:
    """Quote a text as ANTLR does."""
    escaped = text.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
    return f"'{escaped}'"
