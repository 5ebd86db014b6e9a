"""The commands as a user types them, on `dray server`: a new driver, checked, killed, and run by a node."""

import asyncio
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dray.client import Client
from dray.client.resources import NODES

pytestmark = pytest.mark.heavy


@pytest.fixture
def folder():
    path = Path(tempfile.mkdtemp(prefix="dray-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def dray(*words):
    return subprocess.run(
        [sys.executable, "-m", "dray", *map(str, words)], capture_output=True, text=True, timeout=120
    )


async def test_a_new_driver_passes_the_check_with_a_real_kill(dray_peer, folder):
    made = dray("driver", "new", "torch.example.com", folder / "new")
    assert made.returncode == 0, made.stderr
    async with Client.connect(dray_peer.kubeconfig) as client:
        await client.create(NODES, {"metadata": {"name": "checked"}})
    where = ["--kubelet-dir", folder / "k", "--cdi-dir", folder / "cdi", "--kubeconfig", dray_peer.kubeconfig]
    line = " ".join(
        map(str, [sys.executable, folder / "new" / "torch_driver.py", "--node-name", "checked", *where])
    )
    done = await asyncio.to_thread(
        dray, "driver", "check", "--node-name", "checked", *where, "--command", line
    )
    assert done.returncode == 0, done.stdout + done.stderr
    verdicts = dict(reversed(row.split(None, 1)) for row in done.stdout.splitlines())
    assert verdicts["survives kill -9 between two prepares"] == "ok"
    assert "failed" not in verdicts.values()


async def test_a_check_of_nothing_fails_with_a_reason(dray_peer, folder):
    done = await asyncio.to_thread(
        dray,
        "driver",
        "check",
        "--kubelet-dir",
        folder,
        "--timeout",
        "0.3",
        "--kubeconfig",
        dray_peer.kubeconfig,
    )
    assert done.returncode == 1
    assert "no socket appeared" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["driver", "run", "toaster"], "invalid choice: 'toaster'"),
        (["driver", "new", "toaster"], "is not a driver name"),
        (["driver", "run", "sim", "--profile", "toaster"], "toaster"),
        (["node", "--kubeconfig", "/no/such/file"], "/no/such/file"),
        (["node", "--label", "x"], "KEY=VALUE"),
    ],
)
def test_mistakes_are_explained(words, message):
    done = dray(*words)
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr
