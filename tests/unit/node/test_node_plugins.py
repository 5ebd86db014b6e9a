"""Drivers are found by their sockets, judged, chosen, and missed when they are away."""

import asyncio
import contextlib
import os

import grpc
import pytest
from conditions import forever
from node_builders import eventually

from dray.api.rpc.generated import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
    health_v1_pb2,
    registration_v1_pb2,
    registration_v1_pb2_grpc,
)
from dray.node import plugins
from dray.node.claims import ClaimFacts, ClaimKey, HeldDevice
from dray.node.health import DeviceHealthBoard
from dray.node.plugins import PluginError, PluginRegistry, choose_health_service, choose_service

FACTS = ClaimFacts(ClaimKey("default", "light"), "uid", ["d.example.com"])


class FakePlugin:
    """A plugin that says what the test wants."""

    def __init__(
        self,
        folder,
        name="d.example.com",
        versions=("v1.DRAPlugin",),
        kind="DRAPlugin",
        instance="",
        answer=None,
    ):
        self.registration = folder / "registry" / f"{name}{instance}-reg.sock"
        self.service = folder / f"s{instance}.sock"
        self.info = registration_v1_pb2.PluginInfo(
            type=kind, name=name, endpoint=str(self.service), supported_versions=versions
        )
        self.statuses = []
        self.answer = answer
        self.calls = []

    async def GetInfo(self, request, context):
        return self.info

    async def NotifyRegistrationStatus(self, request, context):
        self.statuses.append((request.plugin_registered, request.error))
        return registration_v1_pb2.RegistrationStatusResponse()

    async def NodePrepareResources(self, request, context):
        self.calls.append(type(request).__module__)
        if self.answer is not None:
            return self.answer
        messages = dra_v1_pb2 if "dra_v1_pb2" in type(request).__module__ else dra_v1beta1_pb2
        response = messages.NodePrepareResourcesResponse()
        response.claims["uid"].devices.add(pool_name="pool", device_name="lamp", cdi_device_ids=["v/c=x"])
        return response

    async def NodeUnprepareResources(self, request, context):
        return dra_v1_pb2.NodeUnprepareResourcesResponse()

    @contextlib.asynccontextmanager
    async def up(self):
        self.registration.parent.mkdir(exist_ok=True)
        service = grpc.aio.server()
        dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(self, service)
        dra_v1beta1_pb2_grpc.add_DRAPluginServicer_to_server(self, service)
        service.add_insecure_port(f"unix:{self.service}")
        await service.start()
        registration = grpc.aio.server()
        registration_v1_pb2_grpc.add_RegistrationServicer_to_server(self, registration)
        registration.add_insecure_port(f"unix:{self.registration}")
        await registration.start()
        try:
            yield self
        finally:
            self.registration.unlink(missing_ok=True)
            await registration.stop(None)
            await service.stop(None)


@contextlib.asynccontextmanager
async def registry(folder, wipe_after=60.0):
    away = []

    async def on_away(driver):
        away.append(driver)

    found = PluginRegistry(folder / "registry", on_away=on_away, wipe_after_seconds=wipe_after)
    found.away = away
    task = asyncio.create_task(found.run())
    try:
        yield found
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def is_connected(found):
    """Whether a driver is registered and no clock runs after which it would count as away."""
    return found.drivers() and not found._wipes


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        (["v1.DRAPlugin", "v1beta1.DRAPlugin"], "v1.DRAPlugin"),
        (["v1beta1.DRAPlugin", "v1.DRAPlugin"], "v1beta1.DRAPlugin"),
        (["v9.DRAPlugin", "v1.DRAResourceHealth", "v1.DRAPlugin"], "v1.DRAPlugin"),
        (["1.0.0"], "v1beta1.DRAPlugin"),
    ],
)
def test_the_first_service_of_the_plugin_that_is_known_is_chosen(offered, chosen):
    assert choose_service(offered) == chosen


@pytest.mark.parametrize("offered", [[], ["v9.DRAPlugin"], ["v1.DRAResourceHealth"]])
def test_a_plugin_without_a_known_service_is_refused(offered):
    with pytest.raises(PluginError, match="this node speaks"):
        choose_service(offered)


def test_for_health_the_node_chooses():
    assert (
        choose_health_service(["v1alpha1.DRAResourceHealth", "v1.DRAResourceHealth"])
        == "v1.DRAResourceHealth"
    )
    assert choose_health_service(["v1.DRAPlugin"]) is None


