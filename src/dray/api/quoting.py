"""Texts in quotes, as Go writes them (`%q`): error messages of Kubernetes are full of them."""

from __future__ import annotations

_ESCAPES = dict(zip('"\\\a\b\f\n\r\t\v', '"\\abfnrtv', strict=True))


def quote_go(text: str) -> str:
    """Quote a text for a message.

    >>> print(quote_go('a "b"' + chr(10) + chr(0) + chr(0xAD)))
    "a \\"b\\"\\n\\x00\\u00ad"
    """
    return '"' + "".join(map(_quoted, text)) + '"'


def _quoted(character: str) -> str:
    if character in _ESCAPES:
        return "\\" + _ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
