"""Folders and files of one user: made closed to others, checked before they are believed.

All that the node agent keeps below its folder is private: environments of containers hold
secrets, logs hold what people print, sockets give devices away. Folders are made with mode 0700
and files with 0600, whatever the umask; what an older version left open is closed when the agent
starts (`close_tree`). Not touched: the content of volumes and of unpacked images, whose modes belong
to the pods. The folders above a volume of a container that runs as another user may be passed
through (mode 0711).

A command such as `dray down` acts on what it reads: it ends the process that a file names. So
it reads only files that nobody but this user can have written (`read_own`), in a folder that is a
real folder, ours and closed to group and others (`check_private`). The temporary folder is
shared: any name in it may have been taken by another user, as a folder or as a link.

Tests: tests/unit/node/test_node_credentials.py, tests/unit/local/test_running_system.py.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dray.host.files import PRIVATE_FILE, write_atomically

PRIVATE_FOLDER, PASSABLE_FOLDER = 0o700, 0o711


class NotPrivate(OSError):
    """A folder or file that another user could have made or changed."""


def write_private_text(path: Path, text: str) -> None:
    """Replace a text file that only this user may read; a reboot may lose it."""
    write_atomically(path, text.encode("utf-8", "surrogateescape"), PRIVATE_FILE, durable=False)


def make_private_folder(path: Path) -> Path:
    """Make a folder, and its parents, for the agent's user alone; one that exists is left as it is."""
    missing = []
    current = path
    while not current.exists():
        missing.append(current)
        current = current.parent
    for folder in reversed(missing):
        try:
            folder.mkdir(mode=PRIVATE_FOLDER)
        except FileExistsError:
            continue
    return path


def give_volume(root: Path, volume: Path, uid: int, gid: int) -> None:
    """Hand a volume below `root` to another user and let that user pass through the folders above it."""
    for folder in (volume, *volume.parents):
        if not folder.is_relative_to(root):
            break
        if folder != volume:
            folder.chmod(PASSABLE_FOLDER)
    for found in (volume, *(entry for entry, _ in _entries(volume))):
        os.chown(found, uid, gid, follow_symlinks=False)


def close_tree(root: Path, volumes: Path, images: Path) -> list[Path]:
    """Take all rights of group and others from what is below `root`; return what had any."""
    changed = []
    for path, status in [(root, root.lstat()), *_entries(root, without=images)]:
        if stat.S_ISLNK(status.st_mode) or status.st_uid != os.geteuid():
            continue
        if _is_in_volume(path, volumes):
            continue
        mode = stat.S_IMODE(status.st_mode)
        is_passage = path in (root, volumes) or volumes in path.parents
        if stat.S_ISDIR(status.st_mode) and is_passage and mode == PASSABLE_FOLDER:
            continue
        if mode & 0o077:
            path.chmod(mode & ~0o077)
            changed.append(path)
    return changed


def _is_in_volume(path: Path, volumes: Path) -> bool:
    """Return whether a path is a volume (`volumes`/POD/volumes/NAME) or below one."""
    return path.is_relative_to(volumes) and len(path.relative_to(volumes).parts) > 2


def _entries(folder: Path, without: Path | None = None) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield all that is below a folder, without following links."""
    for parent, folders, files in os.walk(folder):
        if without is not None:
            folders[:] = [name for name in folders if Path(parent, name) != without]
        for name in (*folders, *files):
            path = Path(parent, name)
            try:
                yield path, path.lstat()
            except FileNotFoundError:
                continue


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
