"""Certificates, the key for service account tokens, and kubeconfigs: what kubeadm would make."""

from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from dray.certificates import (
    Pair,
    make_ca,
    make_client_certificate,
    make_key,
    make_serving_certificate,
    private_pem,
    write_pair,
)

SERVICE_ADDRESS = "10.96.0.1"  # of the Service `kubernetes`
KUBECONFIG = """apiVersion: v1
kind: Config
clusters: [{{name: cluster, cluster: {{server: "https://{address}:443", certificate-authority: {folder}/ca.crt}}}}]
users: [{{name: user, user: {{client-certificate: {folder}/{name}.crt, client-key: {folder}/{name}.key}}}}]
contexts: [{{name: context, context: {{cluster: cluster, user: user}}}}]
current-context: context
"""


class Credentials:
    """The folder of certificates and kubeconfigs of one cluster."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = datetime.now(UTC)
        self._ca: Pair | None = None

    def make(self, control_plane: str, nodes: dict[str, str]) -> None:
        """Make everything for a control plane at an address and nodes (name -> address)."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._ca = make_ca("kubernetes", self.now)
        write_pair(self.folder / "ca.crt", self.folder / "ca.key", self._ca)
        key = make_key()
        (self.folder / "sa.key").write_bytes(private_pem(key))
        public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        (self.folder / "sa.pub").write_bytes(public)
        self.serving(
            "apiserver", [SERVICE_ADDRESS, control_plane, "127.0.0.1", "localhost", "kubernetes.default.svc"]
        )
        self.client("admin", "admin", ["system:masters"])
        self.client("apiserver-kubelet", "kube-apiserver-kubelet", ["system:masters"])
        self.client("controller-manager", "system:kube-controller-manager")
        self.client("scheduler", "system:kube-scheduler")
        for name, address in nodes.items():
            self.serving(f"{name}-serving", [name, address, "127.0.0.1"])
            self.client(name, f"system:node:{name}", ["system:nodes"])

    def serving(self, name: str, hosts: list[str]) -> None:
        """Make a certificate for a server."""
        assert self._ca is not None
        pair = make_serving_certificate(self._ca, hosts[0], hosts, self.now)
        write_pair(self.folder / f"{name}.crt", self.folder / f"{name}.key", pair)

    def client(self, name: str, user: str, groups: list[str] | None = None) -> None:
        """Make a certificate for a user, and a kubeconfig."""
        assert self._ca is not None
        pair = make_client_certificate(self._ca, user, groups or [], self.now)
        write_pair(self.folder / f"{name}.crt", self.folder / f"{name}.key", pair)
        text = KUBECONFIG.format(address=SERVICE_ADDRESS, folder=self.folder, name=name)
        self.kubeconfig(name).write_text(text)

    def kubeconfig(self, name: str) -> Path:
        """Return the path of a kubeconfig."""
        return self.folder / f"{name}.conf"
