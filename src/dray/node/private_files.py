"""Files that nobody but the agent's user may read: all that the agent keeps below its folder.

Environments of containers hold secrets, logs hold what people print, sockets give
devices away. So folders are made with mode 0700 and files with 0600, whatever the
umask; and what an older version left open is closed when the agent starts (`close_tree`).

Not touched: the content of volumes and of unpacked images, whose modes belong to the
pods. The folders above them are closed like all others, with one exception: the way
to the volumes of a container that runs as another user may be passed (mode 0711).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

PRIVATE_FOLDER, PRIVATE_FILE, PASSABLE_FOLDER = 0o700, 0o600, 0o711


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


def write_private(path: Path, text: str) -> None:
    """Write a file that only the agent's user can read, also when one was there before."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, PRIVATE_FILE)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        os.fchmod(file.fileno(), PRIVATE_FILE)
        file.write(text)


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
    """Tell whether a path is a volume (`volumes`/POD/volumes/NAME) or below one."""
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
