"""Ask a running kubelet who may call its port, and write its answers down (tests/recordings/node/access.jsonl).

A control plane and one node of tools/cluster are started for it: etcd, kube-apiserver, containerd and kubelet with webhook
authentication and authorisation, in namespaces of their own. It needs root and what tools/peers/build-node builds; no
container is started, so runc is not needed.

    .venv/bin/python tools/recorders/node_access.py
"""

from __future__ import annotations

import http.client
import json
import ssl
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORDING = ROOT / "tests" / "recordings" / "node" / "access.jsonl"
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools" / "cluster")]

from control_plane import ControlPlane  # noqa: E402
from credentials import Credentials  # noqa: E402
from namespaces import wait_for  # noqa: E402
from node import Node  # noqa: E402
from node_access_matrix import CALLS, NODE, ROLES, SUBJECTS, binding, role, subject_name  # noqa: E402
from rig import PEERS  # noqa: E402

KUBELET_PORT = 10250


def ask(address: str, certificate: str, token: str) -> list[tuple[int, str]]:
    """Return status and body of every call of one subject; runs in the network of the control plane."""
    answers = []
    for method, path in CALLS:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if certificate:
            context.load_cert_chain(certificate)
        connection = http.client.HTTPSConnection(address, KUBELET_PORT, timeout=60, context=context)
        connection.request(method, path, headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        answers.append((answer.status, answer.read(2000).decode("utf-8", "replace")))
        connection.close()
    return answers


class Rig:
    """A control plane and one node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.credentials = Credentials(folder / "credentials")
        self.control_plane = ControlPlane(folder / "control-plane", PEERS, self.credentials, "")
        self.control_plane.name = "access-control-plane"  # beside another cluster on the machine
        self.node = Node(NODE, 1, folder / NODE, PEERS, self.credentials, "")

    def up(self) -> None:
        """Start everything, and bind the roles."""
        self.credentials.make("10.243.0.1", {NODE: self.node.address})
        self.control_plane.boot()
        self.control_plane.start_all()
        accounts = {name: {"kind": "ServiceAccount", "namespace": "default", "name": name} for name in ROLES}
        made = [each for name in ROLES for each in (role(name), binding(name, accounts[name]))]
        admin = {**binding("monitor"), "metadata": {"name": "admin-account"}}
        admin["roleRef"] = {**admin["roleRef"], "name": "cluster-admin"}
        admin["subjects"] = [{"kind": "ServiceAccount", "namespace": "default", "name": "admin"}]
        for account in ("admin", "guest", "monitor"):
            metadata = {"name": account, "namespace": "default"}
            made.append({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
        objects = {"apiVersion": "v1", "kind": "List", "items": [*made, admin]}
        wait_for(
            lambda: self.control_plane.kubectl("get", "namespace", "default", check=False), 60, "namespace"
        )
        self.control_plane.kubectl("apply", "-f", "-", text=json.dumps(objects))
        self.node.boot_in(self.control_plane)
        self.node.start_containerd()
        self.node.start_kubelet()
        wait_for(self._listens, 120, f"kubelet: {self.node.logs / 'kubelet.log'}")

    def _listens(self) -> bool:
        if not self.node.process("kubelet"):
            raise SystemExit(f"kubelet has ended:\n{self.node.log('kubelet')}")
        return "401" in self.answers("", [], "")

    def answers(self, user: str, groups: list[str], token: str) -> str:
        """Return what kubelet answers to a subject, as JSON."""
        certificate = ""
        if user:
            self.credentials.client("asking", user, groups)
            files = [self.credentials.folder / f"asking.{end}" for end in ("crt", "key")]
            pem = self.credentials.folder / "asking.pem"
            pem.write_bytes(b"".join(file.read_bytes() for file in files))
            certificate = str(pem)
        elif token and token != "wrong":
            token = self.control_plane.kubectl("create", "token", token, "--namespace", "default").strip()
        return self.control_plane.tool(
            sys.executable, __file__, "--ask", self.node.address, certificate, token, check=False
        )

    def down(self) -> None:
        """End everything."""
        self.node.halt()
        self.control_plane.halt()
        subprocess.run(["rm", "-rf", str(self.folder)], check=False)


def record() -> None:
    """Write a row for every subject."""
    rig = Rig(Path(tempfile.mkdtemp(prefix="dray-node-access-")))
    try:
        rig.up()
        rows = []
        for user, groups, token in SUBJECTS:
            answers = json.loads(rig.answers(user, groups, token))
            row = {
                "subject": subject_name(user, groups, token),
                "statuses": [status for status, _ in answers],
                "refusals": sorted({body for status, body in answers if status in (401, 403)}),
            }
            rows.append(row)
            print(row["subject"], row["statuses"], file=sys.stderr)
    finally:
        rig.down()
    RECORDING.parent.mkdir(parents=True, exist_ok=True)
    RECORDING.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    print(f"{RECORDING.relative_to(ROOT)}: {len(rows)} subjects", file=sys.stderr)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ask"]:
        print(json.dumps(ask(*sys.argv[2:5])))
    else:
        record()
