"""Whose socket it is: taken from nobody who lives, removed by its owner only, opened again when lost."""

import asyncio
import os
import socket
import stat
import subprocess
import sys

import grpc
import pytest
from node_builders import DRIVER, NODE, Lamps, eventually
from small_api import SmallApi

from dray.api.rpc.generated import registration_v1_pb2, registration_v1_pb2_grpc
from dray.driver import Settings, serving, serving_driver
from dray.host.sockets import (
    OwnedSocket,
    SocketLock,
    SocketTakenError,
    identity_of,
    is_answering,
    serving_at,
)

SLICES = "/apis/resource.k8s.io/v1/resourceslices"


@pytest.fixture
def api():
    api = SmallApi()
    api.put(f"/api/v1/nodes/{NODE}", {"kind": "Node"})
    return api


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch):
    monkeypatch.setattr(serving, "_LOOK_SECONDS", 0.02)


def settings(folder, **more):
    return Settings(node_name=NODE, kubelet_dir=folder, cdi_dir=folder / "cdi", **more)


def registration(folder):
    return folder / "plugins_registry" / f"{DRIVER}-reg.sock"


def service(folder):
    return folder / "plugins" / DRIVER / "dra.sock"


def slices(api):
    return [path for path in api.objects if path.startswith(SLICES)]


async def register(folder):
    """Do what a node does with a socket that appears in its registry."""
    async with grpc.aio.insecure_channel(f"unix:{registration(folder)}") as channel:
        stub = registration_v1_pb2_grpc.RegistrationStub(channel)
        info = await stub.GetInfo(registration_v1_pb2.InfoRequest(), timeout=10, wait_for_ready=True)
        await stub.NotifyRegistrationStatus(registration_v1_pb2.RegistrationStatus(plugin_registered=True))
        return info


def listener(path):
    """Listen at a path as some other program would."""
    found = socket.socket(socket.AF_UNIX)
    found.bind(str(path))
    found.listen(1)
    return found


# --- sockets -----------------------------------------------------------------------------


async def test_a_socket_of_a_dead_process_is_replaced(tmp_path):
    path = tmp_path / "s"
    listener(path).close()
    assert path.exists()
    assert not is_answering(path)
    owned = OwnedSocket(path, grpc.aio.server)
    await owned.open()
    assert owned.is_own
    assert is_answering(path)
    await owned.close()
    assert list(tmp_path.iterdir()) == []


async def test_a_socket_that_answers_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "s"
    with listener(path):
        before = identity_of(path)
        owned = OwnedSocket(path, grpc.aio.server)
        with pytest.raises(SocketTakenError, match="another process answers"):
            await owned.open()
        await owned.close()
        assert identity_of(path) == before


async def test_what_is_not_a_socket_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "s"
    path.write_text("mine")
    with pytest.raises(SocketTakenError, match="not a socket"):
        await OwnedSocket(path, grpc.aio.server).open()
    assert path.read_text() == "mine"


async def test_only_ones_own_socket_is_removed_at_the_end(tmp_path):
    path = tmp_path / "s"
    owned = OwnedSocket(path, grpc.aio.server)
    await owned.open()
    path.unlink()
    with listener(path):
        assert not owned.is_own
        await owned.close()
        assert is_answering(path), "that of the other one is still there"


async def test_a_socket_that_vanished_can_be_opened_again(tmp_path):
    path = tmp_path / "s"
    owned = OwnedSocket(path, grpc.aio.server)
    await owned.open()
    path.unlink()
    assert not owned.is_own
    await owned.open()
    assert owned.is_own
    assert is_answering(path)
    await owned.close()


