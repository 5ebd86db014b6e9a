"""Where the API server's Unix socket is and who may connect to it.

A server that runs as root serves everybody of the machine, or one Unix group: who the caller is comes from the
kernel, what they may do from RBAC. A server of an ordinary user serves that user only, because it could not run
anybody's job as that person.

The folder must belong to root or to the server's user and must not be writable by others: whoever can replace
the socket could pose as the server.
"""

from __future__ import annotations

import grp
import os
import stat
from pathlib import Path

from dray.host.sockets import UnixSocket

LONGEST_PATH = 100  # bytes; the kernel takes 107, and the name is changed while the socket is made


class SocketPlaceError(OSError):
    """The socket cannot be where it was asked for; the message says why."""


def unix_socket(path: Path, group: str = "") -> UnixSocket:
    """Return the socket of a server, not yet listening; raises SocketPlaceError."""
    is_root = os.geteuid() == 0
    if not path.is_absolute() or ".." in path.parts or len(os.fsencode(path)) > LONGEST_PATH:
        raise SocketPlaceError(f"{path} is not an absolute path of at most {LONGEST_PATH} bytes")
    gid = -1
    if group:
        try:
            gid = grp.getgrnam(group).gr_gid
        except (KeyError, ValueError):
            raise SocketPlaceError(f"there is no group {group!r} on this machine") from None
    try:
        path.parent.mkdir(mode=0o755 if is_root else 0o700, parents=True, exist_ok=True)
        check_folder(path.parent)
        if is_root and path.parent.name == "dray":
            path.parent.chmod(0o755)  # whatever the umask was
    except OSError as error:
        raise SocketPlaceError(f"{path.parent}: {error.strerror or error}") from error
    return UnixSocket(path, _mode(is_root, group), gid)


def _mode(is_root: bool, group: str) -> int:
    if not is_root:
        return 0o600
    return 0o660 if group else 0o666


def check_folder(folder: Path) -> None:
    """Raise SocketPlaceError when somebody else could replace what is in a folder."""
    found = folder.stat()
    if found.st_uid not in (0, os.geteuid()):
        raise SocketPlaceError(f"{folder} belongs to user {found.st_uid}")
    if found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
        raise SocketPlaceError(f"{folder} can be written by other users")
