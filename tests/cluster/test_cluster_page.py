"""docs/guides/install-in-a-cluster.md, followed word for word on a cluster in which nothing of dray is installed.

Blocks "```console real" run where an administrator sits: in the clone, with kubectl, helm and the plugin on the path; blocks
"```console node" run on every node. Each line that the page shows must be printed, in that order; "…" stands for anything.
The page builds the image again: the same commit must give the same digest.
"""

import fnmatch
import json
import os
import re
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from cluster_setup import HOST_NETWORK, IMAGE, ROOT

PAGE = ROOT / "docs/guides/install-in-a-cluster.md"
LIMIT = 600  # seconds from the empty cluster to the first pod with a device, the image's build included


def steps():
    """Return (where, command, lines that the page shows) in order."""
    found, where = [], ""
    for line in PAGE.read_text("utf-8").splitlines():
        if line.startswith("```"):
            where = {"```console real": "real", "```console node": "node"}.get(line.strip(), "")
        elif where and line.startswith("$ "):
            found.append((where, line[2:], []))
        elif where and line.startswith("> "):
            found[-1] = (where, f"{found[-1][1]}\n{line[2:]}", found[-1][2])
        elif where and line.strip():
            found[-1][2].append(line)
    return found


def agrees(shown, printed):
    """Return the first line of the page that was not printed, or nothing."""
    lines = iter([" ".join(line.split()) for line in printed.splitlines()])
    for line in shown:
        pattern = re.sub(r"([*?\[])", r"[\1]", " ".join(line.split())).replace("…", "*")
        if line.strip() != "…" and not any(fnmatch.fnmatchcase(each, pattern) for each in lines):
            return line
    return ""


def run(rig, where, command):
    """Run one command of the page and return what it printed."""
    path = f"{Path(sys.executable).parent}:{rig.peers}:{os.environ['PATH']}"
    if where == "node":
        return "".join(
            node.run("env", f"PATH={path}", "sh", "-c", f"cd {ROOT} && {command}") for node in rig.nodes
        )
    # Packages are downloaded in the host's network; the cluster's has no way out.
    entered = ["nsenter", f"--net={HOST_NETWORK}", "--"] if command.startswith("make ") else []
    environment = {**os.environ, "PATH": path, "KUBECONFIG": str(rig.credentials.kubeconfig("admin"))}
    done = subprocess.run(
        [*entered, "bash", "-c", command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
    return done.stdout


def manifest_of(path):
    """Return the manifest of an image archive."""
    with tarfile.open(path) as archive:
        [entry] = json.load(archive.extractfile("index.json"))["manifests"]
        return json.load(archive.extractfile("blobs/sha256/" + entry["digest"].removeprefix("sha256:")))


def test_the_page_can_be_followed_word_for_word(rig, empty_cluster):
    first = manifest_of(IMAGE)
    IMAGE.unlink()
    started = time.monotonic()
    for where, command, shown in steps():
        printed = run(rig, where, command)
        missing = agrees(shown, printed)
        assert not missing, f"$ {command}\nthe page shows: {missing}\nprinted was:\n{printed}"
        if command.startswith("kubectl wait"):
            seconds = time.monotonic() - started
            print(
                f"from the empty cluster to the first pod with a device, image build included: {seconds:.0f} s"
            )
            assert seconds < LIMIT
    # The image was built twice by now. What a commit decides is compared where there was none in between.
    second, revision = manifest_of(IMAGE), "org.opencontainers.image.revision"
    assert second["layers"][:2] == first["layers"][:2]
    if second["annotations"][revision] == first["annotations"][revision]:
        assert second == first
