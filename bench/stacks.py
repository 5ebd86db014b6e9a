"""API servers as processes, for benches: kube-apiserver on etcd, and dray's own.

Both write durably to the same disk (etcd with its fsync, SQLite with synchronous
commits), accept the same token, and leave out the same admission plugins, so that what
differs is the servers. Kubernetes' binaries are those of `tools/peers/build`; where they
are missing `kubernetes_binaries` is None and a bench says that dray ran alone.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(os.environ.get("DRAY_PEERS", Path.home() / ".cache" / "dray" / "peers"))
TOKEN = "benchtoken"
BINARIES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
# Nobody makes default service accounts or node conditions here.
LEFT_OUT = "ServiceAccount,TaintNodesByCondition"
KUBECONFIG = """apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:%d", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: %s}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""
TICKS = os.sysconf("SC_CLK_TCK")


def kubernetes_binaries(programs: tuple[str, ...] = BINARIES) -> Path | None:
    """Return the folder with a complete set of Kubernetes' binaries, if there is one.

    It is that of KUBERNETES_VERSION, where that is set; else the newest version that has all the programs.
    """
    version = os.environ.get("KUBERNETES_VERSION", "")
    folders = [CACHE, *CACHE.iterdir()] if CACHE.is_dir() else []
    complete = [each for each in folders if all(os.access(each / name, os.X_OK) for name in programs)]
    if version:
        complete = [each for each in complete if each.name == version]
    return max(complete, key=lambda folder: version_numbers(folder.name), default=None)


def version_numbers(name: str) -> tuple[int, ...]:
    """Return the numbers of a version, for comparison: (1, 37, 1) for v1.37.1, () for another name."""
    numbers = name.removeprefix("v").split(".")
    return tuple(map(int, numbers)) if name.startswith("v") and all(map(str.isdecimal, numbers)) else ()


