"""Container Device Interface: the file in which a driver tells a runtime what to add to a container.

A CDI spec names devices of one kind (`vendor/class`) and, for each, the edits
that make it usable: environment, device nodes, mounts, hooks, groups, network
interfaces. Drivers write such files; node agents and runtimes read them. The
text that crosses from one to the other is only the qualified name
`vendor/class=device`.

This module has the file's structs (CDI 0.3.0 to 1.1.0), the grammar of names, and
the lowest version a spec needs: a writer declares that one, so that old readers
can read what they are able to.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
# In a hook's environment: the container must be in a network namespace of its pod. Runtimes that give every pod one
# (all that kubelet uses) need not read it.
NEEDS_POD_NETWORK = "DRAY_NETWORK_NAMESPACE=pod"
HOOK_NAMES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")


class _Entry(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True, frozen=True):
    """Base of all parts of a spec file."""


class DeviceNode(_Entry, frozen=True):
    """A device file to make in the container."""

    path: str = ""  # in the container
    host_path: str = ""  # on the host; empty means: the same path
    type: str = ""  # b, c, u or p; empty means: as on the host
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    permissions: str = ""  # of r, w, m; empty means: rwm
    uid: int | None = None
    gid: int | None = None


class Mount(_Entry, frozen=True):
    """A host path to show in the container."""

    host_path: str = ""
    container_path: str = ""
    options: list[str] = []
    type: str = ""


class Hook(_Entry, frozen=True):
    """A program the runtime runs at a point of the container's life."""

    hook_name: str = ""
    path: str = ""
    args: list[str] = []
    env: list[str] = []
    timeout: int | None = None  # seconds


class IntelRdt(_Entry, frozen=True):
    """Cache and memory bandwidth limits."""

    clos_id: str = msgspec.field(default="", name="closID")
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    schemata: list[str] = []
    enable_monitoring: bool = False
    enable_cmt: bool = msgspec.field(default=False, name="enableCMT")  # until 1.0
    enable_mbm: bool = msgspec.field(default=False, name="enableMBM")  # until 1.0


class NetDevice(_Entry, frozen=True):
    """A host network interface to move into the container."""

    host_interface_name: str = ""
    name: str = ""  # in the container; empty means: the same name


class ContainerEdits(_Entry, frozen=True):
    """What to change in a container's OCI spec.

    >>> ContainerEdits(env=["GPU=0"]).plus(ContainerEdits(env=["NIC=1"])).env
    ['GPU=0', 'NIC=1']
    """

    env: list[str] = []  # NAME=value
    device_nodes: list[DeviceNode] = []
    net_devices: list[NetDevice] = []
    hooks: list[Hook] = []
    mounts: list[Mount] = []
    intel_rdt: IntelRdt | None = None
    additional_gids: list[int] = []

    def plus(self, other: ContainerEdits) -> ContainerEdits:
        """Return these edits followed by the others (a later IntelRdt wins: there can be one)."""
        return ContainerEdits(
            env=[*self.env, *other.env],
            device_nodes=[*self.device_nodes, *other.device_nodes],
            net_devices=[*self.net_devices, *other.net_devices],
            hooks=[*self.hooks, *other.hooks],
            mounts=[*self.mounts, *other.mounts],
            intel_rdt=other.intel_rdt or self.intel_rdt,
            additional_gids=[*self.additional_gids, *other.additional_gids],
        )


class CdiDevice(_Entry, frozen=True):
    """One name, and what it brings."""

    name: str = ""
    annotations: dict[str, str] = {}
    container_edits: ContainerEdits = ContainerEdits()


class CdiSpec(_Entry, frozen=True, omit_defaults=False):
    """A spec file: devices of one kind, and edits that come with any of them."""

    cdi_version: str = ""
    kind: str = ""
    annotations: dict[str, str] = {}
    devices: list[CdiDevice] = []
    container_edits: ContainerEdits = ContainerEdits()


class CdiError(ValueError):
    """A name, a spec or a reference that CDI does not allow."""


class QualifiedName(NamedTuple):
    """`vendor/class=device`, taken apart."""

    vendor: str
    device_class: str
    device: str

    @property
    def kind(self) -> str:
        """Return `vendor/class`."""
        return f"{self.vendor}/{self.device_class}"

    def __str__(self) -> str:
        return f"{self.vendor}/{self.device_class}={self.device}"


