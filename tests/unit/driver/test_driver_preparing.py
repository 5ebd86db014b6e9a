"""Claims are prepared once, for one owner, whatever happens in between."""

import json
from pathlib import Path

import pytest
from node_builders import DRIVER, Lamps, claim, claim_path
from small_api import SmallApi

from dray.api.resource import DeviceAttribute, NetworkDeviceData
from dray.driver import DeviceStatus, DriverError, PreparedDevice
from dray.driver.api_access import ApiAccess
from dray.driver.files import ClaimFiles
from dray.driver.metrics import Metrics
from dray.driver.preparing import ClaimRef, Preparer
from dray.driver.state import StateFile


class Bench:
    """A preparer with its surroundings; `restart` forgets all that is in memory."""

    def __init__(self, folder, driver=None, **options):
        self.folder, self.driver, self.options = folder, driver or Lamps(), options
        self.api = SmallApi()
        self.boot = "boot"
        self.restart()

    def restart(self):
        self.state = StateFile(self.folder / "state.json", self.boot)
        files = ClaimFiles(DRIVER, self.folder / "cdi", self.folder / "data", **self.options)
        self.preparer = Preparer(
            self.driver, self.state, files, ApiAccess(self.api.client()), metrics=Metrics(DRIVER)
        )

    def add(self, name="light", *args, **kwargs):
        stored = self.api.put(claim_path(name), claim(name, *args, **kwargs))
        return ClaimRef("default", name, stored["metadata"]["uid"])

    def specs(self):
        return [json.loads(path.read_text()) for path in sorted((self.folder / "cdi").glob("*.json"))]


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


async def test_a_prepared_claim_has_a_cdi_spec_and_an_id(bench):
    ref = bench.add(devices=[("lamp", "lamp-0"), ("spare", "lamp-1")])
    devices = await bench.preparer.prepare(ref)
    assert [(d.request, d.device, d.cdi_device_ids) for d in devices] == [
        ("lamp", "lamp-0", [f"k8s.{DRIVER}/claim={ref.uid}-lamp-0"]),
        ("spare", "lamp-1", [f"k8s.{DRIVER}/claim={ref.uid}-lamp-1"]),
    ]
    (spec,) = bench.specs()
    assert spec["kind"] == f"k8s.{DRIVER}/claim"
    assert spec["cdiVersion"] == "0.5.0"  # names begin with a digit
    assert spec["devices"][0]["containerEdits"] == {"env": ["LAMP_0=lamp-0"]}


async def test_preparing_again_answers_from_the_record_even_after_a_restart(bench):
    ref = bench.add()
    first = await bench.preparer.prepare(ref)
    bench.restart()
    assert await bench.preparer.prepare(ref) == first
    assert bench.driver.calls == [("prepare", "light")]


async def test_a_reboot_makes_the_driver_prepare_again(bench):
    ref = bench.add()
    await bench.preparer.prepare(ref)
    bench.boot = "another"
    bench.restart()
    await bench.preparer.prepare(ref)
    assert bench.driver.calls == [("prepare", "light")] * 2


async def test_lost_cdi_files_are_written_again(bench):
    ref = bench.add()
    await bench.preparer.prepare(ref)
    next((bench.folder / "cdi").iterdir()).unlink()
    await bench.preparer.prepare(ref)
    assert len(bench.specs()) == 1


async def test_a_prepared_claim_is_answered_while_the_api_server_is_away(bench):
    ref = bench.add()
    first = await bench.preparer.prepare(ref)
    bench.api.is_away = True
    bench.restart()
    bench.preparer._claims._version = "v1"
    assert await bench.preparer.prepare(ref) == first


async def test_unprepare_gets_the_private_data_and_leaves_nothing(bench):
    ref = bench.add()
    await bench.preparer.prepare(ref)
    bench.restart()
    await bench.preparer.unprepare(ref)
    await bench.preparer.unprepare(ref)
    assert bench.driver.calls[1:] == [("unprepare", "light", [{"lit": "lamp-0"}])]
    assert bench.specs() == []
    assert bench.state.claims_by_uid == {}


async def test_a_failed_prepare_is_undone_by_unprepare(bench):
    ref = bench.add()
    bench.driver.is_broken = True
    with pytest.raises(DriverError, match="fuse"):
        await bench.preparer.prepare(ref)
    bench.driver.is_broken = False
    await bench.preparer.unprepare(ref)
    assert bench.driver.calls[-1] == ("unprepare", "light", [None])