@functools.cache
def unverified() -> ssl.SSLContext:
    """Return a context that trusts whoever answers: both servers are our children."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # without the machine's authorities: 70 ms to load
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


@dataclass
class Stack:
    """A running API server with what belongs to it."""

    name: str  # "kubernetes" or "dray"
    port: int
    kubeconfig: Path
    folder: Path
    ready_seconds: float  # from the start of the first process to the first good answer of /readyz
    processes: dict[str, subprocess.Popen[bytes]]
    ready_cpu: float = 0.0  # CPU seconds until then

    def start(self, name: str, *command: object) -> subprocess.Popen[bytes]:
        """Start a process that ends with the stack; its output goes to `<name>.log`."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(part) for part in command], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        self.processes[name] = process
        return process

    def stop_one(self, name: str) -> None:
        """End one process."""
        _end([self.processes.pop(name)])

    def check(self) -> None:
        """Fail when a process has ended."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                text = (self.folder / f"{name}.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{name} ended with {process.returncode}:\n{text}")

    def cpu(self, *names: str) -> float:
        """Return the CPU seconds that its processes (or those named) have used."""
        return sum(cpu_of(self.processes[name].pid) for name in names or self.processes)

    def resident(self, *names: str) -> float:
        """Return the resident megabytes (10^6) of its processes (or those named)."""
        return sum(resident_of(self.processes[name].pid) for name in names or self.processes)


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of a process: of all threads that it has now, to the nanosecond."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has just ended
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def resident_of(pid: int, field: str = "VmRSS:") -> float:
    """Return the resident memory of a process in megabytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def machine_busy() -> float:
    """Return the CPU seconds that the whole machine has spent on anything."""
    fields = [int(each) for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICKS


@contextlib.contextmanager
def kubernetes(*, durable: bool = True, controllers: str = "") -> Iterator[Stack]:
    """Run etcd and kube-apiserver (and kube-controller-manager with the controllers named)."""
    binaries = kubernetes_binaries()
    if binaries is None:
        raise RuntimeError(f"no kube-apiserver under {CACHE}: run tools/peers/build")
    with _stack("kubernetes") as stack:
        _keys(stack.folder)
        stack.port, etcd_port, peer_port = free_ports(3)
        stack.kubeconfig.write_text(KUBECONFIG % (stack.port, TOKEN))
        etcd, peer = f"http://127.0.0.1:{etcd_port}", f"http://127.0.0.1:{peer_port}"
        folder, started = stack.folder, time.perf_counter()
        stack.start(
            "etcd", binaries / "etcd", "--data-dir", folder / "etcd", "--listen-client-urls", etcd,
            "--advertise-client-urls", etcd, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"default={peer}", "--log-level", "error",
            *([] if durable else ["--unsafe-no-fsync"]),
        )  # fmt: skip
        stack.start(
            "kube-apiserver", binaries / "kube-apiserver", f"--etcd-servers={etcd}", f"--cert-dir={folder}/certs",
            f"--secure-port={stack.port}", "--bind-address=127.0.0.1",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={folder}/sa.pub", f"--service-account-signing-key-file={folder}/sa.key",
            f"--token-auth-file={folder}/tokens.csv", "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/24", "--runtime-config=api/all=true",
            f"--disable-admission-plugins={LEFT_OUT}",
        )  # fmt: skip
        _until(lambda: _answers(stack.port), stack)
        stack.ready_seconds, stack.ready_cpu = time.perf_counter() - started, stack.cpu()
        if controllers:
            stack.start(
                "kube-controller-manager", binaries / "kube-controller-manager",
                f"--kubeconfig={stack.kubeconfig}", "--leader-elect=false", f"--controllers={controllers}",
                "--kube-api-qps=5000", "--kube-api-burst=5000", "--bind-address=127.0.0.1",
                f"--secure-port={free_ports(1)[0]}", f"--cert-dir={folder}/kcm-certs",
            )  # fmt: skip
        yield stack


@contextlib.contextmanager
def dray(*, durable: bool = True, controllers: str = "") -> Iterator[Stack]:
    """Run `dray server` (and `dray controllers` with the controllers named)."""
    with _stack("dray") as stack:
        command: list[object] = [sys.executable, "-m", "dray", "server", "--bind-address", "127.0.0.1"]
        command += ["--data", stack.folder / "data"] if durable else ["--in-memory"]
        command += ["--token-auth-file", stack.folder / "tokens.csv", "--disable-admission-plugins", LEFT_OUT]
        stack.port = free_ports(1)[0]
        stack.kubeconfig.write_text(KUBECONFIG % (stack.port, TOKEN))
        started = time.perf_counter()
        stack.start("dray server", *command, "--secure-port", stack.port)
        _until(lambda: _answers(stack.port), stack)
        stack.ready_seconds, stack.ready_cpu = time.perf_counter() - started, stack.cpu()
        if controllers:
            stack.start(
                "dray controllers", sys.executable, "-m", "dray", "controllers",
                "--kubeconfig", stack.kubeconfig, "--controllers", controllers,
            )  # fmt: skip
        yield stack


def free_ports(n_ports: int) -> list[int]:
    """Return ports of 127.0.0.1 that nobody uses just now."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(n_ports)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


@contextlib.contextmanager
def _stack(name: str) -> Iterator[Stack]:
    folder = Path(tempfile.mkdtemp(prefix=f"dray-bench-{name}-"))
    (folder / "tokens.csv").write_text(f'{TOKEN},bench,bench,"system:masters"\n')
    stack = Stack(name, 0, folder / "kubeconfig", folder, 0.0, {})
    try:
        yield stack
    finally:
        # What it stored is thrown away, so nobody waits for kube-apiserver's long goodbye.
        _end(list(reversed(stack.processes.values())), patience=1.0)
        shutil.rmtree(folder, ignore_errors=True)


def _keys(folder: Path) -> None:
    private, public = str(folder / "sa.key"), str(folder / "sa.pub")
    subprocess.run(["openssl", "genrsa", "-out", private, "2048"], check=True, capture_output=True)
    subprocess.run(
        ["openssl", "rsa", "-in", private, "-pubout", "-out", public], check=True, capture_output=True
    )


def _end(processes: list[subprocess.Popen[bytes]], patience: float = 5.0) -> None:
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + patience
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)


def _until(condition: Callable[[], bool], stack: Stack, timeout: float = 90.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        stack.check()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{stack.name} did not become ready")
        time.sleep(0.02)


def _answers(port: int) -> bool:
    request = urllib.request.Request(
        f"https://127.0.0.1:{port}/readyz", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=2, context=unverified()) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False