@pytest.mark.parametrize(
    ("version", "module"), [("v1.DRAPlugin", "dra_v1_pb2"), ("v1beta1.DRAPlugin", "dra_v1beta1_pb2")]
)
async def test_a_plugin_registers_and_is_called_in_its_version(tmp_path, version, module):
    async with registry(tmp_path) as found, FakePlugin(tmp_path, versions=[version]).up() as plugin:
        await eventually(found.drivers)
        assert plugin.statuses == [(True, "")]
        answer = await found.find("d.example.com").prepare([FACTS])
        assert answer == {"uid": [HeldDevice("pool", "lamp", None, (), ("v/c=x",))]}
        assert plugin.calls[0].endswith(module)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"kind": "CSIPlugin"}, "CSIPlugin"), ({"versions": ["v9.DRAPlugin"]}, "this node speaks")],
)
async def test_a_plugin_that_cannot_be_used_is_told_why(tmp_path, options, message):
    async with registry(tmp_path) as found, FakePlugin(tmp_path, **options).up() as plugin:
        ((is_registered, error),) = await eventually(lambda: plugin.statuses)
        assert not is_registered
        assert message in error
        assert found.drivers() == set()


async def test_claims_that_the_answer_leaves_out_are_errors(tmp_path):
    plugin = FakePlugin(tmp_path, answer=dra_v1_pb2.NodePrepareResourcesResponse())
    async with registry(tmp_path) as found, plugin.up():
        await eventually(found.drivers)
        answer = await found.find("d.example.com").prepare([FACTS])
        assert "did not answer" in answer["uid"]
        assert "did not answer" in (await found.find("d.example.com").unprepare([FACTS]))["uid"]


async def test_of_two_instances_the_newer_is_used_until_it_leaves(tmp_path):
    async with registry(tmp_path) as found, FakePlugin(tmp_path, instance="-old").up():
        await eventually(lambda: is_connected(found))
        async with FakePlugin(tmp_path, instance="-new").up():
            await eventually(lambda: found.find("d.example.com").endpoint.endswith("s-new.sock"))
            found._wipe_after = 0.2
        await eventually(lambda: found.find("d.example.com").endpoint.endswith("s-old.sock"))
        await asyncio.sleep(0.3)
        assert found.away == []


async def test_a_driver_that_stays_away_is_reported_once(tmp_path):
    async with registry(tmp_path) as found:
        async with FakePlugin(tmp_path).up():
            await eventually(lambda: is_connected(found))
            found._wipe_after = 0.2
        await eventually(lambda: found.away)
        await asyncio.sleep(0.3)
        assert found.away == ["d.example.com"]
        with pytest.raises(PluginError, match="not registered"):
            found.find("d.example.com")


async def test_a_driver_that_comes_back_in_time_is_not_missed(tmp_path):
    async with registry(tmp_path) as found:
        async with FakePlugin(tmp_path).up():
            await eventually(lambda: is_connected(found))
        await eventually(lambda: not found.drivers())
        (clock,) = found._wipes.values()
        async with FakePlugin(tmp_path).up() as plugin:
            await eventually(lambda: is_connected(found))
            assert plugin.statuses == [(True, "")]
            await eventually(clock.cancelled)
        assert found.away == []


async def test_a_socket_that_nobody_listens_on_does_no_harm(tmp_path):
    import socket

    (tmp_path / "registry").mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "registry" / "dead.sock"))
        (tmp_path / "registry" / "file.sock").touch()
        async with registry(tmp_path) as found, FakePlugin(tmp_path).up():
            await eventually(found.drivers)
            assert found.drivers() == {"d.example.com"}


# --- drivers that are hostile or broken -----------------------------------------------------------


def prepared(**device):
    response = dra_v1_pb2.NodePrepareResourcesResponse()
    response.claims["uid"].devices.add(pool_name="pool", device_name="lamp", **device)
    return response


def many_devices(count):
    response = dra_v1_pb2.NodePrepareResourcesResponse()
    for _ in range(count):
        response.claims["uid"].devices.add(pool_name="pool", device_name="lamp")
    return response


def failing(text):
    response = dra_v1_pb2.NodePrepareResourcesResponse()
    response.claims["uid"].error = text
    return response


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (many_devices(5000), "5000 devices for claim default/light, at most 1024"),
        (prepared(cdi_device_ids=["v/c=x"] * 300), "more than 256 names"),
        (prepared(cdi_device_ids=["v/c=" + "x" * 5000]), "more than 1024 characters"),
    ],
)
async def test_an_answer_beyond_the_bounds_is_an_error_of_the_claim(tmp_path, answer, message):
    async with registry(tmp_path) as found, FakePlugin(tmp_path, answer=answer).up():
        await eventually(found.drivers)
        outcome = await found.find("d.example.com").prepare([FACTS])
        assert message in outcome["uid"]


async def test_the_text_of_a_driver_is_one_bounded_line(tmp_path):
    async with (
        registry(tmp_path) as found,
        FakePlugin(tmp_path, answer=failing("a\nERROR b\x1b[0m" + "x" * 9999)).up(),
    ):
        await eventually(found.drivers)
        text = (await found.find("d.example.com").prepare([FACTS]))["uid"]
        assert text.startswith("a ERROR b?[0mx")
        assert len(text) < 1100


