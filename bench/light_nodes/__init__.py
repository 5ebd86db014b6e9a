"""How `dray up --sim dgx-h100:N --runtime none` grows with N: time, memory and CPU until all nodes are there, then pods.

Each number of nodes is a fresh system with processes of its own. Memory is the proportional share (PSS) of each
process, so what they share counts once. The pods have one GPU each by a claim from a template, and are created
as fast as the server takes them; a pod counts as bound when it has a node, as running when its node says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dray.client import Client
from dray.client.resources import CLAIM_TEMPLATES, PODS

SIZES = (500, 1000, 5000)
PODS_WANTED = 2000
LIMIT = 600.0  # seconds for any step
PARTS = ("server", "scheduler", "controllers", "nodes")

HEAD = """## Simulated nodes: thousands on one machine

`dray up --sim dgx-h100:N --runtime none` with light nodes; {cores} cores, load average {load:.1f} at the start. Every node has 8 GPUs, 12 interfaces and 2 groups of
CPUs in three slices. *Ready*: every Node, lease and slice is there. Memory: all processes (PSS) when ready, and after the pods. Pods: {pods} with a claim for one GPU each.

| nodes | ready | CPU | memory ready / after | kB a node | bound | running | `dray get nodes` |
|---|---|---|---|---|---|---|---|
"""


@dataclass(slots=True)
class Measured:
    """One number of nodes."""

    nodes: int
    ready: float = 0.0  # seconds
    cpu: float = 0.0  # seconds of all processes until ready
    memory: dict[str, float] = field(default_factory=dict)  # process -> MB when ready
    memory_after: float = 0.0  # MB of all
    bound: float = 0.0  # pods/s
    running: float = 0.0  # pods/s
    listing: float = 0.0  # seconds

    def __str__(self) -> str:
        total = sum(self.memory.values())
        parts = ", ".join(f"{name} {self.memory[name]:.0f}" for name in PARTS if name in self.memory)
        return (
            f"| {self.nodes} | {self.ready:.1f} s | {self.cpu:.0f} s | {total:.0f} / {self.memory_after:.0f} MB ({parts}) "
            f"| {1024 * total / self.nodes:.0f} | {self.bound:.0f}/s | {self.running:.0f}/s | {self.listing:.1f} s |"
        )


@contextlib.contextmanager
def system(nodes: int, data: Path) -> Iterator[tuple[int, float]]:
    """Run `dray up`; yield its process id and the seconds until it was ready."""
    command = [sys.executable, "-m", "dray", "up", "--sim", f"dgx-h100:{nodes}", "--runtime", "none"]
    command += ["--no-host", "--secure-port", "0", "--data", str(data)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            found = re.search(r"is up after ([\d.]+) s", line)
            if found:
                yield process.pid, float(found[1])
                return
        raise RuntimeError(f"dray up with {nodes} nodes ended")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def processes(data: Path) -> dict[str, int]:
    """Return the process ids of the parts, by name."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().decode().split("\0")
            if str(data) in " ".join(words) and "dray" in words:
                name = words[words.index("dray") + 1]
                found[name] = int(folder.name)
    return found


def megabytes(pid: int) -> float:
    """Return the proportional share of memory of a process."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE)[1]) / 1024  # type: ignore[index]


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


async def bind(kubeconfig: Path, wanted: int) -> tuple[float, float]:
    """Create pods with claims; return how many were bound and ran per second."""
    template = {
        "metadata": {"name": "one"},
        "spec": {
            "spec": {
                "devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}
            }
        },
    }
    async with Client.connect(kubeconfig) as client:
        await client.create(CLAIM_TEMPLATES, template, "default")
        gate = asyncio.Semaphore(32)
        began = time.monotonic()

        async def make(number: int) -> None:
            container = {"name": "c", "image": "busybox", "resources": {"claims": [{"name": "gpu"}]}}
            spec = {
                "containers": [container],
                "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}],
            }
            async with gate:
                await client.create(PODS, {"metadata": {"name": f"p{number}"}, "spec": spec}, "default")

        making = asyncio.gather(*(make(number) for number in range(wanted)))
        bound = 0.0
        while True:
            await asyncio.sleep(0.5)
            pods = (await client.list(PODS, "default")).items
            seconds = time.monotonic() - began
            if not bound and sum(bool(pod["spec"].get("nodeName")) for pod in pods) == wanted:
                bound = wanted / seconds
            if sum(pod["status"].get("phase") == "Running" for pod in pods) == wanted:
                await making
                return bound, wanted / seconds
            if seconds > LIMIT:
                raise RuntimeError(f"{wanted} pods do not run after {LIMIT:.0f} s")


def measure(nodes: int, pods: int) -> Measured:
    """Measure one number of nodes."""
    found = Measured(nodes)
    with tempfile.TemporaryDirectory(prefix="dray-bench-") as folder:
        data = Path(folder) / "d"
        with system(nodes, data) as (_, found.ready):
            pids = processes(data)
            found.cpu = sum(cpu_seconds(pid) for pid in pids.values())
            found.memory = {name: megabytes(pid) for name, pid in pids.items()}
            found.bound, found.running = asyncio.run(bind(data / "admin.kubeconfig", pods))
            found.memory_after = sum(megabytes(pid) for pid in pids.values())
            command = [sys.executable, "-m", "dray", "get", "nodes", "--kubeconfig"]
            began = time.monotonic()
            subprocess.run(
                [*command, str(data / "admin.kubeconfig")],
                check=True,
                stdout=subprocess.DEVNULL,
                timeout=LIMIT,
            )
            found.listing = time.monotonic() - began
    return found


def run(quick: bool) -> str:
    """Measure all sizes (`quick`: 200 nodes and 200 pods) and return the section."""
    sizes, pods = ((200,), 200) if quick else (SIZES, PODS_WANTED)
    head = HEAD.format(cores=os.cpu_count(), load=os.getloadavg()[0], pods=pods)
    return head + "\n".join(str(measure(nodes, pods)) for nodes in sizes) + "\n"
