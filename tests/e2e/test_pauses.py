"""Processes that are stopped for a while (SIGSTOP, then SIGCONT): nobody is judged by a pause that was not theirs."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest
from server_process import serving

from dray.client import AlreadyExists, Client, ClientError, NotFound
from dray.client import resources as kinds

GRACE = 4.0  # seconds without a heartbeat; the pauses are longer
PAUSE = 7.0
SPACE = "kube-node-lease"
NAMES = ("a", "b")


@pytest.fixture
def server(tmp_path):
    with serving(tmp_path, "--data", str(tmp_path / "data")) as served:
        yield served


@contextlib.contextmanager
def controllers(server, folder, *flags):
    command = [sys.executable, "-m", "dray", "controllers", "--kubeconfig", str(server.kubeconfig)]
    command += ["--node-monitor-grace-period", str(GRACE), "--node-monitor-period", "0.5", *flags]
    with (folder / "controllers.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait(60)


async def beat(client, *names):
    """Renew leases for ever, as node agents do."""
    while True:
        for name in names:
            spec = {"renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"), "holderIdentity": name}
            with contextlib.suppress(ClientError):
                await client.patch(kinds.LEASES, name, {"spec": spec}, SPACE)
        await asyncio.sleep(0.3)


async def furnish(client):
    """Make nodes that beat, with one pod that does not tolerate any taint on each."""
    with contextlib.suppress(AlreadyExists):
        await client.create(kinds.NAMESPACES, {"metadata": {"name": SPACE}})
    for name in NAMES:
        status = {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]}
        await client.create(kinds.NODES, {"metadata": {"name": name}, "status": status})
        await client.create(kinds.LEASES, {"metadata": {"name": name}, "spec": {}}, SPACE)
        leaving = [
            {
                "key": f"node.kubernetes.io/{key}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 0,
            }
            for key in ("unreachable", "not-ready")
        ]
        spec = {"nodeName": name, "containers": [{"name": "c", "image": "i"}], "tolerations": leaving}
        await client.create(kinds.PODS, {"metadata": {"name": f"on-{name}"}, "spec": spec}, "default")
    async with asyncio.timeout(240):
        while [name for name in NAMES if await taints(client, name)]:
            await asyncio.sleep(0.1)


async def taints(client, name):
    node = await client.get(kinds.NODES, name)
    return {each["key"] for each in node["spec"].get("taints") or ()}


async def ready(client, name):
    node = await client.get(kinds.NODES, name)
    return next(each["status"] for each in node["status"]["conditions"] if each["type"] == "Ready")


async def is_leaving(client, name):
    try:
        pod = await client.get(kinds.PODS, name, "default")
    except NotFound:
        return True
    return "deletionTimestamp" in pod["metadata"]


@contextlib.asynccontextmanager
async def cluster(server, folder, *flags):
    async with Client.connect(server.kubeconfig) as client, Client.connect(server.kubeconfig) as nodes:
        with controllers(server, folder, *flags) as process:
            beating = asyncio.create_task(beat(nodes, *NAMES))
            try:
                await furnish(client)
                await asyncio.sleep(2)  # the controller has seen some heartbeats
                yield client, process, beating
            finally:
                beating.cancel()
                await asyncio.gather(beating, return_exceptions=True)


async def pods_stay(client, seconds):
    """Watch for some seconds that every pod stays, and every node Ready."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pods = (await client.list(kinds.PODS, "default")).items
        assert {pod["metadata"]["name"] for pod in pods} == {f"on-{name}" for name in NAMES}
        assert not [pod for pod in pods if pod["metadata"].get("deletionTimestamp")]
        for name in NAMES:
            assert (await ready(client, name), await taints(client, name)) == ("True", set())
        await asyncio.sleep(0.1)


async def test_a_pause_of_the_api_server_costs_no_node_and_no_pod(server, tmp_path):
    async with cluster(server, tmp_path) as (client, _, _):
        server.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(PAUSE)
        server.process.send_signal(signal.SIGCONT)
        await pods_stay(client, 3)


async def test_a_pause_of_the_controllers_costs_no_node_and_no_pod(server, tmp_path):
    async with cluster(server, tmp_path) as (client, process, _):
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(PAUSE)
        process.send_signal(signal.SIGCONT)
        await pods_stay(client, 3)


async def test_a_node_that_dies_in_a_pause_is_found_afterwards(server, tmp_path):
    async with cluster(server, tmp_path) as (client, _, beating):
        server.process.send_signal(signal.SIGSTOP)
        beating.cancel()
        await asyncio.sleep(2)
        server.process.send_signal(signal.SIGCONT)
        async with Client.connect(server.kubeconfig) as nodes:
            surviving = asyncio.create_task(beat(nodes, "b"))
            try:
                async with asyncio.timeout(30):
                    while await ready(client, "a") == "True":
                        await asyncio.sleep(0.1)
                    while not await is_leaving(client, "on-a"):
                        await asyncio.sleep(0.1)
            finally:
                surviving.cancel()
        assert await ready(client, "b") == "True"
