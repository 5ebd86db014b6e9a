"""The text of an expression: positions, and complaints drawn under the line they are about.

The layout of complaints is that of cel-go, because Kubernetes clients and its
tests compare it: `ERROR: <input>:1:7: message`, the line, dots and a caret.
"""

from __future__ import annotations

from bisect import bisect_right

from dray.cel.errors import CompileError, Issue

_MAX_ISSUES = 100
_MAX_SNIPPET_BYTES = 16384


class Source:
    """An expression's text with its line starts."""

    __slots__ = ("_line_starts", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._line_starts = [0] + [index + 1 for index, char in enumerate(text) if char == "\n"]

    def locate(self, offset: int) -> tuple[int, int]:
        """Return line (from 1) and column (from 0); (-1, -1) for no place, (1, -1) for none in an empty text."""
        if offset < 0:
            return (-1, -1) if offset == -1 else (1, -1)
        line = bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1]

    def line(self, number: int) -> str | None:
        """Return the text of a line without its end, or None where there is none."""
        if not 1 <= number <= len(self._line_starts):
            return None
        start = self._line_starts[number - 1]
        end = self.text.find("\n", start)
        return self.text[start:] if end < 0 else self.text[start:end]


class Complaints:
    """Collects the issues of one compilation."""

    __slots__ = ("_count", "_issues", "source")

    def __init__(self, source: Source) -> None:
        self.source = source
        self._issues: list[Issue] = []
        self._count = 0

    def __bool__(self) -> bool:
        return self._count > 0

    def add(self, offset: int, message: str) -> None:
        """Note a complaint about the place at `offset` (-1: about no place)."""
        self._count += 1
        if len(self._issues) < _MAX_ISSUES:
            self._issues.append(Issue(message, *self.source.locate(offset)))

    def extend(self, other: Complaints) -> None:
        """Add the complaints of another part of the compilation."""
        self._count += other._count
        self._issues += other._issues[: _MAX_ISSUES - len(self._issues)]

    def forget_behind(self, offset: int) -> None:
        """Drop the complaints about places behind an offset."""
        last = self.source.locate(offset)
        kept = [issue for issue in self._issues if (issue.line, issue.column) <= last]
        self._count -= len(self._issues) - len(kept)
        self._issues = kept

    def error(self) -> CompileError:
        """Return all complaints as one error."""
        issues = sorted(self._issues, key=lambda issue: (issue.line, issue.column))
        parts = [self._draw(issue) for issue in issues]
        if self._count > _MAX_ISSUES:
            parts.append(f"{self._count - _MAX_ISSUES} more errors were truncated")
        return CompileError("compilation failed: " + "\n".join(parts), tuple(issues))

    def _draw(self, issue: Issue) -> str:
        text = f"ERROR: <input>:{issue.line}:{issue.column + 1}: {issue.message}"
        snippet = self.source.line(issue.line)
        if (
            snippet is None
            or not self.source.text
            or len(snippet.encode("utf-8", "surrogatepass")) > _MAX_SNIPPET_BYTES
        ):
            return text
        snippet = snippet.replace("\t", " ")
        column = max(issue.column, 0)
        dots = "".join("\uff0e" if ord(char) > 127 else "." for char in snippet[:column])
        here = snippet[column : column + 1]
        caret = "\uff3e" if here and ord(here) > 127 else "^"
        return f"{text}\n | {snippet}\n | {dots}{caret}"
