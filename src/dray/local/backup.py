"""Backup and restore of a system: one archive with the store, the certificates and the admin's kubeconfig.

The store is copied with SQLite's own backup, so the copy is consistent while the server writes. The archive is
a gzipped tar with `backup.json` (what it is, and a SHA-256 of every file) first; it holds the keys of the
cluster and is readable by its owner only.

An archive comes from outside, so it is not trusted: only the names that a backup has are taken, nothing is
followed or created outside of the folder, sizes are bounded, and every file must have the sum that
`backup.json` names. The store's own checksums are verified before a restored folder is put in place.

Invariant: a restore either replaces nothing or leaves a complete folder (it is made beside the target and
renamed). Tests: tests/unit/local/test_local_backup.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dray import __version__
from dray.api.parsing import ParseError, load_json
from dray.api.times import format_time
from dray.host.clock import utc_now
from dray.server.store import FILE_NAME, FORMAT, LogFile, StoreDamaged, StoreUnavailable, note_whole_copy

BACKUP_FORMAT = 1
MANIFEST = "backup.json"
_CERTIFICATES = "pki"
_KUBECONFIG = "admin.kubeconfig"
_MOST_BYTES = 64 << 30  # of a store
_MOST_SMALL = 1 << 20  # of any other file
_MOST_MEMBERS = 200
_PAGES_AT_ONCE = 1_000  # between two of these the server may write


class BackupError(ValueError):
    """A folder or an archive that cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class StoreSummary:
    """What a store holds."""

    format: int
    revision: int
    size: int  # bytes
    objects: dict[str, int]  # resource -> how many

    def data(self) -> dict[str, Any]:
        """Return it for JSON and YAML."""
        return {"format": self.format, "revision": self.revision, "bytes": self.size, "objects": self.objects}


# --- backup ---------------------------------------------------------------------


def make_backup(data: Path, target: Path) -> StoreSummary:
    """Write an archive of a system, running or not. Raises BackupError and OSError."""
    if not (data / FILE_NAME).is_file():
        raise BackupError(f"{data} has no {FILE_NAME}: it is not the folder of a dray system")
    with tempfile.TemporaryDirectory(prefix=".dray-backup-", dir=target.parent) as work:
        copy = Path(work) / FILE_NAME
        _copy_store(data / FILE_NAME, copy)
        # Read before the store is opened for checking, which marks the file.
        summary = summarise(copy, Path(work))
        files = {FILE_NAME: copy}
        for path in [*sorted((data / _CERTIFICATES).glob("*")), data / _KUBECONFIG]:
            if path.is_file() and not path.is_symlink():
                files[str(path.relative_to(data))] = path
        archive = Path(work) / "archive"
        _write_archive(archive, files, summary)
        os.replace(archive, target)
    return summary


def _copy_store(source: Path, target: Path) -> None:
    target.touch(mode=0o600)
    try:
        origin = sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)
        copy = sqlite3.connect(target)
        try:
            origin.backup(copy, pages=_PAGES_AT_ONCE)
        finally:
            copy.close()
            origin.close()
    except sqlite3.Error as error:
        raise BackupError(f"{source} cannot be copied: {error}") from error
    with contextlib.suppress(sqlite3.Error):  # what is wrong with a store, `summarise` says
        note_whole_copy(target)


def _write_archive(target: Path, files: dict[str, Path], summary: StoreSummary) -> None:
    manifest = {
        "kind": "DrayBackup",
        "format": BACKUP_FORMAT,
        "dray": __version__,
        "created": format_time(utc_now()),
        "store": summary.data(),
        "files": {name: _sum(path) for name, path in files.items()},
    }
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream, tarfile.open(fileobj=stream, mode="w:gz") as archive:
        content = json.dumps(manifest, indent=1).encode()
        archive.addfile(_member(MANIFEST, len(content)), io.BytesIO(content))
        for name, path in files.items():
            with path.open("rb") as file:
                archive.addfile(_member(name, path.stat().st_size), file)
        archive.close()
        stream.flush()
        os.fsync(stream.fileno())


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o600
    return member


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- what a store holds ---------------------------------------------------------


