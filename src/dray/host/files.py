"""Files that are replaced as a whole: a crash leaves the old content or the new one, never a part.

`write_atomically` is the only way in which dray replaces a file that somebody reads again: state of drivers,
checkpoint of the node agent, CDI specs, certificates, kubeconfigs.

Tests: tests/unit/driver/test_driver_state.py, tests/unit/test_certificates.py.
"""

from __future__ import annotations

import os
from pathlib import Path

PRIVATE_FILE = 0o600


def write_atomically(path: Path, content: bytes, mode: int = 0o644, *, durable: bool = True) -> None:
    """Replace a file; `durable=False` is for files that a reboot may lose (not a kill): it saves two fsyncs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Readers of CDI directories skip this name; it is always the same, so that crashes leave no litter.
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    # Made anew with its final mode: a secret is never readable by others, not even briefly, and no link is followed.
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


def write_private(path: Path, content: bytes) -> None:
    """Replace a file that only its owner may read."""
    write_atomically(path, content, PRIVATE_FILE)


def sync_directory(folder: Path) -> None:
    """Make renames and removals in a directory durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