async def test_a_failed_unprepare_is_tried_again(bench):
    ref = bench.add()
    await bench.preparer.prepare(ref)
    bench.driver.is_broken = True
    with pytest.raises(DriverError, match="switch"):
        await bench.preparer.unprepare(ref)
    bench.driver.is_broken = False
    bench.restart()
    await bench.preparer.unprepare(ref)
    assert bench.state.claims_by_uid == {}


async def test_an_exclusive_device_has_one_owner(bench):
    await bench.preparer.prepare(bench.add("first"))
    second = bench.add("second")
    with pytest.raises(DriverError, match=r"worker/lamp-0 is still prepared for claim default/first"):
        await bench.preparer.prepare(second)
    assert ("prepare", "second") not in bench.driver.calls


async def test_shares_of_a_device_have_many_owners_but_not_beside_an_exclusive_one(bench):
    await bench.preparer.prepare(bench.add("first", [("lamp", "lamp-0", "aaaa")]))
    await bench.preparer.prepare(bench.add("second", [("lamp", "lamp-0", "bbbb")]))
    with pytest.raises(DriverError, match="still prepared"):
        await bench.preparer.prepare(bench.add("third", [("lamp", "lamp-0")]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["metadata"].update(uid="other"), "was replaced"),
        (lambda c: c["status"].clear(), "is not allocated"),
    ],
)
async def test_a_claim_that_is_not_the_one_meant_is_refused(bench, change, message):
    ref = bench.add()
    change(bench.api.objects[claim_path()])
    with pytest.raises(DriverError, match=message):
        await bench.preparer.prepare(ref)
    assert bench.driver.calls == []


async def test_a_claim_that_is_gone_is_refused(bench):
    with pytest.raises(DriverError, match="does not exist"):
        await bench.preparer.prepare(ClaimRef("default", "nothing", "uid"))


async def test_a_claim_without_devices_of_this_driver_is_nothing_to_do(bench):
    assert await bench.preparer.prepare(bench.add(driver="other.example.com")) == []
    assert bench.driver.calls == []


async def test_alternatives_are_stripped_from_request_names_and_configs_find_their_request(bench):
    seen = []

    def prepare(request):
        seen.extend(request.devices)
        return [PreparedDevice.of(device) for device in request.devices]

    bench.driver.prepare = prepare
    stored = claim(devices=[("lamp/bright", "lamp-0"), ("other", "lamp-1")])
    stored["status"]["allocation"]["devices"]["config"] = [
        {
            "source": "FromClass",
            "requests": ["lamp"],
            "opaque": {"driver": DRIVER, "parameters": {"level": 1}},
        },
        {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": {"level": 2}}},
        {"source": "FromClaim", "opaque": {"driver": "other.example.com", "parameters": {"level": 3}}},
        {
            "source": "FromClaim",
            "requests": ["lamp/dim"],
            "opaque": {"driver": DRIVER, "parameters": {"level": 4}},
        },
    ]
    uid = bench.api.put(claim_path(), stored)["metadata"]["uid"]
    devices = await bench.preparer.prepare(ClaimRef("default", "light", uid))
    assert [device.request for device in devices] == ["lamp", "other"]
    assert [(d.subrequest, [c.parameters["level"] for c in d.configs]) for d in seen] == [
        ("bright", [1, 2]),
        ("", [2]),
    ]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda devices: [], "did not prepare worker/lamp-0"),
        (
            lambda devices: [
                PreparedDevice("lamp", "worker", "lamp-0"),
                PreparedDevice("lamp", "worker", "lamp-9"),
            ],
            "lamp-9",
        ),
    ],
)
async def test_an_answer_that_does_not_fit_the_claim_is_refused(bench, answer, message):
    bench.driver.prepare = lambda request: answer(request.devices)
    with pytest.raises(DriverError, match=message):
        await bench.preparer.prepare(bench.add())