async def test_an_answer_that_is_too_large_is_refused_by_the_channel(tmp_path):
    async with registry(tmp_path) as found, FakePlugin(tmp_path, answer=failing("x" * (5 << 20))).up():
        await eventually(found.drivers)
        with pytest.raises(PluginError, match="RESOURCE_EXHAUSTED"):
            await found.find("d.example.com").prepare([FACTS])


async def test_a_driver_that_never_answers_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(plugins, "CALL_TIMEOUT_SECONDS", 0.2)
    fake = FakePlugin(tmp_path)

    async def never(request, context):
        await forever()

    fake.NodePrepareResources = never
    async with registry(tmp_path) as found, fake.up():
        await eventually(found.drivers)
        with pytest.raises(PluginError, match="DEADLINE_EXCEEDED"):
            await found.find("d.example.com").prepare([FACTS])


async def test_a_call_to_a_driver_that_leaves_meanwhile_fails_and_does_not_vanish(tmp_path):
    fake = FakePlugin(tmp_path)
    called = asyncio.Event()

    async def never(request, context):
        called.set()
        await forever()

    fake.NodePrepareResources = never
    async with registry(tmp_path) as found, fake.up():
        await eventually(found.drivers)
        plugin = found.find("d.example.com")
        calling = asyncio.create_task(plugin.prepare([FACTS]))
        await called.wait()
        fake.registration.unlink()
        with pytest.raises(PluginError, match="went away during the call"):
            await asyncio.wait_for(calling, 30)
        with pytest.raises(PluginError, match=r"went away|not registered"):
            await plugin.prepare([FACTS])  # its channel is closed


async def test_a_call_whose_caller_is_cancelled_ends(tmp_path):
    fake = FakePlugin(tmp_path)
    called = asyncio.Event()

    async def never(request, context):
        called.set()
        await forever()

    fake.NodePrepareResources = never
    async with registry(tmp_path) as found, fake.up():
        await eventually(found.drivers)
        calling = asyncio.create_task(found.find("d.example.com").prepare([FACTS]))
        await called.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling


@pytest.mark.parametrize(
    ("name", "endpoint", "message"),
    [
        ("x,metadata.name=y", None, "name: Invalid value"),
        ("a" * 64, None, "name: Too long"),
        ("d.example.com", "relative.sock", "not the absolute path"),
        ("d.example.com", "dns:///evil.example.com", "not the absolute path"),
        ("d.example.com", "/" + "x" * 200, "not the absolute path"),
    ],
)
async def test_names_and_endpoints_are_checked_and_asked_again_later_only(
    tmp_path, caplog, name, endpoint, message
):
    fake = FakePlugin(tmp_path)
    fake.info.name = name
    if endpoint is not None:
        fake.info.endpoint = endpoint
    async with registry(tmp_path) as found, fake.up():
        await eventually(lambda: fake.statuses)
        assert fake.statuses[0][0] is False
        assert message in fake.statuses[0][1]
        await asyncio.sleep(3 * plugins.LOOK_SECONDS)
        assert len(fake.statuses) == 1, "a plugin that was refused is asked again and again"
        assert found.drivers() == set()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a socket of another user")
async def test_the_socket_of_a_stranger_is_ignored(tmp_path, caplog):
    fake = FakePlugin(tmp_path)
    async with fake.up():
        os.chown(fake.registration, 65534, 65534)
        async with registry(tmp_path) as found:
            await eventually(lambda: "belongs to user 65534" in caplog.text)
            await asyncio.sleep(3 * plugins.LOOK_SECONDS)
            assert (found.drivers(), fake.statuses) == (set(), [])
            assert caplog.text.count("belongs to user 65534") == 1


async def test_garbage_on_a_socket_does_no_harm(tmp_path):
    folder = tmp_path / "registry"
    folder.mkdir()

    async def babble(reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 100_000)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(babble, folder / "babble.sock")
    async with server, registry(tmp_path) as found, FakePlugin(tmp_path).up():
        await eventually(lambda: found.drivers() == {"d.example.com"})


def test_devices_that_a_driver_no_longer_lists_are_forgotten():
    told = []
    board = DeviceHealthBoard(told.append, clock=lambda: 0.0)
    for number in range(50):
        message = health_v1_pb2.NodeWatchResourcesResponse()
        for device in range(10):
            entry = message.devices.add(health=1)
            entry.device.pool_name, entry.device.device_name = "p", f"{number}-{device}"
        board.take_report("d.example.com", message)
    assert len(board._reported) <= 20
    gone = {key for change in told for key in change}
    assert len(gone) == 500  # each was told
