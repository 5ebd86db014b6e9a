"""Give up rights and become a command: a script, run as `python -I -S become.py RECORD COMMAND [ARGUMENT ...]`.

RECORD is a file of fields that end with NUL: the user, the group, the supplementary groups
separated by commas, `LOCK:UMASK:FOLDER`, then the environment, NAME=value. LOCK is 1 for "no new
privileges" (else 0); the folder is entered as the user, so that it is one that the user may enter. The
order of giving up matters: groups first and the user last, since only root may change the others.
Exit codes are the shell's: 127 for a command that does not exist, 126 for one that cannot be run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

_PR_SET_NO_NEW_PRIVS = 38
_FILES = 65536  # open files; programs may raise it to the hard limit


def become(fields: list[str], command: list[str]) -> None:
    """Change credentials, then replace this process; returns only by an exception."""
    uid, gid = int(fields[0]), int(fields[1])
    groups = [int(group) for group in fields[2].split(",") if group]
    # A record of an older agent has only the first of the three; its folder is the present one.
    is_locked, umask, folder = fields[3].split(":", 2) if ":" in fields[3] else (fields[3], "022", ".")
    lock = _load_lock() if is_locked == "1" else None
    _set_limits()
    if set(os.getgroups()) - {os.getegid()} != set(groups):
        os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if lock is not None and lock() != 0:
        raise PermissionError(1, "cannot set no_new_privs")
    os.umask(int(umask, 8))
    os.chdir(folder)
    env = dict(variable.split("=", 1) for variable in fields[4:])
    _execute(command, env)


def _execute(command: list[str], env: dict[str, str]) -> None:
    """Find the command in the container's PATH, as the user who runs it sees the files.

    `os.execvpe` would do, but imports modules of Python itself, which that user may not read.
    """
    name, denied = command[0], None
    folders = [""] if "/" in name else [f"{folder or '.'}/" for folder in env.get("PATH", "/bin").split(":")]
    for folder in folders:
        try:
            os.execve(folder + name, command, env)  # noqa: S606 (the container's command is what this is for)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            denied = error
    raise denied or FileNotFoundError(2, "No such file or directory")


def _set_limits() -> None:
    """Begin with the limits of a login, not with those of a service: few open files at first, no core dumps."""
    import resource

    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = _FILES if most_files == resource.RLIM_INFINITY else min(_FILES, most_files)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most_files))
    _, most_core = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most_core))


def _load_lock() -> Callable[[], int]:
    """Return what sets no_new_privs; loaded before rights are given up, since Python itself may lie in root's home."""
    import ctypes  # only here: it doubles the time to start

    prctl = ctypes.CDLL(None).prctl
    return lambda: int(prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def main(words: list[str]) -> int:
    """Do it, and say why not."""
    try:
        with open(words[0], encoding="utf-8", errors="surrogateescape", newline="") as file:
            fields = file.read().split("\0")
        become(fields[:-1], words[1:])
    except FileNotFoundError as error:
        print(f"cannot run {words[1]!r}: {error.strerror}", file=sys.stderr)
        return 127
    except OSError as error:
        print(f"cannot run {words[1]!r}: {error.strerror}", file=sys.stderr)
        return 126
    return 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
