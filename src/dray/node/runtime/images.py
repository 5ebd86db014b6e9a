"""Images for `runc`: root filesystems that lie in a directory, as they are or as OCI image layouts.

Nothing is pulled from a network. `DIR/NAME` is looked up for an image `NAME` (with its tag, without it, and
by its last part); it is either a folder with `rootfs/`, or an OCI image layout (`index.json` and
`blobs/`), which is unpacked once. The name `host` is always there: the machine's own /usr,
read-only. Without a directory of images every image is `host`.
"""

from __future__ import annotations

import gzip
import io
import os
import platform
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dray.api.parsing import ParseError, load_json
from dray.host.private_files import make_private_folder
from dray.node.runtime.contract import StartError

HOST = "host"
_HOST_FOLDERS = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
_HOST_FILES = (
    "etc/passwd",
    "etc/group",
    "etc/resolv.conf",
    "etc/hosts",
    "etc/ld.so.cache",
    "etc/alternatives",
    "etc/ssl",
)
_EMPTY_FOLDERS = ("dev", "proc", "sys", "tmp", "run", "var/tmp", "etc", "root")


@dataclass(frozen=True, slots=True)
class Image:
    """A root filesystem, and how a container of it begins."""

    rootfs: Path
    command: Sequence[str] = ()
    env: Sequence[str] = ()
    working_dir: str = "/"
    host_mounts: Sequence[str] = ()  # host paths to bind read-only at the same place


class ImageStore:
    """Finds images, and unpacks them into the agent's root."""

    def __init__(self, folder: Path | None, cache: Path) -> None:
        self._folder = folder
        self._cache = cache

    def find(self, name: str) -> Image:
        """Return an image; raise StartError with the places that were looked at."""
        if self._folder is None or name == HOST:
            return self._host()
        looked_at = list(self._candidates(self._folder, name))
        for path in looked_at:
            if (path / "rootfs").is_dir():
                return Image(path / "rootfs")
            if (path / "index.json").is_file():
                return self._unpacked(path)
        places = ", ".join(str(path) for path in looked_at)
        raise StartError(
            "ErrImageNeverPull",
            f"image {name!r} is not here (looked for rootfs/ or an OCI layout in {places})",
        )

    @staticmethod
    def _candidates(folder: Path, name: str) -> Iterator[Path]:
        untagged = name.partition("@")[0]
        if ":" in untagged.rpartition("/")[2]:
            untagged = untagged.rpartition(":")[0]
        for candidate in dict.fromkeys((name, untagged, untagged.rpartition("/")[2])):
            if ".." not in candidate.split("/"):
                yield folder / candidate.lstrip("/")

    def _host(self) -> Image:
        rootfs = self._cache / HOST / "rootfs"
        mounts = []
        for name in _EMPTY_FOLDERS:
            _make_folder(rootfs, name)
        for name in _HOST_FOLDERS:
            path = Path("/", name)
            if path.is_symlink():
                if not (rootfs / name).is_symlink():
                    (rootfs / name).symlink_to(os.readlink(path))
            elif path.is_dir():
                _make_folder(rootfs, name)
                mounts.append(f"/{name}")
        mounts += [f"/{name}" for name in _HOST_FILES if Path("/", name).exists()]
        return Image(rootfs, host_mounts=mounts)

    def _unpacked(self, layout: Path) -> Image:
        index = _json(layout / "index.json")
        manifest = self._manifest(layout, index)
        config = _json(_blob(layout, manifest["config"]["digest"])).get("config") or {}
        digest = manifest["config"]["digest"].partition(":")[2]
        folder = self._cache / digest
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            for layer in manifest["layers"]:
                unpack_layer(_blob(layout, layer["digest"]), folder / "rootfs")
            (folder / "complete").touch()
        return Image(
            folder / "rootfs",
            [*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())],
            config.get("Env") or (),
            config.get("WorkingDir") or "/",
        )

    def _manifest(self, layout: Path, index: dict[str, Any]) -> Any:
        arch = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
        entries = index.get("manifests", [])
        fitting = [entry for entry in entries if entry.get("platform", {}).get("architecture", arch) == arch]
        if not fitting:
            raise StartError("ErrImageNeverPull", f"image layout {layout} has nothing for {arch}")
        found = _json(_blob(layout, fitting[0]["digest"]))
        return self._manifest(layout, found) if "manifests" in found else found


def _json(path: Path) -> Any:
    try:
        return load_json(path.read_bytes())
    except (OSError, ParseError) as error:
        raise StartError("ErrImageNeverPull", f"image file {path} cannot be read: {error}") from error


def _blob(layout: Path, digest: str) -> Path:
    algorithm, _, value = digest.partition(":")
    if not value.isalnum() or not algorithm.isalnum():
        raise StartError("ErrImageNeverPull", f"image layout {layout} has a strange digest {digest!r}")
    return layout / "blobs" / algorithm / value


def unpack_layer(blob: Path, rootfs: Path) -> None:
    """Unpack one layer over the ones before it; whiteouts remove what lower layers had.

    Names that would leave the root filesystem are refused by tarfile's data filter.
    """
    _make_folder(rootfs)
    content = blob.read_bytes()
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            folder, _, name = member.name.rstrip("/").rpartition("/")
            if name == ".wh..wh..opq":
                shutil.rmtree(rootfs / folder, ignore_errors=True)
                _make_folder(rootfs, folder)
            elif name.startswith(".wh."):
                _remove(rootfs / folder / name.removeprefix(".wh."))
            else:
                if member.isfile() or member.issym():
                    _remove(rootfs / member.name)
                try:
                    archive.extract(member, rootfs, filter="tar")
                except tarfile.FilterError as error:
                    raise StartError("ErrImageNeverPull", f"layer {blob.name}: {error}") from error


def _make_folder(rootfs: Path, name: str = "") -> None:
    """Make a folder of a root filesystem that the users of a container can enter, whatever the agent's umask."""
    make_private_folder(rootfs.parent)
    path = rootfs
    for part in ("", *Path(name).parts):
        path = path / part
        if not path.exists():
            path.mkdir()
            path.chmod(0o755)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
