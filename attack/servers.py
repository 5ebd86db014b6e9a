"""The processes under attack: started, watched, stopped, and started again when an attack ended them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

TOKENS = """admintoken,admin,1,"system:masters"
nobodytoken,nobody,2,
nodetoken,system:node:n1,3,"system:nodes"
"""
NOBODY = "nobodytoken"  # authenticated, with no other right
NODE = "nodetoken"
GATES = ",".join(
    f"{gate}=true"
    for gate in (
        "DRAListTypeAttributes", "DRADerivedAttributes", "DRADeviceCompatibilityGroups", "DRAOptionalNodeOperations",
        "DRANodeAllocatableResources", "DRAResourcePoolStatus", "DRAPartitionableDevicesType", "GenericWorkload",
    )
)  # fmt: skip
# Bodies of some groups are recorded, so that the audit log sees what the fuzzer sends; of all others, who did what.
AUDIT = """apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: RequestResponse
  resources: [{group: resource.k8s.io}, {group: attack.example.com}, {group: authentication.k8s.io}, {group: "", resources: [secrets, pods/exec]}]
- level: Metadata
"""
_DEATH = re.compile(r"Fatal Python error: .*|Segmentation fault.*")


class Server:
    """`dray server` on a free port of 127.0.0.1, with its log in a file."""

    def __init__(self, folder: Path, *flags: str, holds: Path | None = None) -> None:
        """Prepare; `holds` is the file to which it writes what held its event loop (see `holding`)."""
        self.folder = folder
        self.data = folder / "data"
        self.log = folder / "server.log"
        folder.mkdir(parents=True, exist_ok=True)
        tokens = folder / "tokens.csv"
        tokens.write_text(TOKENS)
        policy = folder / "audit.yaml"
        policy.write_text(AUDIT)
        self._command = [
            *(
                sys.executable,
                "-m",
                *(["dray"] if holds is None else ["attack.holding", str(holds)]),
                "server",
                "--data",
                str(self.data),
                "--bind-address",
                "127.0.0.1",
            ),
            *("--audit-log-path", str(folder / "audit.log"), "--audit-policy-file", str(policy)),
            *("--audit-log-maxsize", "20", "--audit-log-maxbackup", "1"),
            *("--token-auth-file", str(tokens), "--feature-gates", GATES, "--secure-port"),
        ]
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None
        self._log_read = 0
        self.port = 0
        self.deaths = 0

    @property
    def pid(self) -> int:
        """Return the id of the running process."""
        assert self._process is not None
        return self._process.pid

    def start(self, patience: float = 300.0) -> None:
        """Start and wait until it answers; a restart keeps the port."""
        ready = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, str(self.port), *self._flags],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONFAULTHANDLER": "1"},
            )  # fmt: skip
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            with self.log.open("rb") as log:
                log.seek(ready)
                found = re.search(rb"ready at https://[^:\s]+:(\d+)", log.read())
            if found:
                self.port = int(found[1])
                return
            if self._process.poll() is not None:
                raise RuntimeError(
                    f"the server ended with {self._process.returncode}: {self.log.read_text()[-2000:]}"
                )
            time.sleep(0.02)
        raise TimeoutError("the server did not become ready")

    def death(self) -> str:
        """Return how the process ended, empty while it runs."""
        assert self._process is not None
        code = self._process.poll()
        if code is None:
            return ""
        said = _DEATH.findall(self.log.read_text(errors="replace")[-20_000:])
        ending = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"{ending} {said[-1] if said else ''}".strip()

    def revive(self) -> None:
        """Start again after a death."""
        self.deaths += 1
        self.start()

    def stop(self) -> None:
        """End the process; what does not end in 20 s is killed."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(20)

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(20)

    def abort(self) -> str:
        """End a process that does not answer; returns where it was, innermost place first."""
        assert self._process is not None
        before = self.log.stat().st_size
        self._process.send_signal(signal.SIGABRT)
        self._process.wait(20)
        with self.log.open("rb") as log:
            log.seek(before)
            said = log.read().decode("utf-8", "replace")
        self._log_read = self.log.stat().st_size
        frames = re.findall(
            r'File "[^"]*/src/(dray/[^"]+)", line \d+ in (\S+)', said.partition("Current thread")[2] or said
        )
        return " < ".join(f"{path}:{name}" for path, name in frames[:6])

    def new_log(self) -> str:
        """Return what was logged since the last call."""
        with self.log.open("rb") as log:
            log.seek(self._log_read)
            said = log.read()
        self._log_read += len(said)
        return said.decode("utf-8", "replace")


def process_tree(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    found = [pid]
    for each in found:
        try:
            for task in Path(f"/proc/{each}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
        except OSError:
            continue
    return found


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process and its descendants; 0 when it is gone."""
    total = 0
    for each in process_tree(pid):
        try:
            total += int(Path(f"/proc/{each}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError):
            continue
    return total
