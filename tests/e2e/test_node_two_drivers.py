"""Two real driver processes of one name: the second is refused, the first keeps its sockets and its node."""

import asyncio
import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import grpc
import pytest
from server_process import serving

from dray.api.rpc.generated import registration_v1_pb2, registration_v1_pb2_grpc
from dray.client import Client
from dray.client import resources as kinds
from dray.host.sockets import identity_of, is_answering

NODE = "node-1"


@pytest.fixture
def folder():
    path = Path(tempfile.mkdtemp(prefix="dray-", dir="/tmp"))  # sockets have short paths
    yield path
    shutil.rmtree(path, ignore_errors=True)


def command(server, folder, *more):
    flags = ["--kubeconfig", server.kubeconfig, "--node-name", NODE, "--kubelet-dir", folder / "kubelet"]
    flags += ["--cdi-dir", folder / "cdi", "--profile", "workstation", *more]
    return [sys.executable, "-m", "dray", "driver", "run", "sim", *map(str, flags)]


@contextlib.contextmanager
def running(server, folder, *more):
    with (folder / "driver.log").open("ab") as log:
        process = subprocess.Popen(command(server, folder, *more), stderr=log)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(60)


def until(condition, what, seconds=60):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.05)
    return found


def registration(folder):
    found = [
        each for each in (folder / "kubelet" / "plugins_registry").glob("*-reg.sock") if is_answering(each)
    ]
    return found[0] if found else None


async def register(path):
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        stub = registration_v1_pb2_grpc.RegistrationStub(channel)
        info = await stub.GetInfo(registration_v1_pb2.InfoRequest(), timeout=30, wait_for_ready=True)
        await stub.NotifyRegistrationStatus(registration_v1_pb2.RegistrationStatus(plugin_registered=True))
        return info


async def n_slices(server):
    async with Client.connect(server.kubeconfig) as client:
        return len((await client.list(kinds.SLICES)).items)


async def test_a_second_driver_is_refused_and_the_first_keeps_its_sockets(folder):
    with serving(folder, "--in-memory") as server:
        async with Client.connect(server.kubeconfig) as client:
            await client.create(kinds.NODES, {"metadata": {"name": NODE}})
        with running(server, folder) as first:
            path = until(lambda: registration(folder), "the first registers")
            info = await register(path)
            own = [identity_of(path), identity_of(Path(info.endpoint))]

            second = await asyncio.to_thread(
                subprocess.run, command(server, folder), capture_output=True, text=True, timeout=60
            )
            assert second.returncode == 1
            assert f"another instance runs already as process {first.pid}" in second.stderr
            assert "--instance" in second.stderr
            assert "Traceback" not in second.stderr
            assert [identity_of(path), identity_of(Path(info.endpoint))] == own
            await register(path)

            path.unlink()  # whoever did it
            until(lambda: registration(folder) and identity_of(path) != own[0], "the first listens again")
            await register(path)
            assert await n_slices(server) > 0

            first.send_signal(signal.SIGKILL)
            first.wait(60)
        with running(server, folder):
            until(lambda: registration(folder), "one that comes after a killed one serves")
            await register(registration(folder))
        assert not path.exists()


async def test_two_instances_with_ids_of_their_own_serve_side_by_side(folder):
    with serving(folder, "--in-memory") as server:
        async with Client.connect(server.kubeconfig) as client:
            await client.create(kinds.NODES, {"metadata": {"name": NODE}})
        registry = folder / "kubelet" / "plugins_registry"
        with running(server, folder, "--instance", "old"):
            with running(server, folder, "--instance", "new"):
                until(lambda: len([*registry.glob("*-reg.sock")]) == 2, "both are there")
            left = until(lambda: registration(folder), "the old one stays")
            assert "-old-" in left.name
            await register(left)
