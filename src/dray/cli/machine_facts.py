"""What `dray doctor` reads of this machine: kubelet's folders and sockets, CDI specs, hardware, `dray up`."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import grpc

from dray.api.cdi import CdiError
from dray.api.json_types import JsonObject
from dray.api.parsing import ParseError, load_yaml
from dray.api.rpc.generated import registration_v1_pb2, registration_v1_pb2_grpc
from dray.client.bounded_files import read_file
from dray.node import read_spec
from dray.workbench.doctor.machine import Accelerator, MachineFacts, PluginFacts, SpecFile, host_paths

CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
_CALL_SECONDS = 3.0
_MOST_ENTRIES = 1_000  # of a folder
_MOST_BYTES = 1 << 20  # of a configuration file

# PCI vendor -> name; only display controllers and processing accelerators (classes 03 and 12) count.
_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel", "0x1da3": "Habana", "0x1ae0": "Google"}
_ACCELERATOR_CLASSES = ("0x0302", "0x0380", "0x1200")
_GRAPHICS_CLASS = "0x0300"  # of Intel it is the screen of a laptop


def read_machine(kubelet: Path, parts: dict[str, bool], root: Path = Path("/")) -> MachineFacts:
    """Read the facts of this machine; `root` is another root for tests."""
    facts = MachineFacts(registry=str(kubelet / "plugins_registry"), parts=parts)
    unreadable: dict[str, str] = {}
    facts.has_kubelet = kubelet.is_dir()
    facts.has_registry = (kubelet / "plugins_registry").is_dir()
    facts.kubelet_configuration = _yaml(kubelet / "config.yaml", unreadable)
    facts.containerd_configuration = _text(root / "etc/containerd/config.toml", unreadable)
    facts.cgroup_version = 2 if (root / "sys/fs/cgroup/cgroup.controllers").exists() else 1
    facts.specs = [
        _spec(path)
        for folder in CDI_FOLDERS
        for path in _entries(root / folder.relative_to("/"), unreadable)
        if path.suffix in (".json", ".yaml", ".yml")
    ]
    sockets = [path for path in _entries(Path(facts.registry), unreadable) if _is_socket(path)]
    facts.plugins = asyncio.run(_ask_plugins(sockets))
    facts.accelerators = list(_accelerators(root / "sys/bus/pci/devices"))
    facts.unreadable = unreadable
    return facts


def _entries(folder: Path, unreadable: dict[str, str]) -> list[Path]:
    try:
        with os.scandir(folder) as found:
            return sorted(Path(entry.path) for entry, _ in zip(found, range(_MOST_ENTRIES), strict=False))
    except FileNotFoundError:
        return []
    except OSError as error:
        unreadable[str(folder)] = error.strerror or str(error)
        return []


def _text(path: Path, unreadable: dict[str, str]) -> str | None:
    try:
        return read_file(path, _MOST_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        unreadable[str(path)] = error.strerror or str(error)
        return None


def _yaml(path: Path, unreadable: dict[str, str]) -> JsonObject | None:
    text = _text(path, unreadable)
    try:
        document = load_yaml(text.encode()) if text else None
    except ParseError as error:
        unreadable[str(path)] = f"not YAML: {error}"
        return None
    return document if isinstance(document, dict) else None


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return False


# --- CDI ------------------------------------------------------------------------


def _spec(path: Path) -> SpecFile:
    try:
        spec = read_spec(path)
    except (CdiError, OSError, ValueError) as error:
        return SpecFile(str(path), error=" ".join(str(error).split())[:500])
    edits = [spec.container_edits, *(device.container_edits for device in spec.devices)]
    wanted = dict.fromkeys(found for each in edits for found in host_paths(each) if found.startswith("/"))
    return SpecFile(str(path), spec, missing_paths=tuple(each for each in wanted if not Path(each).exists()))


# --- plugins --------------------------------------------------------------------


async def _ask_plugins(sockets: list[Path]) -> list[PluginFacts]:
    return list(await asyncio.gather(*(_ask_plugin(path) for path in sockets)))


async def _ask_plugin(path: Path) -> PluginFacts:
    """Ask a registration socket who it is; the driver is not told that it is registered."""
    error = _connect_error(path)
    if error:
        return PluginFacts(str(path), error)
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        stub = registration_v1_pb2_grpc.RegistrationStub(channel)
        try:
            info = await stub.GetInfo(registration_v1_pb2.InfoRequest(), timeout=_CALL_SECONDS)
        except grpc.RpcError as failure:
            return PluginFacts(str(path), f"GetInfo: {failure.code().name}")
    endpoint = str(info.endpoint) or str(path)
    return PluginFacts(
        str(path),
        driver=str(info.name)[:253],
        endpoint=endpoint[:200],
        endpoint_error=_connect_error(Path(endpoint)),
        services=tuple(str(each)[:100] for each in info.supported_versions[:20]),
    )


def _connect_error(path: Path) -> str:
    """Return why nobody answers at a socket, empty if somebody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_CALL_SECONDS)
        try:
            connection.connect(str(path))
        except (OSError, ValueError) as error:
            return getattr(error, "strerror", None) or str(error) or type(error).__name__
    return ""


# --- hardware -------------------------------------------------------------------


def _accelerators(folder: Path) -> Iterator[Accelerator]:
    for device in _entries(folder, {}):
        vendor, kind = _line(device / "vendor"), _line(device / "class")[:6]
        is_graphics = kind == _GRAPHICS_CLASS and vendor not in ("0x8086", "0x1ae0")
        if vendor in _VENDORS and (kind in _ACCELERATOR_CLASSES or is_graphics):
            link = device / "driver"
            yield Accelerator(device.name, _VENDORS[vendor], link.resolve().name if link.exists() else "")


def _line(path: Path) -> str:
    try:
        return read_file(path, 4096).decode(errors="replace").strip()
    except OSError:
        return ""
