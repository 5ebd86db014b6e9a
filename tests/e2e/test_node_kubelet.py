"""kubelet's own DRA code, v1.37: a driver on dray's SDK works with it, and it shares its checkpoint with dray's agent.

The peer is kubelet's DRA manager and plugin manager, compiled from k8s.io/kubernetes (the module that tools/peers/build
makes); a whole kubelet would need a container runtime. Skipped where it cannot be built.
"""

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from node_builders import WatchedLamps, claim, container, eventually, pod

from dray.client import Client
from dray.client.resources import CLAIMS, NODES, PODS
from dray.driver import Settings, serving_driver
from dray.node import AgentSettings, running_agent

pytestmark = [pytest.mark.heavy, pytest.mark.kubernetes]

SOURCE = Path(__file__).parents[1] / "go" / "kubelet" / "main.go.txt"
PEERS = Path(os.environ.get("DRAY_PEERS", Path.home() / ".cache/dray/peers")) / "v1.37.1"


@pytest.fixture(scope="module")
def kubelet():
    """Build the peer once; the first time takes minutes."""
    program = PEERS / "dra" / "kubelet-dra"
    module = PEERS / "module"
    if not program.exists() or program.stat().st_mtime < SOURCE.stat().st_mtime:
        if shutil.which("go") is None or not (module / "go.sum").exists():
            pytest.skip("kubelet's DRA manager is not built: needs Go, and tools/peers/build")
        with tempfile.TemporaryDirectory() as folder:
            for name in ("go.mod", "go.sum"):
                shutil.copy(module / name, folder)
            shutil.copy(SOURCE, Path(folder, "main.go"))
            program.parent.mkdir(exist_ok=True)
            subprocess.run(
                ["go", "build", "-mod=mod", "-o", str(program), "."], cwd=folder, check=True, timeout=1800
            )
    return program


@pytest.fixture
def folder():
    path = Path(tempfile.mkdtemp(prefix="dray-", dir="/tmp"))
    (path / "plugins_registry").mkdir()
    yield path
    shutil.rmtree(path, ignore_errors=True)


async def manage(kubelet, peer, folder, node, name, *flags):
    """Let kubelet's code prepare a pod; returns what it says."""
    process = await asyncio.create_subprocess_exec(
        str(kubelet),
        *(
            "--kubeconfig",
            str(peer.kubeconfig),
            "--root",
            str(folder),
            "--node-name",
            node,
            "--pod",
            name,
            *flags,
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()[-3000:]
    return json.loads(output)


async def make_pod(client, node, name):
    body = pod(name, claims=(name,), node=node, terminationGracePeriodSeconds=1)
    boxes = [
        container("left", claims=[{"name": name, "request": "one"}]),
        container("right", claims=[{"name": name, "request": "two"}]),
        container("none"),
    ]
    body["spec"]["containers"] = boxes
    del body["status"]
    stored = await client.create(PODS, body, "default")
    made = claim(name, [("one", "lamp-0"), ("two", "lamp-1")], pool=node, pod=stored)
    status = made.pop("status")
    created = await client.create(CLAIMS, made, "default")
    await client.update(CLAIMS, name, {**created, "status": status}, "default", subresource="status")
    return created["metadata"]["uid"]


def recorded(folder):
    found = json.loads(json.loads((folder / "dra_manager_state").read_text())["Data"])["ClaimInfoStateList"]
    return [entry["ClaimName"] for entry in found or ()]


async def test_a_driver_on_the_sdk_works_with_kubelets_own_code(kubelet, dray_peer, folder):
    node, name = "with-kubelet", "kubelet-reader"
    async with Client.connect(dray_peer.kubeconfig) as client:
        await client.create(NODES, {"metadata": {"name": node}})
        driver = WatchedLamps()
        settings = Settings(node_name=node, kubelet_dir=folder, cdi_dir=folder / "cdi")
        async with serving_driver(driver, client, settings):
            uid = await make_pod(client, node, name)
            told = await manage(kubelet, dray_peer, folder, node, name, "--unprepare")
        prefix = f"k8s.{driver.name}/claim={uid}"
        assert told["devices"] == {"left": [f"{prefix}-lamp-0"], "right": [f"{prefix}-lamp-1"]}
        (entry,) = told["health"][0]["allocatedResourcesStatus"]
        assert entry["name"] == f"claim:{name}/one"
        assert entry["resources"] == [{"resourceID": f"{prefix}-lamp-0", "health": "Healthy"}]
        assert [call[0] for call in driver.calls] == ["prepare", "unprepare"]
        assert recorded(folder) == []


async def test_a_node_changes_from_kubelet_to_dray_and_back(kubelet, dray_peer, folder):
    """Each goes on with the checkpoint that the other left."""
    node, name = "changing", "changing-reader"
    async with Client.connect(dray_peer.kubeconfig) as client:
        await client.create(NODES, {"metadata": {"name": node}})
        driver = WatchedLamps()
        async with serving_driver(
            driver, client, Settings(node_name=node, kubelet_dir=folder, cdi_dir=folder / "cdi")
        ):
            await make_pod(client, node, name)
            await manage(kubelet, dray_peer, folder, node, name)
            assert recorded(folder) == [name]
            settings = AgentSettings(node, folder, cdi_dirs=[folder / "cdi"], serves=False)
            async with running_agent(client, settings) as agent:
                assert [key.name for key in agent.records.infos] == [name]

                def runs():
                    machine = agent.pods.find("default", name)
                    return machine is not None and machine.phase == "Running"

                await eventually(runs)
                log = next(folder.glob("logs/*/left/0.log"))
                await eventually(lambda: "LAMP_0=lamp-0" in log.read_text())
                assert "LAMP_1" not in log.read_text()
                uid = agent.pods.find("default", name).pod.metadata.uid
            assert recorded(folder) == [name]
            await manage(kubelet, dray_peer, folder, node, name, "--unprepare")
            assert recorded(folder) == []
            assert [call[0] for call in driver.calls] == ["prepare", "unprepare"]
            # The containers of the process runtime outlive the agent; a new one ends them.
            await client.delete(PODS, name, "default", grace_seconds=0)
            async with running_agent(client, settings):
                await eventually(lambda: not (folder / "containers" / uid).exists())
