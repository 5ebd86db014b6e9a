"""`compute-domain.nvidia.com` as modelled: its devices, its configs, and the steps to a channel."""

import pytest
from small_api import SmallApi

from dray.api.compute_domains import NAMESPACE
from dray.api.resource import ResourceClaim
from dray.driver import (
    AllocatedDevice,
    ClaimRequest,
    DeviceConfig,
    DriverError,
    PreparedClaim,
    PreparedDevice,
)
from dray.drivers.compute_domains import ComputeDomainDriver
from dray.drivers.hardware import device_classes, load_profile
from dray.drivers.opaque_configs import OpaqueConfigError, check_config
from dray.drivers.simulated_node import simulated_drivers

LABEL = "resource.nvidia.com/computeDomain"
DOMAINS = "/apis/resource.nvidia.com/v1beta1/namespaces/{}/computedomains/job"
API = "resource.nvidia.com/v1beta1"
CLIQUE = "rack.3"


@pytest.fixture
def api():
    api = SmallApi()
    api.put("/api/v1/nodes/tray-1", {"metadata": {"labels": {"nvidia.com/gpu.clique": CLIQUE}}})
    return api


@pytest.fixture
def driver(api, tmp_path):
    (found,) = [
        each
        for each in simulated_drivers(load_profile("gb200-tray"), "tray-1", None, tmp_path)
        if isinstance(each, ComputeDomainDriver)
    ]
    found.connect(api.client())
    return found


def channel(uid, kind="ComputeDomainChannelConfig", **fields):
    config = DeviceConfig("FromClaim", {"apiVersion": API, "kind": kind, "domainID": uid, **fields})
    return AllocatedDevice("channel", "tray-1", "channel-0", configs=[config])


def claim(device, namespace="team"):
    return ClaimRequest(namespace, "claim", "claim-uid", [device], ResourceClaim())


def make_domain(api, namespace="team"):
    return api.put(DOMAINS.format(namespace), {"spec": {}, "status": {"status": "NotReady"}})["metadata"][
        "uid"
    ]


def make_ready(api, uid, node="tray-1"):
    daemons = [{"nodeName": node, "cliqueID": CLIQUE, "index": 0, "ipAddress": "10.0.0.1", "status": "Ready"}]
    path = f"/apis/{API}/namespaces/{NAMESPACE}/computedomaincliques/{uid}.{CLIQUE}"
    api.put(path, {"daemons": daemons})


def label(api):
    return api.objects["/api/v1/nodes/tray-1"]["metadata"]["labels"].get(LABEL)


def test_a_node_offers_the_first_channel_and_a_daemon(driver):
    (pool,) = driver.discover()
    assert {device.name: (device.attributes["type"].string, device.attributes["id"].int_value)
            for device in pool.devices} == {"channel-0": ("channel", 0), "daemon-0": ("daemon", 0)}  # fmt: skip


def test_the_classes_are_those_of_the_installer():
    names = {each.metadata.name for each in device_classes(frozenset({"compute-domain.nvidia.com"}))}
    assert names == {"compute-domain-daemon.nvidia.com", "compute-domain-default-channel.nvidia.com"}


async def test_a_channel_waits_until_the_daemon_of_its_node_serves(api, driver):
    uid = make_domain(api)
    with pytest.raises(DriverError, match="current node not ready in ComputeDomain team/job"):
        await driver.prepare(claim(channel(uid)))
    assert label(api) == uid  # so that a daemon is started
    make_ready(api, uid)
    (prepared,) = await driver.prepare(claim(channel(uid)))
    assert "DRAY_IMEX_CHANNELS=1" in prepared.edits.env
    (mount,) = prepared.edits.mounts
    assert mount.container_path == "/dev/nvidia-caps-imex-channels"


async def test_all_channels_are_files_of_the_container(api, driver):
    uid = make_domain(api)
    make_ready(api, uid)
    (prepared,) = await driver.prepare(claim(channel(uid, allocationMode="All")))
    assert "DRAY_IMEX_CHANNELS=2048" in prepared.edits.env
    folder = driver.folder / "all-channels"
    assert prepared.edits.mounts[0].host_path == str(folder)
    assert len(list(folder.iterdir())) == 2048


