"""Every folder of examples/ does what its expected.yaml says, on one system of real processes.

The system is started once; examples that use different nodes run side by side (see
`example_runs`), so the tests below only read the outcome of their example.
"""

import asyncio
import contextlib
import io
import json
import re
import shutil
import tempfile
from pathlib import Path

import example_runs as runs
import pytest
import yaml

import dray.local.system as systems
from dray.cli.main import main
from dray.client import Client
from dray.client.resources import PODS
from dray.sim.hardware import parse_hardware

PATIENCE = 90.0  # seconds for one expectation; a loaded machine is slow, not wrong
GATES = "GenericWorkload=true,DRAWorkloadResourceClaims=true,DRAResourcePoolStatus=true"
WRONG = "01-claim-template"


def wrong_example() -> runs.Example:
    """Return an example whose expectation is false in one word."""
    example = runs.load_example(WRONG)
    example.name = "00-wrong"
    example.steps = [
        {"expect": [{"kind": "Pod", "name": "basic", "has": {"status": {"phase": "Running"}}}]},
        {"glance": [{"kind": "Pod", "name": "basic", "devices": ["workstation-1/gpu-7"]}]},
    ]
    return example


@pytest.fixture(scope="module")
def outcomes(request):
    """Play the examples whose tests were selected; returns what went wrong, by name."""
    wanted = {
        item.callspec.params["name"]
        for item in request.session.items
        if item.path == request.path and "name" in getattr(getattr(item, "callspec", None), "params", {})
    }
    examples = [runs.load_example(name) for name in sorted(wanted)]
    # The folder's path is part of socket paths, which have little room.
    data = Path(tempfile.mkdtemp(prefix="dx-", dir="/tmp"))
    patience = pytest.MonkeyPatch()
    patience.setattr(systems, "READY_SECONDS", 120.0)
    try:
        return asyncio.run(_play(examples, data))
    finally:
        patience.undo()
        shutil.rmtree(data, ignore_errors=True)


async def _play(examples, data):
    profiles = sorted({profile for example in examples for profile in example.cluster} | {"workstation"})
    plan = systems.Plan(data, port=0, simulated=parse_hardware(profiles), feature_gates=GATES)
    system = systems.System(plan)
    try:
        await system.start()
        failures = await runs.play_all(examples, plan.kubeconfig, data, PATIENCE)
        failures |= await runs.play_all([wrong_example()], plan.kubeconfig, data, PATIENCE)
        await _leave_a_pod_running(plan.kubeconfig)
        return failures
    finally:
        await system.stop()
        assert _processes_below(data) == [], "a stopped system left these processes"


async def _leave_a_pod_running(kubeconfig):
    container = {"name": "main", "image": "x", "command": ["sleep", "3600"]}
    pod = {"metadata": {"name": "left"}, "spec": {"containers": [container]}}
    async with Client.connect(kubeconfig) as client:
        await client.create(PODS, pod, "default")
        async with asyncio.timeout(PATIENCE):
            while (await client.get(PODS, "left", "default"))["status"].get("phase") != "Running":
                await asyncio.sleep(0.1)


def _processes_below(folder):
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().decode("utf-8", "replace").split("\0")
            if any(word.startswith(str(folder)) for word in words):
                found.append(words)
    return found


@pytest.mark.parametrize("name", runs.example_names())
def test_the_example_does_what_it_says(outcomes, name):
    assert outcomes.get(name, "") == ""


def test_a_wrong_expectation_is_noticed(outcomes):
    assert "expected ['workstation-1/gpu-7']" in outcomes["00-wrong"]


# --- the folders themselves ----------------------------------------------------------


@pytest.mark.parametrize("name", runs.example_names())
def test_the_folder_is_complete(name):
    folder = runs.FOLDER / name
    example = runs.load_example(name)
    readme = (folder / "README.md").read_text("utf-8")
    assert readme.startswith(f"# {name[:2]} · ")
    assert all(f"--sim {profile}" in readme for profile in example.cluster)
    assert f"$ kubectl apply -f examples/{name}/manifest.yaml" in readme
    for path in folder.glob("*.yaml"):
        assert list(yaml.safe_load_all(path.read_text("utf-8")))
    applied = {"manifest.yaml", "expected.yaml"} | {
        step.get("apply") or (step.get("refused") or {}).get("apply") for step in example.steps
    }
    mentioned = set(re.findall(rf"examples/{name}/([\w.-]+\.yaml)", readme)) | {"expected.yaml"}
    assert {path.name for path in folder.glob("*.yaml")} <= (applied | mentioned)
    assert mentioned <= {path.name for path in folder.glob("*.yaml")}


def test_the_numbers_are_a_sequence():
    assert [int(name[:2]) for name in runs.example_names()] == list(range(1, len(runs.example_names()) + 1))


def test_the_list_names_every_example():
    listed = (runs.FOLDER / "README.md").read_text("utf-8")
    assert re.findall(r"^\| \[(\d\d-[\w-]+)\]\(\1/README.md\) \|", listed, re.MULTILINE) == (
        runs.example_names()
    )


NEVER_FIT = {
    "15-taint-no-schedule",
    "31-impossible",
}  # on purpose: a taint on all devices, an impossible request


@pytest.mark.parametrize("name", runs.example_names())
def test_dray_check_finds_errors_only_where_they_are_meant(name):
    example = runs.load_example(name)
    flags = [word for profile in example.cluster for word in ("--against", profile)]
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        main(["check", str(example.folder / "manifest.yaml"), *flags, "--output", "json"])
    errors = [each for each in json.loads(out.getvalue())["findings"] if each["severity"] == "error"]
    assert {each["code"] for each in errors} == ({"never-fits"} if name in NEVER_FIT else set()), errors


# --- comparing -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "actual", "verdict"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1}, {"a": 2}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {}, False),
        ({"a": None}, {}, True),
        ({"a": None}, {"a": 0}, False),
        ({"a": "gpu-*"}, {"a": "gpu-3"}, True),
        ({"a": "gpu-?"}, {"a": "gpu-31"}, False),
        ([{"x": 1}, {"x": 1}], [{"x": 1}], False),
        ([{"x": 1}], [{"x": 2}, {"x": 1}], True),
        ([], [1], True),
        ([1], None, False),
    ],
)
def test_a_part_is_compared_with_the_whole(expected, actual, verdict):
    assert runs.matches(expected, actual) is verdict
