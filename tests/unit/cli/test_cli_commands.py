"""The workbench commands on snapshots: what they print, as tables and as data."""

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))

from cli_files import claim, cluster, pod, written

from dray.cli.main import main
from dray.workbench.lint import lint
from dray.workbench.run_manifests import (
    DeviceFlags,
    Job,
    claim_manifest,
    claim_spec,
    driver_of,
    exit_code_of,
    full_attribute,
    is_started,
    pod_manifest,
    trouble_of,
)


@pytest.fixture(scope="module")
def busy(tmp_path_factory):
    """A file with a cluster in which two of eight GPUs are in use."""
    path = tmp_path_factory.mktemp("busy") / "cluster.json"
    cluster(claim(count=2), pod("train")).write(path)
    return str(path)


def out(capsys, *arguments, code=0):
    assert main(list(arguments)) == code
    return capsys.readouterr().out


# --- get ------------------------------------------------------------------------------------------


def test_devices_are_listed_with_their_holders(busy, capsys):
    text = out(capsys, "get", "devices", "--against", busy)
    line = next(line for line in text.splitlines() if " gpu-0 " in line)
    assert "used" in line
    assert "default/c (train)" in line


@pytest.mark.parametrize("what", ["devices", "pools", "claims", "nodes"])
@pytest.mark.parametrize("form", ["json", "yaml"])
def test_every_list_is_data_too(busy, capsys, what, form):
    text = out(capsys, "get", what, "--against", busy, "-o", form)
    rows = json.loads(text) if form == "json" else yaml.safe_load(text)
    assert rows
    assert all(isinstance(row, dict) for row in rows)


def test_claims_show_what_they_want_and_have(busy, capsys):
    (row,) = json.loads(out(capsys, "get", "claims", "--against", busy, "-o", "json"))
    assert row["state"] == "reserved"
    assert row["wants"] == ["2x gpu.nvidia.com"]
    assert len(row["devices"]) == 2
    assert row["pods"] == ["train"]


def test_the_tree_groups_devices_by_pcie_root(busy, capsys):
    text = out(capsys, "get", "devices", "--against", busy, "-o", "tree")
    assert text.startswith("dgx-h100-1\n")
    assert "─ pci0000:" in text


def test_pools_are_counted(busy, capsys):
    rows = json.loads(out(capsys, "get", "pools", "--against", busy, "-o", "json"))
    gpus = next(row for row in rows if row["driver"] == "gpu.nvidia.com")
    assert (gpus["devices"], gpus["used"], gpus["free"]) == (8, 2, 6)


# --- map and top ----------------------------------------------------------------------------------


def test_the_map_is_well_formed_svg(busy, tmp_path, capsys):
    path = tmp_path / "map.svg"
    out(capsys, "map", "--against", busy, "--svg", str(path))
    assert ElementTree.parse(path).getroot().tag.endswith("svg")


def test_the_map_in_the_terminal_names_nodes_and_owners(busy, capsys):
    text = out(capsys, "map", "--against", busy, "--width", "100")
    assert "dgx-h100-1" in text
    assert "default/c" in text


def test_top_prints_once_where_there_is_no_terminal(busy, capsys):
    text = out(capsys, "top", "--against", busy)
    assert "claims: 1 reserved, 0 allocated, 0 pending" in text
    assert "NVIDIA H100 80GB HBM3" in text
    assert "default/c (train)" in text
    assert "gpu-0,gpu-1" in text


def test_top_has_a_line_for_each_device_if_asked(busy, capsys):
    text = out(capsys, "top", "--against", busy, "--by", "device")
    assert sum("default/c (train)" in line for line in text.splitlines()) == 2


def test_top_as_data_counts_models(busy, capsys):
    found = json.loads(out(capsys, "top", "--against", busy, "-o", "json"))
    gpus = next(model for model in found["models"] if model["driver"] == "gpu.nvidia.com")
    assert (gpus["devices"], gpus["free"], gpus["used"], gpus["utilisation"]) == (8, 6, 2, 0.25)


@pytest.mark.parametrize("sort", ["use", "node", "name"])
def test_top_can_be_sorted_and_narrowed(busy, capsys, sort):
    assert "gpu-0" in out(capsys, "top", "--against", busy, "--sort", sort)
    assert "no device is in use" in out(capsys, "top", "--against", busy, "-n", "elsewhere")


# --- whatif and snapshot --------------------------------------------------------------------------


