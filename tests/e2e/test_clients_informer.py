"""A client-go program works against `dray server` unchanged: informers, patches, leader election.

Built once with Go into the cache of peers; skipped where there is no Go.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from server_process import serving

pytestmark = [pytest.mark.heavy, pytest.mark.kubernetes]

SOURCE = Path(__file__).parents[1] / "go" / "informer"
CACHE = Path(os.environ.get("DRAY_PEERS", Path.home() / ".cache" / "dray" / "peers")) / "informer"
STEPS = ["synced", "leading", "added", "patched", "applied", "conflict", "deleted", "done"]


@pytest.fixture(scope="module")
def program():
    if shutil.which("go") is None:
        pytest.skip("Go is not on this machine: a client-go program cannot be built")
    CACHE.mkdir(parents=True, exist_ok=True)
    built = CACHE / "informer"
    subprocess.run(["go", "build", "-o", built, "."], cwd=SOURCE, check=True, timeout=900)
    return built


def run(program, kubeconfig):
    ended = subprocess.run([program, kubeconfig], capture_output=True, text=True, timeout=120, check=False)
    steps = [json.loads(line)["step"] for line in ended.stdout.splitlines()]
    assert steps == STEPS, ended.stdout + ended.stderr
    assert ended.returncode == 0
    return ended.stderr


def test_informers_see_every_step(program, tmp_path):
    flags = ("--data", str(tmp_path / "data"), "--disable-admission-plugins", "ServiceAccount")
    with serving(tmp_path, *flags) as server:
        complaints = run(program, server.kubeconfig)
        # Watches that had to fall back or start anew would say so.
        assert "Failed to watch" not in complaints, complaints


def test_the_program_means_the_same_on_kubernetes(program, kubernetes_peer):
    """The steps are those of kube-apiserver, so that the test above tests dray and not itself."""
    run(program, kubernetes_peer.kubeconfig)
