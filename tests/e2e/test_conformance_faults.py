"""The AI conformance checks on a running system: each holds, and a fault of the system itself makes it fail."""

import json

import pytest
import yaml
from test_autoscaling_system import System

from dray.client import Client
from dray.client.resources import SLICES

pytestmark = pytest.mark.kubernetes  # it needs no Kubernetes, but as long as tests that do

PROFILE = "dgx-h100"
NODE = f"{PROFILE}-1"
HOLDS, FAILS, PARTLY = "Implemented", "Not Implemented", "Partially Implemented"


@pytest.fixture
def system(tmp_path):
    found = System(tmp_path)
    found.start(
        "dray is up", "up", "--no-host", "--sim", PROFILE, "--secure-port", "0", "--data", str(found.data)
    )
    yield found
    found.close()


async def break_devices(system, driver):
    """Let preparing fail for all devices of a driver."""
    async with Client.connect(str(system.data / "admin.kubeconfig")) as client:
        slices = (await client.list(SLICES)).items
    names = [
        device["name"]
        for each in slices
        if each["spec"]["driver"] == driver
        for device in each["spec"].get("devices") or ()
    ]
    assert names
    faults = {"devices": {name: {"prepareError": "out of order"} for name in names}}
    path = fault_file(system, driver)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(faults))


def fault_file(system, driver):
    return system.data / "nodes" / NODE / "faults" / f"{driver}.yaml"


def run(system, *checks, version, more=()):
    """Return the exit code, and status and notes of each check."""
    done = system.dray(
        *("conformance", "run", *checks, "--version", version, "--timeout", "8", "-o", "json"),
        *("--kubeconfig", str(system.data / "admin.kubeconfig"), *more),
    )
    found = [each for entries in json.loads(done.stdout)["spec"].values() for each in entries]
    by_id = {each["id"]: (each["status"], each.get("notes", "")) for each in found if each["id"] in checks}
    return done.returncode, by_id


@pytest.mark.parametrize(
    ("driver", "version", "checks"),
    [
        ("gpu.nvidia.com", "v1.35", ("dra_support", "secure_accelerator_access")),
        ("dra.net", "v1.36", ("high_performance_networking",)),
    ],
)
async def test_devices_that_cannot_be_prepared(system, driver, version, checks):
    code, found = run(system, *checks, version=version)
    assert {status for status, _ in found.values()} == {HOLDS}, found
    assert code == 0
    await break_devices(system, driver)
    code, found = run(system, *checks, version=version)
    assert {status for status, _ in found.values()} == {FAILS}, found
    assert all("out of order" in notes for _, notes in found.values()), found
    fault_file(system, driver).unlink()
    _, found = run(system, *checks, version=version)
    assert {status for status, _ in found.values()} == {HOLDS}, found


async def test_a_system_without_gangs_and_without_metrics_of_devices(system):
    code, found = run(system, "gang_scheduling", "accelerator_metrics", version="v1.36")
    assert found["gang_scheduling"][0] == FAILS
    assert found["accelerator_metrics"][0] == PARTLY  # series of allocation, none that a device measures
    assert code == 1
    nobody = ("--metrics-url", "http://127.0.0.1:1/metrics")
    _, found = run(system, "accelerator_metrics", version="v1.36", more=nobody)
    assert found["accelerator_metrics"][0] == FAILS
