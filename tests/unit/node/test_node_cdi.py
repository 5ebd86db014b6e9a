"""CDI specs are found, judged, resolved, and merged into OCI specs."""

import json
import os

import pytest
import yaml

from dray.api.cdi import (
    CdiDevice,
    CdiError,
    CdiSpec,
    ContainerEdits,
    DeviceNode,
    Hook,
    IntelRdt,
    Mount,
    NetDevice,
    complaints_about,
    minimum_version,
    parse_qualified_name,
)
from dray.node.cdi import CdiRegistry, apply_edits


def write(folder, name, kind="vendor.example.com/lamp", version="0.6.0", edits=None, **devices):
    spec = {
        "cdiVersion": version,
        "kind": kind,
        "devices": [{"name": device, "containerEdits": edit} for device, edit in devices.items()],
        "containerEdits": edits or {},
    }
    folder.mkdir(exist_ok=True)
    text = json.dumps(spec) if name.endswith(".json") else yaml.safe_dump(spec)
    (folder / name).write_text(text)


def env(*values):
    return {"env": list(values)}


@pytest.mark.parametrize("name", ["a.json", "a.yaml", "a.yml"])
def test_a_device_is_found_in_json_and_yaml(tmp_path, name):
    write(tmp_path, name, red=env("COLOR=red"))
    assert CdiRegistry([tmp_path]).resolve(["vendor.example.com/lamp=red"]).env == ["COLOR=red"]


def test_edits_of_the_whole_spec_come_once_and_first(tmp_path):
    write(tmp_path, "a.json", edits=env("ALL=1"), red=env("RED=1"), blue=env("BLUE=1"))
    names = ["vendor.example.com/lamp=red", "vendor.example.com/lamp=blue"]
    assert CdiRegistry([tmp_path]).resolve(names).env == ["ALL=1", "RED=1", "BLUE=1"]


def test_later_directories_hide_earlier_ones(tmp_path):
    write(tmp_path / "etc", "a.json", red=env("FROM=etc"))
    write(tmp_path / "run", "a.json", red=env("FROM=run"))
    registry = CdiRegistry([tmp_path / "etc", tmp_path / "run"])
    assert registry.resolve(["vendor.example.com/lamp=red"]).env == ["FROM=run"]


def test_two_files_in_one_directory_that_define_a_device_are_a_conflict(tmp_path):
    write(tmp_path, "a.json", red=env("A=1"))
    write(tmp_path, "b.json", red=env("B=1"), blue=env("C=1"))
    registry = CdiRegistry([tmp_path])
    with pytest.raises(CdiError, match="defined by 2 files"):
        registry.resolve(["vendor.example.com/lamp=red"])
    assert registry.resolve(["vendor.example.com/lamp=blue"]).env == ["C=1"]


def test_files_that_come_change_and_go_are_noticed(tmp_path):
    registry = CdiRegistry([tmp_path / "later"])
    name = ["vendor.example.com/lamp=red"]
    with pytest.raises(CdiError, match="not defined"):
        registry.resolve(name)
    write(tmp_path / "later", "a.json", red=env("N=1"))
    assert registry.resolve(name).env == ["N=1"]
    write(tmp_path / "later", "new", red=env("N=22"))
    (tmp_path / "later" / "new").rename(tmp_path / "later" / "a.json")
    (tmp_path / "later" / "a.json").write_text(
        json.dumps(yaml.safe_load((tmp_path / "later" / "a.json").read_text()))
    )
    assert registry.resolve(name).env == ["N=22"]
    (tmp_path / "later" / "a.json").unlink()
    with pytest.raises(CdiError, match="not defined"):
        registry.resolve(name)


def test_all_missing_devices_and_the_broken_files_are_named(tmp_path):
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(CdiError) as caught:
        CdiRegistry([tmp_path]).resolve(["a.example/b=one", "a.example/b=two"])
    text = str(caught.value)
    assert "one" in text
    assert "two" in text
    assert "broken.json" in text


@pytest.mark.parametrize(
    "name",
    ["", "x", "vendor/class", "vendor/class=", "/c=d", "vendor/=d", "ven dor/c=d", "vendor/c=-d", "9v/c=d"],
)
def test_bad_names_are_refused(name):
    with pytest.raises(CdiError):
        parse_qualified_name(name)


