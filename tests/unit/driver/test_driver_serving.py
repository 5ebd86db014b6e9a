"""A driver as the node sees it: sockets, both versions of the protocol, slices, health."""

import asyncio

import grpc
import pytest
from node_builders import DRIVER, NODE, Lamps, WatchedLamps, claim, claim_path, eventually
from small_api import SmallApi

from dray.api.rpc.generated import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
    health_v1_pb2,
    health_v1_pb2_grpc,
    health_v1alpha1_pb2,
    health_v1alpha1_pb2_grpc,
    registration_v1_pb2,
    registration_v1_pb2_grpc,
)
from dray.driver import UNHEALTHY, DeviceHealth, DriverError, Settings, serving_driver
from dray.driver.serving import SocketPaths, registration_socket_name

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
VERSIONS = [(dra_v1_pb2, dra_v1_pb2_grpc), (dra_v1beta1_pb2, dra_v1beta1_pb2_grpc)]


@pytest.fixture
def api():
    api = SmallApi()
    api.put(f"/api/v1/nodes/{NODE}", {"kind": "Node"})
    return api


def settings(tmp_path, **more):
    return Settings(node_name=NODE, kubelet_dir=tmp_path, cdi_dir=tmp_path / "cdi", **more)


def slices(api):
    return [obj for path, obj in sorted(api.objects.items()) if path.startswith(SLICES)]


async def test_a_driver_introduces_itself(api, tmp_path):
    async with serving_driver(WatchedLamps(), api.client(), settings(tmp_path)) as running:
        socket = tmp_path / "plugins_registry" / f"{DRIVER}-reg.sock"
        async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
            stub = registration_v1_pb2_grpc.RegistrationStub(channel)
            info = await stub.GetInfo(registration_v1_pb2.InfoRequest())
            await stub.NotifyRegistrationStatus(
                registration_v1_pb2.RegistrationStatus(plugin_registered=True)
            )
        assert (info.type, info.name) == ("DRAPlugin", DRIVER)
        assert info.endpoint == str(tmp_path / "plugins" / DRIVER / "dra.sock")
        assert list(info.supported_versions) == [
            "v1.DRAPlugin",
            "v1beta1.DRAPlugin",
            "v1.DRAResourceHealth",
            "v1alpha1.DRAResourceHealth",
        ]
        assert running.serving.is_registered.is_set()
    assert not socket.exists()


@pytest.mark.parametrize(("messages", "services"), VERSIONS)
async def test_claims_are_prepared_and_unprepared_over_grpc(api, tmp_path, messages, services):
    uid = api.put(claim_path(), claim())["metadata"]["uid"]
    async with (
        serving_driver(Lamps(), api.client(), settings(tmp_path)),
        grpc.aio.insecure_channel(f"unix:{tmp_path}/plugins/{DRIVER}/dra.sock") as channel,
    ):
        stub = services.DRAPluginStub(channel)
        wanted = [
            messages.Claim(namespace="default", name="light", uid=uid),
            messages.Claim(namespace="default", name="missing", uid="x"),
        ]
        answer = await stub.NodePrepareResources(messages.NodePrepareResourcesRequest(claims=wanted))
        assert set(answer.claims) == {uid, "x"}
        (device,) = answer.claims[uid].devices
        assert (list(device.request_names), device.pool_name, device.device_name) == (
            ["lamp"],
            NODE,
            "lamp-0",
        )
        assert list(device.cdi_device_ids) == [f"k8s.{DRIVER}/claim={uid}-lamp-0"]
        assert "does not exist" in answer.claims["x"].error
        undone = await stub.NodeUnprepareResources(messages.NodeUnprepareResourcesRequest(claims=wanted))
        assert {key: outcome.error for key, outcome in undone.claims.items()} == {uid: "", "x": ""}


async def test_a_crash_of_the_vendors_code_is_an_error_of_one_claim(api, tmp_path):
    driver = Lamps()
    driver.prepare = lambda claim: 1 / 0
    uid = api.put(claim_path(), claim())["metadata"]["uid"]
    async with (
        serving_driver(driver, api.client(), settings(tmp_path)),
        grpc.aio.insecure_channel(f"unix:{tmp_path}/plugins/{DRIVER}/dra.sock") as channel,
    ):
        wanted = [dra_v1_pb2.Claim(namespace="default", name="light", uid=uid)]
        answer = await dra_v1_pb2_grpc.DRAPluginStub(channel).NodePrepareResources(
            dra_v1_pb2.NodePrepareResourcesRequest(claims=wanted)
        )
    assert answer.claims[uid].error == "division by zero"


@pytest.mark.parametrize(
    ("messages", "services"),
    [(health_v1_pb2, health_v1_pb2_grpc), (health_v1alpha1_pb2, health_v1alpha1_pb2_grpc)],
)
async def test_health_is_streamed_in_full_on_every_change(api, tmp_path, messages, services):
    driver = WatchedLamps(n_devices=1)
    async with (
        serving_driver(driver, api.client(), settings(tmp_path)),
        grpc.aio.insecure_channel(f"unix:{tmp_path}/plugins/{DRIVER}/dra.sock") as channel,
    ):
        stream = services.DRAResourceHealthStub(channel).NodeWatchResources(
            messages.NodeWatchResourcesRequest()
        )
        first = await stream.read()
        assert [(d.device.pool_name, d.device.device_name, d.health) for d in first.devices] == [
            (NODE, "lamp-0", 1)
        ]
        driver.reports.put_nowait([DeviceHealth(NODE, "lamp-0", UNHEALTHY, "é" * 600)])
        second = await stream.read()
        assert second.devices[0].health == 2
        assert len(second.devices[0].message.encode()) <= 1024
        stream.cancel()


