"""Run `dray server` as a process of its own."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

GATES = (
    "DRAListTypeAttributes",
    "DRADerivedAttributes",
    "DRADeviceCompatibilityGroups",
    "DRAOptionalNodeOperations",
    "DRANodeAllocatableResources",
    "DRAResourcePoolStatus",
    "DRAPartitionableDevicesType",
)


@dataclass
class Served:
    """A server that answers."""

    process: subprocess.Popen[str]
    url: str
    kubeconfig: Path


def command(*flags: str) -> list[str]:
    return [sys.executable, "-m", "dray", "server", "--secure-port", "0", *flags]


@contextmanager
def serving(folder: Path, *flags: str) -> Iterator[Served]:
    """Start a server with a superuser's token `admintoken`; stop it cleanly afterwards."""
    tokens = folder / "tokens.csv"
    tokens.write_text('admintoken,admin,1,"system:masters"\n')
    kubeconfig = folder / "kubeconfig"
    more = ("--token-auth-file", str(tokens), "--kubeconfig", str(kubeconfig))
    process = subprocess.Popen(command(*more, *flags), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "ready at" in line, line
        yield Served(process, line.split("ready at ")[1].split()[0], kubeconfig)
    finally:
        process.terminate()
        code = process.wait(timeout=60)
        process.stdout.close()
    assert code == 0, f"the server ended with {code}"
