"""Machines made of namespaces: each has processes, mounts, a network and a host name of its own.

A machine is a process that does nothing but wait for orphans (the init of its PID namespace). Programs enter its namespaces
with nsenter. Ending that one process ends, by the kernel's rule for PID namespaces, everything that runs in the machine,
containers included; its mounts and interfaces go with it. Nothing of the host is changed.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

INIT = "import os, signal\nsignal.signal(signal.SIGTERM, lambda *_: os._exit(0))\nwhile True:\n    try:\n        os.wait()\n    except ChildProcessError:\n        signal.sigtimedwait([signal.SIGCHLD], 1)\n"
# Seconds to wait for anything at all. A machine that is busy with other things is slow, not broken; only what will
# never happen takes so long.
PATIENCE = 300.0
MARK = (
    "dray-cluster-machine"  # in the command line of every init, so that a stale number is never taken for one
)


class ClusterError(Exception):
    """The cluster cannot be built or does not do what it should; the message says what and where the log is."""


class Machine:
    """One machine; its numbers are kept in a folder, so that another process can find it again."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.logs = folder / "logs"

    # --- the machine itself ---------------------------------------------------------

    def boot(self) -> None:
        """Make the namespaces."""
        self.logs.mkdir(parents=True, exist_ok=True)
        command = [
            "unshare",
            "--net",
            "--mount",
            "--uts",
            "--ipc",
            "--pid",
            "--fork",
            "--mount-proc",
            "--propagation",
            "private",
        ]
        subprocess.Popen(
            [*command, sys.executable, "-S", "-E", "-c", INIT, MARK, self.name],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        number = wait_for(lambda: find_init(self.name), PATIENCE, f"the namespaces of {self.name}")
        (self.folder / "init.pid").write_text(str(number))
        self.run("hostname", self.name)
        self.run("mount", "--make-rshared", "/")
        self.run("ip", "link", "set", "lo", "up")
        self.run("sysctl", "-qw", "net.ipv4.ip_forward=1")

    @property
    def pid(self) -> int:
        """The number of the machine's init, as the host sees it."""
        file = self.folder / "init.pid"
        number = int(file.read_text()) if file.exists() else 0
        if not number or not is_init(number, self.name):
            raise ClusterError(f"the machine {self.name} does not run")
        return number

    def halt(self) -> None:
        """End everything that runs in the machine."""
        try:
            number = self.pid
        except ClusterError:
            return
        os.kill(number, signal.SIGKILL)
        wait_for(lambda: not is_init(number, self.name), PATIENCE, f"the end of {self.name}")

    def bind(self, source: Path, target: str) -> None:
        """Show a folder or file of the host at another place in the machine."""
        self.run("mount", "--bind", source, target)

    # --- programs -------------------------------------------------------------------

    def enter(self, *command: object) -> list[str]:
        """Return the command line that runs a command in the machine."""
        flags = ["--net", "--mount", "--uts", "--ipc", "--pid"]
        return ["nsenter", "--target", str(self.pid), *flags, "--", *map(str, command)]

    def run(self, *command: object, check: bool = True) -> str:
        """Run a command to its end and return what it printed."""
        done = subprocess.run(
            self.enter(*command), capture_output=True, text=True, check=False, timeout=2 * PATIENCE
        )
        if check and done.returncode != 0:
            words = " ".join(map(str, command))
            raise ClusterError(f"on {self.name}: {words}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def start(self, name: str, *command: object, environment: dict[str, str] | None = None) -> None:
        """Start a program that goes on; its log is `logs/<name>.log`."""
        with (self.logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                self.enter(*command), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, env={**os.environ, **(environment or {})},
            )  # fmt: skip

        # nsenter forks once to get into the PID namespace; the program is its child.
        def started() -> int:
            if process.poll() is not None:
                raise ClusterError(f"{name} on {self.name} ended at once:\n{self.log(name)}")
            return first_child(process.pid)

        child = wait_for(started, PATIENCE, f"{name} on {self.name}")
        (self.folder / f"{name}.pid").write_text(str(child))

    def stop(self, name: str, number: int = signal.SIGTERM, seconds: float = PATIENCE) -> None:
        """End a program and wait until it is gone."""
        process = self.process(name)
        if process:
            os.kill(process, number)
            wait_for(lambda: not is_alive(process), seconds, f"the end of {name} on {self.name}")

    def process(self, name: str) -> int:
        """Return the number of a program that was started, or 0 when it has ended."""
        file = self.folder / f"{name}.pid"
        process = int(file.read_text()) if file.exists() else 0
        return process if process and is_alive(process) else 0

    def log(self, name: str, characters: int = 3000) -> str:
        """Return the end of a program's log."""
        file = self.logs / f"{name}.log"
        return file.read_text(errors="replace")[-characters:] if file.exists() else ""


# --- processes ----------------------------------------------------------------------


def wait_for(look, seconds: float, what: str):
    """Return the first true answer of `look`."""
    end = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > end:
            raise ClusterError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.05)
    return found


def is_init(number: int, name: str) -> bool:
    """Return whether a process is the init of the machine with this name."""
    try:
        words = Path(f"/proc/{number}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False
    return words[-3:-1] == [MARK, name] and "unshare" not in words[0]


def find_init(name: str) -> int:
    """Return the init of the machine with this name, or 0."""
    numbers = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    return next((number for number in numbers if is_init(number, name)), 0)


def first_child(parent: int) -> int:
    """Return the number of the first child of a process, or 0."""
    try:
        words = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    except OSError:
        return 0
    return int(words[0]) if words else 0


def is_alive(number: int) -> bool:
    """Return whether a process runs; one that has ended and was not reaped does not."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def missing_tools() -> list[str]:
    """Return the programs of the machine that are needed and not there."""
    return [
        name
        for name in ("unshare", "nsenter", "ip", "mount", "sysctl", "hostname", "runc", "dpkg-deb")
        if not shutil.which(name)
    ]