def test_a_lock_is_held_by_one_and_freed_by_the_end_of_its_process(tmp_path):
    path = tmp_path / "lock"
    code = (
        "import sys, pathlib; from dray.host.sockets import SocketLock; "
        "lock = SocketLock(pathlib.Path(sys.argv[1])); lock.acquire(); print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(SocketTakenError, match=f"as process {holder.pid} .*stop it first"):
            SocketLock(path).acquire()
        holder.kill()
    lock = SocketLock(path)
    lock.acquire()
    with pytest.raises(SocketTakenError, match=f"as process {os.getpid()} "):
        SocketLock(path).acquire()
    lock.release()


# --- drivers -----------------------------------------------------------------------------


async def test_a_second_driver_of_one_name_is_refused_and_takes_nothing(api, tmp_path):
    async with serving_driver(Lamps(), api.client(), settings(tmp_path)) as first:
        sockets = [identity_of(registration(tmp_path)), identity_of(service(tmp_path))]
        second = Lamps()
        with pytest.raises(SocketTakenError, match="another instance runs already"):
            async with serving_driver(second, api.client(), settings(tmp_path)):
                pass
        assert not second.calls, "it must not clean up after one that lives"
        assert [identity_of(registration(tmp_path)), identity_of(service(tmp_path))] == sockets
        await register(tmp_path)
        assert first.serving.is_registered.is_set()
    assert not registration(tmp_path).exists()
    async with serving_driver(Lamps(), api.client(), settings(tmp_path)):
        await register(tmp_path)


@pytest.mark.parametrize("lost", [registration, service])
async def test_a_driver_that_loses_a_socket_opens_it_again_and_is_registered_again(api, tmp_path, lost):
    async with serving_driver(Lamps(), api.client(), settings(tmp_path)) as running:
        await register(tmp_path)
        before = identity_of(registration(tmp_path))
        lost(tmp_path).unlink()
        await eventually(lambda: not running.serving.is_registered.is_set(), what="the loss is noticed")
        # A new registration socket is what makes the node ask again.
        await eventually(
            lambda: identity_of(registration(tmp_path)) not in (None, before), what="a new registration"
        )
        await eventually(lambda: is_answering(service(tmp_path)), what="the service answers")
        await register(tmp_path)
        assert running.serving.is_registered.is_set()


async def test_a_driver_whose_directory_is_removed_serves_again(api, tmp_path):
    async with serving_driver(Lamps(), api.client(), settings(tmp_path)):
        await register(tmp_path)
        registration(tmp_path).unlink()
        registration(tmp_path).parent.rmdir()
        await eventually(lambda: registration(tmp_path).exists(), what="a new registration")
        await register(tmp_path)


async def test_a_stranger_at_the_path_is_left_alone_and_replaced_when_gone(api, tmp_path):
    async with serving_driver(Lamps(), api.client(), settings(tmp_path)) as running:
        await register(tmp_path)
        registration(tmp_path).unlink()
        with listener(registration(tmp_path)):
            await eventually(lambda: not running.serving.is_registered.is_set(), what="the loss is noticed")
            await asyncio.sleep(0.1)
            assert not running.serving._registration.is_own
        await eventually(lambda: running.serving._registration.is_own, what="our socket again")
        await register(tmp_path)


async def test_devices_are_withdrawn_while_the_driver_is_not_registered_and_come_back(api, tmp_path):
    options = settings(tmp_path, withdraw_seconds=0.3)
    async with serving_driver(Lamps(), api.client(), options) as running:
        await register(tmp_path)
        await eventually(lambda: slices(api), what="published")
        await asyncio.sleep(0.6)
        assert slices(api), "registered: they stay"
        registration(tmp_path).unlink()
        await eventually(lambda: not slices(api), what="withdrawn")
        running.rediscover()
        await asyncio.sleep(0.1)
        assert not slices(api)
        await eventually(lambda: registration(tmp_path).exists(), what="a new registration")
        await register(tmp_path)
        await eventually(lambda: slices(api), what="published again")


async def test_a_driver_that_no_node_ever_registers_offers_nothing_in_the_end(api, tmp_path):
    options = settings(tmp_path, withdraw_seconds=0.3)
    async with serving_driver(Lamps(), api.client(), options):
        await eventually(lambda: slices(api), what="published")
        await eventually(lambda: not slices(api), what="withdrawn")


async def test_a_socket_with_an_owner_is_not_taken_and_a_dead_one_is_replaced(tmp_path):
    path = tmp_path / "kubelet.sock"
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()
    async with serving_at(path, lambda: grpc.aio.server(), 0o600):
        mine = identity_of(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with pytest.raises(SocketTakenError, match=f"as process {os.getpid()} .*stop it first"):
            async with serving_at(path, lambda: grpc.aio.server(), 0o600):
                pass
        assert identity_of(path) == mine
        assert is_answering(path)
    assert not path.exists()
