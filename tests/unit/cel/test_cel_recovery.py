"""What is said about texts with syntax errors. Upstream's own messages are in tests/recordings/cel."""

import json

import pytest
from recordings import recorded

from dray.cel import CompileError, compile_selector
from dray.cel.grammar import RULES, next_tokens, show
from dray.cel.lexer import tokenize
from dray.cel.recovery import MAX_RECOVERIES, Recovery
from dray.cel.source import Complaints, Source


def complaints_of(text):
    complaints = Complaints(Source(text))
    tree = Recovery(complaints, tokenize(complaints)).parse()
    return complaints, tree


def message(text):
    with pytest.raises(CompileError) as raised:
        compile_selector(text, features=frozenset())
    return str(raised.value)


def test_the_parser_that_recovers_finds_no_error_where_the_other_finds_none():
    n_sound = 0
    for row in recorded("cel/expressions.jsonl"):
        if "Syntax error" in row["compileError"] or "recursion" in row["compileError"]:
            continue
        complaints, tree = complaints_of(row["expression"])
        assert tree is not None and not complaints, row["expression"]
        n_sound += 1
    assert n_sound > 1500


def test_there_are_recordings_of_texts_with_several_syntax_errors():
    texts = [row["compileError"] for row in recorded("cel/expressions.jsonl")]
    assert sum(text.count("Syntax error") > 1 for text in texts) > 100


def test_a_token_that_is_too_much_is_dropped():
    text = message("1 + (2))")
    assert text.count("ERROR") == 1
    assert "1:8: Syntax error: extraneous input ')' expecting <EOF>" in text


def test_a_token_that_is_missing_is_assumed():
    text = message("{1 2}")
    assert text.count("ERROR") == 1
    assert "1:4: Syntax error: missing ':' at '2'" in text


def test_what_is_wrong_elsewhere_is_said_too():
    text = message("if || 99999999999999999999 || [1].all(1, true) || )")
    assert "1:1: reserved identifier: if" in text
    assert "1:7: invalid int literal" in text
    assert "argument must be a simple name" in text
    assert "1:51: Syntax error: mismatched input ')'" in text


def test_what_may_stand_at_a_place_is_listed_in_the_order_of_the_grammar():
    assert show(next_tokens(RULES["escapeIdent"])) == "{IDENTIFIER, ESC_IDENTIFIER}"
    assert show(frozenset({"EOF"})) == "<EOF>"


@pytest.mark.parametrize(
    "unit", ["[,(", "f(,", "?:", "-", "!", "a b ", "(a b", "{?", "a{b:", "'", "` ", "in ", "1 < "]
)
def test_a_long_text_of_nothing_but_errors_gets_a_bounded_answer(unit):
    text = (unit * 10_000)[:10_000]
    n_errors = message(text).count("ERROR: <input>")
    # 100 are shown; each recovery adds one, and so may each token that is dropped on the way.
    assert 1 <= n_errors <= 101


def test_recoveries_are_counted():
    assert f"error recovery attempt limit exceeded: {MAX_RECOVERIES}" in message("[,(" * 100)


def test_messages_show_the_text_as_json_can_carry_it():
    assert json.loads(json.dumps(message("a.\t\tb c"))) == message("a.\t\tb c")