def test_whatif_places_pods_and_counts_missing_nodes(tmp_path, capsys):
    files = written(
        tmp_path / "w.json",
        *[claim(f"c{n}", count=8) for n in range(3)],
        *[pod(f"p{n}", f"c{n}") for n in range(3)],
    )
    text = out(capsys, "whatif", files, "--add-node", "dgx-h100", "--need", "dgx-h100", code=1)
    assert "1 of 3 pods fit" in text
    assert "needed: 2 more nodes (dgx-h100)" in text
    assert main(["whatif", files, "--add-node", "dgx-h100:3"]) == 0


def test_whatif_drains_a_node(busy, capsys):
    found = json.loads(
        out(capsys, "whatif", "--drain", "dgx-h100-1", "--against", busy, "--add-node", "dgx-h100", "-o", "json")
    )  # fmt: skip
    assert found["drained"] == ["default/train"]
    assert found["placed"][0]["node"] == "new-dgx-h100-1"


def test_a_snapshot_of_a_snapshot_is_the_same(busy, tmp_path, capsys):
    path = tmp_path / "copy.json"
    out(capsys, "snapshot", str(path), "--against", busy)
    assert json.loads(path.read_text()) == json.loads(Path(busy).read_text())
    assert main(["snapshot", str(path), "--against", busy]) == 2
    assert "--force" in capsys.readouterr().err


# --- cel ------------------------------------------------------------------------------------------


def test_cel_on_a_profile_puts_equal_answers_together(capsys):
    text = out(capsys, "cel", 'device.driver == "gpu.nvidia.com"', "--against", "dgx-h100")
    assert "gpu.nvidia.com/dgx-h100-1/gpu-0 and 7 more: match" in text
    assert "8 of 22 devices match" in text


# --- what `dray run` makes ------------------------------------------------------------------------


def test_the_words_of_run_become_a_valid_claim_and_pod():
    wanted = DeviceFlags("gpu.nvidia.com", 1, [("memory", "40Gi")], ['device.driver == "gpu.nvidia.com"'])
    nic = DeviceFlags("dra.net", 1)
    spec = claim_spec([wanted, nic], ["gpu.nvidia.com", "dra.net"], ["pcieRoot"])
    made = [
        claim_manifest("r", "default", spec),
        pod_manifest(Job("r", "default", "busybox", ["true"], {"A": "b"})),
    ]
    text = "---\n".join(yaml.safe_dump(obj) for obj in made)
    findings = lint({"x": text.encode()}, against=cluster()).findings
    assert findings == []
    assert spec["devices"]["constraints"] == [{"matchAttribute": "resource.kubernetes.io/pcieRoot"}]


def test_a_count_is_said_in_the_claim():
    spec = claim_spec([DeviceFlags("x", 2)], ["x"], [])
    assert spec["devices"]["requests"][0]["exactly"]["count"] == 2


def test_all_and_capacity_are_said_in_the_claim():
    spec = claim_spec([DeviceFlags("x", 0, capacity={"memory": "1Gi"})], ["x"], [])
    (request,) = spec["devices"]["requests"]
    assert request["exactly"] == {
        "deviceClassName": "x",
        "allocationMode": "All",
        "capacity": {"requests": {"memory": "1Gi"}},
    }


def test_the_claim_belongs_to_its_pod():
    meta = claim_manifest("r", "default", {}, "uid-1")["metadata"]
    assert meta["ownerReferences"][0]["uid"] == "uid-1"


def test_the_driver_is_read_from_the_class():
    selector = {"cel": {"expression": 'device.driver == "gpu.nvidia.com" && true'}}
    mig = {"metadata": {"name": "mig.nvidia.com"}, "spec": {"selectors": [selector]}}
    assert driver_of(mig) == "gpu.nvidia.com"
    assert driver_of({"metadata": {"name": "plain"}}) == "plain"


@pytest.mark.parametrize(
    ("name", "full"),
    [("pcieRoot", "resource.kubernetes.io/pcieRoot"), ("parentUUID", "d/parentUUID"), ("a/b", "a/b")],
)
def test_attributes_get_their_domain(name, full):
    assert full_attribute(name, "d") == full


def state(**container):
    return {"status": {"containerStatuses": [{"state": container}]}}


def test_the_state_of_a_pod_is_read():
    assert exit_code_of(state(terminated={"exitCode": 3})) == 3
    assert exit_code_of(state(running={})) is None
    assert exit_code_of({"status": {"phase": "Failed"}}) == 1
    assert exit_code_of({}) is None
    assert is_started(state(running={}))
    assert not is_started(state(waiting={"reason": "ContainerCreating"}))
    assert trouble_of(state(waiting={"reason": "ErrImagePull", "message": "no"})) == "ErrImagePull: no"
    assert trouble_of(state(waiting={"reason": "ContainerCreating"})) == ""
