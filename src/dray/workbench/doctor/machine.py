"""The examination of one machine: facts in, findings out.

Pure: `collecting` reads files, sockets and processes into `MachineFacts`; this module judges them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dray.api.cdi import CdiSpec, ContainerEdits, complaints_about
from dray.api.json_types import JsonObject
from dray.api.rpc import DRA_V1
from dray.api.wording import join_names
from dray.workbench.doctor.findings import Finding, limited


@dataclass(frozen=True, slots=True)
class PluginFacts:
    """What a socket in kubelet's registry answered."""

    socket: str
    error: str = ""  # why it does not answer
    driver: str = ""
    endpoint: str = ""  # socket of the DRA service
    endpoint_error: str = ""  # why nobody answers there
    services: tuple[str, ...] = ()  # supported versions


@dataclass(frozen=True, slots=True)
class SpecFile:
    """A CDI spec file, read or not."""

    path: str
    spec: CdiSpec | None = None
    error: str = ""
    missing_paths: tuple[str, ...] = ()  # host paths that its edits name and that do not exist


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A device on the PCI bus that a driver of dray could offer."""

    address: str
    vendor: str  # such as NVIDIA
    kernel_driver: str = ""  # empty means: none is bound


@dataclass(slots=True)
class MachineFacts:
    """What is known of a machine."""

    registry: str = "/var/lib/kubelet/plugins_registry"
    has_registry: bool = True
    has_kubelet: bool = False  # its folder exists
    kubelet_configuration: JsonObject | None = None
    containerd_configuration: str | None = None
    plugins: Sequence[PluginFacts] = ()
    specs: Sequence[SpecFile] = ()
    accelerators: Sequence[Accelerator] = ()
    cgroup_version: int = 2
    parts: Mapping[str, bool] = field(default_factory=dict)  # of a `dray up` here -> is it running
    unreadable: Mapping[str, str] = field(default_factory=dict)  # path -> why


def check_machine(facts: MachineFacts) -> list[Finding]:
    """Return what is wrong with a machine."""
    return [finding for check in CHECKS for finding in limited(check(facts))]


def _check_kubelet(facts: MachineFacts) -> Iterator[Finding]:
    gates = (facts.kubelet_configuration or {}).get("featureGates")
    if isinstance(gates, dict) and gates.get("DynamicResourceAllocation") is False:
        yield Finding(
            "kubelet-gate-off",
            "kubelet",
            "featureGates of its configuration has DynamicResourceAllocation: false",
            "remove that line and restart kubelet",
        )
    if facts.has_kubelet and not facts.has_registry:
        yield Finding(
            "registry-missing",
            facts.registry,
            "kubelet's folder exists, its plugin registration directory does not",
            "is kubelet running? it creates the directory at its start; drivers wait for it",
        )
    if facts.cgroup_version == 1:
        yield Finding(
            "cgroup-v1",
            "machine",
            "/sys/fs/cgroup is cgroup v1",
            "boot with cgroup v2 (systemd.unified_cgroup_hierarchy=1): kubelet 1.35 refuses v1 by default",
        )


def _check_plugins(facts: MachineFacts) -> Iterator[Finding]:
    for plugin in facts.plugins:
        if plugin.error:
            yield Finding(
                "plugin-socket-dead",
                plugin.socket,
                plugin.error,
                "start the driver again; if it is uninstalled, remove the socket",
            )
        elif plugin.endpoint_error:
            yield Finding(
                "plugin-endpoint-dead",
                f"driver {plugin.driver}",
                f"it is registered with {plugin.endpoint}: {plugin.endpoint_error}",
                "restart the driver; its DaemonSet must mount /var/lib/kubelet/plugins from the host",
            )
        elif DRA_V1 not in plugin.services:
            yield Finding(
                "plugin-api-too-old",
                f"driver {plugin.driver}",
                f"it offers {', '.join(plugin.services) or 'no service'}",
                f"upgrade the driver to one that serves {DRA_V1}",
            )


def _check_containerd(facts: MachineFacts) -> Iterator[Finding]:
    text = facts.containerd_configuration or ""
    if re.search(r"(?m)^\s*enable_cdi\s*=\s*false", text):
        yield Finding(
            "containerd-cdi-off",
            "containerd",
            "its configuration has enable_cdi = false",
            "set enable_cdi = true and restart containerd",
        )


def _check_specs(facts: MachineFacts) -> Iterator[Finding]:
    files_by_device: dict[str, list[str]] = defaultdict(list)
    for file in facts.specs:
        problems = [file.error] if file.error else complaints_about(file.spec) if file.spec else []
        if problems:
            yield Finding(
                "cdi-spec-invalid",
                file.path,
                "; ".join(problems)[:500],
                "remove the file, or let its driver write it anew (unprepare and prepare the claim)",
            )
            continue
        if file.missing_paths:
            yield Finding(
                "cdi-path-missing",
                file.path,
                f"not on this machine: {join_names(file.missing_paths)}",
                "is the kernel driver loaded? containers with these devices cannot start",
            )
        for device in file.spec.devices if file.spec else ():
            files_by_device[f"{file.spec.kind}={device.name}" if file.spec else ""].append(file.path)
    for name, files in files_by_device.items():
        if len(files) > 1:
            yield Finding(
                "cdi-device-twice",
                f"CDI device {name}",
                f"defined in {join_names(files)}",
                "remove one of the files: a runtime refuses devices that it finds twice",
            )


def host_paths(edits: ContainerEdits) -> list[str]:
    """Return the paths of the host that edits need."""
    nodes = [node.host_path or node.path for node in edits.device_nodes]
    return [*nodes, *(mount.host_path for mount in edits.mounts), *(hook.path for hook in edits.hooks)]


def _check_hardware(facts: MachineFacts) -> Iterator[Finding]:
    for device in facts.accelerators:
        if not device.kernel_driver:
            yield Finding(
                "kernel-driver-missing",
                f"{device.vendor} device {device.address}",
                "no kernel driver is bound to it",
                "install and load the vendor's kernel driver, then restart the driver",
            )


def _check_parts(facts: MachineFacts) -> Iterator[Finding]:
    for name, is_running in facts.parts.items():
        if not is_running:
            yield Finding(
                "part-not-running",
                f"dray up: {name}",
                "its process has ended",
                "`dray status` names its log; `dray down` and `dray up` start the system anew",
            )


def _check_permissions(facts: MachineFacts) -> Iterator[Finding]:
    for path, reason in facts.unreadable.items():
        yield Finding("not-permitted", path, reason, "its checks were left out; run as root")


CHECKS: tuple[Callable[[MachineFacts], Iterator[Finding]], ...] = (
    _check_kubelet,
    _check_plugins,
    _check_containerd,
    _check_specs,
    _check_hardware,
    _check_parts,
    _check_permissions,
)