@pytest.mark.parametrize(
    ("edits", "version"),
    [
        (ContainerEdits(env=["A=1"]), "0.3.0"),
        (ContainerEdits(mounts=[Mount(host_path="/a", container_path="/b", type="bind")]), "0.4.0"),
        (ContainerEdits(device_nodes=[DeviceNode(path="/a", host_path="/b")]), "0.5.0"),
        (ContainerEdits(additional_gids=[1]), "0.7.0"),
        (ContainerEdits(intel_rdt=IntelRdt(clos_id="a")), "0.7.0"),
        (ContainerEdits(net_devices=[NetDevice(host_interface_name="eth0")]), "1.1.0"),
    ],
)
def test_a_spec_declares_the_lowest_version_that_can_read_it(edits, version):
    spec = CdiSpec(kind="a.example/b", devices=[CdiDevice(name="c", container_edits=edits)])
    assert minimum_version(spec) == version


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"cdi_version": "9.0"}, "cdiVersion"),
        ({"kind": "nothing"}, "kind"),
        ({"devices": []}, "no devices"),
        ({"devices": [CdiDevice(name="a"), CdiDevice(name="a")]}, "twice"),
        ({"container_edits": ContainerEdits(env=["NOVALUE"])}, "NAME=value"),
        ({"container_edits": ContainerEdits(hooks=[Hook(hook_name="never", path="/x")])}, "never"),
        (
            {"container_edits": ContainerEdits(device_nodes=[DeviceNode(path="/x", permissions="q")])},
            "permissions",
        ),
        ({"container_edits": ContainerEdits(mounts=[Mount(host_path="/x")])}, "containerPath"),
    ],
)
def test_what_is_wrong_with_a_spec_is_said(change, complaint):
    good = {"cdi_version": "0.6.0", "kind": "a.example/b", "devices": [CdiDevice(name="c")]}
    assert complaints_about(CdiSpec(**good)) == []
    assert any(complaint in text for text in complaints_about(CdiSpec(**{**good, **change})))


def test_edits_are_merged_into_an_oci_spec():
    oci = {
        "process": {"env": ["PATH=/bin", "COLOR=none"], "user": {"additionalGids": [5]}},
        "mounts": [{"destination": "/a/b/c", "source": "x"}, {"destination": "/data", "source": "old"}],
        "linux": {"devices": [{"path": "/dev/lamp", "type": "c", "major": 9, "minor": 9}]},
    }
    edits = ContainerEdits(
        env=["COLOR=red", "NEW=1"],
        additional_gids=[5, 6, 0],
        device_nodes=[DeviceNode(path="/dev/lamp", type="c", major=10, minor=1, permissions="rw", uid=7)],
        mounts=[Mount(host_path="/new", container_path="/data", options=["ro"])],
        hooks=[Hook(hook_name="prestart", path="/hook", args=["hook", "x"], timeout=3)],
        net_devices=[NetDevice(host_interface_name="eth1", name="net0")],
        intel_rdt=IntelRdt(clos_id="gold"),
    )
    merged = apply_edits(oci, edits)
    assert merged["process"]["env"] == ["PATH=/bin", "COLOR=red", "NEW=1"]
    assert merged["process"]["user"]["additionalGids"] == [5, 6]
    assert merged["linux"]["devices"] == [
        {"path": "/dev/lamp", "type": "c", "major": 10, "minor": 1, "uid": 7}
    ]
    assert merged["linux"]["resources"]["devices"] == [
        {"allow": True, "type": "c", "major": 10, "minor": 1, "access": "rw"}
    ]
    assert [mount["destination"] for mount in merged["mounts"]] == [
        "/data",
        "/a/b/c",
    ]  # parents before children
    assert merged["mounts"][0]["source"] == "/new"
    assert merged["hooks"] == {"prestart": [{"path": "/hook", "args": ["hook", "x"], "timeout": 3}]}
    assert merged["linux"]["netDevices"] == {"eth1": {"name": "net0"}}
    assert merged["linux"]["intelRdt"] == {"closID": "gold"}
    assert oci["process"]["env"] == ["PATH=/bin", "COLOR=none"]  # the original is untouched


def test_a_device_node_is_completed_from_the_host():
    merged = apply_edits(
        {}, ContainerEdits(device_nodes=[DeviceNode(path="/dev/inside", host_path="/dev/null")])
    )
    (device,) = merged["linux"]["devices"]
    found = os.stat("/dev/null")
    assert (device["path"], device["type"]) == ("/dev/inside", "c")
    assert (device["major"], device["minor"]) == (os.major(found.st_rdev), os.minor(found.st_rdev))


@pytest.mark.parametrize("path", ["/no/such/device", "/etc/hostname"])
def test_a_device_node_that_is_none_is_refused(path):
    with pytest.raises(CdiError, match="device node"):
        apply_edits({}, ContainerEdits(device_nodes=[DeviceNode(path=path)]))
