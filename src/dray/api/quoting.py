"""Texts in quotes, as Go writes them (`%q`): error messages of Kubernetes are full of them."""

from __future__ import annotations


def quote_go(text: str) -> str:
    """Quote a text for a message.

    >>> print(quote_go('a "b"' + chr(10)))
    "a \\"b\\"\\n"
    """
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in escaped) + '"'
