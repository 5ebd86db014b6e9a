"""Drivers are found by their sockets, judged, chosen, and missed when they are away."""

import asyncio
import contextlib

import grpc
import pytest
from node_builders import eventually

from dray.api.rpc.generated import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
    registration_v1_pb2,
    registration_v1_pb2_grpc,
)
from dray.node.claims import ClaimFacts, ClaimKey, HeldDevice
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
