"""Small images for pods, made from Debian's static busybox: no registry is asked.

`localhost/pause:1` is the sandbox of every pod; `docker.io/library/busybox:latest` is what the examples name.
"""

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "image"))

import oci
import rootfs

PAUSE = "localhost/pause:1"
BUSYBOX = "docker.io/library/busybox:latest"


def make_images(folder: Path) -> list[Path]:
    """Make the archives, unless they are there, and return them."""
    made = [folder / "pause.tar", folder / "busybox.tar"]
    if all(path.exists() for path in made):
        return made
    root = folder / "busybox-root"
    subprocess.run(["rm", "-rf", str(root)], check=True)
    for directory in ("bin", "tmp", "etc", "proc", "sys", "dev", "root"):
        (root / directory).mkdir(parents=True)
    rootfs.apt("update")
    rootfs.apt("-y", "--download-only", "install", "busybox-static")
    archives = rootfs.CACHE / f"apt-{rootfs.SUITE}-{rootfs.architecture()}" / "archives"
    archive = max(archives.glob("busybox-static_*.deb"), key=lambda path: path.stat().st_mtime)
    unpacked = folder / "busybox-package"
    subprocess.run(["dpkg-deb", "-x", str(archive), str(unpacked)], check=True)
    program = next(path for path in unpacked.rglob("busybox") if path.is_file() and path.parent.name == "bin")
    (root / "bin/busybox").write_bytes(program.read_bytes())
    (root / "bin/busybox").chmod(0o755)
    listed = subprocess.run(
        [str(program), "--list"], capture_output=True, text=True, check=True
    ).stdout.split()
    for name in listed:
        if name != "busybox":
            (root / "bin" / name).symlink_to("busybox")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    for path, reference, entrypoint in (
        (made[0], PAUSE, ["/bin/busybox", "sleep", "infinity"]),
        (made[1], BUSYBOX, ["/bin/sh"]),
    ):
        name, _, version = reference.rpartition(":")
        description = oci.Description(
            name, version, "", "", rootfs.EPOCH, rootfs.architecture(), tuple(entrypoint), ""
        )
        oci.write_archive(path, [root], description)
    return made
