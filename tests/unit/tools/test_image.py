"""tools/image: archives that depend on their contents alone, the bill of materials, and the Containerfile's agreement."""

import gzip
import hashlib
import io
import json
import os
import re
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

import dray

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def tool():
    """Return the modules of tools/image, which is a folder of scripts and not a package."""
    folder = str(ROOT / "tools/image")
    sys.path.insert(0, folder)
    try:
        import oci
        import rootfs
        import sbom

        yield type("Tool", (), {"oci": oci, "rootfs": rootfs, "sbom": sbom})
    finally:
        sys.path.remove(folder)
        for name in ("oci", "rootfs", "sbom"):
            sys.modules.pop(name, None)


@pytest.fixture
def description(tool):
    return tool.oci.Description("localhost/dray", "1.2.3", "abc", "", 1_700_000_000, "amd64")


def make_tree(folder):
    (folder / "usr/bin").mkdir(parents=True)
    (folder / "tmp").mkdir()
    (folder / "home/nonroot").mkdir(parents=True)
    (folder / "usr/bin/program").write_text("#!/bin/true\n")
    (folder / "usr/bin/program").chmod(0o700)
    (folder / "bin").symlink_to("usr/bin")
    os.link(folder / "usr/bin/program", folder / "usr/bin/alias")
    return folder


def blobs_of(path):
    with tarfile.open(path) as archive:
        return {name: archive.extractfile(name).read() for name in archive.getnames()}


# --- the archive -----------------------------------------------------------------------


def test_the_same_folders_give_the_same_digest_whatever_their_times_masks_and_order(
    tool, description, tmp_path
):
    first = make_tree(tmp_path / "first")
    second = tmp_path / "second"
    (second / "home/nonroot").mkdir(parents=True)
    (second / "tmp").mkdir()
    (second / "bin").symlink_to("usr/bin")
    (second / "usr/bin").mkdir(parents=True)
    for name in ("program", "alias"):
        (second / "usr/bin" / name).write_text("#!/bin/true\n")
        (second / "usr/bin" / name).chmod(0o755)
        os.utime(second / "usr/bin" / name, (1, 1))
    one = tool.oci.write_archive(tmp_path / "one.tar", [first], description)
    two = tool.oci.write_archive(tmp_path / "two.tar", [second], description)
    assert one.digest == two.digest
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()


def test_another_byte_gives_another_digest(tool, description, tmp_path):
    folder = make_tree(tmp_path / "tree")
    before = tool.oci.write_archive(tmp_path / "one.tar", [folder], description)
    (folder / "usr/bin/program").write_text("#!/bin/false\n")
    assert tool.oci.write_archive(tmp_path / "two.tar", [folder], description).digest != before.digest


def test_every_blob_has_the_digest_and_size_that_refer_to_it(tool, description, tmp_path):
    image = tool.oci.write_archive(tmp_path / "image.tar", [make_tree(tmp_path / "tree")], description)
    blobs = blobs_of(tmp_path / "image.tar")
    [entry] = json.loads(blobs["index.json"])["manifests"]
    assert entry["digest"] == image.digest
    assert entry["annotations"]["io.containerd.image.name"] == "localhost/dray:1.2.3"
    manifest = json.loads(blobs["blobs/sha256/" + entry["digest"].removeprefix("sha256:")])
    for blob in [entry, manifest["config"], *manifest["layers"]]:
        data = blobs["blobs/sha256/" + blob["digest"].removeprefix("sha256:")]
        assert blob["digest"] == "sha256:" + hashlib.sha256(data).hexdigest()
        assert blob["size"] == len(data)
    config = json.loads(blobs["blobs/sha256/" + manifest["config"]["digest"].removeprefix("sha256:")])
    plain = [
        gzip.decompress(blobs["blobs/sha256/" + layer["digest"].removeprefix("sha256:")])
        for layer in manifest["layers"]
    ]
    assert config["rootfs"]["diff_ids"] == ["sha256:" + hashlib.sha256(data).hexdigest() for data in plain]


def test_files_in_a_layer_belong_to_root_and_are_readable_by_all(tool, tmp_path):
    with tarfile.open(fileobj=io.BytesIO(tool.oci.pack(make_tree(tmp_path / "tree")))) as layer:
        entries = {entry.name: entry for entry in layer}
    assert {entry.uid for name, entry in entries.items() if name != "home/nonroot"} == {0}
    assert entries["home/nonroot"].uid == 65532
    assert entries["usr/bin/program"].mode == 0o755
    assert entries["tmp"].mode == 0o1777
    assert entries["bin"].issym()
    assert entries["usr/bin/alias"].isreg()


