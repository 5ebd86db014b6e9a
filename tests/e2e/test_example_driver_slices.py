"""The Go dra-example-driver and dray's model of it publish the same devices, attribute by attribute, in every setting.

The program is that of tools/peers/build-node; the API server is dray's own. Only UUIDs differ: both make them from the node's
name, by other hashes.
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

from dray.api.codec import encode
from dray.client import Client
from dray.client.resources import NODES, SLICES
from dray.drivers.hardware import load_profile, pool_slices

pytestmark = pytest.mark.kubernetes
PEERS = Path(os.environ.get("DRAY_PEERS", Path.home() / ".cache/dray/peers/v1.37.1"))
PROGRAM = PEERS / "dra-example-kubeletplugin"
PATIENCE = 60.0
SETTINGS = [
    ("example", "gpu.example.com", ["--device-profile=gpu"]),
    ("example", "net.example.com", ["--device-profile=net"]),
    ("example", "cpu.example.com", ["--device-profile=cpu"]),
    ("example-partitions", "gpu.example.com", ["--device-profile=gpu", "--gpu-partitions=4"]),
    ("example-shared", "gpu.example.com", ["--device-profile=gpu", "--gpu-allow-multiple-allocations"]),
    (
        "example-shared-partitions",
        "gpu.example.com",
        ["--device-profile=gpu", "--gpu-partitions=4", "--gpu-allow-multiple-allocations"],
    ),
    ("example-binding", "gpu.example.com", ["--device-profile=gpu", "--binding-conditions"]),
]


@pytest.fixture
def folder():
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} is not built: run tools/peers/build-node example")
    path = Path(tempfile.mkdtemp(prefix="dray-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def kubeconfig(folder):
    path = folder / "kubeconfig"
    words = ["--in-memory", "--data", str(folder / "data"), "--secure-port", "0", "--kubeconfig", str(path)]
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen([sys.executable, "-m", "dray", "server", *words], stdout=log, stderr=log)
        try:
            while not (path.exists() and path.stat().st_size):
                assert server.poll() is None, (folder / "server.log").read_text()
                time.sleep(0.05)
            yield path
        finally:
            server.terminate()
            server.wait(60)


def comparable(slices):
    """Return devices and counter sets by name, with the values that may differ taken out."""
    devices = {device["name"]: device for each in slices for device in each["spec"].get("devices") or []}
    for device in devices.values():
        uuid = (device.get("attributes") or {}).get("uuid")
        if uuid is not None:
            uuid["string"] = uuid["string"].partition("-")[0]
    counters = {item["name"]: item for each in slices for item in each["spec"].get("sharedCounters") or []}
    return devices, counters


async def published(client, driver, node, folder, settings):
    """Run the Go program until its pool is complete; return its slices."""
    for name in ("plugins", "registry", "cdi"):
        (folder / name).mkdir()
    words = [
        f"--kubeconfig={folder / 'kubeconfig'}",
        f"--node-name={node}",
        f"--cdi-root={folder / 'cdi'}",
        f"--kubelet-plugins-directory-path={folder / 'plugins'}",
        f"--kubelet-registrar-directory-path={folder / 'registry'}",
    ]
    with (folder / "driver.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(PROGRAM, *words, *settings, stdout=log, stderr=log)
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    assert process.returncode is None, (folder / "driver.log").read_text()
                    found = (await client.list(SLICES, fieldSelector=f"spec.driver={driver}")).items
                    if found and len(found) == found[0]["spec"]["pool"]["resourceSliceCount"]:
                        return found
                    await asyncio.sleep(0.1)
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


@pytest.mark.parametrize(("profile", "driver", "settings"), SETTINGS)
async def test_the_go_driver_publishes_what_the_model_does(folder, kubeconfig, profile, driver, settings):
    async with Client.connect(str(kubeconfig)) as client:
        await client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "go-1"}})
        theirs = await published(client, driver, "go-1", folder, settings)
        (pool,) = [each for each in load_profile(profile).pools("go-1") if each.driver == driver]
        for item in theirs:
            await client.delete(SLICES, item["metadata"]["name"])
        ours = [await client.create(SLICES, json.loads(encode(each))) for each in pool_slices([pool])]
    assert comparable(ours) == comparable(theirs)
