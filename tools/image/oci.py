"""OCI images as archives: layers, configuration, manifest, index.

An archive in the OCI image layout, written without time stamps or owners of the machine that writes it, so that the same
folders give the same digest. The specification is opencontainers/image-spec v1.1.
"""

import gzip
import hashlib
import io
import json
import os
import tarfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rootfs import EPOCH, USER

ENTRYPOINT = ("/usr/local/bin/dray",)
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
GZIP_LEVEL = 6


@dataclass(frozen=True)
class Description:
    """What an image says about itself."""

    name: str
    version: str
    revision: str  # the commit; empty outside a repository
    source: str  # the address of the repository; empty in a local build
    created: int  # seconds since 1970
    architecture: str
    entrypoint: tuple[str, ...] = ENTRYPOINT
    user: str = f"{USER}:{USER}"  # empty is root

    @property
    def reference(self) -> str:
        """Return name and tag."""
        return f"{self.name}:{self.version}"

    @property
    def created_text(self) -> str:
        """Return the time of creation as the specifications write it."""
        return datetime.fromtimestamp(self.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def labels(self) -> dict[str, str]:
        """Return the labels, under OCI's names; what is not known is left out."""
        known = {
            "title": "dray",
            "description": "Kubernetes Dynamic Resource Allocation: scheduler, guard, drivers and tools",
            "licenses": "Apache-2.0",
            "version": self.version,
            "revision": self.revision,
            "source": self.source,
            "created": self.created_text,
        }
        return {f"org.opencontainers.image.{name}": value for name, value in known.items() if value}


@dataclass(frozen=True)
class Image:
    """An image that was written."""

    digest: str
    archive_bytes: int
    content_bytes: int  # unpacked


def write_archive(path: Path, folders: list[Path], description: Description) -> Image:
    """Write an OCI archive of the folders, lowest layer first."""
    blobs: dict[str, bytes] = {}

    def keep(data: bytes, media_type: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {
            "mediaType": f"application/vnd.oci.image.{media_type}",
            "digest": f"sha256:{digest}",
            "size": len(data),
        }

    layers, plain_digests, content = [], [], 0
    for folder in folders:
        plain = pack(folder)
        content += len(plain)
        plain_digests.append("sha256:" + hashlib.sha256(plain).hexdigest())
        layers.append(keep(gzip.compress(plain, GZIP_LEVEL, mtime=0), "layer.v1.tar+gzip"))
    configuration = keep(encode(configure(description, plain_digests)), "config.v1+json")
    manifest = keep(
        encode(
            {
                "schemaVersion": 2,
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": configuration,
                "layers": layers,
                "annotations": description.labels(),
            }
        ),
        "manifest.v1+json",
    )
    index = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [
            {
                **manifest,
                "platform": {"os": "linux", "architecture": description.architecture},
                # containerd takes the name from the first, other tools from the second.
                "annotations": {
                    "io.containerd.image.name": description.reference,
                    "org.opencontainers.image.ref.name": description.version,
                },
            }
        ],
    }
    files = {"oci-layout": encode({"imageLayoutVersion": "1.0.0"}), "index.json": encode(index)}
    files |= {f"blobs/sha256/{digest}": data for digest, data in sorted(blobs.items())}
    write_files(path, files)
    return Image(manifest["digest"], path.stat().st_size, content)


def configure(description: Description, plain_digests: list[str]) -> dict[str, Any]:
    """Return the image's configuration."""
    return {
        "created": description.created_text,
        "architecture": description.architecture,
        "os": "linux",
        "config": {
            "User": description.user,
            "Env": [f"{name}={value}" for name, value in ENVIRONMENT.items()],
            "Entrypoint": list(description.entrypoint),
            "WorkingDir": "/home/nonroot" if description.user else "/",
            "Labels": description.labels(),
        },
        "rootfs": {"type": "layers", "diff_ids": plain_digests},
        "history": [
            {"created": description.created_text, "created_by": f"tools/image: {name}"}
            for name in ("Debian packages", "Python packages", "dray")[-len(plain_digests) :]
        ],
    }


def encode(value: object) -> bytes:
    """Return JSON that depends on the value alone."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def pack(folder: Path) -> bytes:
    """Return a folder as a tar archive: sorted, owned by root, with fixed times."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for directory, names, files in os.walk(folder):
            names.sort()
            # A link to a folder is listed among the folders.
            for name in sorted([*files, *names]):
                add(archive, folder, Path(directory) / name)
    return buffer.getvalue()


def add(archive: tarfile.TarFile, folder: Path, path: Path) -> None:
    """Add one file, folder or link to an archive."""
    entry = archive.gettarinfo(str(path), str(path.relative_to(folder)))
    entry.uid = entry.gid = USER if path.relative_to(folder).parts[:2] == ("home", "nonroot") else 0
    entry.uname = entry.gname = ""
    entry.mtime = EPOCH
    if entry.islnk():  # the other name of a file may be in another order next time
        entry.type, entry.linkname, entry.size = tarfile.REGTYPE, "", path.stat().st_size
    if not entry.issym():
        # The mask of whoever builds does not show.
        entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
    if path.relative_to(folder).parts in {("tmp",), ("var", "tmp")}:
        entry.mode = 0o1777
    if entry.isreg():
        with path.open("rb") as data:
            archive.addfile(entry, data)
    else:
        archive.addfile(entry)


def write_files(path: Path, files: dict[str, bytes]) -> None:
    """Write an archive of files that exist in memory only."""
    with tarfile.open(path, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(data), EPOCH, 0o644
            archive.addfile(entry, io.BytesIO(data))
