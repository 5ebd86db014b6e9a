"""Backup, restore and the examination of a store."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
from pathlib import Path

import pytest

from dray.cli.main import main
from dray.local.backup import BackupError, examine_store, make_backup, restore_backup
from dray.server.store import SqliteStore


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "system"
    write(folder, 3)
    (folder / "pki").mkdir()
    (folder / "pki/ca.key").write_text("secret")
    (folder / "admin.kubeconfig").write_text("kind: Config")
    return folder


def write(folder: Path, count: int, *, keep_open: bool = False) -> SqliteStore | None:
    async def fill(store: SqliteStore) -> None:
        for index in range(count):
            await store.put(f"/pods/default/p{index}", lambda _revision: b"{}")

    store = SqliteStore(folder)
    asyncio.run(fill(store))
    if keep_open:
        return store
    store.close()
    return None


def test_what_is_backed_up_comes_back(data: Path, tmp_path: Path) -> None:
    made = make_backup(data, tmp_path / "b.tar.gz")
    restored = restore_backup(tmp_path / "b.tar.gz", tmp_path / "new")
    assert made == restored
    assert sum(restored.objects.values()) == 3
    assert (tmp_path / "new/pki/ca.key").read_text() == "secret"
    store = SqliteStore(tmp_path / "new", expects_content=True)
    assert store.revision == made.revision
    store.close()


def test_only_the_owner_can_read_keys(data: Path, tmp_path: Path) -> None:
    make_backup(data, tmp_path / "b.tar.gz")
    restore_backup(tmp_path / "b.tar.gz", tmp_path / "new")
    assert (tmp_path / "b.tar.gz").stat().st_mode & 0o077 == 0
    assert all(
        path.stat().st_mode & 0o077 == 0 for path in [tmp_path / "new", *(tmp_path / "new").rglob("*")]
    )


def test_a_store_in_use_is_copied_with_its_latest_writes(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = write(data, 7, keep_open=True)
    assert store is not None
    try:
        assert sum(make_backup(data, tmp_path / "b.tar.gz").objects.values()) == 7
        assert sum(examine_store(data).objects.values()) == 7
        restore_backup(tmp_path / "b.tar.gz", tmp_path / "new")
        SqliteStore(tmp_path / "new", expects_content=True).close()
        assert caplog.records == []  # a copy that SQLite made lacks nothing, and nobody is told that it may
    finally:
        store.close()


def test_a_folder_in_use_is_not_replaced(data: Path, tmp_path: Path) -> None:
    make_backup(data, tmp_path / "b.tar.gz")
    with pytest.raises(BackupError, match="is not empty"):
        restore_backup(tmp_path / "b.tar.gz", data)


def archive(path: Path, *members: tuple[tarfile.TarInfo, bytes], **manifest: object) -> Path:
    with tarfile.open(path, "w:gz") as file:
        content = json.dumps(
            {"kind": "DrayBackup", "format": 1, "files": {"store.db": "0"}, **manifest}
        ).encode()
        for info, body in [(tarfile.TarInfo("backup.json"), content), *members]:
            if info.isreg():
                info.size = len(body)
            file.addfile(info, io.BytesIO(body))
    return path


def link(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return info


@pytest.mark.parametrize(
    "member",
    [
        (tarfile.TarInfo("../evil"), b"x"),
        (tarfile.TarInfo("/etc/evil"), b"x"),
        (tarfile.TarInfo("pki/../../evil"), b"x"),
        (tarfile.TarInfo("pki/.."), b"x"),
        (link("store.db"), b""),
        (tarfile.TarInfo("store.db"), b"wrong sum"),
        (tarfile.TarInfo("pki/unlisted"), b"x"),
    ],
    ids=lambda member: member[0].name,
)
def test_an_archive_is_not_trusted(tmp_path: Path, member: tuple[tarfile.TarInfo, bytes]) -> None:
    made = archive(tmp_path / "b.tar.gz", member, files={"store.db": "0", "../evil": "0", "pki/..": "0"})
    with pytest.raises(BackupError):
        restore_backup(made, tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar.gz"]


@pytest.mark.parametrize("content", [b"", b"not a tar", b"\x1f\x8b\x08" + b"\0" * 50])
def test_what_is_not_an_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "b.tar.gz").write_bytes(content)
    with pytest.raises(BackupError, match="not a backup"):
        restore_backup(tmp_path / "b.tar.gz", tmp_path / "new")


def test_a_newer_format_names_the_version_to_use(tmp_path: Path) -> None:
    made = archive(tmp_path / "b.tar.gz", format=99, dray="9.9")
    with pytest.raises(BackupError, match="use dray 9.9"):
        restore_backup(made, tmp_path / "new")


def test_a_damaged_store_is_not_restored(data: Path, tmp_path: Path) -> None:
    content = bytearray((data / "store.db").read_bytes())
    place = content.index(b"/pods/default/p1")
    content[place + 2] ^= 1
    (data / "store.db").write_bytes(bytes(content))
    with pytest.raises(BackupError, match="damaged"):
        make_backup(data, tmp_path / "b.tar.gz")
    assert not (tmp_path / "b.tar.gz").exists()


def test_the_commands(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = str(tmp_path / "b.tar.gz")
    assert main(["backup", made, "--data", str(data)]) == 0
    assert main(["backup", made, "--data", str(data)]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["restore", made, "--data", str(tmp_path / "new"), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["revision"] == 4
    assert main(["restore", made, "--data", str(tmp_path / "new")]) == 2
    assert main(["upgrade", "--check", "--data", str(tmp_path / "new")]) == 0
    assert "nothing changes" in capsys.readouterr().out
    assert main(["upgrade", "--check", "--data", str(tmp_path / "nowhere")]) == 1
    assert main(["backup", made, "--force", "--data", str(tmp_path)]) == 2
    assert main(["restore", str(tmp_path / "absent"), "--data", str(tmp_path / "third")]) == 2
