"""`dray get`: filters, and what claims are called."""

import asyncio
import json

import pytest
from small_api import SmallApi

from dray.cli import live
from dray.cli.main import main
from dray.client import Client
from dray.sim.hardware import hardware_snapshot, parse_hardware
from dray.sim.snapshot import KINDS, Snapshot, capture
from dray.workbench.inventory import Inventory

META = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}


def claim(name, *, device="", class_name="gpu.nvidia.com"):
    result = {"request": "r", "driver": "gpu.nvidia.com", "pool": "dgx-h100-1", "device": device}
    status = {"allocation": {"devices": {"results": [result]}}} if device else {}
    request = {"name": "r", "exactly": {"deviceClassName": class_name}}
    return {
        **META,
        "metadata": {"name": name, "namespace": "team", "uid": name},
        "spec": {"devices": {"requests": [request]}},
        "status": status,
    }


def pod(name, phase):
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "team", "uid": f"pod-{name}"},
        "spec": {
            "containers": [{"name": "c", "image": "i"}],
            "resourceClaims": [{"name": "r", "resourceClaimName": name}],
        },
        "status": {"phase": phase},
    }


@pytest.fixture
def listed(tmp_path, capsys):
    objects = [
        claim("held", device="gpu-3"),
        claim("done"),
        claim("waits", class_name="dra.net"),
        pod("held", "Running"),
        pod("done", "Succeeded"),
        pod("waits", "Pending"),
    ]
    path = tmp_path / "claims.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def run(*words):
        assert main(["get", *words, "--against", "dgx-h100:2", "--against", str(path), "-o", "json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_a_claim_is_finished_when_its_pods_are_over(listed):
    assert {each["name"]: each["state"] for each in listed("claims")} == {
        "held": "allocated",
        "done": "finished",
        "waits": "pending",
    }


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (["--state", "finished"], ["done"]),
        (["--class", "gpu.nvidia.com"], ["done", "held"]),
        (["--class", "gpu.nvidia.com", "--state", "allocated"], ["held"]),
        (["--driver", "gpu.nvidia.com"], ["held"]),
        (["--node", "dgx-h100-1"], ["held"]),
        (["--node", "dgx-h100-2"], []),
    ],
)
def test_claims_are_filtered(listed, flags, names):
    assert sorted(each["name"] for each in listed("claims", *flags)) == names


def test_devices_are_filtered_by_what_a_class_selects_and_by_state(listed):
    gpus = listed("devices", "--class", "gpu.nvidia.com")
    assert {each["driver"] for each in gpus} == {"gpu.nvidia.com"}
    assert len(gpus) == 16
    assert [each["device"] for each in listed("devices", "--state", "used")] == ["gpu-3"]
    assert len(listed("devices", "--class", "gpu.nvidia.com", "--state", "free", "--node", "dgx-h100-1")) == 7
    assert [each["node"] for each in listed("nodes", "--node", "dgx-h100-2", "--driver", "dra.net")] == [
        "dgx-h100-2"
    ]


@pytest.fixture
def running(monkeypatch):
    """A running cluster of two nodes with one claim that is held."""
    api = SmallApi()
    snapshot = hardware_snapshot(parse_hardware(["dgx-h100:2"]))
    snapshot.add(claim("held", device="gpu-3"))  # with defaults, as a server has it
    for obj in snapshot.objects:
        resource = KINDS[obj["kind"]][2]
        meta = obj["metadata"]
        api.put(resource.path(meta.get("namespace"), meta["name"]), obj)
    monkeypatch.setattr(Client, "connect", lambda *_, **__: api.client())
    return api


@pytest.mark.parametrize("what", ["nodes", "devices", "pools", "claims"])
def test_what_a_server_answers_is_read_once_into_what_is_shown(what, running, monkeypatch, capsys):
    """Defaulting, conversion and plain copies of thousands of slices would take a minute."""
    path = "some.kubeconfig"
    assert main(["get", what, "--kubeconfig", path, "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert len(shown) == {"nodes": 2, "devices": 44, "pools": 6, "claims": 1}[what]

    def refuse(*_, **__):
        raise AssertionError("an object was read as from a file")

    monkeypatch.setattr(Snapshot, "add", refuse)
    assert main(["get", what, "--kubeconfig", path, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == shown


async def test_views_of_a_running_cluster_are_the_same_with_and_without_its_plain_objects(running):
    whole, views = await capture(running.client()), await capture(running.client(), only_views=True)
    for _, attribute, _ in KINDS.values():
        assert getattr(views, attribute) == getattr(whole, attribute)
    assert whole.objects
    assert not views.objects


def test_devices_of_a_claim_are_found_without_a_look_at_all_others(running):
    inventory = Inventory(asyncio.run(capture(running.client(), only_views=True)))
    inventory.devices.clear()
    assert [row.device.name for row in inventory.of_claim("team/held")] == ["gpu-3"]
    assert inventory.of_claim("team/other") == []


def test_the_text_of_a_snapshot_has_its_size_not_its_objects():
    snapshot = hardware_snapshot(parse_hardware(["dgx-h100:3"]))
    assert repr(snapshot) == "Snapshot(3 Node, 9 ResourceSlice, 9 DeviceClass)"


def test_pods_are_counted_in_one_pass(monkeypatch):
    passes = 0

    class Counted(list):
        def __iter__(self):
            nonlocal passes
            passes += 1
            return super().__iter__()

    snapshot = hardware_snapshot(parse_hardware(["dgx-h100:3"]))
    snapshot.add({**pod("one", "Running"), "spec": {"nodeName": "dgx-h100-2"}})
    snapshot.pods = Counted(snapshot.pods)
    monkeypatch.setattr(live, "load_source", lambda *_, **__: snapshot)
    assert main(["get", "nodes"]) == 0
    assert passes == 1
