"""`dray get`: filters, and what claims are called."""

import json

import pytest

from dray.cli.main import main

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
