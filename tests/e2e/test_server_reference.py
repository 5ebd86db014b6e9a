"""Recorded answers of kube-apiserver and of kubectl, played against `dray server`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from server_process import GATES, serving
from shared_data import shared

FLAGS = (
    "--in-memory",
    "--disable-admission-plugins",
    "ServiceAccount",
    "--feature-gates",
    ",".join(f"{gate}=true" for gate in GATES),
)
# Some of each: reading, writing, watching, patching.
FEW = ("apply", "delete", "patch", "conflict", "list", "quirks")


def play(url: str, *more: str) -> None:
    script = shared("vectors/api/compare.py")
    done = subprocess.run(
        [sys.executable, str(script), "--url", url, "--show", "10", *more],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_some_recorded_stories_have_the_recorded_end(tmp_path: Path) -> None:
    shared("vectors/api/compare.py")
    with serving(tmp_path, *FLAGS) as server:
        play(server.url, "--min", "99", *(word for theme in FEW for word in ("--theme", theme)))


@pytest.mark.heavy
def test_all_recorded_stories_agree_with_the_reference(tmp_path: Path) -> None:
    shared("vectors/api/compare.py")
    with serving(tmp_path, *FLAGS) as server:
        play(server.url, "--min", "99")


def find_kubectl() -> str | None:
    peers = Path(os.environ.get("DRAY_PEERS", Path.home() / ".cache/dray/peers/v1.37.1"))
    built = peers / "kubectl"
    return str(built) if built.exists() else shutil.which("kubectl")


@pytest.mark.heavy
def test_kubectl_prints_what_it_prints_with_the_reference(tmp_path: Path) -> None:
    script = shared("vectors/api/kubectl_compare.py")
    kubectl = find_kubectl()
    if kubectl is None:
        pytest.skip("no kubectl on this machine")
    with serving(tmp_path, *FLAGS) as server:
        done = subprocess.run(
            [
                sys.executable,
                str(script),
                "--kubeconfig",
                str(server.kubeconfig),
                "--kubectl",
                kubectl,
                "--min",
                "95",
            ],
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
