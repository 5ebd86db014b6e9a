"""Turn the text of a string or bytes literal into its value."""

from __future__ import annotations

_SIMPLE = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "'": "'", '"': '"', "`": "`", "?": "?",
}  # fmt: skip
_HEX_DIGITS = {"x": 2, "X": 2, "u": 4, "U": 8}


def unescape(token: str, *, is_bytes: bool) -> str | bytes:
    """Return the value of a literal as the lexer cut it out; raise ValueError if it has none."""
    text = token.replace("\r\n", "\n").replace("\r", "\n")
    if is_bytes:
        text = text[1:]
    is_raw = text[0] in "rR"
    if is_raw:
        text = text[1:]
    quotes = 3 if len(text) >= 6 and text[:3] in ('"""', "'''") else 1
    text = text[quotes:-quotes]
    if is_raw or "\\" not in text:
        return text.encode() if is_bytes else text
    pieces = _pieces(text, is_bytes=is_bytes)
    if is_bytes:
        return b"".join(piece if isinstance(piece, bytes) else piece.encode() for piece in pieces)
    return "".join(piece for piece in pieces if isinstance(piece, str))


def _pieces(text: str, *, is_bytes: bool) -> list[str | bytes]:
    pieces: list[str | bytes] = []
    position = 0
    while position < len(text):
        backslash = text.find("\\", position)
        if backslash < 0:
            pieces.append(text[position:])
            break
        pieces.append(text[position:backslash])
        mark = text[backslash + 1]
        if mark in _SIMPLE:
            pieces.append(_SIMPLE[mark])
            position = backslash + 2
            continue
        if mark in _HEX_DIGITS:
            if is_bytes and mark in "uU":
                raise ValueError("unable to unescape string")
            start, length, base = backslash + 2, _HEX_DIGITS[mark], 16
        else:
            start, length, base = backslash + 1, 3, 8
        code = int(text[start : start + length], base)
        pieces.append(bytes((code,)) if is_bytes else _character(code))
        position = start + length
    return pieces


def _character(code: int) -> str:
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise ValueError("invalid unicode code point")
    return chr(code)
