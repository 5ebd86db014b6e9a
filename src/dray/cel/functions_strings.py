"""Functions on strings, and regular expressions.

Patterns run in RE2, whose matching time is linear in the text: no pattern can hang
the process. The size of a compiled pattern is bounded, and so is the size of all that are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import re2

from dray.api.caching import BoundedCache
from dray.cel.errors import Fault, no_such_overload
from dray.cel.operators import MAX_TEXT, too_big
from dray.cel.string_format import format_string

_MAX_PATTERN_MEMORY = 8 << 20


# A pattern of 3,000 characters takes 100 kB, one of 30 characters a hundredth of it: kept by size, not by number.
_PATTERNS: BoundedCache[str, Any] = BoundedCache(16 << 20)
_BYTES_PER_INSTRUCTION = 64  # of both programs, forward and reverse, with what matching adds
_BYTES_PER_PATTERN = 2_048


def compile_pattern(pattern: str) -> Any:
    """Compile a pattern, or find it compiled; raise Fault if it is none, or too big."""
    compiled = _PATTERNS.get(pattern)
    if compiled is None:
        compiled = _compile(pattern)
        size = _BYTES_PER_PATTERN + _BYTES_PER_INSTRUCTION * compiled.programsize + len(pattern)
        _PATTERNS.add(pattern, compiled, size)
    return compiled


def _compile(pattern: str) -> Any:
    byte = next((found.start() for found in _ESCAPED.finditer(pattern) if found.group() == r"\C"), -1)
    if byte >= 0:
        # RE2 takes one byte for it, Go does not know it. What is wrong before it is named first.
        _, mistake = _read(pattern[:byte])
        if mistake.startswith("missing ]"):
            _, mistake = _read(pattern)
        elif not mistake or mistake.startswith("missing )"):
            mistake = r"invalid escape sequence: \C"
        raise Fault(f"error parsing regexp: {_in_gos_words(mistake, pattern)}")
    compiled, mistake = _read(pattern)
    if not mistake:
        name = next((name for name in compiled.groupindex if not name.isascii()), None)
        if name is None:
            return compiled
        mistake = f"invalid named capture group: {'(?P<' if f'(?P<{name}>' in pattern else '(?<'}{name}>"
    raise Fault(f"error parsing regexp: {_in_gos_words(mistake, pattern)}")


def _read(pattern: str) -> tuple[Any, str]:
    """Return a pattern compiled, or what RE2 says against it."""
    options = re2.Options()
    options.max_mem = _MAX_PATTERN_MEMORY
    options.log_errors = False
    try:
        return re2.compile(pattern, options), ""
    except re2.error as error:
        detail = error.args[0] if error.args else ""
        return None, detail.decode("utf-8", "replace") if isinstance(detail, bytes) else str(detail)


# What a backslash makes of what follows it: \Q quotes up to \E.
_ESCAPED = re.compile(r"\\Q.*?(?:\\E|\Z)|\\.", re.DOTALL)
_LOOKBEHIND = ("(?<=", "(?<!")
# How Go names the mistakes in a pattern.
_MISTAKES = {
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "no argument for repetition operator": "missing argument to repetition operator",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid repetition size": "invalid repeat count",
    "invalid named capture group": "invalid named capture",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "trailing \\": "trailing backslash at end of expression",
}


def _in_gos_words(text: str, pattern: str) -> str:
    mistake, _, part = text.partition(": ")
    if part in _LOOKBEHIND:  # to Go, the beginning of a name
        rest = pattern[pattern.find(part) :]
        return f"invalid named capture: `{rest[: rest.find('>') + 1] or rest}`"
    return f"{_MISTAKES.get(mistake, mistake)}: `{part}`"


def _searched(pattern: str) -> Any:
    try:
        return compile_pattern(pattern)
    except Fault as fault:
        raise Fault(f"Illegal regex: {fault.message}") from None


def matches(text: str, pattern: str) -> bool:
    """Return whether the pattern occurs in the text."""
    return compile_pattern(pattern).search(text) is not None


def find(text: str, pattern: str) -> str:
    """Return the first match, or an empty string."""
    found = _searched(pattern).search(text)
    return str(found.group()) if found else ""


def find_all(text: str, pattern: str, limit: int = -1) -> list[object]:
    """Return the matches, at most `limit` of them unless it is negative."""
    found: list[object] = []
    compiled = _searched(pattern)
    if limit == 0:
        return found
    last_end = -1
    for match in compiled.finditer(text):
        start, end = match.span()
        if start == end == last_end:
            continue  # nothing, directly after a match, counts as no match of its own
        last_end = end
        found.append(match.group())
        if len(found) == limit:
            break
    return found


def char_at(text: str, index: int) -> str:
    """Return one character; empty at the end."""
    if not 0 <= index <= len(text):
        raise Fault(f"index out of range: {index}")
    return text[index : index + 1]


def index_of(text: str, part: str, offset: int = 0) -> int:
    """Return the first position of a part, or -1."""
    if offset < 0:
        raise Fault(f"index out of range: {offset}")
    if not part:
        return min(offset, len(text))
    return text.find(part, offset)


def last_index_of(text: str, part: str) -> int:
    """Return the last position of a part, or -1."""
    return len(text) if not part else text.rfind(part)


def last_index_of_from(text: str, part: str, offset: int) -> int:
    """Return the last position of a part that starts at `offset` at the latest, or -1."""
    if offset < 0:
        raise Fault(f"index out of range: {offset}")
    if not part:
        return min(offset, len(text))
    if offset >= len(text):
        return -1
    return text.rfind(part, 0, offset + len(part))


_UPPER = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}
_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
# What Go calls space.
_SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"


def replace(text: str, old: str, new: str, count: int = -1) -> str:
    """Replace the first `count` occurrences (all, if negative)."""
    if len(new) > len(old) and len(text) + text.count(old) * len(new) > MAX_TEXT:
        raise too_big(MAX_TEXT, "characters")
    return text.replace(old, new, count if count >= 0 else -1)


def split(text: str, separator: str, count: int = -1) -> list[object]:
    """Split into at most `count` parts (any number, if negative)."""
    if count == 0:
        return []
    if separator:
        return list(text.split(separator, count - 1 if count > 0 else -1))
    if count < 0 or count >= len(text):
        return list(text)
    return [*text[: count - 1], text[count - 1 :]]


def substring(text: str, start: int) -> str:
    """Return the text from a position on."""
    if not 0 <= start <= len(text):
        raise Fault(f"index out of range: {start}")
    return text[start:]


def substring_between(text: str, start: int, end: int) -> str:
    """Return the text between two positions."""
    if start > end:
        raise Fault(f"invalid substring range. start: {start}, end: {end}")
    if not 0 <= start <= len(text):
        raise Fault(f"index out of range: {start}")
    if end > len(text):
        raise Fault(f"index out of range: {end}")
    return text[start:end]


def join(parts: list[object], separator: str = "") -> str:
    """Join strings."""
    texts: list[str] = []
    for part in parts:
        if not isinstance(part, str):
            raise no_such_overload("join(list, string)" if separator else "join(list)")
        texts.append(part)
    if sum(map(len, texts)) + len(separator) * len(texts) > MAX_TEXT:
        raise too_big(MAX_TEXT, "characters")
    return separator.join(texts)


_QUOTED = {
    "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v",
    "\\": "\\\\", '"': '\\"',
}  # fmt: skip


def quote(text: str) -> str:
    """Return a string literal that means the text."""
    return '"' + "".join(_QUOTED.get(char, char) for char in text) + '"'


STRINGS: dict[str, Callable[..., object]] = {
    "contains_string": lambda text, part: part in text,
    "starts_with_string": str.startswith,
    "ends_with_string": str.endswith,
    "matches": matches,
    "matches_string": matches,
    "size_string": len,
    "string_size": len,
    "size_bytes": len,
    "bytes_size": len,
    "string_find_string": find,
    "string_find_all_string": find_all,
    "string_find_all_string_int": find_all,
    "string_char_at_int": char_at,
    "string_index_of_string": index_of,
    "string_index_of_string_int": index_of,
    "string_last_index_of_string": last_index_of,
    "string_last_index_of_string_int": last_index_of_from,
    "string_lower_ascii": lambda text: text.translate(_LOWER),
    "string_upper_ascii": lambda text: text.translate(_UPPER),
    "string_replace_string_string": replace,
    "string_replace_string_string_int": replace,
    "string_split_string": split,
    "string_split_string_int": split,
    "string_substring_int": substring,
    "string_substring_int_int": substring_between,
    "string_trim": lambda text: text.strip(_SPACES),
    "list_join": join,
    "list_join_string": join,
    "string_format": format_string,
    "strings_quote": quote,
}
