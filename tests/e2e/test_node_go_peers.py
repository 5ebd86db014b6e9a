"""Go peers made from Kubernetes' published modules: a driver on kubelet's helper library runs on dray's
agent unchanged, and a client from the kubelet module drives a driver on dray's SDK.

Built once with Go into the cache of peers; skipped where there is no Go.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from node_builders import DRIVER, NODE, WatchedLamps, claim, claim_path, container, eventually, pod
from small_api import SmallApi

from dray.client import Client
from dray.client.resources import CLAIMS, NODES, PODS, SLICES
from dray.driver import Settings, serving_driver
from dray.driver.conformance import Kit
from dray.node import AgentSettings, running_agent

pytestmark = [pytest.mark.heavy, pytest.mark.kubernetes]

SOURCE = Path(__file__).parents[1] / "go"
CACHE = Path(os.environ.get("DRAY_PEERS", Path.home() / ".cache/dray/peers/v1.37.1")) / "dra"
GO_DRIVER = "go.lamp.example.com"


@pytest.fixture(scope="module")
def peers():
    if shutil.which("go") is None:
        pytest.skip("Go is not on this machine")
    CACHE.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["go", "build", "-o", f"{CACHE}/", "./driver", "./node"], cwd=SOURCE, check=True, timeout=900
    )
    return CACHE


@pytest.fixture
def folder():
    path = Path(tempfile.mkdtemp(prefix="dray-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def kubeconfig():
    data = Path(tempfile.mkdtemp(prefix="dray-", dir="/tmp"))
    path = data / "kubeconfig"
    command = [
        sys.executable,
        "-m",
        "dray",
        "server",
        "--in-memory",
        "--data",
        str(data),
        "--secure-port",
        "0",
    ]
    with (data / "log").open("w") as log:
        server = subprocess.Popen([*command, "--kubeconfig", str(path)], stdout=log, stderr=log)
        while not (path.exists() and path.stat().st_size):
            assert server.poll() is None, (data / "log").read_text()
            time.sleep(0.05)
        yield str(path)
        server.terminate()
        server.wait(60)
    shutil.rmtree(data)


def go_driver(peers, kubeconfig, node, folder):
    return [
        str(peers / "driver"),
        *(
            "--kubeconfig",
            kubeconfig,
            "--node-name",
            node,
            "--kubelet-dir",
            str(folder),
            "--cdi-dir",
            str(folder / "cdi"),
        ),
    ]


async def test_a_go_driver_built_for_kubelet_works_with_the_agent_unchanged(peers, kubeconfig, folder):
    node = "go-node"
    settings = AgentSettings(node, folder, cdi_dirs=[folder / "cdi"])
    log = (folder / "driver.log").open("wb")
    async with Client.connect(kubeconfig) as client, running_agent(client, settings) as agent:
        driver = await asyncio.create_subprocess_exec(
            *go_driver(peers, kubeconfig, node, folder), stdout=log, stderr=log
        )
        try:
            await eventually(agent.plugins.drivers, what=(folder / "driver.log").read_text())
            plugin = agent.plugins.find(GO_DRIVER)
            assert plugin.service == "v1.DRAPlugin"
            assert plugin.health_service == "v1.DRAResourceHealth"

            async def slices():
                found = await client.list(SLICES, fieldSelector=f"spec.nodeName={node}")
                return [[device["name"] for device in item["spec"]["devices"]] for item in found.items]

            for _ in range(600):
                if await slices() == [["lamp-0", "lamp-1"]]:
                    break
                await asyncio.sleep(0.1)
            assert await slices() == [["lamp-0", "lamp-1"]]

            body = pod("go-reader", claims=("go-light",), node=node, terminationGracePeriodSeconds=1)
            body["spec"]["containers"] = [container(claims=[{"name": "go-light"}])]
            del body["status"]
            stored = await client.create(PODS, body, "default")
            made = claim("go-light", driver=GO_DRIVER, pool=node, pod=stored)
            status = made.pop("status")
            created = await client.create(CLAIMS, made, "default")
            await client.update(
                CLAIMS, "go-light", {**created, "status": status}, "default", subresource="status"
            )

            def printed():
                return "".join(path.read_text() for path in folder.glob("logs/*/main/0.log"))

            await eventually(lambda: "GO_LAMP=lamp-0" in printed())
            for _ in range(600):
                shown = (await client.get(PODS, "go-reader", "default"))["status"]["containerStatuses"][0]
                if shown.get("allocatedResourcesStatus"):
                    break
                await asyncio.sleep(0.1)
            assert shown["allocatedResourcesStatus"][0]["resources"][0]["health"] == "Healthy"
            told = await ask_pod_resources(peers, folder)
            (entry,) = [p for p in told["pod_resources"] if p["name"] == "go-reader"]
            (resource,) = entry["containers"][0]["dynamic_resources"]
            assert resource["claim_name"] == "go-light"
            assert resource["claim_resources"][0]["driver_name"] == GO_DRIVER
            await client.delete(PODS, "go-reader", "default")
            await eventually(lambda: not agent.records.infos)
            assert not list((folder / "cdi").glob("*.json"))
        finally:
            driver.terminate()
            await driver.wait()
            log.close()


async def ask_pod_resources(peers, folder):
    process = await asyncio.create_subprocess_exec(
        str(peers / "node"),
        "--pod-resources",
        str(folder / "pod-resources/kubelet.sock"),
        stdout=subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return json.loads(output)


async def test_a_go_driver_passes_the_conformance_kit(peers, kubeconfig, folder):
    node = "kit-node"
    processes = []

    async def start():
        processes.append(await asyncio.create_subprocess_exec(*go_driver(peers, kubeconfig, node, folder)))

    async def kill():
        processes[-1].kill()
        await processes[-1].wait()

    async with Client.connect(kubeconfig) as client:
        await client.create(NODES, {"metadata": {"name": node}})
        kit = Kit(
            client,
            folder / "plugins_registry",
            [folder / "cdi"],
            node,
            driver=GO_DRIVER,
            wait_seconds=60,
            start=start,
            kill=kill,
        )
        outcomes = await kit.run()
    await kill()
    assert [(o.check, o.verdict, o.detail) for o in outcomes if o.verdict != "ok"] == []


async def test_a_go_client_drives_a_driver_on_the_sdk(peers, folder):
    api = SmallApi()
    api.put(f"/api/v1/nodes/{NODE}", {"kind": "Node"})
    uid = api.put(claim_path(), claim())["metadata"]["uid"]
    settings = Settings(node_name=NODE, kubelet_dir=folder, cdi_dir=folder / "cdi")
    async with serving_driver(WatchedLamps(), api.client(), settings):
        process = await asyncio.create_subprocess_exec(
            str(peers / "node"),
            *("--socket", f"{folder}/plugins_registry/{DRIVER}-reg.sock", "--claim", "light", "--uid", uid),
            stdout=subprocess.PIPE,
        )
        output, _ = await process.communicate()
    told = json.loads(output)
    assert (told["name"], told["type"]) == (DRIVER, "DRAPlugin")
    (device,) = told["v1"][uid]["devices"]
    assert (device["request_names"], device["pool_name"], device["device_name"]) == (["lamp"], NODE, "lamp-0")
    assert device["cdi_device_ids"] == [f"k8s.{DRIVER}/claim={uid}-lamp-0"]
    assert "does not exist" in told["v1"]["absent"]["error"]
    assert told["v1beta1"][uid]["devices"] == [device]
    assert [(d["device"]["device_name"], d["health"]) for d in told["health"]] == [
        ("lamp-0", 1),
        ("lamp-1", 1),
    ]
    assert told["unprepared"] == {uid: {}}
