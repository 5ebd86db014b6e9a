"""Values of string and bytes literals: escapes, raw text, line ends."""

import pytest

from dray.cel.literals import unescape


@pytest.mark.parametrize(
    ("token", "value"),
    [
        ("'abc'", "abc"),
        ('""', ""),
        (r"'\a\b\f\n\r\t\v'", "\a\b\f\n\r\t\v"),
        (r"""'\'\"\\\?\`'""", "'\"\\?`"),
        (r"'\x41\u00e9\U0001F600'", "Aé😀"),
        (r"'\101\377'", "Aÿ"),
        (r"r'\n\x41'", r"\n\x41"),
        (r"R'''a\b'''", r"a\b"),
        ("'''a'b'''", "a'b"),
        ('"""a\r\nb\rc"""', "a\nb\nc"),
        ("''''''", ""),
    ],
)
def test_strings(token, value):
    assert unescape(token, is_bytes=False) == value


@pytest.mark.parametrize(
    ("token", "value"),
    [
        ("b'abc'", b"abc"),
        ("b'é'", "é".encode()),  # a character is its UTF-8
        (r"b'\xff\377'", b"\xff\xff"),  # an escape is one byte
        (r"br'\xff'", rb"\xff"),
    ],
)
def test_bytes(token, value):
    assert unescape(token, is_bytes=True) == value


@pytest.mark.parametrize(
    ("token", "is_bytes", "message"),
    [
        (r"'\ud800'", False, "invalid unicode code point"),
        (r"'\U00110000'", False, "invalid unicode code point"),
        (r"b'\u00e9'", True, "unable to unescape string"),
    ],
)
def test_escapes_without_a_value(token, is_bytes, message):
    with pytest.raises(ValueError, match=message):
        unescape(token, is_bytes=is_bytes)
