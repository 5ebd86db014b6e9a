"""A command on a terminal of its own: what `exec` with `tty` starts.

The command becomes the leader of a session whose controlling terminal is a new pseudo-terminal, so that shells
have job control and Ctrl-C reaches the job in the foreground. A line of sh opens the terminal before anything else:
a session leader without a terminal gets the first one that it opens, and that happens with the agent's rights,
before the command becomes somebody else (`become.py`).

The agent keeps the other end open until the command has ended; closing it hangs up on what is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence

_OPEN_TERMINAL = 'exec <>"$0" >&0 2>&0; exec "$@"'
_PIECE = 65_536
_MOST_COLUMNS = 10_000
_WRITE_PAUSE = 0.01  # seconds between tries while the command does not read its input


class TerminalProcess:
    """A command behind a terminal; `read` and `write` are what a person sees and types."""

    def __init__(self, process: asyncio.subprocess.Process, master: int, slave: int) -> None:
        self._process = process
        self._master = master
        self._slave = slave
        os.set_blocking(master, False)

    @property
    def pid(self) -> int:
        """The leader of the session."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.returncode

    async def read(self) -> bytes:
        """Return the next output; empty at the end. What is not read stays with the kernel, which stops the command."""
        while self._master >= 0:
            try:
                return os.read(self._master, _PIECE)
            except BlockingIOError:
                await self._readable()
            except OSError:  # EIO: nobody has the other end open any more
                break
        return b""

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = loop.create_future()

        def wake() -> None:
            if not ready.done():
                ready.set_result(None)

        loop.add_reader(self._master, wake)
        try:
            await ready
        finally:
            loop.remove_reader(self._master)

    async def write(self, data: bytes) -> None:
        """Type; waits while the command does not read."""
        while data:
            try:
                data = data[os.write(self._master, data) :]
            except BlockingIOError:
                await asyncio.sleep(_WRITE_PAUSE)
            except OSError:
                return  # it has ended

    def resize(self, columns: int, rows: int) -> None:
        """Set the size; the kernel tells the job in the foreground (SIGWINCH)."""
        if 0 < columns <= _MOST_COLUMNS and 0 < rows <= _MOST_COLUMNS:
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def wait(self) -> int:
        """Return the exit code; then nothing more comes than what was written before."""
        code = await self._process.wait()
        if self._slave >= 0:
            os.close(self._slave)
            self._slave = -1
        return code

    def hang_up(self) -> None:
        """End the command and what it started in the foreground."""
        for number in (signal.SIGHUP, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def close(self) -> None:
        """Give the terminal back."""
        for descriptor in (self._master, self._slave):
            if descriptor >= 0:
                os.close(descriptor)
        self._master = self._slave = -1


async def start_on_terminal(
    line: Sequence[str], *, env: Mapping[str, str], cwd: str, owner: tuple[int, int]
) -> TerminalProcess:
    """Start a command on a new terminal that belongs to `owner` (user and group); raises OSError."""
    master, slave = os.openpty()
    try:
        os.fchmod(slave, 0o620)
        if owner[0] != os.geteuid():
            os.fchown(slave, *owner)
        process = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            _OPEN_TERMINAL,
            os.ttyname(slave),
            *line,
            env={"TERM": "xterm", **env},
            umask=0o022,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return TerminalProcess(process, master, slave)
    except BaseException:
        os.close(master)
        os.close(slave)
        raise
