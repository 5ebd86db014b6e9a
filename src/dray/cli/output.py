"""How commands print: data to stdout, messages to stderr, `hint:` lines, colour never needed to understand."""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import yaml


class CommandError(Exception):
    """A user error: shown as one line with a hint, never as a trace."""

    def __init__(self, message: str, hint: str = "", code: int = 2) -> None:
        super().__init__(message)
        self.hint = hint
        self.code = code


def add_output_flag(parser: argparse.ArgumentParser, *more: str) -> None:
    """Add `--output`, with extra formats of the command."""
    parser.add_argument(
        "-o",
        "--output",
        choices=("table", *more, "json", "yaml"),
        default="table",
        help="how to print (default: table)",
    )


def emit(data: Any, output: str) -> None:
    """Print data as JSON or YAML."""
    if output == "yaml":
        sys.stdout.write(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))
    else:
        json.dump(data, sys.stdout, indent=2, ensure_ascii=False)
        sys.stdout.write("\n")


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], *, out: Any = None) -> None:
    """Print aligned columns, the last one unpadded."""
    out = out or sys.stdout
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max([len(header), *(len(row[index]) for row in texts)]) for index, header in enumerate(headers)]
    for row in [list(headers), *texts]:
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        out.write("  ".join([*cells, row[-1]]).rstrip() + "\n")


def say(message: str) -> None:
    """Tell the user something that is not data."""
    print(message, file=sys.stderr, flush=True)


def fail(_command: str, error: CommandError) -> int:
    """Print a user error and return its exit code."""
    say(f"error: {error}")
    if error.hint:
        say(f"hint: {error.hint}")
    return error.code


def read_stdin() -> bytes:
    """Return standard input, as far as files may be long; raises OSError."""
    from dray.client.files import MOST_BYTES

    stream = getattr(sys.stdin, "buffer", None)
    content: bytes = stream.read(MOST_BYTES + 1) if stream is not None else sys.stdin.read().encode()
    if len(content) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"more than {MOST_BYTES >> 20} MiB", "standard input")
    return content


def stdin_lines() -> Iterator[str]:
    """Yield the lines of standard input as they come; raises OSError and UnicodeDecodeError."""
    from dray.client.files import bounded_lines

    stream = getattr(sys.stdin, "buffer", None)
    return bounded_lines(stream, "standard input") if stream is not None else iter(sys.stdin)


def use_colour(stream: Any = None) -> bool:
    """Say whether to colour: on a terminal, unless NO_COLOR is set."""
    stream = stream or sys.stdout
    return stream.isatty() and "NO_COLOR" not in os.environ


def plural(count: int, noun: str) -> str:
    """Return `1 node`, `2 nodes`."""
    ending = "es" if noun.endswith(("s", "ch")) else "s"
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{ending}"
