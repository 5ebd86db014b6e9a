"""The machine of a node: containerd with runc and CNI, and kubelet.

Some machines that tests run on (containers, small virtual machines) withhold rights that a node has. What is done about it,
and does nothing where the rights are there:

  * `runc` is called through a wrapper that leaves out resource limits, CAP_SYS_RESOURCE and negative OOM scores where this
    process may not set them, and the cgroup namespace where cgroup v1 is mounted beside v2;
  * kubelet accepts cgroup v1, does not manage cgroups of pods, and sees files with the values it wants in place of kernel
    settings, which belong to the host.
"""

import json
import os
import shutil
import sys
from pathlib import Path

import images
from control_plane import ADDRESS, NETWORK, ControlPlane
from credentials import Credentials
from namespaces import PATIENCE, Machine, wait_for

# What kubelet would set in the kernel of the host: it sees these values instead.
KERNEL_SETTINGS = {
    "vm/overcommit_memory": 1, "vm/panic_on_oom": 0, "kernel/panic": 10, "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000, "kernel/keys/root_maxbytes": 25000000,
}  # fmt: skip
# Folders of a node that must not be the host's: place in the machine -> folder below the state.
OWN_FOLDERS = {
    "/var/lib/kubelet": "kubelet", "/var/run/cdi": "cdi", "/etc/cdi": "etc-cdi", "/var/log/pods": "pods",
    "/var/log/containers": "containers", "/run/containerd": "run-containerd", "/var/lib/containerd": "containerd",
    "/var/lib/cni": "cni-state", "/run/dray": "run-dray",
}  # fmt: skip
RUNC_WRAPPER = '''#!{python} -SE
"""runc with the rights that this machine has."""
import json, os, sys

RUNC, WITHOUT_LIMITS, WITHOUT_CGROUP_NAMESPACE = {settings!r}


def confine(process):
    process.pop("rlimits", None)
    process["oomScoreAdj"] = max(process.get("oomScoreAdj") or 0, 0)
    for names in (process.get("capabilities") or {{}}).values():
        names[:] = [name for name in names if name != "CAP_SYS_RESOURCE"]


def option(*names):
    for index, word in enumerate(sys.argv):
        if word in names:
            return sys.argv[index + 1]
        if word.partition("=")[0] in names:
            return word.partition("=")[2]


bundle, process = option("--bundle", "-b"), option("--process", "-p")
path = os.path.join(bundle, "config.json") if bundle and "create" in sys.argv else process if "exec" in sys.argv else None
if path:
    with open(path) as file:
        spec = json.load(file)
    if WITHOUT_LIMITS:
        confine(spec.get("process", spec))
    if WITHOUT_CGROUP_NAMESPACE and "linux" in spec:
        spec["linux"]["namespaces"] = [kind for kind in spec["linux"]["namespaces"] if kind["type"] != "cgroup"]
    with open(path, "w") as file:
        json.dump(spec, file)
os.execv(RUNC, ["runc", *sys.argv[1:]])
'''
CAP_SYS_RESOURCE = 24


