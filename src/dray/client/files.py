"""Files that somebody else writes: read whole, and never more than a bound.

Kubeconfigs, tokens and manifests may be anything: a directory, a device that never ends,
a file of many gigabytes. `read_file` answers with the content or with an OSError that
names the file, so one handler at the top of a command can print it.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

MOST_BYTES = 512 << 20  # a snapshot of 5,000 nodes has about 60 MB


def read_file(path: str | os.PathLike[str], most: int = MOST_BYTES) -> bytes:
    """Return the content of a file; raise OSError, also for one with more than `most` bytes."""
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "a file name cannot contain a NUL byte", str(path))
    with Path(path).open("rb") as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"the file is larger than {most >> 20 or 1} MiB", str(path))
    return content