async def test_device_status_is_written_beside_the_entries_of_other_drivers(bench):
    other = {"driver": "other.example.com", "pool": "p", "device": "d", "conditions": []}
    stored = claim()
    stored["status"]["devices"] = [other]
    uid = bench.api.put(claim_path(), stored)["metadata"]["uid"]
    status = DeviceStatus(data={"watts": 7}, network_data=NetworkDeviceData(interface_name="eth0"))
    bench.driver.prepare = lambda request: [
        PreparedDevice.of(device, status=status) for device in request.devices
    ]
    await bench.preparer.prepare(ClaimRef("default", "light", uid))
    for task in list(bench.preparer._background):
        await task
    assert bench.api.objects[claim_path()]["status"]["devices"] == [
        other,
        {
            "driver": DRIVER,
            "pool": "worker",
            "device": "lamp-0",
            "data": {"watts": 7},
            "networkData": {"interfaceName": "eth0"},
        },
    ]


async def test_device_metadata_is_mounted_and_removed(tmp_path):
    bench = Bench(tmp_path, with_metadata=True)
    bench.driver.prepare = lambda request: [
        PreparedDevice.of(device, attributes={"color": DeviceAttribute(string="red")})
        for device in request.devices
    ]
    ref = bench.add(annotations={"resource.kubernetes.io/pod-claim-name": "my-lamp"})
    (device,) = await bench.preparer.prepare(ref)
    assert device.cdi_device_ids == [f"{DRIVER}/metadata={ref.uid}_lamp"]
    (spec,) = bench.specs()
    (mount,) = spec["devices"][0]["containerEdits"]["mounts"]
    assert mount["containerPath"] == (
        f"/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/my-lamp/lamp/{DRIVER}-metadata.json"
    )
    decoder, text, found = json.JSONDecoder(), Path(mount["hostPath"]).read_text(), []
    while text.strip():
        document, end = decoder.raw_decode(text.lstrip())
        text = text.lstrip()[end:]
        found.append(document)
    assert [document["apiVersion"] for document in found] == [
        "metadata.resource.k8s.io/v1beta1",
        "metadata.resource.k8s.io/v1alpha1",
    ]
    assert found[0]["requests"] == [
        {
            "name": "lamp",
            "devices": [
                {
                    "driver": DRIVER,
                    "pool": "worker",
                    "name": "lamp-0",
                    "attributes": {"color": {"string": "red"}},
                }
            ],
        }
    ]
    await bench.preparer.unprepare(ref)
    assert bench.specs() == []
    assert list((tmp_path / "data").rglob("metadata.json")) == []


async def test_a_new_allocation_of_the_same_claim_undoes_the_old_one(bench):
    ref = bench.add()
    await bench.preparer.prepare(ref)
    bench.api.objects[claim_path()]["status"] = claim(devices=[("lamp", "lamp-1")])["status"]
    (device,) = await bench.preparer.prepare(ref)
    assert device.device == "lamp-1"
    assert [call[0] for call in bench.driver.calls] == ["prepare", "unprepare", "prepare"]


class LiveLamps(Lamps):
    """Lamps that can be brought into a pod that runs."""

    def attach(self, claim, pod_uids):
        self.calls.append(("attach", claim.name, list(pod_uids), [each.private for each in claim.devices]))
        if self.is_broken:
            raise DriverError("the pod has no socket")


@pytest.fixture
def live(tmp_path):
    return Bench(tmp_path, LiveLamps())


async def test_a_driver_that_can_brings_devices_into_running_pods_after_the_record_is_complete(live):
    on_disk = []
    attach = live.driver.attach

    def looked(claim, pod_uids):
        on_disk.append(
            json.loads((live.folder / "state.json").read_text())["book"]["claims"][0]["is_complete"]
        )
        attach(claim, pod_uids)

    live.driver.attach = looked
    stored = claim(pod={"metadata": {"name": "p", "uid": "u-1"}})
    uid = live.api.put(claim_path(), stored)["metadata"]["uid"]
    ref = ClaimRef("default", "light", uid)
    await live.preparer.prepare(ref)
    assert on_disk == [True]
    assert live.driver.calls == [("prepare", "light"), ("attach", "light", ["u-1"], [{"lit": "lamp-0"}])]


async def test_a_failed_attach_fails_the_call_and_is_tried_again_without_preparing_anew(live):
    ref = live.add()
    attach, live.driver.attach = live.driver.attach, None
    failures = iter([DriverError("the pod has no socket")])

    def first_fails(claim, pod_uids):
        for error in failures:
            raise error
        attach(claim, pod_uids)

    live.driver.attach = first_fails
    with pytest.raises(DriverError, match="the pod has no socket"):
        await live.preparer.prepare(ref)
    live.restart()
    await live.preparer.prepare(ref)
    assert [call[0] for call in live.driver.calls] == ["prepare", "attach"]
