"""How commands print: data to stdout, messages to stderr, `hint:` lines, colour never needed to understand."""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any


class CommandError(Exception):
    """A user error: shown as one line with a hint, never as a trace."""

    def __init__(self, message: str, hint: str = "", code: int = 2) -> None:
        super().__init__(message)
        self.hint = hint
        self.code = code


def add_output_flag(parser: argparse.ArgumentParser, text: str = "table", *more: str) -> None:
    """Add `--output`: the format for people first (`table` or `text`), then data."""
    formats = dict.fromkeys((text, *more, "json", "yaml"))
    parser.add_argument(
        "-o", "--output", choices=tuple(formats), default=text, help=f"output format (default: {text})"
    )


def as_data(data: Any, output: str) -> str:
    """Return data as JSON or YAML."""
    if output == "yaml":
        import yaml

        return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def emit(data: Any, output: str) -> None:
    """Print data as JSON or YAML."""
    sys.stdout.write(as_data(data, output))


def as_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return aligned columns, the last one unpadded."""
    lines = [list(headers), *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    cells = [[*(c.ljust(width) for c, width in zip(line, widths, strict=True))] for line in lines]
    return "".join("  ".join(line).rstrip() + "\n" for line in cells)


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print aligned columns."""
    sys.stdout.write(as_table(headers, rows))


def say(message: str) -> None:
    """Tell the user something that is not data."""
    print(message, file=sys.stderr, flush=True)


def read_stdin() -> bytes:
    """Return standard input, as far as files may be long; raises OSError."""
    from dray.client.bounded_files import MOST_BYTES

    stream = getattr(sys.stdin, "buffer", None)
    content: bytes = stream.read(MOST_BYTES + 1) if stream is not None else sys.stdin.read().encode()
    if len(content) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"more than {MOST_BYTES >> 20} MiB", "standard input")
    return content


def stdin_lines() -> Iterator[str]:
    """Yield the lines of standard input as they come; raises OSError and UnicodeDecodeError."""
    from dray.client.bounded_files import bounded_lines

    stream = getattr(sys.stdin, "buffer", None)
    return bounded_lines(stream, "standard input") if stream is not None else iter(sys.stdin)


def use_colour(stream: Any = None) -> bool:
    """Return whether to use colours: on a terminal, unless NO_COLOR is set."""
    stream = stream or sys.stdout
    return stream.isatty() and "NO_COLOR" not in os.environ


def plain_values(value: Any) -> Any:
    """Return what the YAML reader returned as plain dicts, lists and numbers."""
    if isinstance(value, dict):
        return {str(key): plain_values(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain_values(item) for item in value]
    return float(value) if isinstance(value, float) else value