def summarise(store: Path, work: Path) -> StoreSummary:
    """Verify a store that nobody has open, and count what it holds. Raises BackupError.

    `work` is a folder for a copy: opening a store for good upgrades it.
    """
    copy = work / "examined.db"
    shutil.copyfile(store, copy)
    try:
        database = sqlite3.connect(copy)
        try:
            found = database.execute("SELECT value FROM about WHERE name = 'format'").fetchone()
        finally:
            database.close()
        log_file = LogFile(copy, expects_content=True)
    except (StoreDamaged, StoreUnavailable, sqlite3.Error) as error:
        raise BackupError(str(error).replace(str(copy), str(store))) from error
    try:
        contents = log_file.contents
        objects = Counter(_resource(key) for key in contents.records)
        return StoreSummary(
            int(found[0]) if found else FORMAT,
            contents.revision,
            store.stat().st_size,
            dict(sorted(objects.items())),
        )
    finally:
        log_file.close()
        copy.unlink(missing_ok=True)


def _resource(key: str) -> str:
    """Return the resource of a key such as `/resource.k8s.io/resourceclaims/default/a`."""
    parts = key.strip("/").split("/")
    return "/".join(parts[:2]) if len(parts) > 2 else key


def examine_store(data: Path) -> StoreSummary:
    """Verify the store of a folder, in use or not, and count what it holds. Raises BackupError."""
    if not (data / FILE_NAME).is_file():
        raise BackupError(f"{data} has no {FILE_NAME}: it is not the folder of a dray system")
    with tempfile.TemporaryDirectory(prefix="dray-examine-") as work:
        copy = Path(work) / FILE_NAME
        _copy_store(data / FILE_NAME, copy)
        return summarise(copy, Path(work))


# --- restore --------------------------------------------------------------------


def restore_backup(archive: Path, data: Path) -> StoreSummary:
    """Make the folder of a system from an archive. Raises BackupError (the folder is in use, the archive is
    not a backup or is damaged) and OSError; the folder is then as it was.
    """
    if data.exists() and (not data.is_dir() or any(data.iterdir())):
        raise BackupError(f"{data} is not empty")
    data.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".dray-restore-", dir=data.parent))
    try:
        restored = work / "data"
        restored.mkdir(mode=0o700)
        _extract(archive, restored)
        summary = summarise(restored / FILE_NAME, work)
        if data.exists():
            data.rmdir()
        restored.rename(data)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return summary


def _extract(path: Path, folder: Path) -> None:
    try:
        with tarfile.open(path, mode="r:gz") as archive:
            manifest = _read_manifest(archive)
            sums: dict[str, str] = manifest["files"]
            left = dict(sums)
            for count, member in enumerate(archive):
                if count > _MOST_MEMBERS:
                    raise BackupError(f"{path} has more than {_MOST_MEMBERS} files")
                if member.name == MANIFEST:
                    continue
                _extract_member(archive, member, folder, left.pop(member.name, None), path)
            if left:
                raise BackupError(f"{path} is incomplete: {', '.join(sorted(left)[:3])} is missing")
    except (tarfile.TarError, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        raise BackupError(f"{path} is not a backup, or it is damaged: {error}") from error


def _read_manifest(archive: tarfile.TarFile) -> dict[str, Any]:
    first = archive.next()
    if first is None or first.name != MANIFEST or not first.isreg() or first.size > _MOST_SMALL:
        raise BackupError(f"it is not a backup made by `dray backup`: {MANIFEST} is not its first file")
    stream = archive.extractfile(first)
    try:
        manifest = load_json(stream.read() if stream else b"")
    except ParseError as error:
        raise BackupError(f"{MANIFEST}: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("kind") != "DrayBackup":
        raise BackupError(f"{MANIFEST} is not that of a backup")
    if manifest.get("format") != BACKUP_FORMAT:
        raise BackupError(
            f"the backup has format {manifest.get('format')}, this dray reads format {BACKUP_FORMAT}: "
            f"use dray {manifest.get('dray')}"
        )
    files = manifest.get("files")
    if not isinstance(files, dict) or FILE_NAME not in files:
        raise BackupError(f"{MANIFEST} names no store")
    return manifest


def _extract_member(
    archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, expected: str | None, path: Path
) -> None:
    parts = Path(member.name).parts
    is_known = member.name in (FILE_NAME, _KUBECONFIG) or (
        len(parts) == 2 and parts[0] == _CERTIFICATES and parts[1] not in (".", "..")
    )
    most = _MOST_BYTES if member.name == FILE_NAME else _MOST_SMALL
    stream = archive.extractfile(member) if member.isreg() else None
    if not is_known or expected is None or stream is None or member.size > most:
        raise BackupError(f"{path} has a file that no backup has: {member.name[:100]!r}")
    target = folder / member.name
    target.parent.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        shutil.copyfileobj(stream, file)
    if _sum(target) != expected:
        raise BackupError(f"{path} is damaged: {member.name} does not have the sum that {MANIFEST} names")
