"""Start API servers as real processes: Kubernetes itself, and dray's own.

Both give a kubeconfig, so that a case is written once and runs on both. The binaries of
Kubernetes are those that tools/peers/build puts into ~/.cache/dray/peers; where they are
missing the tests that need them are skipped, and say so.
"""

import base64
import contextlib
import functools
import random
import re
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
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from bench import stacks
from dray.api.features import KNOWN_GATES
from dray.server.auth import pki

CACHE = stacks.CACHE
BINARIES = ("etcd", "kube-apiserver", "kube-controller-manager")
CONTROLLERS = (
    "resourceclaim-controller,namespace-controller,garbage-collector-controller,pod-garbage-collector-controller,"
    "persistentvolume-binder-controller,ephemeral-volume-controller"
)
KUBECONFIG = """apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:%d", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: admintoken}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""


def kubernetes_binaries() -> Path | None:
    """Return the folder of Kubernetes' binaries: of KUBERNETES_VERSION, or the newest complete set."""
    return stacks.kubernetes_binaries(BINARIES)


@functools.cache
def listed_gates(program: Path) -> dict[str, bool]:
    """Return the feature gates that a program lists, with their defaults; those that are stable are not listed."""
    text = subprocess.run([program, "--help"], capture_output=True, text=True, check=True, timeout=60).stdout
    found = re.findall(r"^\s*(?:kube:)?(\w+)=true\|false \(\w+ - default=(\w+)\)", text, re.MULTILINE)
    return {name: value == "true" for name, value in found}


def gates_of_version(program: Path, gates: str) -> str:
    """Return the gates that this version of a program has, with those on that are on by default today.

    With a gate that it does not have a program refuses to start.
    """
    listed = listed_gates(program)
    wanted = [each for each in gates.split(",") if each.partition("=")[0] in listed]
    by_default = [
        f"{name}=true" for name, is_on in KNOWN_GATES.items() if is_on and listed.get(name) is False
    ]
    return ",".join([*by_default, *wanted])


