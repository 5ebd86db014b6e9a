"""Unix sockets that belong to somebody: one owner, never taken from one that lives, opened again when lost.

A path says nothing about who listens there. Two processes that both unlink and bind it take it from each
other, and whoever ends first removes the other's. So:

  * whoever serves at a path holds a lock (`SocketLock`, flock on a file beside it) for as long as it serves;
    the kernel releases it when the process dies, however it dies;
  * a path at which somebody answers is refused, lock or not: another program may serve there;
  * a socket is known by its identity (device, inode and time of creation), and only one's own is unlinked;
  * a socket that vanished or was replaced is noticed by `is_own`, and opened again by `open`.

gRPC's C core unlinks the path that it was given, before it binds and when it stops, without asking. It is
given a private name in the same directory (hidden, so that no node takes it for a plugin), which is then
renamed to the real one: to connect, only the inode matters.

Tests: tests/unit/driver/test_driver_sockets.py, tests/e2e/test_node_two_drivers.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import socket
import stat
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

Identity = tuple[int, int, int]  # device, inode, time of creation in nanoseconds

_CONNECT_SECONDS = 1.0
_STOP_SECONDS = 5.0
_PEER = struct.Struct("iII")  # struct ucred: pid, uid, gid


class SocketTakenError(OSError):
    """Somebody else serves at the path."""


class SocketLock:
    """The right to serve at a path, held until `release` or the end of the process."""

    def __init__(self, path: Path, hint: str = "stop it first") -> None:
        self.path = path
        self._hint = hint  # what to do when another process has it
        self._file: int | None = None

    @property
    def is_held(self) -> bool:
        """Return whether we have it."""
        return self._file is not None

    def acquire(self) -> None:
        """Take the lock; raises SocketTakenError at once when another process (or we ourselves) has it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(file, 32).decode(errors="replace").strip()
            os.close(file)
            raise SocketTakenError(
                f"another instance runs already{f' as process {holder}' if holder.isdigit() else ''} "
                f"and holds {self.path}; {self._hint}"
            ) from None
        os.ftruncate(file, 0)
        os.write(file, f"{os.getpid()}\n".encode())
        self._file = file

    def release(self) -> None:
        """Let somebody else serve. The file stays: who removes it may remove that of the next one."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class OwnedSocket:
    """A gRPC server at a path of the file system; hold a `SocketLock` while using it."""

    def __init__(self, path: Path, make_server: Callable[[], Any], mode: int | None = None) -> None:
        self.path = path
        self._mode = mode  # None: as the umask says
        self._make_server = make_server  # with its services, not started
        self._server: Any = None
        self._identity: Identity | None = None

    @property
    def is_own(self) -> bool:
        """Return whether the socket at the path is the one that we opened."""
        return self._identity is not None and identity_of(self.path) == self._identity

    async def open(self) -> None:
        """Serve at the path, with a new server; a dead socket there is replaced.

        Raises SocketTakenError when somebody answers there, or when it is not a socket.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.is_own:
            _check_free(self.path)
        old, self._server = self._server, None
        if old is not None:
            await old.stop(grace=None)
        # Not longer than the shortest of the real names, because paths of sockets are short.
        private = self.path.with_name(f".{secrets.token_hex(3)}")
        server = self._make_server()
        server.add_insecure_port(f"unix:{private}")
        await server.start()
        if self._mode is not None:
            private.chmod(self._mode)
        self._server, self._identity = server, identity_of(private)
        private.rename(self.path)

    def withdraw(self) -> None:
        """Remove the socket from the path if it is ours; calls that run go on."""
        if self.is_own:
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
        self._identity = None

    async def close(self) -> None:
        """Remove our socket and stop, letting calls that run finish."""
        self.withdraw()
        server, self._server = self._server, None
        if server is not None:
            await server.stop(grace=_STOP_SECONDS)


class UnixSocket:
    """A listening stream socket at a path, with a lock, an owner and a mode; never open to others for a moment."""

    def __init__(self, path: Path, mode: int, gid: int = -1) -> None:
        self.path = path
        self._mode = mode
        self._gid = gid  # -1: that of the process
        self._lock = SocketLock(path.with_name(f".{path.name}.lock"))
        self._identity: Identity | None = None

    def listen(self, backlog: int) -> socket.socket:
        """Bind and listen, non-blocking; raises SocketTakenError when somebody serves there, OSError otherwise."""
        self._lock.acquire()
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        private = self.path.with_name(f".{secrets.token_hex(3)}")
        try:
            _check_free(self.path)
            # Nobody can connect before `listen`, so mode and owner are right when somebody can.
            listening.bind(str(private))
            if self._gid != -1:
                os.chown(private, -1, self._gid)
            private.chmod(self._mode)
            listening.listen(backlog)
            listening.setblocking(False)
            self._identity = identity_of(private)
            private.rename(self.path)
        except BaseException:
            listening.close()
            private.unlink(missing_ok=True)
            self._lock.release()
            raise
        return listening

    def close(self) -> None:
        """Remove the socket from the path if it is still ours; whoever has the listening socket closes it."""
        if self._identity is not None and identity_of(self.path) == self._identity:
            self.path.unlink(missing_ok=True)
        self._identity = None
        self._lock.release()


def peer_uid(transport: asyncio.BaseTransport) -> int | None:
    """Return the uid of the process that connected over a Unix socket; None for other connections."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.family != socket.AF_UNIX:
        return None
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    _, uid, _ = _PEER.unpack(credentials)
    return int(uid)


@contextlib.asynccontextmanager
async def serving_at(path: Path, make_server: Callable[[], Any], mode: int) -> AsyncIterator[None]:
    """Serve at a path for the length of a `with` block, as its only owner; raises SocketTakenError."""
    lock = SocketLock(path.with_name(f".{path.name}.lock"))
    lock.acquire()
    owned = OwnedSocket(path, make_server, mode)
    try:
        await owned.open()
        yield
    finally:
        await owned.close()
        lock.release()


def identity_of(path: Path) -> Identity | None:
    """Return what tells a socket from a later one at the same path; None when there is none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    # The time of last modification of a socket is that of its creation; inodes are used again.
    return (found.st_dev, found.st_ino, found.st_mtime_ns) if stat.S_ISSOCK(found.st_mode) else None


def _check_free(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SocketTakenError(f"{path} is not a socket; remove it")
    if is_answering(path):
        raise SocketTakenError(f"another process answers at {path}")


def is_answering(path: Path) -> bool:
    """Return whether somebody listens at a socket; a listener that is busy, or stopped, counts."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_SECONDS)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # its queue is full, or we may not connect: somebody is there
    return True
