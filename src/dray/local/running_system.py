"""What runs here: how `dray status`, `dray down` and others find the system that `dray up` started.

`<data>/system.json` names the processes of a system. A process id alone says little: the
process may have ended and its number may be another's. So each comes with the
moment at which the process began, which the kernel tells, and a signal is sent only to a
process of ours that began at that moment. A file that somebody else could have written is not
read at all (`dray.host.private_files`).

The folder of the system that was started last is remembered in `current`, in a private folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dray.api.parsing import ParseError, load_json
from dray.host.private_files import (
    NotPrivate,
    check_private,
    make_private,
    read_own,
    runtime_folders,
    write_private_text,
)

STATE_FILE = "system.json"
CURRENT = "current"
State = dict[str, Any]


def process_entry(pid: int) -> dict[str, Any]:
    """Return what is written down about a process: its number and when it began."""
    return {"pid": pid, "began": began(pid)}


def began(pid: int) -> str:
    """Return the moment at which a living process of ours began, as the kernel tells it; else ""."""
    process = Path("/proc") / str(pid)
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()  # the name may hold anything
        owner = process.stat().st_uid
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        state, ticks = fields[0], fields[19]
    except (OSError, IndexError):
        return ""
    return "" if state in "ZX" or owner != os.geteuid() else f"{boot}/{ticks}"


def is_running(entry: Mapping[str, Any] | None) -> bool:
    """Return whether the very process that an entry names still runs."""
    if entry is None:
        return False
    pid, moment = entry.get("pid"), entry.get("began")
    return isinstance(pid, int) and pid > 1 and bool(moment) and began(pid) == moment


def ask_to_stop(state: Mapping[str, Any]) -> bool:
    """Ask a running system to stop; False when it is not running."""
    return _signal(state, signal.SIGTERM)


def _signal(entry: Mapping[str, Any], number: signal.Signals) -> bool:
    """Send a signal to the very process that an entry names; False when it is not running."""
    if not is_running(entry):
        return False
    try:
        # From here on the descriptor means one process, whoever gets its number later.
        descriptor = os.pidfd_open(int(entry["pid"]))
    except ProcessLookupError:
        return False
    try:
        if not is_running(entry):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def leftovers(state: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the parts, by name, that still run although the process that watched them was killed."""
    if is_running(state):
        return {}
    return {name: entry for name, entry in state["parts"].items() if is_running(entry)}


def end_leftovers(state: Mapping[str, Any], grace: float = 10.0) -> list[str]:
    """End such parts, and return their names; jobs and their containers are left alone."""
    left = leftovers(state)
    for entry in left.values():
        _signal(entry, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while any(map(is_running, left.values())) and time.monotonic() < deadline:
        time.sleep(0.05)
    for entry in left.values():
        _signal(entry, signal.SIGKILL)
    while any(map(is_running, left.values())):
        time.sleep(0.05)
    return sorted(left)


def write_state(data: Path, state: State) -> None:
    """Write down what runs in a folder."""
    write_private_text(data / STATE_FILE, json.dumps(state, indent=1))


def read_state(data: Path) -> State | None:
    """Return what runs, or ran, in a folder; None when nothing does or the file is not ours."""
    try:
        state = load_json(read_own(data / STATE_FILE))
    except (OSError, ValueError, ParseError):
        return None
    if not isinstance(state, dict) or not isinstance(state.get("parts"), dict):
        return None
    return state


def why_not_read(data: Path) -> str:
    """Return why the state of a folder is not believed; "" when there is none or it is fine."""
    try:
        read_own(data / STATE_FILE)
    except NotPrivate as problem:
        return f"{problem}: run this as the user who started the system"
    except (OSError, ValueError):
        return ""
    return ""


def remember(data: Path) -> None:
    """Note the folder of the system that was started last; without a private place it is not noted."""
    for folder in runtime_folders():
        with contextlib.suppress(OSError):
            folder.parent.mkdir(parents=True, exist_ok=True)
            write_private_text(make_private(folder) / CURRENT, str(data))
            return


def forget(data: Path) -> None:
    """Remove the note about a folder."""
    for folder in runtime_folders():
        with contextlib.suppress(OSError, ValueError):
            check_private(folder)
            if read_own(folder / CURRENT) == str(data):
                (folder / CURRENT).unlink()


def remembered() -> Path | None:
    """Return the folder of the system that was started last."""
    for folder in runtime_folders():
        with contextlib.suppress(OSError, ValueError):
            check_private(folder)
            return Path(read_own(folder / CURRENT))
    return None