def lacks(gate: str) -> str:
    """Return why the kube-apiserver of this run cannot have a feature, empty if it can."""
    binaries = kubernetes_binaries()
    if binaries is None or gate in listed_gates(binaries / "kube-apiserver"):
        return ""
    return f"kube-apiserver {binaries.name} does not have {gate}"


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody uses just now.

    It is below those that systems give out by themselves: those may be gone before our process takes it.
    """
    while True:
        port = random.SystemRandom().randrange(12000, 30000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Processes:
    """Processes that die with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: list[tuple[str, subprocess.Popen]] = []

    def start(self, name: str, *command: object) -> subprocess.Popen:
        """Start a process; its output goes to `<name>.log`."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(part) for part in command], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        self._running.append((name, process))
        return process

    def log(self, name: str) -> str:
        """Return the end of what a process has said."""
        return (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]

    def check(self) -> None:
        """Fail when one has ended."""
        for name, process in self._running:
            if process.poll() is not None:
                raise RuntimeError(f"{name} ended with {process.returncode}:\n{self.log(name)}")

    def stop(self, number: int) -> None:
        """End all, the last one first."""
        for _, process in reversed(self._running):
            if process.poll() is None:
                process.send_signal(number)
        for _, process in reversed(self._running):
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(60)


class Peer:
    """A running API server."""

    def __init__(
        self, kind: str, kubeconfig: Path, processes: Processes, node_client_ca: Path, etcd: str = ""
    ) -> None:
        self.kind = kind  # kubernetes or dray
        self.kubeconfig = kubeconfig
        self.processes = processes
        self.node_client_ca = node_client_ca  # of the certificate that the server shows to node agents
        self.etcd = etcd  # address of its store, where it has one


@contextlib.contextmanager
def _workplace(prefix: str, end: int = signal.SIGTERM):
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    processes = Processes(folder)
    try:
        yield folder, processes
    finally:
        processes.stop(end)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def kubernetes(
    gates: str = "", runtime_config: str = "api/all=true", controllers: str = CONTROLLERS, version: str = ""
):
    """Run etcd, kube-apiserver and kube-controller-manager (unless without controllers) on loopback.

    In the end they are killed: nothing of theirs is kept, and to say goodbye takes them many seconds.
    """
    binaries = CACHE / version if version else kubernetes_binaries()
    if binaries is None:
        pytest.skip(f"no kube-apiserver under {CACHE}: run tools/peers/build")
    gates = gates_of_version(binaries / "kube-apiserver", gates)
    with _workplace("dray-kube-", signal.SIGKILL) as (folder, processes):
        port, etcd_port, peer_port = free_port(), free_port(), free_port()
        etcd, peer = f"http://127.0.0.1:{etcd_port}", f"http://127.0.0.1:{peer_port}"
        processes.start(
            "etcd", binaries / "etcd", "--data-dir", folder / "etcd", "--listen-client-urls", etcd,
            "--advertise-client-urls", etcd, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"default={peer}", "--unsafe-no-fsync", "--log-level", "error",
        )  # fmt: skip
        openssl = ["openssl", "genrsa", "-out", str(folder / "sa.key"), "2048"]
        subprocess.run(openssl, check=True, capture_output=True)
        openssl = ["openssl", "rsa", "-in", str(folder / "sa.key"), "-pubout", "-out", str(folder / "sa.pub")]
        subprocess.run(openssl, check=True, capture_output=True)
        (folder / "tokens.csv").write_text('admintoken,admin,admin,"system:masters"\n')
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(KUBECONFIG % port)
        node_client = pki.prepare(folder / "node-client", [], datetime.now(UTC))
        # What kubeadm gives to kube-apiserver; bound to system:masters, as most clusters do.
        pair = node_client.client_pair("kube-apiserver-kubelet-client", ["system:masters"], datetime.now(UTC))
        (folder / "node-client.crt").write_bytes(pair.certificate_pem)
        (folder / "node-client.key").write_bytes(pair.key_pem)
        processes.start(
            "apiserver", binaries / "kube-apiserver", f"--etcd-servers={etcd}", f"--cert-dir={folder}/certs",
            f"--secure-port={port}", "--bind-address=127.0.0.1", "--allow-privileged=true",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={folder}/sa.pub", f"--service-account-signing-key-file={folder}/sa.key",
            f"--token-auth-file={folder}/tokens.csv", "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/24", f"--runtime-config={runtime_config}",
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            f"--kubelet-client-certificate={folder}/node-client.crt",
            f"--kubelet-client-key={folder}/node-client.key",
            *([f"--feature-gates={gates}"] if gates else []),
        )  # fmt: skip
        _until_ready(f"https://127.0.0.1:{port}/readyz", processes)
        if not controllers:
            yield Peer("kubernetes", kubeconfig, processes, node_client.ca_file, etcd)
            return
        processes.start(
            "kcm", binaries / "kube-controller-manager", f"--kubeconfig={kubeconfig}", "--leader-elect=false",
            f"--controllers={controllers}", "--kube-api-qps=500", "--kube-api-burst=500", "--bind-address=127.0.0.1",
            f"--secure-port={free_port()}", f"--cert-dir={folder}/kcm-certs",
            *([f"--feature-gates={gates}"] if gates else []),
        )  # fmt: skip
        yield Peer("kubernetes", kubeconfig, processes, node_client.ca_file, etcd)


@contextlib.contextmanager
def dray_server(gates: str = "", controllers: str = "*", runtime_config: str = ""):
    """Run `dray server --in-memory` and `dray controllers`, each as a process."""
    with _workplace("dray-own-") as (folder, processes):
        kubeconfig = folder / "kubeconfig"
        command = [sys.executable, "-m", "dray", "server", "--in-memory", "--secure-port", "0"]
        command += ["--bind-address", "127.0.0.1", "--kubeconfig", kubeconfig]
        command += ["--feature-gates", gates] if gates else []
        command += ["--runtime-config", runtime_config] if runtime_config else []
        processes.start("server", *command)
        _until(lambda: kubeconfig.exists() and "ready" in processes.log("server"), processes)
        if controllers:
            processes.start(
                "controllers", sys.executable, "-m", "dray", "controllers", "--kubeconfig", kubeconfig,
                "--controllers", controllers,
            )  # fmt: skip
        authority = yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]
        (folder / "ca.crt").write_bytes(base64.b64decode(authority["certificate-authority-data"]))
        yield Peer("dray", kubeconfig, processes, folder / "ca.crt")


def _until(condition, processes: Processes, timeout: float = 120.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        processes.check()
        if time.monotonic() > deadline:
            raise TimeoutError("a server did not become ready")
        time.sleep(0.05)


def _until_ready(url: str, processes: Processes) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def answers() -> bool:
        try:
            request = urllib.request.Request(url, headers={"Authorization": "Bearer admintoken"})
            with urllib.request.urlopen(request, timeout=10, context=context) as response:
                return response.status == 200
        except (OSError, urllib.error.URLError):
            return False

    _until(answers, processes)
