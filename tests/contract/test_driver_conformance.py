"""The conformance kit passes good drivers and names what bad ones do wrong."""

import runpy
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from node_builders import NODE, Lamps, WatchedLamps
from small_api import SmallApi

from dray.api.resource import Device
from dray.driver import DriverError, Pool, PreparedDevice, Settings, serving_driver
from dray.driver.conformance import Kit
from dray.driver.skeleton import write_skeleton


@pytest.fixture
def folder():
    path = Path(tempfile.mkdtemp(prefix="dray-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


async def check(folder, driver, **options):
    api = SmallApi()
    api.put(f"/api/v1/nodes/{NODE}", {"kind": "Node"})
    settings = Settings(node_name=NODE, kubelet_dir=folder, cdi_dir=folder / "cdi")
    async with serving_driver(driver, api.client(), settings):
        kit = Kit(
            api.client(), folder / "plugins_registry", [folder / "cdi"], NODE, wait_seconds=60.0, **options
        )
        return {outcome.check: outcome for outcome in await kit.run()}


async def test_a_driver_on_the_sdk_passes(folder):
    outcomes = await check(folder, WatchedLamps())
    assert {name: o.detail for name, o in outcomes.items() if o.verdict != "ok"} == {
        "survives kill -9 between two prepares": "the kit did not start the driver; give --command to check this"
    }


async def test_a_driver_killed_in_between_passes(folder):
    """The process is replaced by one that has nothing in memory; the real kill is in the end-to-end tests."""
    api = SmallApi()
    api.put(f"/api/v1/nodes/{NODE}", {"kind": "Node"})
    settings = Settings(node_name=NODE, kubelet_dir=folder, cdi_dir=folder / "cdi")
    lives = []

    async def start():
        life = serving_driver(Lamps(), api.client(), settings)
        await life.__aenter__()
        lives.append(life)

    async def kill():
        await lives[-1].__aexit__(None, None, None)

    kit = Kit(
        api.client(),
        folder / "plugins_registry",
        [folder / "cdi"],
        NODE,
        wait_seconds=60,
        start=start,
        kill=kill,
    )
    outcomes = {outcome.check: outcome.verdict for outcome in await kit.run()}
    await kill()
    assert outcomes["survives kill -9 between two prepares"] == "ok"
    assert len(lives) == 2


class Forgetful(Lamps):
    def prepare(self, claim):
        return []


class Refusing(Lamps):
    def prepare(self, claim):
        raise DriverError("not today")


class Empty(Lamps):
    def discover(self):
        return [Pool(devices=[])]


class Stuck(Lamps):
    def unprepare(self, claim):
        raise DriverError("cannot let go")


class Dangling(Lamps):
    def prepare(self, claim):
        return [
            PreparedDevice.of(d, cdi_device_ids=["vendor.example.com/lamp=nowhere"]) for d in claim.devices
        ]


@pytest.mark.parametrize(
    ("driver", "name", "detail"),
    [
        (Forgetful, "prepares an allocated claim", "did not prepare"),
        (Refusing, "prepares an allocated claim", "not today"),
        (Empty, "prepares an allocated claim", "no published device"),
        (Stuck, "unprepares and leaves nothing", "cannot let go"),
        (Dangling, "writes resolvable CDI specs", "nowhere"),
    ],
)
async def test_a_bad_driver_is_told_what_is_wrong(folder, driver, name, detail):
    outcomes = await check(folder, driver())
    assert outcomes[name].verdict == "failed"
    assert detail in outcomes[name].detail


async def test_a_driver_that_never_registers_fails_at_once(folder):
    api = SmallApi()
    kit = Kit(api.client(), folder, [folder], NODE, wait_seconds=0.2)
    (outcome,) = await kit.run()
    assert (outcome.check, outcome.verdict) == ("registers", "failed")


async def test_a_pool_with_missing_slices_fails(folder):
    class Publishes(Lamps):
        def discover(self):
            return [Pool(devices=[Device(name=f"d-{n}") for n in range(130)])]

    api = SmallApi()
    api.put(f"/api/v1/nodes/{NODE}", {"kind": "Node"})
    settings = Settings(node_name=NODE, kubelet_dir=folder, cdi_dir=folder / "cdi", publishes=False)
    async with serving_driver(Publishes(), api.client(), settings):
        spec = {
            "driver": "lamp.example.com",
            "nodeName": NODE,
            "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 2},
        }
        api.put("/apis/resource.k8s.io/v1/resourceslices/one", {"spec": {**spec, "devices": [{"name": "a"}]}})
        kit = Kit(api.client(), folder / "plugins_registry", [folder / "cdi"], NODE, wait_seconds=1.0)
        outcomes = {outcome.check: outcome for outcome in await kit.run()}
    assert "2 slices promised, 1 published" in outcomes["publishes complete pools"].detail


def test_a_new_driver_works_and_so_does_its_test(folder):
    driver, test = write_skeleton("gpu.example.com", folder / "new")
    assert [driver.name, test.name] == ["gpu_driver.py", "test_gpu_driver.py"]
    sys.path.insert(0, str(folder / "new"))
    try:
        tests = runpy.run_path(str(test))
        checks = [value for name, value in tests.items() if name.startswith("test_")]
        assert len(checks) == 4
        for check in checks:
            check()
    finally:
        sys.path.remove(str(folder / "new"))
    with pytest.raises(DriverError, match="there already"):
        write_skeleton("gpu.example.com", folder / "new")


@pytest.mark.parametrize(
    "name", ["", "gpu", "GPU.example.com", "gpu..example.com", "a" * 60 + ".example.com", "gpu_1.example.com"]
)
def test_names_that_kubernetes_would_refuse_are_refused(folder, name):
    with pytest.raises(DriverError, match="is not a driver name"):
        write_skeleton(name, folder)
