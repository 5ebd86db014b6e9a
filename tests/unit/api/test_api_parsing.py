"""JSON and YAML text from strangers."""

import pytest

from dray.api.parsing import Duplicates, ExactFloat, ParseError, parse_json, parse_yaml, parse_yaml_documents


def test_duplicate_keys_are_remembered_and_the_last_value_wins():
    value = parse_json(b'{"a": 1, "b": {"c": 1, "c": 2, "c": 3}, "a": 2}')
    assert value == {"a": 2, "b": {"c": 3}}
    assert isinstance(value, Duplicates)
    assert value.names == ["a"]
    assert value["b"].names == ["c"]


def test_numbers_stay_exact():
    assert parse_json(b"12345678901234567890123") == 12345678901234567890123
    number = parse_json(b"1.50")
    assert isinstance(number, ExactFloat)
    assert number == 1.5
    assert number.text == "1.50"


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[1,2", b"{} x", b"NaN", b"-Infinity", b"{'a': 1}", b'"\x01"', b"01", b"[" * 20000, b"1" * 5000, b"\xef\xbb\xbf{}"]
)  # fmt: skip
def test_what_is_not_json_is_refused(text):
    with pytest.raises(ParseError):
        parse_json(text)


def test_bytes_and_surrogates_that_are_no_text_are_replaced_one_by_one():
    assert parse_json(b'"a\xff\xfeb"') == "a\ufffd\ufffdb"
    assert parse_json(b'{"\\ud800": ["\\udc00x", "\\ud83d\\ude00"]}') == {"\ufffd": ["\ufffdx", "\U0001f600"]}


def test_yaml_is_read_as_json_would_hold_it():
    text = b"""
        time: 2026-01-01T00:00:00Z
        ratio: 1:30
        hex: 0x10
        half: .5
        flag: yes
        none: ~
        1: one
        true: two
    """
    assert parse_yaml(text) == {
        "time": "2026-01-01T00:00:00Z", "ratio": "1:30", "hex": 16, "half": 0.5, "flag": True, "none": None, "1": "one", "true": "two",
    }  # fmt: skip


def test_yaml_streams_leave_out_empty_documents():
    assert parse_yaml_documents(b"---\na: 1\n---\n---\nb: 2\n") == [{"a": 1}, {"b": 2}]
    assert parse_yaml(b"") is None
    with pytest.raises(ParseError, match="several"):
        parse_yaml(b"a: 1\n---\nb: 1\n")


def test_yaml_duplicates_are_remembered():
    assert parse_yaml(b"a: 1\na: 2\n").names == ["a"]


def test_yaml_cannot_explode():
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    lines += [f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    with pytest.raises(ParseError, match="excessive aliasing"):
        parse_yaml("\n".join(lines).encode())
    with pytest.raises(ParseError, match="contains itself"):
        parse_yaml(b"a: &a [*a]")


@pytest.mark.parametrize("text", [b"a: [", b"\t", b"!!python/object:os.system x", b"? [a]\n: b", b"[" * 5000])
def test_what_is_not_yaml_is_refused(text):
    with pytest.raises(ParseError):
        parse_yaml(text)
