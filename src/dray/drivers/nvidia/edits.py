"""What a container needs to use a GPU: device nodes, the driver's libraries, a little environment.

Device nodes are named by minor number; MIG devices are reached through capability
nodes whose minors the kernel lists under /proc/driver/nvidia/capabilities. The
driver's libraries must match its kernel module, so they are mounted from the host.
"""

from __future__ import annotations

from pathlib import Path

from dray.driver import ContainerEdits, DeviceNode, Mount
from dray.drivers.sysfs import read_text

CONTROL_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
LIBRARY_FOLDERS = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib/wsl/lib")
LIBRARIES = (
    "libcuda.so.*",
    "libnvidia-ml.so.*",
    "libnvidia-ptxjitcompiler.so.*",
    "libnvidia-nvvm.so.*",
    "libnvidia-cfg.so.*",
    "libcudadebugger.so.*",
    "libnvcuvid.so.*",
    "libnvidia-encode.so.*",
)
PROGRAMS = ("usr/bin/nvidia-smi", "usr/bin/nvidia-cuda-mps-control", "usr/bin/nvidia-cuda-mps-server")


class NodeFiles:
    """The files of the NVIDIA driver on this node, under a root that tests replace."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def for_gpu(self, minor: int, uuid: str) -> ContainerEdits:
        """Return the edits for a whole GPU."""
        nodes = [f"nvidia{minor}", *CONTROL_NODES]
        return self._edits(nodes, [f"GPU_DEVICE_{minor}={uuid}"])

    def for_mig(self, minor: int, instance: int, compute: int, uuid: str) -> ContainerEdits:
        """Return the edits for a MIG device: the parent's node and two capability nodes."""
        base = self._root / f"proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{instance}"
        capabilities = [self._capability(base / "access"), self._capability(base / f"ci{compute}/access")]
        nodes = [f"nvidia{minor}", *CONTROL_NODES, *(node for node in capabilities if node)]
        return self._edits(nodes, [f"MIG_DEVICE_{minor}_{instance}={uuid}"])

    def _capability(self, access: Path) -> str | None:
        for line in (read_text(access) or "").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "DeviceFileMinor":
                return f"nvidia-caps/nvidia-cap{int(value)}"
        return None

    def _edits(self, nodes: list[str], env: list[str]) -> ContainerEdits:
        present = [node for node in nodes if (self._root / "dev" / node).exists()]
        device_nodes = [
            DeviceNode(path=f"/dev/{node}", host_path=str(self._root / "dev" / node)) for node in present
        ]
        # `void` tells an NVIDIA runtime hook, where there is one, not to add GPUs on its own.
        return ContainerEdits(
            env=["NVIDIA_VISIBLE_DEVICES=void", *env], device_nodes=device_nodes, mounts=self._mounts()
        )

    def _mounts(self) -> list[Mount]:
        options = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
        mounts = []
        for folder in LIBRARY_FOLDERS:
            for pattern in LIBRARIES:
                for found in sorted((self._root / folder).glob(pattern)):
                    mounts.append(
                        Mount(host_path=str(found), container_path=f"/{folder}/{found.name}", options=options)
                    )
        for program in PROGRAMS:
            if (self._root / program).exists():
                mounts.append(
                    Mount(host_path=str(self._root / program), container_path=f"/{program}", options=options)
                )
        return mounts