async def test_unprepare_takes_the_label_off(api, driver):
    uid = make_domain(api)
    make_ready(api, uid)
    (prepared,) = await driver.prepare(claim(channel(uid)))
    await driver.unprepare(PreparedClaim("team", "claim", "claim-uid", [prepared]))
    assert label(api) is None
    await driver.unprepare(PreparedClaim("team", "claim", "claim-uid", [prepared], is_complete=False))


async def test_a_daemon_keeps_the_label_of_its_node(api, driver):
    uid = make_domain(api)
    make_ready(api, uid)
    await driver.prepare(claim(channel(uid)))
    daemon = PreparedDevice("daemon", "tray-1", "daemon-0")
    await driver.unprepare(PreparedClaim(NAMESPACE, "claim", "other", [daemon]))
    assert label(api) == uid


async def test_a_node_belongs_to_one_domain(api, driver):
    await driver.client.patch(driver_nodes(), "tray-1", {"metadata": {"labels": {LABEL: "another"}}})
    with pytest.raises(DriverError, match="label already exists for a different ComputeDomain"):
        await driver.prepare(claim(channel(make_domain(api))))


def driver_nodes():
    from dray.client.resources import NODES

    return NODES


async def test_a_daemon_learns_its_domain_and_clique(api, driver):
    uid = make_domain(api)
    config = {"apiVersion": API, "kind": "ComputeDomainDaemonConfig", "domainID": uid}
    device = AllocatedDevice("daemon", "tray-1", "daemon-0", configs=[DeviceConfig("FromClaim", config)])
    (prepared,) = await driver.prepare(claim(device, NAMESPACE))
    assert {
        f"CLIQUE_ID={CLIQUE}",
        f"COMPUTE_DOMAIN_UUID={uid}",
        "COMPUTE_DOMAIN_NAME=job",
        "COMPUTE_DOMAIN_NAMESPACE=team",
        "NVIDIA_VISIBLE_DEVICES=void",
    } <= set(prepared.edits.env)
    assert prepared.edits.mounts[0].container_path == "/imexd"


async def test_another_namespace_may_not_use_the_domain(api, driver):
    uid = make_domain(api, "other")
    make_ready(api, uid)
    with pytest.raises(DriverError, match="namespace is different than the ComputeDomain's namespace"):
        await driver.prepare(claim(channel(uid)))
    assert label(api) is None


async def test_what_the_driver_refuses_is_told_in_its_words(api, driver):
    make_domain(api)
    for device, words in (
        (channel("nobody"), "ComputeDomain not found: nobody"),
        (channel(""), "domainID cannot be empty"),
        (channel("u", kind="ComputeDomainDaemonConfig"), "cannot apply ComputeDomainDaemonConfig to request: channel"),
        (AllocatedDevice("channel", "tray-1", "channel-0"), "domainID cannot be empty"),
    ):  # fmt: skip
        with pytest.raises(DriverError, match=words):
            await driver.prepare(claim(device))


@pytest.mark.parametrize(
    ("fields", "words", "path"),
    [
        ({"kind": "ComputeDomainChannelConfig", "domainID": ""}, "domainID cannot be empty", "domainID"),
        ({"kind": "ComputeDomainChannelConfig", "domainId": "u"}, 'unknown field "domainId"', "domainId"),
        ({"kind": "ComputeDomainDaemonConfig", "domainID": "u", "allocationMode": "All"},
         'unknown field "allocationMode"', "allocationMode"),
        ({"kind": "GpuConfig"}, "not a recognized configuration", "kind"),
        ({"kind": "Lamp"}, 'no kind "Lamp" is registered', "kind"),
    ],
)  # fmt: skip
def test_opaque_configs_are_checked(fields, words, path):
    with pytest.raises(OpaqueConfigError, match=words) as raised:
        check_config("compute-domain.nvidia.com", {"apiVersion": API, **fields})
    assert raised.value.path == path


def test_a_good_config_passes():
    config = {
        "apiVersion": API,
        "kind": "ComputeDomainChannelConfig",
        "domainID": "u",
        "allocationMode": "All",
    }
    check_config("compute-domain.nvidia.com", config)