async def test_slices_appear_follow_the_inventory_and_come_back_when_wiped(api, tmp_path):
    driver = Lamps(n_devices=2)
    async with serving_driver(driver, api.client(), settings(tmp_path)) as running:
        await asyncio.wait_for(running.publisher.wait_published(), 60)
        (there,) = slices(api)
        assert there["metadata"]["generateName"] == f"00000-{DRIVER}-{NODE}-"
        assert there["metadata"]["ownerReferences"][0]["kind"] == "Node"
        assert there["spec"]["nodeName"] == NODE
        assert [device["name"] for device in there["spec"]["devices"]] == ["lamp-0", "lamp-1"]
        driver.n_devices = 3
        running.rediscover()
        await eventually(lambda: len(slices(api)[0]["spec"]["devices"]) == 3)
        assert slices(api)[0]["spec"]["pool"]["generation"] == 1
        for obj in slices(api):
            await api.client().delete(running_slices(), obj["metadata"]["name"])
        await eventually(lambda: slices(api))


def running_slices():
    from dray.client.resources import SLICES as resource

    return resource


async def test_nothing_is_written_when_nothing_changed(api, tmp_path):
    async with serving_driver(Lamps(), api.client(), settings(tmp_path)) as running:
        await asyncio.wait_for(running.publisher.wait_published(), 60)
        running.rediscover()
        await asyncio.sleep(0.1)
        await asyncio.wait_for(running.publisher.wait_published(), 60)
    writes = [request for request in api.requests if not request.startswith("GET")]
    assert writes == [f"POST {SLICES}"]


async def test_a_server_that_drops_fields_is_not_written_to_for_ever(api, tmp_path, caplog):
    def drop_attributes(obj):
        for device in obj.get("spec", {}).get("devices", []):
            device.pop("bindsToNode", None)

    from dray.api.resource import Device
    from dray.driver import Pool

    api.on_stored = drop_attributes
    driver = Lamps()
    driver.discover = lambda: [Pool(devices=[Device(name="lamp-0", binds_to_node=True)])]
    async with serving_driver(driver, api.client(), settings(tmp_path)) as running:
        await asyncio.wait_for(running.publisher.wait_published(), 60)
        for _ in range(3):
            running.rediscover()
            await asyncio.sleep(0.05)
    assert [r for r in api.requests if r.startswith(("PUT", "POST"))] == [f"POST {SLICES}"]
    assert "feature gate" in caplog.text


@pytest.mark.parametrize("version", ["v1beta2", "v1beta1"])
async def test_older_servers_are_spoken_to_in_their_version(api, tmp_path, version):
    api.versions = {version}
    async with serving_driver(Lamps(n_devices=1), api.client(), settings(tmp_path)) as running:
        await asyncio.wait_for(running.publisher.wait_published(), 60)
    ((path, there),) = [(p, o) for p, o in api.objects.items() if "resourceslices" in p]
    assert path.startswith(f"/apis/resource.k8s.io/{version}/")
    assert there["apiVersion"] == f"resource.k8s.io/{version}"
    assert there["spec"]["devices"] == [
        {"name": "lamp-0", "basic": {}} if version == "v1beta1" else {"name": "lamp-0"}
    ]


async def test_a_failed_discovery_leaves_what_was_published(api, tmp_path):
    driver = Lamps()
    async with serving_driver(driver, api.client(), settings(tmp_path)) as running:
        await asyncio.wait_for(running.publisher.wait_published(), 60)
        driver.discover = lambda: 1 / 0
        running.rediscover()
        await asyncio.sleep(0.05)
        assert len(slices(api)) == 1


async def test_slices_are_published_when_the_api_server_comes_back(api, tmp_path):
    api.is_away = True
    async with serving_driver(Lamps(), api.client(), settings(tmp_path)) as running:
        await asyncio.sleep(0.1)
        api.is_away = False
        await asyncio.wait_for(running.publisher.wait_published(), 60)
    assert len(slices(api)) == 1


async def test_two_instances_serve_side_by_side_during_a_rolling_update(api, tmp_path):
    uid = api.put(claim_path(), claim())["metadata"]["uid"]
    old, new = Lamps(), Lamps()
    async with (
        serving_driver(old, api.client(), settings(tmp_path, instance="old")) as first,
        serving_driver(new, api.client(), settings(tmp_path, instance="new")) as second,
    ):
        names = sorted(path.name for path in (tmp_path / "plugins_registry").iterdir())
        assert names == [f"{DRIVER}-new-reg.sock", f"{DRIVER}-old-reg.sock"]
        from dray.driver.preparing import ClaimRef

        ref = ClaimRef("default", "light", uid)
        answers = await asyncio.gather(first.preparer.prepare(ref), second.preparer.prepare(ref))
        assert answers[0] == answers[1]
        await second.preparer.unprepare(ref)
        await first.preparer.unprepare(ref)
    calls = [call[0] for call in old.calls + new.calls]
    assert sorted(calls) == ["prepare", "unprepare"]  # each once, whoever did it


def test_socket_names_fit_or_are_hashed(tmp_path):
    from pathlib import Path

    registry = Path("/var/lib/kubelet/plugins_registry")
    uid = "0f2b8a6e-5c1d-4e1f-9a53-3d1d3c3e8f10"
    assert registration_socket_name("gpu.example.com", registry, uid) == f"gpu.example.com-{uid}-reg.sock"
    long = registration_socket_name("gpu." + "x" * 40 + ".example.com", registry, uid)
    assert len(str(registry / long)) <= 107
    assert registration_socket_name("gpu." + "x" * 59, registry, uid).startswith("dra-")
    with pytest.raises(DriverError, match="shorter directory"):
        SocketPaths(DRIVER, Path("/" + "d" * 120), registry)
