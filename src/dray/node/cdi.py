"""CDI on the reading side: find spec files, resolve device names, change an OCI spec accordingly.

Spec files lie in /etc/cdi (written by administrators) and /var/run/cdi (written by
drivers); a device in a later directory hides one of the same name in an earlier.
Two files in one directory that define the same device make it unusable: neither is
more right than the other.

Files come and go with claims, so the directories are read again before each use.
Only files that changed are parsed; with a thousand claims on a node a look takes two
milliseconds.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from dray.api.cdi import (
    CdiError,
    CdiSpec,
    ContainerEdits,
    DeviceNode,
    Hook,
    Mount,
    complaints_about,
    parse_qualified_name,
)
from dray.api.parsing import load_json, load_yaml

log = logging.getLogger("dray.node")

DEFAULT_DIRS = (Path("/etc/cdi"), Path("/var/run/cdi"))
_SUFFIXES = (".json", ".yaml", ".yml")


@dataclass(slots=True)
class _File:
    """One spec file as last read; without a spec when it is not usable."""

    identity: tuple[int, int, int]  # inode, time, size
    spec: CdiSpec | None
    problem: str = ""


@dataclass(slots=True)
class _Folder:
    path: Path
    files: dict[str, _File] = field(default_factory=dict)
    specs_by_device: dict[str, list[CdiSpec]] = field(default_factory=dict)  # qualified name -> specs with it


class CdiRegistry:
    """All devices that the spec files define."""

    def __init__(self, folders: Sequence[Path] = DEFAULT_DIRS) -> None:
        self._folders = [_Folder(path) for path in folders]

    def resolve(self, names: Iterable[str]) -> ContainerEdits:
        """Return the joined edits of the named devices; raise CdiError that lists all that cannot be found.

        Edits of a spec as a whole come once, before those of its first device.
        """
        wanted = [str(parse_qualified_name(name)) for name in names]
        if not wanted:
            return ContainerEdits()
        self._refresh()
        edits = ContainerEdits()
        seen: list[CdiSpec] = []
        missing: list[str] = []
        for name in wanted:
            found = self._find(name)
            if isinstance(found, str):
                missing.append(found)
                continue
            if not any(spec is found for spec in seen):
                seen.append(found)
                edits = edits.plus(found.container_edits)
            device = name.partition("=")[2]
            for entry in found.devices:
                if entry.name == device:
                    edits = edits.plus(entry.container_edits)
        if missing:
            problems = [f"{path}: {file.problem}" for path, file in self._broken()]
            hint = f" (unusable spec files: {'; '.join(problems)})" if problems else ""
            raise CdiError("; ".join(missing) + hint)
        return edits

    def problems(self) -> list[str]:
        """Return what is wrong with spec files, one line per file."""
        self._refresh()
        return [f"{path}: {file.problem}" for path, file in self._broken()]

    def _find(self, name: str) -> CdiSpec | str:
        for folder in reversed(self._folders):
            specs = folder.specs_by_device.get(name, ())
            if len(specs) > 1:
                return f"CDI device {name} is defined by {len(specs)} files in {folder.path}"
            if specs:
                return specs[0]
        return (
            f"CDI device {name} is not defined in {', '.join(str(folder.path) for folder in self._folders)}"
        )

    def _broken(self) -> Iterable[tuple[Path, _File]]:
        for folder in self._folders:
            for name, file in sorted(folder.files.items()):
                if file.problem:
                    yield folder.path / name, file

    def _refresh(self) -> None:
        for folder in self._folders:
            try:
                with os.scandir(folder.path) as entries:
                    names = dict(_specs_in(entries))
            except (FileNotFoundError, NotADirectoryError):
                names = {}
            for gone in [name for name in folder.files if name not in names]:
                self._drop(folder, gone)
            for name, identity in names.items():
                known = folder.files.get(name)
                if known is None or known.identity != identity:
                    self._drop(folder, name)
                    self._take(folder, name, identity)

    @staticmethod
    def _drop(folder: _Folder, name: str) -> None:
        old = folder.files.pop(name, None)
        if old is None or old.spec is None:
            return
        for device in old.spec.devices:
            key = f"{old.spec.kind}={device.name}"
            specs = [spec for spec in folder.specs_by_device[key] if spec is not old.spec]
            if specs:
                folder.specs_by_device[key] = specs
            else:
                del folder.specs_by_device[key]

    @staticmethod
    def _take(folder: _Folder, name: str, identity: tuple[int, int, int]) -> None:
        try:
            spec = read_spec(folder.path / name)
        except FileNotFoundError:
            return
        except CdiError as error:
            folder.files[name] = _File(identity, None, str(error))
            return
        folder.files[name] = _File(identity, spec)
        for device in spec.devices:
            folder.specs_by_device.setdefault(f"{spec.kind}={device.name}", []).append(spec)


def _specs_in(entries: Iterable[os.DirEntry[str]]) -> Iterable[tuple[str, tuple[int, int, int]]]:
    for entry in entries:
        if entry.name.endswith(_SUFFIXES) and not entry.name.startswith("."):
            try:
                found = entry.stat()
            except FileNotFoundError:
                continue
            yield entry.name, (found.st_ino, found.st_mtime_ns, found.st_size)


def read_spec(path: Path) -> CdiSpec:
    """Read one spec file, JSON or YAML; raise CdiError with all that is wrong with it."""
    content = path.read_bytes()
    try:
        if path.suffix == ".json":
            spec: CdiSpec = load_json(content, CdiSpec)
        else:
            spec = msgspec.convert(load_yaml(content), CdiSpec)
    except (msgspec.MsgspecError, ValueError) as error:
        raise CdiError(f"not a CDI spec: {error}") from error
    found = complaints_about(spec)
    if found:
        raise CdiError("; ".join(found))
    return spec


# --- into the OCI runtime spec --------------------------------------------------


def apply_edits(oci: Mapping[str, Any], edits: ContainerEdits) -> dict[str, Any]:
    """Return a copy of an OCI runtime spec (config.json) with the edits merged in.

    A variable, device or mount that is there already is replaced: the driver knows better.
    """
    spec: dict[str, Any] = load_json(msgspec.json.encode(oci))
    process = spec.setdefault("process", {})
    if edits.env:
        process["env"] = merge_env(process.get("env", ()), edits.env)
    if edits.additional_gids:
        user = process.setdefault("user", {})
        gids = [*user.get("additionalGids", ()), *(gid for gid in edits.additional_gids if gid)]
        user["additionalGids"] = list(dict.fromkeys(gids))
    for node in edits.device_nodes:
        _add_device(spec, complete_node(node))
    for mount in edits.mounts:
        _add_mount(spec, mount)
    if edits.mounts:
        spec["mounts"].sort(key=lambda mount: mount["destination"].rstrip("/").count("/"))
    for hook in edits.hooks:
        spec.setdefault("hooks", {}).setdefault(hook.hook_name, []).append(_oci_hook(hook))
    if edits.net_devices:
        devices = spec.setdefault("linux", {}).setdefault("netDevices", {})
        for device in edits.net_devices:
            devices[device.host_interface_name] = {"name": device.name} if device.name else {}
    if edits.intel_rdt is not None:
        rdt = msgspec.to_builtins(edits.intel_rdt)
        spec.setdefault("linux", {})["intelRdt"] = rdt
    return spec


def merge_env(first: Iterable[str], later: Iterable[str]) -> list[str]:
    """Join NAME=value lists; of two values the later wins, at the place of the first.

    >>> merge_env(["A=1", "B=2"], ["A=3"])
    ['A=3', 'B=2']
    """
    values: dict[str, str] = {}
    for variable in (*first, *later):
        name, _, value = variable.partition("=")
        values[name] = value
    return [f"{name}={value}" for name, value in values.items()]


def complete_node(node: DeviceNode) -> DeviceNode:
    """Fill in from the host what the spec leaves out."""
    if node.type and (node.type == "p" or node.major):
        return node
    host_path = node.host_path or node.path
    try:
        found = os.stat(host_path)
    except OSError as error:
        raise CdiError(f"device node {host_path}: {error.strerror}") from error
    kinds = ((stat.S_ISBLK, "b"), (stat.S_ISCHR, "c"), (stat.S_ISFIFO, "p"))
    kind = next((name for is_kind, name in kinds if is_kind(found.st_mode)), "")
    if not kind:
        raise CdiError(f"device node {host_path} is not a device file on this host")
    if node.type and node.type.replace("u", "c") != kind:
        raise CdiError(f"device node {host_path} is of type {kind}, the spec says {node.type}")
    return msgspec.structs.replace(
        node,
        type=kind,
        major=os.major(found.st_rdev),
        minor=os.minor(found.st_rdev),
        file_mode=node.file_mode if node.file_mode is not None else stat.S_IMODE(found.st_mode),
        uid=node.uid if node.uid is not None else found.st_uid,
        gid=node.gid if node.gid is not None else found.st_gid,
    )


def _add_device(spec: dict[str, Any], node: DeviceNode) -> None:
    linux = spec.setdefault("linux", {})
    entry: dict[str, Any] = {"path": node.path, "type": node.type}
    if node.type != "p":
        entry |= {"major": node.major, "minor": node.minor}
    for key, value in (("fileMode", node.file_mode), ("uid", node.uid), ("gid", node.gid)):
        if value is not None:
            entry[key] = value
    others = [device for device in linux.get("devices", ()) if device["path"] != node.path]
    linux["devices"] = [*others, entry]
    if node.type in ("b", "c", "u"):
        rule = {
            "allow": True,
            "type": "b" if node.type == "b" else "c",
            "major": node.major,
            "minor": node.minor,
            "access": node.permissions or "rwm",
        }
        linux.setdefault("resources", {}).setdefault("devices", []).append(rule)


def _add_mount(spec: dict[str, Any], mount: Mount) -> None:
    entry = {
        "destination": mount.container_path,
        "source": mount.host_path,
        "type": mount.type or "bind",
        "options": mount.options or ["rbind", "rw"],
    }
    others = [there for there in spec.get("mounts", ()) if there["destination"] != mount.container_path]
    spec["mounts"] = [*others, entry]


def _oci_hook(hook: Hook) -> dict[str, Any]:
    optional = {"args": hook.args, "env": hook.env, "timeout": hook.timeout}
    return {"path": hook.path, **{key: value for key, value in optional.items() if value}}
