"""The `runc` runtime: real containers, with walls. Needs root and the `runc` program.

Each container is an OCI bundle: a root filesystem (see `images`), mounted read-only
with fresh /tmp and /run, and a config.json made from the pod's spec, into which the
edits of its CDI devices are merged. Device nodes that no CDI device brings are not
there, and the device cgroup forbids making them: a container sees what it was given.

Containers share the host's network, unless a claim of the pod brings a network interface: then
the containers of the pod share a network namespace with that interface and a loopback; probes over
HTTP or TCP do not reach into it. Rlimits and seccomp profiles are left out.

The shim of the `process` runtime waits for `runc run` as it waits for any command,
so logs, exit codes and survival of the agent work in the same way.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from dray.api.cdi import Hook
from dray.api.quantity import parse_quantity
from dray.host.namespaces import make_network_namespace, unpin
from dray.host.private_files import write_private_text
from dray.node.cdi import apply_edits, merge_env
from dray.node.runtime.contract import Launch, OnExit, StartError
from dray.node.runtime.credentials import Credentials, credentials_of
from dray.node.runtime.images import Image, ImageStore
from dray.node.runtime.process import ProcessRuntime, _Running

_CAPABILITIES = [
    "CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
]  # fmt: skip
_DEFAULT_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MASKED = ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/scsi", "/sys/firmware"]


class RuncRuntime(ProcessRuntime):
    """Containers by runc; see the module's text."""

    name = "runc"
    _has_own_tmp = True

    def __init__(
        self, root: Path, on_exit: OnExit, *, images: Path | None = None, program: str = "runc"
    ) -> None:
        super().__init__(root, on_exit)
        self._program = shutil.which(program) or program
        self._state = root / "runc"
        self._images = ImageStore(images, root / "images")
        if shutil.which(program) is None:
            raise FileNotFoundError(
                f"the program {program!r} is not on this machine; install runc or use --runtime process"
            )

    async def _command_line(self, launch: Launch, folder: Path) -> tuple[list[str], list[str], str]:
        """Make the bundle and return the line that runs it."""
        image = await asyncio.to_thread(self._images.find, launch.container.image)
        network = self._network(launch.id.pod_uid) if launch.needs_pod_network else None
        if network is not None:
            await asyncio.to_thread(make_network_namespace, network)
        config = apply_edits(oci_config(launch, image, network), launch.edits)
        write_private_text(folder / "config.json", msgspec.json.encode(config).decode())
        # A life that was cut short may have left a container of this name.
        await self._runc("delete", "--force", str(launch.id))
        line = [*self._base(), "run", "--bundle", str(folder), str(launch.id)]
        return line, [f"PATH={os.environ.get('PATH', os.defpath)}"], "/"

    def _network(self, pod_uid: str) -> Path:
        return self._node_root / "networks" / pod_uid

    def _early_hooks(self, launch: Launch) -> list[Hook]:
        return []  # runc runs them, from the config

    def _make_groups(self, launch: Launch) -> list[str]:
        return []  # runc makes them, from the config

    def _credentials(self, launch: Launch) -> Credentials:
        return self._own  # of runc itself; those of the container are in its config, for `runc exec` too

    def _base(self) -> list[str]:
        return [self._program, "--root", str(self._state)]

    async def _runc(self, *arguments: str) -> int:
        process = await asyncio.create_subprocess_exec(
            *self._base(),
            *arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return await process.wait()

    async def _signal(self, running: _Running, number: signal.Signals) -> None:
        code = await self._runc("kill", str(running.id), str(int(number)))
        if code != 0 and number is signal.SIGKILL:
            # There is no container (any more), but perhaps a runc that tries to make one.
            await super()._signal(running, number)

    def _exec_line(self, running: _Running, command: Sequence[str], *, tty: bool) -> Sequence[str]:
        return [*self._base(), "exec", *(["--tty"] if tty else []), str(running.id), *command]

    async def forget(self, pod_uid: str) -> None:
        """Remove containers and bundles of a pod."""
        for folder in (self._root / pod_uid).glob("*/*"):
            await self._runc("delete", "--force", f"{pod_uid}-{folder.parent.name}-{folder.name}")
        await super().forget(pod_uid)
        await asyncio.to_thread(unpin, self._network(pod_uid))


def oci_config(launch: Launch, image: Image, network: Path | None = None) -> dict[str, Any]:
    """Return the OCI runtime spec of a container, before CDI; `network` is the pod's namespace, if it has one."""
    # Inside a container a group that nobody names is root's, as in Kubernetes.
    asked = credentials_of(launch.pod, launch.container, Credentials(0, 0), lambda _: 0)
    command = list(launch.command) or list(image.command)
    if not command:
        raise StartError(
            "CreateContainerConfigError",
            f"neither the container nor image {launch.container.image!r} names a command",
        )
    capabilities = dict.fromkeys(("bounding", "effective", "permitted"), _CAPABILITIES)
    return {
        "ociVersion": "1.2.0",
        "process": {
            "terminal": False,
            "user": {"uid": asked.uid, "gid": asked.gid, "additionalGids": sorted(asked.groups)},
            "args": command,
            "env": merge_env([_DEFAULT_PATH, *image.env], launch.env),
            "cwd": launch.container.working_dir or image.working_dir or "/",
            "capabilities": capabilities,
            "noNewPrivileges": True,
        },
        "root": {"path": str(image.rootfs), "readonly": True},
        "hostname": launch.pod.spec.hostname or launch.pod.metadata.name,
        "mounts": [*_standard_mounts(network), *_host_mounts(image), *_volume_mounts(launch)],
        "linux": {
            "namespaces": _namespaces(launch, network),
            "resources": _resources(launch),
            "cgroupsPath": f"/dray/{launch.id}",
            "maskedPaths": _MASKED,
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
        },
    }


def _namespaces(launch: Launch, network: Path | None) -> list[dict[str, str]]:
    namespaces = [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")]
    if network is not None:
        namespaces.append({"type": "network", "path": str(network)})
    elif launch.edits.net_devices:
        namespaces.append({"type": "network"})
    return namespaces


def _standard_mounts(network: Path | None) -> list[dict[str, Any]]:
    def mount(destination: str, kind: str, source: str, *options: str) -> dict[str, Any]:
        return {"destination": destination, "type": kind, "source": source, "options": list(options)}

    # The sysfs of the host shows the interfaces of the host's network.
    sysfs = ("none", "/sys", "rbind") if network is None else ("sysfs", "sysfs")
    return [
        mount("/proc", "proc", "proc"),
        mount("/dev", "tmpfs", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k"),
        mount(
            "/dev/pts", "devpts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"
        ),
        mount("/dev/shm", "tmpfs", "shm", "nosuid", "noexec", "nodev", "mode=1777", "size=65536k"),
        mount("/sys", *sysfs, "nosuid", "noexec", "nodev", "ro"),
        mount("/tmp", "tmpfs", "tmpfs", "nosuid", "nodev", "mode=1777"),
        mount("/run", "tmpfs", "tmpfs", "nosuid", "nodev", "mode=755"),
    ]


def _host_mounts(image: Image) -> list[dict[str, Any]]:
    return [
        {"destination": path, "type": "bind", "source": path, "options": ["rbind", "ro"]}
        for path in image.host_mounts
    ]


def _volume_mounts(launch: Launch) -> list[dict[str, Any]]:
    return [
        {
            "destination": mount.container_path,
            "type": "bind",
            "source": str(mount.host_path),
            "options": ["rbind", "ro" if mount.is_read_only else "rw"],
        }
        for mount in launch.mounts
    ]


def _resources(launch: Launch) -> dict[str, Any]:
    limits = launch.container.resources.limits or {}
    # All devices are forbidden; runc itself allows the harmless ones, CDI adds the container's own.
    resources: dict[str, Any] = {"devices": [{"allow": False, "access": "rwm"}]}
    if "memory" in limits:
        resources["memory"] = {"limit": parse_quantity(limits["memory"]).ceil_value()}
    if "cpu" in limits:
        resources["cpu"] = {
            "period": 100_000,
            "quota": max(parse_quantity(limits["cpu"]).milli_value() * 100, 1000),
        }
    return resources
