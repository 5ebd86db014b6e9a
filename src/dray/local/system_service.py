"""The systemd service of `dray install`: its unit file, and putting it in place.

`unit_text` is a function of the options. `install` and `uninstall` change the machine: unit file, state
folder, group. They take the root of the file system and the function that runs commands as arguments, so
tests use a folder and a list.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dray.host.files import write_atomically

UNIT = "dray.service"
DATA = Path("/var/lib/dray")
GROUP = "dray"  # who may use the system through its socket
Run = Callable[[Sequence[str]], int]


class InstallError(Exception):
    """The machine cannot be changed; the message says why."""


@dataclass(frozen=True, slots=True)
class Service:
    """What is installed."""

    command: tuple[str, ...]  # absolute path of dray, and the arguments of `up` without --data
    data: Path = DATA

    def unit_text(self) -> str:
        """Return the unit file."""
        command = shlex.join(
            [*self.command[:1], "up", "--data", str(self.data), "--keep-jobs", *self.command[1:]]
        )
        return f"""\
# Written by `dray install`; `dray uninstall` removes it.
[Unit]
Description=dray: Dynamic Resource Allocation on this machine
Documentation=man:systemd.service(5)
After=network-online.target nvidia-persistenced.service
Wants=network-online.target

[Service]
Type=exec
ExecStart={command.replace("%", "%%")}
Restart=on-failure
RestartSec=5
# Jobs outlive the service (--keep-jobs), so that a restart, a crash or an upgrade ends none; `up` ends its own parts.
KillMode=process
TimeoutStartSec=600
TimeoutStopSec=60
RuntimeDirectory=dray
RuntimeDirectoryPreserve=yes
UMask=0077
LimitNOFILE=1048576
TasksMax=infinity

[Install]
WantedBy=multi-user.target
"""


def installed_runtime(root: Path) -> str:
    """Return how containers run in the service that is installed."""
    try:
        text = (root / "etc/systemd/system" / UNIT).read_text()
    except OSError:
        return "process"
    found = re.search(r"--runtime=(\w+)", text)
    return found[1] if found else "process"


def closed_to_others(paths: Sequence[Path]) -> Path | None:
    """Return the first file or folder on these paths that an ordinary user may not enter or read; None when all may."""
    for path in paths:
        real = path.resolve()
        for part in (*reversed(real.parents), real):
            try:
                mode = part.stat().st_mode
            except OSError:
                return part
            wanted = 0o005 if part == real else 0o001
            if mode & wanted != wanted:
                return part
    return None


def has_systemd(root: Path) -> bool:
    """Return whether systemd runs this machine."""
    return (root / "run/systemd/system").is_dir()


def install(service: Service, root: Path, run: Run) -> list[str]:
    """Write the unit, make folder and group, enable and start; return what was done. Raises InstallError."""
    done = []
    if run(["getent", "group", GROUP]) != 0:
        _check(run, ["groupadd", "--system", GROUP])
        done.append(f"group {GROUP} created")
    data = root / service.data.relative_to("/")
    unit = root / "etc/systemd/system" / UNIT
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        unit.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(unit, service.unit_text().encode(), 0o644)
    except OSError as error:
        raise InstallError(f"{error.filename}: {error.strerror}") from error
    done += [f"state is kept in {service.data}", f"{unit} written"]
    if has_systemd(root):
        _check(run, ["systemctl", "daemon-reload"])
        _check(run, ["systemctl", "enable", "--now", UNIT])
        done.append(f"{UNIT} enabled and started")
    return done


def uninstall(root: Path, run: Run) -> list[str]:
    """Stop and remove the service; the state stays. Returns what was done, empty if nothing was installed."""
    unit = root / "etc/systemd/system" / UNIT
    if not unit.exists():
        return []
    done = []
    if has_systemd(root):
        _check(run, ["systemctl", "disable", "--now", UNIT])
        done.append(f"{UNIT} stopped and disabled")
    try:
        unit.unlink()
    except OSError as error:
        raise InstallError(f"{error.filename}: {error.strerror}") from error
    done.append(f"{unit} removed")
    if has_systemd(root):
        _check(run, ["systemctl", "daemon-reload"])
    return done


def _check(run: Run, command: Sequence[str]) -> None:
    code = run(command)
    if code != 0:
        raise InstallError(f"`{shlex.join(command)}` ended with exit code {code}")


def run_command(command: Sequence[str]) -> int:
    """Run a command of the machine, with its messages on our stderr; return its exit code."""
    try:
        return subprocess.run(
            command, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        ).returncode
    except FileNotFoundError:
        raise InstallError(f"{command[0]} is not on this machine") from None
