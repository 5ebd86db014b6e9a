"""Container logs in the CRI format, written from pipes and read back for `kubectl logs`.

A line in the file is `<time> <stream> <tag> <text>`: time with nanoseconds, stdout or
stderr, F for a full line or P for a part of one that was too long.

Containers write into named pipes, not into files, because only then each line can
be given its time. The pipes outlive the agent (the container's shim holds them
open), so a restarted agent goes on where the old one was killed; meanwhile a
container that writes more than the pipe holds (64 KiB) waits.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from dray.api.times import format_microtime
from dray.host.private_files import make_private_folder

LONGEST_LINE = 16384
MAX_FILE_BYTES = 10 << 20
_READ_BYTES = 65536
_FOLLOW_SECONDS = 0.1


def log_time(seconds: float) -> str:
    """Return a time as RFC 3339 with nanoseconds.

    >>> log_time(0.5)
    '1970-01-01T00:00:00.500000000Z'
    """
    return format_microtime(seconds).replace("Z", "000Z")


class LogFile:
    """A container's log, open for appending; at its limit it is rotated once."""

    def __init__(self, path: Path, max_bytes: int = MAX_FILE_BYTES) -> None:
        make_private_folder(path.parent)
        self.path = path
        self._max_bytes = max_bytes
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        self._size = os.fstat(self._file).st_size

    def write(self, stream: str, lines: list[tuple[bytes, bool]]) -> None:
        """Append lines; the flag says whether the line is complete."""
        stamp = log_time(time.time())
        text = b"".join(
            f"{stamp} {stream} {'F' if is_full else 'P'} ".encode() + line + b"\n" for line, is_full in lines
        )
        try:
            self._size += os.write(self._file, text)
        except OSError:
            return  # the disk is full: lines are lost, the container goes on
        if self._size > self._max_bytes:
            os.close(self._file)
            os.replace(self.path, self.path.with_name(self.path.name + ".1"))
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
            self._size = 0

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class LogPump:
    """Carries lines from one pipe to the log, on the event loop."""

    def __init__(self, fifo: Path, stream: str, log: LogFile) -> None:
        # Read-write: the pipe then has a writer at all times and never reports its end.
        self._pipe = os.open(fifo, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)
        if not stat.S_ISFIFO(os.fstat(self._pipe).st_mode):
            os.close(self._pipe)
            raise OSError(f"{fifo} is not a pipe")
        self._stream = stream
        self._log = log
        self._rest = b""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._pipe, self._read)

    def _read(self) -> bool:
        try:
            piece = os.read(self._pipe, _READ_BYTES)
        except BlockingIOError:
            return False
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        entries = [(part, is_last) for line in lines for part, is_last in _parts(line)]
        while len(self._rest) > LONGEST_LINE:
            entries.append((self._rest[:LONGEST_LINE], False))
            self._rest = self._rest[LONGEST_LINE:]
        if entries:
            self._log.write(self._stream, entries)
        return bool(piece)

    def finish(self) -> None:
        """Take what is left in the pipe and close it; the container has ended."""
        self._loop.remove_reader(self._pipe)
        while self._read():
            pass
        if self._rest:
            self._log.write(self._stream, [(self._rest, True)])
        os.close(self._pipe)


def _parts(line: bytes) -> list[tuple[bytes, bool]]:
    cuts = range(0, max(len(line), 1), LONGEST_LINE)
    return [(line[start : start + LONGEST_LINE], start + LONGEST_LINE >= len(line)) for start in cuts]


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Which part of a log is wanted; the words of `kubectl logs`."""

    follow: bool = False
    tail_lines: int | None = None
    since: float | None = None  # seconds since 1970
    timestamps: bool = False
    limit_bytes: int | None = None


async def read_log(path: Path, query: LogQuery, is_over: asyncio.Event | None = None) -> AsyncIterator[bytes]:
    """Yield the text of a log; with `follow`, until `is_over` is set and all is read."""
    sent = 0
    position = 0
    lines = _entries(path.with_name(path.name + ".1")) + _entries(path)
    position = path.stat().st_size if path.exists() else 0
    if query.since is not None:
        start = log_time(query.since).encode()
        lines = [line for line in lines if line.split(b" ", 1)[0] >= start]
    if query.tail_lines is not None:
        lines = lines[-query.tail_lines :] if query.tail_lines > 0 else []
    rest = b""
    while True:
        text = b"".join(_shown(line, query.timestamps) for line in lines)
        if query.limit_bytes is not None:
            text = text[: query.limit_bytes - sent]
        if text:
            yield text
            sent += len(text)
        if not query.follow or (query.limit_bytes is not None and sent >= query.limit_bytes):
            return
        is_last_look = is_over is not None and is_over.is_set()
        piece, position = _read_from(path, position)
        *lines, rest = (rest + piece).split(b"\n")
        lines = [line for line in lines if line]
        if not lines:
            if is_last_look:
                return
            await asyncio.sleep(_FOLLOW_SECONDS)


def _entries(path: Path) -> list[bytes]:
    try:
        return [line for line in path.read_bytes().split(b"\n") if line]
    except FileNotFoundError:
        return []


def _read_from(path: Path, position: int) -> tuple[bytes, int]:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < position:
                position = 0  # rotated
            file.seek(position)
            piece = file.read(1 << 20)
            return piece, position + len(piece)
    except FileNotFoundError:
        return b"", 0


def _shown(line: bytes, with_time: bool) -> bytes:
    stamp, _, rest = line.partition(b" ")
    _stream, _, rest = rest.partition(b" ")
    tag, _, text = rest.partition(b" ")
    end = b"" if tag == b"P" else b"\n"
    return (stamp + b" " if with_time else b"") + text + end