# A vendor is a domain, a class may have dots since 0.6; both begin with a letter.
_VENDOR = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?\Z")
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?\Z")


def parse_kind(kind: str) -> tuple[str, str]:
    """Take `vendor/class` apart, or raise CdiError."""
    vendor, slash, device_class = kind.partition("/")
    if not slash or not _VENDOR.match(vendor) or not _VENDOR.match(device_class):
        raise CdiError(f"CDI kind {kind!r} is not of the form vendor.example.com/class")
    return vendor, device_class


def parse_qualified_name(text: str) -> QualifiedName:
    """Take `vendor/class=device` apart, or raise CdiError.

    >>> parse_qualified_name("k8s.gpu.example.com/claim=17-gpu-0").device
    '17-gpu-0'
    """
    kind, equals, device = text.partition("=")
    if not equals:
        raise CdiError(f"CDI device {text!r} is not of the form vendor.example.com/class=device")
    vendor, device_class = parse_kind(kind)
    if not _DEVICE.match(device):
        raise CdiError(
            f"CDI device name {device!r} (in {text!r}) may have letters, digits and _ - . : inside"
        )
    return QualifiedName(vendor, device_class, device)


def minimum_version(spec: CdiSpec) -> str:
    """Return the lowest CDI version whose readers understand the whole spec.

    >>> minimum_version(CdiSpec(kind="a.example/b", devices=[CdiDevice(name="c")]))
    '0.3.0'
    """
    needed = "0.3.0"
    for edits in (spec.container_edits, *(device.container_edits for device in spec.devices)):
        needed = _higher(needed, _version_for_edits(edits))
    if (
        spec.annotations
        or any(device.annotations for device in spec.devices)
        or "." in spec.kind.partition("/")[2]
    ):
        needed = _higher(needed, "0.6.0")
    if any(device.name[:1].isdigit() for device in spec.devices):
        needed = _higher(needed, "0.5.0")
    return needed


def _version_for_edits(edits: ContainerEdits) -> str:
    rdt = edits.intel_rdt
    if edits.net_devices or (rdt and (rdt.schemata or rdt.enable_monitoring)):
        return "1.1.0"
    if rdt or edits.additional_gids:
        return "0.7.0"
    if any(node.host_path for node in edits.device_nodes):
        return "0.5.0"
    if any(mount.type for mount in edits.mounts):
        return "0.4.0"
    return "0.3.0"


def _higher(left: str, right: str) -> str:
    return max(left, right, key=VERSIONS.index)


def complaints_about(spec: CdiSpec) -> list[str]:
    """List what is wrong with a spec; empty means: usable."""
    found: list[str] = []
    if spec.cdi_version not in VERSIONS:
        found.append(f"cdiVersion {spec.cdi_version!r} is not one of {', '.join(VERSIONS)}")
    try:
        parse_kind(spec.kind)
    except CdiError as error:
        found.append(str(error))
    names = [device.name for device in spec.devices]
    found += [f"device name {name!r} is not allowed" for name in names if not _DEVICE.match(name)]
    found += [f"device {name!r} is there twice" for name in sorted({n for n in names if names.count(n) > 1})]
    if not spec.devices:
        found.append("there are no devices")
    for edits in (spec.container_edits, *(device.container_edits for device in spec.devices)):
        found += _complaints_about_edits(edits)
    return found


def _complaints_about_edits(edits: ContainerEdits) -> Iterable[str]:
    for variable in edits.env:
        if "=" not in variable[1:]:
            yield f"environment {variable!r} is not NAME=value"
    for node in edits.device_nodes:
        if not node.path:
            yield "a device node has no path"
        if node.type not in ("", "b", "c", "u", "p"):
            yield f"device node {node.path}: type {node.type!r} is not b, c, u or p"
        if set(node.permissions) - set("rwm"):
            yield f"device node {node.path}: permissions {node.permissions!r} are not of r, w, m"
    for mount in edits.mounts:
        if not mount.host_path or not mount.container_path:
            yield f"a mount needs hostPath and containerPath (has {mount.host_path!r}, {mount.container_path!r})"
    for hook in edits.hooks:
        if hook.hook_name not in HOOK_NAMES:
            yield f"hook {hook.hook_name!r} is not one of {', '.join(HOOK_NAMES)}"
        if not hook.path:
            yield f"hook {hook.hook_name!r} has no path"
