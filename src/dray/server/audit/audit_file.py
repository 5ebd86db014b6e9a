"""A file of lines that others must be able to trust: written in order, bounded in size, never in the way.

Theory of operation. `add` only keeps a line; a task writes what has come in, in a thread, at least every
`INTERVAL` seconds. Lines that a slow disk has not taken are bounded by `MAX_PENDING` bytes; more are dropped and
counted, because requests must not wait for the disk of the audit log. What was added in the last moment before the
process is killed is lost; `close` writes everything.

Before a line would make the file larger than `max_bytes`, the file becomes `NAME.1`, the older ones `.2`, `.3` …,
and the oldest goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from pathlib import Path
from typing import BinaryIO

INTERVAL = 0.1  # seconds
MAX_PENDING = 16 * 1024 * 1024  # bytes

log = logging.getLogger("dray.server")


class AuditFile:
    """The file; raises OSError when it cannot be opened for appending."""

    def __init__(self, path: Path, max_bytes: int, backups: int) -> None:
        self.path = path
        self.n_written = 0
        self.n_lost = 0  # dropped, or refused by the disk
        self._max_bytes = max_bytes
        self._backups = backups
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._added = asyncio.Event()
        self._in_trouble = False
        self._is_closed = False
        self._file: BinaryIO | None = None
        self._lock = threading.Lock()  # `close` may come while a thread writes
        self._open()

    def add(self, line: bytes) -> None:
        """Keep a line (with its end) to be written soon."""
        if self._pending_bytes + len(line) > MAX_PENDING:
            self._lost(1, "they come faster than the disk takes them")
            return
        self._pending.append(line)
        self._pending_bytes += len(line)
        if len(self._pending) == 1:
            self._added.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._added.wait()
            await asyncio.sleep(INTERVAL)
            await asyncio.to_thread(self._write, self._taken())

    def close(self) -> None:
        """Write what is left and close the file; idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._write(self._taken())
        with self._lock:
            if self._file is not None:
                self._file.close()
            self._file = None

    def _taken(self) -> list[bytes]:
        lines, self._pending, self._pending_bytes = self._pending, [], 0
        self._added.clear()
        return lines

    def _open(self) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._file = os.fdopen(descriptor, "ab", buffering=0)

    def _write(self, lines: list[bytes]) -> None:
        with self._lock:
            self._append(lines)

    def _append(self, lines: list[bytes]) -> None:
        at = 0
        try:
            if self._file is None:
                self._open()
            assert self._file is not None
            while at < len(lines):
                room = self._max_bytes - self._file.tell()
                chunk = _fitting(lines, at, room)
                if not chunk and self._file.tell():
                    self._rotate()
                    continue
                chunk = chunk or [lines[at]]  # longer than a whole file: it gets one of its own
                self._file.write(b"".join(chunk))
                at += len(chunk)
                self.n_written += len(chunk)
            if self._in_trouble:
                log.warning("the audit log %s is written again; %d events were lost", self.path, self.n_lost)
                self._in_trouble = False
        except OSError as problem:
            with contextlib.suppress(OSError):
                if self._file is not None:
                    self._file.close()
            self._file = None
            self._lost(len(lines) - at, str(problem))

    def _rotate(self) -> None:
        assert self._file is not None
        self._file.close()
        self._file = None
        for number in range(self._backups - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                self._copy(number).replace(self._copy(number + 1))
        if self._backups:
            self.path.replace(self._copy(1))
        else:
            self.path.unlink()
        self._open()

    def _copy(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def _lost(self, count: int, reason: str) -> None:
        self.n_lost += count
        if not self._in_trouble:
            self._in_trouble = True
            log.error("events for the audit log %s are lost: %s", self.path, reason)


def _fitting(lines: list[bytes], at: int, room: int) -> list[bytes]:
    """Return the lines from `at` on that fit."""
    size, end = 0, at
    while end < len(lines) and size + len(lines[end]) <= room:
        size += len(lines[end])
        end += 1
    return lines[at:end]
