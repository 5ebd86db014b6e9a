"""kill -9 of agent and driver at every step of prepare and unprepare, on `dray server`.

Whatever dies, and wherever: the pod ends up running with its device, gives it back
when deleted, no lamp stays lit, and none ever has two owners.
"""

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pytest
from node_builders import claim, eventually, pod

from dray.client import Client, NotFound
from dray.client.resources import CLAIMS, PODS

CHILDREN = Path(__file__).with_name("node_children.py")

DRIVER_STEPS = [
    "prepare:recorded-start",
    "prepare:driver-done",
    "prepare:files-written",
    "prepare:recorded-complete",
    "prepare:attached",
    "unprepare:driver-done",
    "unprepare:files-removed",
    "unprepare:forgotten",
]
AGENT_STEPS = [
    "prepare:reserved",
    "prepare:checkpointed",
    "prepare:called",
    "prepare:answered",
    "release:called",
    "release:checkpointed",
]
SCENARIOS = [("driver", step) for step in DRIVER_STEPS] + [("agent", step) for step in AGENT_STEPS]


@pytest.fixture(scope="module")
def kubeconfig():
    folder = Path(tempfile.mkdtemp(prefix="dray-", dir="/tmp"))
    path = folder / "kubeconfig"
    command = [
        sys.executable,
        "-m",
        "dray",
        "server",
        "--in-memory",
        "--data",
        str(folder),
        "--secure-port",
        "0",
    ]
    log = (folder / "log").open("w")
    server = subprocess.Popen([*command, "--kubeconfig", str(path)], stdout=log, stderr=log)
    try:
        while not (path.exists() and path.stat().st_size):
            assert server.poll() is None, (folder / "log").read_text()
            time.sleep(0.05)
        yield str(path)
    finally:
        server.terminate()
        server.wait(60)
        log.close()
        shutil.rmtree(folder)


class Supervisor:
    """Keeps a child alive, as a DaemonSet or systemd would."""

    def __init__(self, role, kubeconfig, node, root, step=""):
        self.line = [sys.executable, str(CHILDREN), role, kubeconfig, node, str(root), step]
        self.log = (root / f"{role}.log").open("ab")
        self.deaths = 0

    async def run(self):
        try:
            while True:
                self.process = await asyncio.create_subprocess_exec(
                    *self.line, stdout=self.log, stderr=self.log
                )
                await self.process.wait()
                self.deaths += 1
                await asyncio.sleep(0.05)
        finally:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()
            self.log.close()


@pytest.mark.parametrize(
    ("role", "step"),
    [pytest.param(*scenario, marks=pytest.mark.heavy, id=" ".join(scenario)) for scenario in SCENARIOS],
)
async def test_nothing_is_lost_when_a_process_is_killed(kubeconfig, role, step):
    node = f"node-{uuid.uuid4().hex[:6]}"
    root = Path(tempfile.mkdtemp(prefix="dray-", dir="/tmp"))
    children = {
        name: Supervisor(name, kubeconfig, node, root, step if name == role else "")
        for name in ("agent", "driver")
    }
    tasks = [asyncio.create_task(child.run()) for child in children.values()]
    try:
        async with Client.connect(kubeconfig) as client:
            await life_of_a_pod(client, node, root)
        assert (root / "died").exists(), "the step was never reached"
        assert children[role].deaths == 1
        assert not (root / "two-owners").exists(), (root / "two-owners").read_text()
        assert list((root / "hardware").iterdir()) == []
        assert list((root / "cdi").glob("*.json")) == []
        assert (
            json.loads(json.loads((root / "dra_manager_state").read_text())["Data"])["ClaimInfoStateList"]
            is None
        )
        state = json.loads((root / "plugins/lamp.example.com/dray-state.json").read_text())
        assert state["book"]["claims"] == []
        assert not list((root / "containers").glob("*"))
    except BaseException:
        for name in children:
            print(f"--- {name}\n{(root / f'{name}.log').read_text()[-3000:]}")
        raise
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        shutil.rmtree(root, ignore_errors=True)


async def life_of_a_pod(client, node, root):
    """Bind a pod with an allocated claim to the node, see it run, delete it, see it go."""
    name = f"pod-{node}"
    body = pod(name, claims=(name,), node=node, terminationGracePeriodSeconds=1)
    body["spec"]["containers"][0]["command"] = ["/bin/sh", "-c", "sleep 100"]
    del body["status"]
    stored = await client.create(PODS, body, "default")
    made = claim(name, pool=node, pod=stored)
    status = made.pop("status")
    created = await client.create(CLAIMS, made, "default")
    await client.update(CLAIMS, name, {**created, "status": status}, "default", subresource="status")

    async def phase():
        return (await client.get(PODS, name, "default")).get("status", {}).get("phase")

    await until(lambda: phase(), "Running")
    assert (root / "hardware" / "lamp-0").read_text() == created["metadata"]["uid"]
    await client.delete(PODS, name, "default", grace_seconds=1)

    async def gone():
        try:
            await client.get(PODS, name, "default")
        except NotFound:
            return True
        return False

    await until(gone, True)
    # The claim controller's part: nobody runs one here.
    latest = await client.get(CLAIMS, name, "default")
    latest["status"] = {}
    await client.update(CLAIMS, name, latest, "default", subresource="status")
    await client.delete(CLAIMS, name, "default")
    await eventually(lambda: not list((root / "hardware").iterdir()))
    await eventually(lambda: not list((root / "containers").glob("*")))


async def until(ask, wanted, seconds=60.0):
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        found = await ask()
        if found == wanted:
            return
        assert asyncio.get_running_loop().time() < deadline, f"still {found!r}, not {wanted!r}"
        await asyncio.sleep(0.05)


def test_all_steps_are_enumerated():
    """A new step in the code must be killed at, too."""
    source = Path(__file__).parents[2] / "src/dray"
    found = {
        (role, line.split('"')[1])
        for role, path in (
            ("driver", source / "driver/preparing.py"),
            ("agent", source / "node/preparing.py"),
        )
        for line in path.read_text().splitlines()
        if "self._step(" in line
    }
    assert found == set(SCENARIOS)
