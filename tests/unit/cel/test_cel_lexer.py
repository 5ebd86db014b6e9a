"""Tokens: classes, the order in which ties are resolved, and what is skipped with a complaint."""

import pytest

from dray.cel.errors import CompileError
from dray.cel.lexer import tokenize
from dray.cel.source import Complaints, Source


def tokens(text):
    complaints = Complaints(Source(text))
    found = [(token.kind, token.text) for token in tokenize(complaints)]
    assert found.pop() == ("EOF", "<EOF>")
    return found, [issue.message for issue in complaints.error().issues] if complaints else []


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("1 0x1F 2u 0xAu", ["INT", "INT", "UINT", "UINT"]),
        ("1.5 .5 1e3 1.5e-3", ["FLOAT", "FLOAT", "FLOAT", "FLOAT"]),
        ("1.foo", ["INT", ".", "IDENT"]),  # not a number with an empty fraction
        ("true false null in inside", ["true", "false", "null", "in", "IDENT"]),
        ("a<=b", ["IDENT", "<=", "IDENT"]),
        ("a<-b", ["IDENT", "<", "-", "IDENT"]),
        ("!a!=b", ["!", "IDENT", "!=", "IDENT"]),
        ("a // the rest\n+ b", ["IDENT", "+", "IDENT"]),
        ("'a' \"b\" r'\\d' '''c\nd''' b'e' br\"\\x\"", ["STRING"] * 4 + ["BYTES"] * 2),
        ("rule", ["IDENT"]),
        ("b", ["IDENT"]),
        ("a.`b-c/d`", ["IDENT", ".", "ESCAPED"]),
        ("", []),
        (" \t\f\r\n ", []),
    ],
)
def test_classes_of_tokens(text, kinds):
    found, complaints = tokens(text)
    assert [kind for kind, _ in found] == kinds
    assert complaints == []


def test_a_string_ends_at_its_first_unescaped_quote():
    assert tokens(r"'a\'b' + 'c'")[0] == [("STRING", r"'a\'b'"), ("+", "+"), ("STRING", "'c'")]
    assert tokens("'''a'b'''")[0] == [("STRING", "'''a'b'''")]
    assert tokens(r"r'\' + 1")[0] == [("STRING", r"r'\'"), ("+", "+"), ("INT", "1")]


@pytest.mark.parametrize(
    ("text", "bad", "left"),
    [
        ("a # b", "#", ["a", "b"]),
        ("a = b", "= ", ["a", "b"]),  # the character that disappoints goes with the half operator
        ("a & b", "& ", ["a", "b"]),
        ("'abc", "'abc", []),
        ("'abc\nd", "'abc\n", ["d"]),
        ("'a\\q' + 1", "'a\\q", []),  # what is left begins with a quote
        ("`a", "`a", []),
    ],
)
def test_what_is_no_token_is_skipped_with_a_complaint(text, bad, left):
    found, complaints = tokens(text)
    assert complaints[0] == f"Syntax error: token recognition error at: '{bad}'"
    assert [word for _, word in found][: len(left)] == left


def test_offsets_are_those_of_the_text():
    complaints = Complaints(Source("a +\n  bc"))
    assert [token.offset for token in tokenize(complaints)] == [0, 2, 6, 8]


def test_complaints_are_drawn_under_their_line():
    complaints = Complaints(Source("a +\n\tbc"))
    complaints.add(5, "no such thing")
    error = complaints.error()
    assert isinstance(error, CompileError)
    assert str(error) == "compilation failed: ERROR: <input>:2:2: no such thing\n |  bc\n | .^"
