"""Files that somebody else writes: read whole, and never more than a bound.

Kubeconfigs, tokens and manifests may be anything: a directory, a device that never ends,
a file of many gigabytes. `read_file` answers with the content or with an OSError that
names the file, so one handler at the top of a command can print it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

MOST_BYTES = 512 << 20  # a snapshot of 5,000 nodes has about 60 MB
_MOST_OF_DEVICES = 64 << 20  # of pipes and devices, whose end is not known before


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file for reading; raise OSError, also for impossible names."""
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "a file name cannot contain a NUL byte", str(path))
    return Path(path).open("rb")


def read_file(path: str | os.PathLike[str], most: int = MOST_BYTES) -> bytes:
    """Return the content of a file; raise OSError, also for one with more than `most` bytes."""
    with open_file(path) as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            most = min(most, _MOST_OF_DEVICES)
        content = stream.read(most + 1) if status.st_size <= most else b""
    if len(content) > most or status.st_size > most:
        raise OSError(errno.EFBIG, f"the file is larger than {most >> 20 or 1} MiB", str(path))
    return content


def bounded_lines(stream: BinaryIO, name: str, most: int = MOST_BYTES) -> Iterator[str]:
    """Yield the lines of a stream as they come; raise OSError for one of more than `most` bytes, UnicodeDecodeError."""
    while line := stream.readline(most + 1):
        if len(line) > most:
            raise OSError(errno.EFBIG, f"a line is longer than {most >> 20 or 1} MiB", name)
        yield line.decode("utf-8")
