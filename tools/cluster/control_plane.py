"""The machine of the control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler.

It is also the router of the cluster: nodes hang on its bridge, and the address of the Service `kubernetes` is its own. There is
no kube-proxy: pods reach the API server by routing, and the API server reaches webhooks by their endpoints
(--enable-aggregator-routing).
"""

import subprocess
from pathlib import Path

from credentials import SERVICE_ADDRESS, Credentials
from namespaces import PATIENCE, ClusterError, Machine, wait_for

ADDRESS = "10.243.0.1"
NETWORK = "10.243.0"  # of the machines; pods of node n are in 10.244.n.0/24


class ControlPlane(Machine):
    """The machine that decides."""

    def __init__(self, folder: Path, peers: Path, credentials: Credentials, gates: str) -> None:
        super().__init__("dray-control-plane", folder)
        self.peers = peers
        self.credentials = credentials
        self.gates = gates  # feature gates of all programs: A=true,B=false

    def boot(self) -> None:
        """Make the machine and its network."""
        super().boot()
        self.run("ip", "link", "add", "nodes", "type", "bridge")
        self.run("ip", "address", "add", f"{ADDRESS}/24", "dev", "nodes")
        self.run("ip", "link", "set", "nodes", "up")
        self.run("ip", "address", "add", f"{SERVICE_ADDRESS}/32", "dev", "lo")

    def start_all(self) -> None:
        """Start the programs and wait until the API server is ready."""
        etcd = "http://127.0.0.1:2379"
        self.start(
            "etcd", self.peers / "etcd", "--data-dir", self.folder / "etcd", "--listen-client-urls", etcd,
            "--advertise-client-urls", etcd, "--listen-peer-urls", "http://127.0.0.1:2380", "--unsafe-no-fsync",
            "--log-level", "warn",
        )  # fmt: skip
        self.start_apiserver(etcd)
        wait_for(
            self.is_ready, PATIENCE, "kube-apiserver; its log:\n" + str(self.logs / "kube-apiserver.log")
        )
        self.start_controller_manager()
        self.start_scheduler()

    def start_apiserver(self, etcd: str) -> None:
        """Start kube-apiserver."""
        pki = self.credentials.folder
        self.start(
            "kube-apiserver", self.peers / "kube-apiserver", f"--etcd-servers={etcd}",
            "--secure-port=443", "--bind-address=0.0.0.0", f"--advertise-address={ADDRESS}",
            f"--tls-cert-file={pki}/apiserver.crt", f"--tls-private-key-file={pki}/apiserver.key",
            f"--client-ca-file={pki}/ca.crt", f"--service-account-key-file={pki}/sa.pub",
            f"--service-account-signing-key-file={pki}/sa.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--kubelet-client-certificate={pki}/apiserver-kubelet.crt",
            f"--kubelet-client-key={pki}/apiserver-kubelet.key", f"--kubelet-certificate-authority={pki}/ca.crt",
            "--kubelet-preferred-address-types=InternalIP", "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction", "--service-cluster-ip-range=10.96.0.0/16",
            "--allow-privileged=true", "--enable-aggregator-routing=true", *self._gates(),
            "--runtime-config=api/all=true",
        )  # fmt: skip

    def start_controller_manager(self) -> None:
        """Start kube-controller-manager."""
        pki, config = self.credentials.folder, self.credentials.kubeconfig("controller-manager")
        self.start(
            "kube-controller-manager", self.peers / "kube-controller-manager", f"--kubeconfig={config}",
            f"--service-account-private-key-file={pki}/sa.key", f"--root-ca-file={pki}/ca.crt",
            "--use-service-account-credentials", "--leader-elect=false", "--resource-quota-sync-period=5s",
            *self._gates(),
            "--node-monitor-grace-period=120s",  # a kubelet that gets no processor for a minute is not gone
        )  # fmt: skip

    def start_scheduler(self) -> None:
        """Start kube-scheduler."""
        config = self.credentials.kubeconfig("scheduler")
        self.start(
            "kube-scheduler", self.peers / "kube-scheduler", f"--kubeconfig={config}", "--leader-elect=false", *self._gates()
        )  # fmt: skip

    def _gates(self) -> list[str]:
        return [f"--feature-gates={self.gates}"] if self.gates else []

    def kubectl(self, *words: object, text: str | None = None, check: bool = True) -> str:
        """Run kubectl as an administrator and return what it printed."""
        command = [self.peers / "kubectl", "--kubeconfig", self.credentials.kubeconfig("admin"), *words]
        return self.tool(*command, text=text, check=check)

    def tool(self, *command: object, text: str | None = None, check: bool = True) -> str:
        """Run a client's program in the network of the control plane, in the host's file system."""
        entered = ["nsenter", "--target", str(self.pid), "--net", "--", *map(str, command)]
        done = subprocess.run(entered, input=text, capture_output=True, text=True, check=False, timeout=900)
        if check and done.returncode != 0:
            name = " ".join(str(word) for word in command if "kubeconfig" not in str(word))
            raise ClusterError(f"{name}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def is_ready(self) -> bool:
        """Return whether the API server says that it is ready."""
        if not self.process("kube-apiserver"):
            raise ClusterError(f"kube-apiserver has ended:\n{self.log('kube-apiserver')}")
        return self.kubectl("get", "--raw", "/readyz", check=False).strip() == "ok"
