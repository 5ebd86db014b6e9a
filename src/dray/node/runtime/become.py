"""Give up rights and become a command: a script, run as `python -I -S become.py RECORD COMMAND [ARGUMENT ...]`.

RECORD is JSON: uid, gid, groups, noNewPrivileges, env (a list of NAME=value). The
order matters: groups first and the user last, since only root may change the others.
Exit codes are the shell's: 127 for a command that does not exist, 126 for one that cannot be run.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

_PR_SET_NO_NEW_PRIVS = 38


def become(record: dict[str, Any], command: list[str]) -> None:
    """Change credentials, then replace this process; returns only by an exception."""
    uid, gid, groups = record["uid"], record["gid"], record["groups"]
    lock = _load_lock() if record["noNewPrivileges"] else None
    if set(os.getgroups()) - {os.getegid()} != set(groups):
        os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if lock is not None and lock() != 0:
        raise PermissionError(1, "cannot set no_new_privs")
    env = dict(variable.split("=", 1) for variable in record["env"])
    os.execvpe(command[0], command, env)  # noqa: S606 (the container's command is what this is for)


def _load_lock() -> Callable[[], int]:
    """Return what sets no_new_privs; loaded before rights are given up, since Python itself may lie in root's home."""
    import ctypes  # only here: it doubles the time to start

    prctl = ctypes.CDLL(None).prctl
    return lambda: int(prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def main(words: list[str]) -> int:
    """Do it, and say why not."""
    try:
        with open(words[0], encoding="utf-8") as file:
            record = json.load(file)
        become(record, words[1:])
    except FileNotFoundError as error:
        print(f"cannot run {words[1]!r}: {error.strerror}", file=sys.stderr)
        return 127
    except OSError as error:
        print(f"cannot run {words[1]!r}: {error.strerror}", file=sys.stderr)
        return 126
    return 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
