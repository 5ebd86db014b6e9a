"""The authorisation matrix as kube-apiserver sees it: the table in the tests is its own.

`python tests/e2e/test_authorisation_reference.py` writes the table anew.
"""

import contextlib
import json
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import peers
from authorisation_matrix import (
    ADMIN,
    DRIVER,
    JSON,
    RBAC,
    ROBOT,
    TABLE,
    TEAM,
    TOKENS,
    matrix,
    preparation,
    read_table,
    write_table,
)

from dray.server.auth.rbac_objects import bootstrap_objects

DRIVER_ROLE = "dray:driver"


class Server:
    """Sends requests of the matrix over HTTPS."""

    def __init__(self, url):
        self.url = url
        self.tls = ssl.create_default_context()
        self.tls.check_hostname, self.tls.verify_mode = False, ssl.CERT_NONE
        self.tokens = {}

    def send(self, token, method, path, body=None, content=JSON):
        """Return status and body; a stream is left after its head."""
        token = self.tokens.get(token, token)
        headers = {"Content-Type": content} | ({"Authorization": f"Bearer {token}"} if token else {})
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, context=self.tls, timeout=60) as response:
                return response.status, b"" if "watch=1" in path else response.read()
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.read()

    def ask(self, token, row):
        _, method, path, body, content = row
        return self.send(token, method, path, body, content)[0]

    def prepare(self):
        """Create what the rows speak of, and the tokens of the service accounts."""
        role = next(found for _, found in bootstrap_objects() if found["metadata"]["name"] == DRIVER_ROLE)
        role = {"metadata": {"name": "test-driver"}, "rules": role["rules"]}
        # All controllers of dray are one user, who has the roles of Kubernetes' controllers: bind them here as well.
        for resource, made in bootstrap_objects():
            name, namespace = made["metadata"]["name"], made["metadata"].get("namespace")
            if name.startswith("dray:"):
                place = f"{RBAC}/namespaces/{namespace}/{resource}" if namespace else f"{RBAC}/{resource}"
                self._until(lambda place=place, made=made: self.send(ADMIN, "POST", place, made), (201, 409))
        for path, body in preparation(role):
            self._until(lambda path=path, body=body: self.send(ADMIN, "POST", path, body), (201, 409))
        for token, name in ((ROBOT, "robot"), (DRIVER, "driver")):
            asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
            _, body = self.send(ADMIN, "POST", f"{TEAM}/serviceaccounts/{name}/token", asked)
            self.tokens[token] = json.loads(body)["status"]["token"]
        # Authorisation follows its own caches a moment later.
        self._until(lambda: self.send("editor", "GET", f"{TEAM}/secrets"), (200,))
        self._until(lambda: self.send("n2", "GET", f"{TEAM}/secrets/s2"), (200,))
        time.sleep(1)

    def _until(self, send, wanted):
        limit = time.monotonic() + 30
        while True:
            code, body = send()
            if code in wanted:
                return
            assert time.monotonic() < limit, body
            time.sleep(0.2)


@contextlib.contextmanager
def kubernetes():
    binaries = peers.kubernetes_binaries()
    if binaries is None:
        pytest.skip(f"no kube-apiserver under {peers.CACHE}: run tools/peers/build")
    with peers._workplace("dray-matrix-kube-", signal.SIGKILL) as (folder, processes):
        port, etcd_port, peer_port = peers.free_port(), peers.free_port(), peers.free_port()
        etcd, peer = f"http://127.0.0.1:{etcd_port}", f"http://127.0.0.1:{peer_port}"
        processes.start(
            "etcd", binaries / "etcd", "--data-dir", folder / "etcd", "--listen-client-urls", etcd,
            "--advertise-client-urls", etcd, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"default={peer}", "--unsafe-no-fsync", "--log-level", "error",
        )  # fmt: skip
        key = str(folder / "sa.key")
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        (folder / "tokens.csv").write_text(TOKENS)
        processes.start(
            "apiserver", binaries / "kube-apiserver", f"--etcd-servers={etcd}", f"--cert-dir={folder}/certs",
            f"--secure-port={port}", "--bind-address=127.0.0.1", "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}",
            f"--token-auth-file={folder}/tokens.csv", "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
        )  # fmt: skip
        peers._until_ready(f"https://127.0.0.1:{port}/readyz", processes)
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(peers.KUBECONFIG % port)
        # The roles for people are empty until a controller has gathered their rules.
        processes.start(
            "kcm", binaries / "kube-controller-manager", f"--kubeconfig={kubeconfig}", "--leader-elect=false",
            "--controllers=clusterrole-aggregation-controller", "--bind-address=127.0.0.1",
            f"--secure-port={peers.free_port()}", f"--cert-dir={folder}/kcm-certs",
        )  # fmt: skip
        yield Server(f"https://127.0.0.1:{port}")


def reference_matrix():
    with kubernetes() as server:
        server.prepare()
        return matrix(server.ask)


@pytest.mark.kubernetes
def test_the_table_is_what_kubernetes_answers():
    assert reference_matrix() == read_table(TABLE.read_text())


if __name__ == "__main__":
    TABLE.write_text(write_table(reference_matrix()))
