"""JSON values as YAML text, in the form that Go's YAML library gives them.

PyYAML's own dumper represents, serialises and emits a document in three recursive walks, character
by character; an object of a megabyte takes seconds. JSON needs little of it: mappings and lists in
block style, and scalars that are plain where nothing else could be read from them, else in double quotes.

Invariant (tests/unit/server/test_yaml_writer.py): the text is what PyYAML's dumper writes
with double quotes in place of single ones, and reads back as the value. (PyYAML leaves `1e3` plain, which
Kubernetes' library reads as a number; here it has quotes.)
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

from yaml import SafeDumper
from yaml.representer import SafeRepresenter

from dray.api.yaml_text import is_text

__all__ = ["write_yaml"]

_LONGEST_SIMPLE_KEY: Final = 122  # characters; longer keys are written behind a question mark
_LONGEST_CACHED: Final = 256
_LINE_BREAK: Final = re.compile("[\n\x85\u2028\u2029]")
# Characters and places that a plain scalar may not have.
_NOT_PLAIN: Final = re.compile(
    "[^\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010fffe]"
    r"""|\A[ #,\[\]{}&*!|>'"%@`]|\A[?:-](?: |\Z)|: |:\Z| \#| \Z|\A---|\A\.\.\."""
)
# Characters that are escaped in double quotes.
_SPECIAL: Final = re.compile('[^\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd]|["\\\\]')
_ESCAPES: Final = SafeDumper.ESCAPE_REPLACEMENTS
_RESOLVERS: Final = SafeDumper.yaml_implicit_resolvers
_represent_float: Final = SafeRepresenter().represent_float


def write_yaml(value: Any) -> str:
    """Return the YAML of a plain JSON value, keys sorted.

    >>> print(write_yaml({"b": [1, {"c": "yes"}], "a": {}}), end="")
    a: {}
    b:
    - 1
    - c: "yes"
    """
    out: list[str] = []
    if isinstance(value, dict) and value:
        _mapping(value, "", out)
    elif isinstance(value, list) and value:
        _list(value, "", out)
    else:
        text = _scalar(value)
        # A plain scalar as a whole document needs an end mark, or what follows could continue it.
        out.append(f"{text}\n" if text[0] in '"{[' else f"{text}\n...\n")
    return "".join(out)


def _mapping(value: dict[str, Any], indent: str, out: list[str], first: str | None = None) -> None:
    """Write members line by line; the first may stand behind the dash of a list."""
    for name in sorted(value):
        lead, first = (indent if first is None else first), None
        item, key = value[name], _text(name)
        if not 0 < len(name) <= _LONGEST_SIMPLE_KEY or _LINE_BREAK.search(name) is not None:
            out.append(f"{lead}? {key}\n")
            lead, key = indent, ""
        if isinstance(item, dict) and item:
            out.append(f"{lead}{key}:\n" if key else f"{lead}: ")
            _mapping(item, indent + "  ", out, None if key else "")
        elif isinstance(item, list) and item:
            out.append(f"{lead}{key}:\n" if key else f"{lead}: ")
            _list(item, indent if key else indent + "  ", out, None if key else "")
        else:
            out.append(f"{lead}{key}: {_scalar(item)}\n")


def _list(value: list[Any], indent: str, out: list[str], first: str | None = None) -> None:
    for item in value:
        lead, first = (indent if first is None else first), None
        if isinstance(item, dict) and item:
            _mapping(item, indent + "  ", out, f"{lead}- ")
        elif isinstance(item, list) and item:
            _list(item, indent + "  ", out, f"{lead}- ")
        else:
            out.append(f"{lead}- {_scalar(item)}\n")


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return str(_represent_float(value).value)
    return "{}" if isinstance(value, dict) else "[]"


def _text(text: str) -> str:
    if len(text) > _LONGEST_CACHED:
        return text if _is_plain(text) else _quoted(text)
    return _short_text(text)


@lru_cache(maxsize=8192)
def _short_text(text: str) -> str:
    return text if _is_plain(text) else _quoted(text)


def _is_plain(text: str) -> bool:
    if not text or _NOT_PLAIN.search(text) is not None:
        return False
    # What reads as a number, a date or one of YAML's words is not plain text.
    candidates = (*_RESOLVERS.get(text[0], ()), *_RESOLVERS.get(None, ()))
    return not any(pattern.match(text) for _, pattern in candidates) and is_text(text)


def _quoted(text: str) -> str:
    return '"' + _SPECIAL.sub(_escaped, text) + '"'


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    known = _ESCAPES.get(character)
    if known is not None:
        return "\\" + known
    code = ord(character)
    return f"\\x{code:02X}" if code <= 0xFF else f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"
