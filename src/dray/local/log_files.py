"""Logs of the parts: bounded in size and number.

A part writes its log through a descriptor that it got when it was started, in append
mode. So its file cannot be replaced; what is in it is copied to `NAME.log.1` and the file
is emptied, and the next line goes to its beginning. The older copies move on to `.2`, `.3` …
and the oldest goes. (A pipe would bound the files exactly, but then a part would
stand still with whoever reads the pipe.) Lines that are written in the moment between
the copy and the emptying are lost.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from pathlib import Path

LARGEST = 10 * 1024 * 1024  # bytes of one file
COPIES = 4  # older files that are kept
LOOK_EVERY = 5.0  # seconds

log = logging.getLogger("dray.local")


def rotate(path: Path, largest: int = LARGEST, copies: int = COPIES) -> bool:
    """Empty a log that has become too large, after copying it; says whether it did.

    On a disk that is full the copy is given up, and the log is emptied all the same.
    """
    try:
        if path.stat().st_size <= largest:
            return False
    except OSError:
        return False
    for number in range(copies - 1, 0, -1):
        with contextlib.suppress(FileNotFoundError):
            _copy_of(path, number).replace(_copy_of(path, number + 1))
    try:
        shutil.copyfile(path, _copy_of(path, 1))
        _copy_of(path, 1).chmod(0o600)
    except OSError as problem:
        log.warning("%s is emptied without a copy: %s", path, problem)
        with contextlib.suppress(OSError):
            _copy_of(path, 1).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        os.truncate(path, 0)
    return True


def _copy_of(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")