class Node(Machine):
    """A machine that runs pods; the number decides its addresses."""

    def __init__(
        self, name: str, number: int, folder: Path, peers: Path, credentials: Credentials, gates: str
    ) -> None:
        super().__init__(name, folder)
        self.number = number
        self.address = f"{NETWORK}.{10 + number}"
        self.pod_network = f"10.244.{number}"
        self.peers = peers
        self.credentials = credentials
        self.gates = gates
        self.socket = "/run/containerd/containerd.sock"

    # --- the machine ----------------------------------------------------------------

    def boot_in(self, control_plane: ControlPlane) -> None:
        """Make the machine and plug it into the control plane's network."""
        super().boot()
        for place, name in OWN_FOLDERS.items():
            (self.folder / name).mkdir(exist_ok=True)
            Path(place).mkdir(parents=True, exist_ok=True)  # a place to mount on; it stays empty on the host
            self.bind(self.folder / name, place)
        for setting, value in KERNEL_SETTINGS.items():
            file = self.folder / "settings" / setting.replace("/", ".")
            file.parent.mkdir(exist_ok=True)
            file.write_text(f"{value}\n")
            if Path("/proc/sys", setting).exists():
                self.bind(file, f"/proc/sys/{setting}")
        hosts = self.folder / "hosts"
        hosts.write_text(f"127.0.0.1 localhost\n{self.address} {self.name}\n")
        self.bind(hosts, "/etc/hosts")
        self.connect(control_plane)

    def connect(self, control_plane: ControlPlane) -> None:
        """Lay a cable to the control plane, and make the bridge of the pods."""
        port = f"node{self.number}"
        # By the host's numbers: inside the control plane's PID namespace ours mean nothing.
        control_plane.tool(
            "ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", self.pid
        )
        control_plane.run("ip", "link", "set", port, "master", "nodes", "up")
        control_plane.run("ip", "route", "add", f"{self.pod_network}.0/24", "via", self.address)
        self.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")
        self.run("ip", "route", "add", "default", "via", ADDRESS)
        # With a fixed address: a bridge otherwise takes that of its first port, and pods lose their gateway for a while.
        self.run(
            "ip", "link", "add", "pods", "address", f"0a:00:00:00:00:{self.number:02x}", "type", "bridge"
        )
        self.run("ip", "address", "add", f"{self.pod_network}.1/24", "dev", "pods")
        self.run("ip", "link", "set", "pods", "up")

    # --- programs -------------------------------------------------------------------

    def start_containerd(self) -> None:
        """Start the container runtime."""
        network = self.folder / "cni"
        network.mkdir(exist_ok=True)
        (network / "10-pods.conflist").write_text(json.dumps(self._network()))
        wrapper = self.folder / "runc"
        wrapper.write_text(
            RUNC_WRAPPER.format(python=os.path.realpath(sys.executable), settings=runc_settings())
        )
        wrapper.chmod(0o755)
        (self.folder / "containerd.toml").write_text(
            f"""version = 3
[grpc]
  address = "{self.socket}"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'overlayfs'
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = '{images.PAUSE}'
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  disable_apparmor = true
  enable_cdi = true
  cdi_spec_dirs = ['/etc/cdi', '/var/run/cdi']
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['{self.peers}/cni']
    conf_dir = '{network}'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = 'io.containerd.runc.v2'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = '{wrapper}'
      SystemdCgroup = false
"""
        )
        path = f"{self.peers}:{os.environ['PATH']}"  # the shim is found there
        self.start(
            "containerd",
            self.peers / "containerd",
            "-c",
            self.folder / "containerd.toml",
            environment={"PATH": path},
        )
        wait_for(
            lambda: "Server:" in self.ctr("version", check=False),
            PATIENCE,
            f"containerd on {self.name}: {self.logs / 'containerd.log'}",
        )

    def _network(self) -> dict[str, object]:
        return {
            "cniVersion": "1.0.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "pods",
                    "isGateway": True,
                    "ipMasq": False,
                    "hairpinMode": True,
                    "ipam": {
                        "type": "host-local",
                        "ranges": [[{"subnet": f"{self.pod_network}.0/24"}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                }
            ],
        }

    def ctr(self, *words: object, check: bool = True) -> str:
        """Run containerd's own client."""
        return self.run(
            self.peers / "ctr", "--address", self.socket, "--namespace", "k8s.io", *words, check=check
        )

    def load(self, archive: Path) -> None:
        """Bring an image onto the node."""
        self.ctr("images", "import", archive)

    def start_kubelet(self) -> None:
        """Start kubelet."""
        pki = self.credentials.folder
        configuration = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "0.0.0.0",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": f"{pki}/ca.crt"},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": f"{pki}/{self.name}-serving.crt",
            "tlsPrivateKeyFile": f"{pki}/{self.name}-serving.key",
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "maxOpenFiles": 10000,
            "localStorageCapacityIsolation": False,
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "resolvConf": "",
            "nodeStatusUpdateFrequency": "4s",
            "syncFrequency": "20s",
            "featureGates": dict(self._gates()),
        }
        (self.folder / "kubelet.json").write_text(json.dumps(configuration, indent=1))
        self.start(
            "kubelet", self.peers / "kubelet", f"--config={self.folder / 'kubelet.json'}",
            f"--kubeconfig={self.credentials.kubeconfig(self.name)}", f"--hostname-override={self.name}",
            f"--node-ip={self.address}", "--v=3",
        )  # fmt: skip

    def _gates(self) -> list[tuple[str, bool]]:
        pairs = (gate.partition("=") for gate in self.gates.split(",") if gate)
        return [(name, value == "true") for name, _, value in pairs]


def runc_settings() -> tuple[str, bool, bool]:
    """Return where runc is, and what it must leave out on this machine."""
    bounding = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapBnd")
    )
    may_set_limits = bool(int(bounding.split()[1], 16) >> CAP_SYS_RESOURCE & 1)
    is_unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    return shutil.which("runc") or "runc", not may_set_limits, not is_unified
