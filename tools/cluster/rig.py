"""A whole Kubernetes cluster of real programs on one machine: a control plane and nodes, each a machine of namespaces.

The programs are those that tools/peers/build and tools/peers/build-node made; the images are local archives.
"""

import os
import shutil
import subprocess
from pathlib import Path

import images
from control_plane import ControlPlane
from credentials import Credentials
from namespaces import PATIENCE, ClusterError, missing_tools, wait_for
from node import OWN_FOLDERS, Node

PROJECT = Path(__file__).resolve().parents[2]
VERSION = os.environ.get("KUBERNETES_VERSION", "v1.37.1")
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "dray"
PEERS = Path(os.environ.get("DRAY_PEERS", CACHE / "peers" / VERSION))
STATE = Path(os.environ.get("DRAY_CLUSTER", CACHE / "cluster"))
# Named after simulated hardware, as the examples expect their nodes.
NODES = ("workstation-1", "dgx-h100-1")
PROGRAMS = (
    "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet", "containerd",
    "containerd-shim-runc-v2", "ctr", "cni/bridge", "cni/host-local", "cni/loopback", "helm",
)  # fmt: skip


class Cluster:
    """A cluster; what it needs to be found again is in a folder."""

    def __init__(self, state: Path = STATE, peers: Path = PEERS, gates: str = "") -> None:
        self.state = state
        self.peers = peers
        self.credentials = Credentials(state / "credentials")
        self.control_plane = ControlPlane(state / "control-plane", peers, self.credentials, gates)
        self.nodes = [
            Node(name, number, state / name, peers, self.credentials, gates)
            for number, name in enumerate(NODES, 1)
        ]

    def up(self) -> None:
        """Start everything; returns when all nodes are ready."""
        self.check()
        self.down()
        addresses = {node.name: node.address for node in self.nodes}
        self.credentials.make("10.243.0.1", addresses)
        archives = images.make_images(CACHE / "images")
        self.control_plane.boot()
        self.control_plane.start_all()
        for node in self.nodes:
            node.boot_in(self.control_plane)
            node.start_containerd()
            for archive in archives:
                node.load(archive)
            node.start_kubelet()
        for node in self.nodes:
            wait_for(
                lambda node=node: self.is_ready(node),
                PATIENCE,
                f"the node {node.name}: {node.logs / 'kubelet.log'}",
            )

    def check(self) -> None:
        """Raise an error that names what this machine lacks."""
        if os.geteuid() != 0:
            raise ClusterError("a cluster needs root: namespaces, mounts and containers are made")
        if missing := missing_tools():
            raise ClusterError(
                f"these programs are missing: {', '.join(missing)} (Debian: apt-get install runc iproute2)"
            )
        if lacking := [name for name in PROGRAMS if not os.access(self.peers / name, os.X_OK)]:
            raise ClusterError(f"not built yet: {', '.join(lacking)}; run tools/peers/build-node")

    def down(self) -> None:
        """End everything and remove the state."""
        for machine in (*self.nodes, self.control_plane):
            machine.halt()
        shutil.rmtree(self.state, ignore_errors=True)
        if self.state.exists():  # a file that a dying process wrote in between
            subprocess.run(["rm", "-rf", str(self.state)], check=True)
        for place in OWN_FOLDERS:
            if os.path.isdir(place) and not os.listdir(place):
                os.rmdir(place)
        remove_cgroups()

    def is_ready(self, node: Node) -> bool:
        """Return whether a node says that it is ready."""
        if not node.process("kubelet"):
            raise ClusterError(f"kubelet has ended on {node.name}:\n{node.log('kubelet')}")
        path = "{.status.conditions[?(@.type=='Ready')].status}"
        return self.kubectl("get", "node", node.name, "-o", f"jsonpath={path}", check=False) == "True"

    def load(self, archive: Path) -> None:
        """Bring an image onto all nodes."""
        for node in self.nodes:
            node.load(archive)

    def kubectl(self, *words: object, text: str | None = None, check: bool = True) -> str:
        """Run kubectl as an administrator."""
        return self.control_plane.kubectl(*words, text=text, check=check)

    def helm(self, *words: object, check: bool = True) -> str:
        """Run helm as an administrator."""
        config = self.credentials.kubeconfig("admin")
        return self.control_plane.tool(self.peers / "helm", "--kubeconfig", config, *words, check=check)


def remove_cgroups() -> None:
    """Remove the cgroups that containers left, in every hierarchy."""
    for top in Path("/sys/fs/cgroup").glob("*/k8s.io"):
        for folder, _, _ in os.walk(top, topdown=False):
            try:
                os.rmdir(folder)
            except OSError:
                pass  # another cluster's, or not empty yet