def test_the_image_runs_as_a_user_without_rights(tool, description):
    config = tool.oci.configure(description, [])["config"]
    assert config["User"] == "65532:65532"
    assert config["Labels"]["org.opencontainers.image.version"] == "1.2.3"
    assert "org.opencontainers.image.source" not in config["Labels"]


# --- the bill of materials -------------------------------------------------------------


def test_the_bill_of_materials_names_every_package_once_with_its_address(tool, description, tmp_path):
    package = tool.rootfs.Package
    layers = tool.rootfs.Layers(tmp_path, tmp_path, tmp_path)
    layers.contents = [
        package("libstdc++6", "12.2.0-14+deb12u1", "deb", "amd64"),
        package("pyyaml", "6.0.3", "pypi"),
    ]
    document = tool.sbom.spdx(description, layers)
    addresses = [entry["externalRefs"][0]["referenceLocator"] for entry in document["packages"]]
    assert addresses == [
        "pkg:deb/debian/libstdc%2B%2B6@12.2.0-14%2Bdeb12u1?arch=amd64&distro=bookworm",
        "pkg:pypi/pyyaml@6.0.3",
    ]
    ids = [entry["SPDXID"] for entry in document["packages"]]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", name) for name in ids)
    assert document == tool.sbom.spdx(description, layers)


# --- what is installed -----------------------------------------------------------------


def test_the_lock_pins_every_dependency_of_the_package_and_of_its_two_extras():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = declared["dependencies"] + [
        line for extra in ("nvidia", "network") for line in declared["optional-dependencies"][extra]
    ]
    lock = (ROOT / "tools/image/requirements.lock").read_text("utf-8")
    pinned = dict(re.findall(r"^([a-z0-9-]+)==(\S+) \\$", lock, re.MULTILINE))
    for line in wanted:
        name, floor = re.match(r"([A-Za-z0-9-]+)>=([0-9.]+)", line).groups()
        assert name.lower() in pinned, f"{name} is not in requirements.lock; run: make image-lock"
        have, least = ([int(part) for part in text.split(".")] for text in (pinned[name.lower()], floor))
        assert have >= least, f"requirements.lock has {name} {have}, pyproject.toml wants {least}"
    blocks = re.split(r"^(?=[a-z0-9-]+==)", lock, flags=re.MULTILINE)[1:]
    assert all("--hash=sha256:" in block for block in blocks)


def test_the_containerfile_makes_the_image_that_make_image_makes(tool):
    text = (ROOT / "Containerfile").read_text("utf-8").replace("\\\n", " ")
    final = text[text.index("FROM scratch") :]
    assert "tools/image rootfs /rootfs" in text
    assert f"debian:{tool.rootfs.SUITE}-slim" in text
    assert json.loads(re.search(r"^ENTRYPOINT (.*)$", final, re.MULTILINE)[1]) == [*tool.oci.ENTRYPOINT]
    assert (
        dict(re.findall(r"(\w+)=(\S+)", re.search(r"^ENV (.*)$", final, re.MULTILINE)[1]))
        == tool.oci.ENVIRONMENT
    )
    description = tool.oci.Description("dray", dray.__version__, "$REVISION", "$SOURCE", 0, "amd64")
    config = tool.oci.configure(description, [])["config"]
    assert re.search(r"^USER (.*)$", final, re.MULTILINE)[1] == config["User"]
    assert re.search(r"^WORKDIR (.*)$", final, re.MULTILINE)[1] == config["WorkingDir"]
    labels = dict(re.findall(r'(org\.[\w.]+)="([^"]*)"', final))
    # The builder knows the time of creation; it sets that label itself.
    assert labels == {name: value for name, value in config["Labels"].items() if not name.endswith("created")}


def test_a_machine_without_apt_is_told_what_to_use_instead(tool, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(tool.rootfs.CannotBuild, match="Containerfile"):
        tool.rootfs.architecture()


def test_a_command_that_fails_is_quoted(tool):
    with pytest.raises(tool.rootfs.CannotBuild, match="no-such-option"):
        tool.rootfs.run("ls", "--no-such-option")
