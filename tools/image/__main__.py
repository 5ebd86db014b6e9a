"""Build the container image of dray without a container daemon and without a registry.

    python tools/image rootfs FOLDER     the file system of the image (the Containerfile runs this)
    python tools/image build FOLDER      FOLDER/dray.tar (an OCI archive), FOLDER/dray.spdx.json and FOLDER/digest

The image has three layers: Debian's Python with the libraries it needs, the Python packages of requirements.lock, and
dray's wheel. There is no shell and no package manager in it. `rootfs` makes each layer as a folder, `oci` turns the
folders into an archive that `ctr images import`, `podman load`, `docker load` and `skopeo copy oci-archive:` read.

The same commit, lock file and Debian packages give the same digest: every time stamp is fixed, every list is sorted.
Tests: tests/unit/tools/test_image.py, tests/cluster/test_cluster_install.py.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import oci
import rootfs
import sbom

PROJECT = Path(__file__).resolve().parents[2]


def git(*words: str) -> str:
    """Return the answer of git, or nothing where this is not a repository."""
    done = subprocess.run(["git", "-C", str(PROJECT), *words], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def describe() -> oci.Description:
    """Return what the image says about itself."""
    created = int(os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct") or rootfs.EPOCH)
    return oci.Description(
        name=os.environ.get("IMAGE_NAME", "localhost/dray"),
        version=rootfs.dray_version(PROJECT),
        revision=os.environ.get("IMAGE_REVISION") or git("rev-parse", "HEAD"),
        source=os.environ.get("DRAY_REPOSITORY_URL", ""),
        created=created,
        architecture=rootfs.architecture(),
    )


def build(folder: Path) -> None:
    """Write the archive, its bill of materials and its digest."""
    folder.mkdir(parents=True, exist_ok=True)
    layers = folder / "layers"
    shutil.rmtree(layers, ignore_errors=True)
    made = rootfs.make_layers(PROJECT, layers)
    description = describe()
    bill = sbom.spdx(description, made)
    sbom.store(bill, made.dray / "usr/share/sbom/dray.spdx.json")
    sbom.store(bill, folder / "dray.spdx.json")
    image = oci.write_archive(folder / "dray.tar", made.folders(), description)
    (folder / "digest").write_text(image.digest + "\n")
    shutil.rmtree(layers)
    print(
        f"{folder / 'dray.tar'}: {description.reference}, {image.digest},"
        f" {image.archive_bytes / 1e6:.0f} MB to download, {image.content_bytes / 1e6:.0f} MB unpacked"
    )


def make_rootfs(folder: Path) -> None:
    """Write the whole file system of the image into one folder."""
    made = rootfs.make_layers(PROJECT, folder.with_name(folder.name + ".layers"))
    sbom.store(sbom.spdx(describe(), made), made.dray / "usr/share/sbom/dray.spdx.json")
    for layer in made.folders():
        shutil.copytree(layer, folder, symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(layer)


def main() -> int:
    """Run one of the two commands."""
    parser = argparse.ArgumentParser(prog="tools/image", description="build dray's container image")
    parser.add_argument("command", choices=["build", "rootfs"])
    parser.add_argument("folder", type=Path, help="where the result goes")
    args = parser.parse_args()
    try:
        build(args.folder) if args.command == "build" else make_rootfs(args.folder)
    except rootfs.CannotBuild as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
