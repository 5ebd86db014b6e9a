"""Folders that nobody else can write into, and files in them that can be trusted.

A command such as `dray down` acts on what it reads in a file: it ends the process
that is named there. So it must be a file that only this user can have written.
The temporary folder is everybody's: any name in it may have been taken by somebody
else, as a folder or as a link. A folder is *private* when it is a real folder, ours, and
closed to group and others; then all that is in it was put there by us.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path


class NotPrivate(OSError):
    """A folder or file that somebody else could have made or changed."""


def make_private(folder: Path) -> Path:
    """Make a folder, or take one that is ours; raises NotPrivate when it is somebody else's."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        pass
    check_private(folder, close=True)
    return folder


def check_private(folder: Path, *, close: bool = False) -> None:
    """Raise NotPrivate unless a folder is ours alone; `close` takes rights of others away."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotPrivate(f"{folder} is not a folder")
    if found.st_uid != os.geteuid():
        raise NotPrivate(f"{folder} belongs to user {found.st_uid}")
    if found.st_mode & 0o077:
        if not close:
            raise NotPrivate(f"{folder} is open to other users")
        folder.chmod(0o700)


def read_own(path: Path) -> str:
    """Read a file that only this user can have written; raises NotPrivate and OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, encoding="utf-8") as opened:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise NotPrivate(f"{path} is not a file")
        if found.st_uid != os.geteuid():
            raise NotPrivate(f"{path} belongs to user {found.st_uid}")
        if found.st_mode & 0o022:
            raise NotPrivate(f"{path} can be written by other users")
        return opened.read(1 << 20)


def write_own(path: Path, text: str) -> None:
    """Replace a file that only this user may read and write."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        opened.write(text)
    temporary.replace(path)


def runtime_folders() -> Iterator[Path]:
    """Yield where a user's small files may lie until the next boot, best place first."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    # After `sudo` this may still be the folder of the user who typed it.
    if runtime and _is_ours(Path(runtime)):
        yield Path(runtime) / "dray"
    yield temporary_folder()
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    yield Path(state).expanduser() / "dray"


def temporary_folder() -> Path:
    """Return the name of this user's folder in the temporary folder; it may be taken by somebody else."""
    return Path(tempfile.gettempdir()) / f"dray-{os.geteuid()}"


def _is_ours(folder: Path) -> bool:
    try:
        return folder.stat().st_uid == os.geteuid()
    except OSError:
        return False
