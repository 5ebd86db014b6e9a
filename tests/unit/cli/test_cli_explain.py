"""`dray explain`: the reasons, the holders, the nearest words, and changes that really help."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cli_files import claim, cluster, pod, written

from dray.cli.explain import explain
from dray.cli.main import main
from dray.sim.cluster import OfflineCluster
from dray.workbench.changes import fitting_nodes, smallest_changes

PRODUCT = 'device.attributes["gpu.nvidia.com"].productName'
MIXED = (("dgx-h100", 1), ("dgx-a100", 1))


def story(snapshot, what="claim", name="c"):
    found = explain(snapshot, what, f"default/{name}")
    return found, "\n".join(found["lines"])


def test_a_claim_that_fits_says_where():
    found, text = story(cluster(claim()))
    assert found["fits"]
    assert "would fit on node dgx-h100-1" in text


def test_an_allocated_claim_shows_its_devices_and_its_pod():
    found, text = story(cluster(claim(), pod()))
    assert found["state"] == "allocated"
    assert "gpu.nvidia.com/dgx-h100-1/gpu-0 (NVIDIA H100 80GB HBM3) on node dgx-h100-1" in text
    assert "reserved for pod p" in text


def test_devices_of_other_classes_are_not_counted_among_the_candidates():
    _, text = story(cluster(claim(count=9)))
    assert "wants 9 x gpu.nvidia.com: there are only 8" in text
    assert "dra.net" not in text


def test_a_count_that_is_too_high_is_answered_with_the_highest_that_fits():
    found, _ = story(cluster(claim(count=9)))
    assert found["changes"] == [{"change": "request gpu: ask for 8 instead of 9", "nodes": ["dgx-h100-1"]}]


def test_a_value_that_no_device_has_is_answered_with_the_nearest():
    found, text = story(cluster(claim(where=[f'{PRODUCT} == "H100"'])))
    assert 'do not match `device.attributes["gpu.nvidia.com"].productName == "H100"`' in text
    assert "no device has productName 'H100'; nearest: 'NVIDIA H100 80GB HBM3'" in text
    assert found["changes"][0]["change"] == "request gpu: write 'NVIDIA H100 80GB HBM3' instead of 'H100'"


def test_an_attribute_that_no_device_has_is_answered_with_the_nearest_name():
    expression = 'device.attributes["gpu.nvidia.com"].productNam == "NVIDIA H100 80GB HBM3"'
    found, text = story(cluster(claim(where=[expression])))
    assert "no such key: productNam" in text
    assert "nearest: gpu.nvidia.com/productName" in text
    assert found["changes"][0]["change"] == "request gpu: write productName instead of productNam"


def test_an_amount_that_no_device_has_is_answered_with_the_largest_there_is():
    expression = 'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("100Gi")) >= 0'
    found, text = story(cluster(claim(where=[expression]), profiles=MIXED))
    assert "found memory = 80Gi" in text
    changes = [change["change"] for change in found["changes"]]
    assert changes[0] == "request gpu: write 80Gi instead of 100Gi"
    assert sum("instead of 100Gi" in change for change in changes) == 1


def test_devices_in_use_are_told_with_claim_and_pod_and_freeing_them_is_offered():
    snapshot = cluster(claim("hog", count=8), pod("train", "hog"))
    snapshot.add(claim())
    found, text = story(snapshot)
    assert "8 allocated to default/hog (pod train)" in text
    assert found["changes"] == [
        {"change": "free the devices of claim default/hog (pod train)", "nodes": ["dgx-h100-1"]}
    ]


def test_freeing_is_not_offered_where_nobody_is_in_the_way():
    found, _ = story(cluster(claim(count=9)))
    assert not any("free" in change["change"] for change in found["changes"])


def test_several_holders_of_which_none_is_enough_are_said_so():
    snapshot = cluster(claim("a", count=4), pod("pa", "a"), claim("b", count=4), pod("pb", "b"))
    snapshot.add(claim(count=8))
    changes = [change["change"] for change in story(snapshot)[0]["changes"]]
    assert "free devices that others hold: no single claim is enough" in changes


def test_a_constraint_that_cannot_be_met_is_named():
    constraints = [{"matchAttribute": "resource.kubernetes.io/pciBusID"}]
    found, _ = story(cluster(claim(count=2, constraints=constraints)))
    changes = [change["change"] for change in found["changes"]]
    assert "drop the constraint matchAttribute resource.kubernetes.io/pciBusID" in changes
    assert "request gpu: ask for 1 instead of 2" in changes


def test_a_taint_is_named_and_tolerating_it_is_offered():
    rule = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "r"},
        "spec": {
            "deviceSelector": {"driver": "gpu.nvidia.com"},
            "taint": {"key": "example.com/upgrade", "effect": "NoSchedule"},
        },
    }
    found, text = story(cluster(rule, claim()))
    assert "8 tainted example.com/upgrade:NoSchedule" in text
    assert found["changes"][0]["change"] == ("request gpu: tolerate the taint example.com/upgrade:NoSchedule")


def test_every_offered_change_was_tried_and_leaves_the_cluster_as_it_was():
    snapshot = cluster(claim("hog", count=8), pod("train", "hog"))
    snapshot.add(claim(count=2, where=[f'{PRODUCT} == "H100"']))
    offline = OfflineCluster(snapshot)
    wanted = [offline.claims["default/c"]]
    before = {key: found.status for key, found in offline.claims.items()}
    assert fitting_nodes(offline, wanted) == ()
    smallest_changes(offline, wanted)
    assert {key: found.status for key, found in offline.claims.items()} == before
    assert fitting_nodes(offline, wanted) == ()


def test_a_pod_that_lacks_something_else_is_told_that():
    snapshot = cluster()
    snapshot.add(claim())
    snapshot.add(pod(nodeSelector={"zone": "moon"}))
    found, text = story(snapshot, "pod", "p")
    assert not found["fits"]
    assert "its claims alone would fit" in text


def test_a_pod_without_its_template_is_told_which():
    snapshot = cluster()
    waiting = pod()
    waiting["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "absent"}]
    snapshot.add(waiting)
    _, text = story(snapshot, "pod", "p")
    assert "there is no ResourceClaimTemplate absent in namespace default" in text


def test_many_equal_nodes_are_one_story():
    _, text = story(cluster(claim(count=9), profiles=(("dgx-h100", 5),)))
    assert text.count("wants 9") == 1
    assert "5 nodes like dgx-h100-1" in text


# --- the command ------------------------------------------------------------------------------------


def test_the_exit_code_tells_whether_it_fits(tmp_path, capsys):
    good, bad = written(tmp_path / "a.json", claim()), written(tmp_path / "b.json", claim(count=9))
    assert main(["explain", "claim", "c", "-f", good, "--against", "dgx-h100"]) == 0
    assert main(["explain", "claim", "c", "-f", bad, "--against", "dgx-h100"]) == 1
    assert "ask for 8 instead of 9" in capsys.readouterr().out


def test_json_has_stable_keys(tmp_path, capsys):
    bad = written(tmp_path / "b.json", claim(count=9))
    main(["explain", "claim", "c", "-f", bad, "--against", "dgx-h100", "-o", "json"])
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"kind", "name", "state", "fits", "lines", "reasons", "nodes", "changes"}
    assert found["reasons"][0]["nodes"] == ["dgx-h100-1"]
    request = found["reasons"][0]["requests"][0]
    assert {"claim", "request", "wanted", "devices", "usable", "reasons", "hint"} == set(request)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("claim", "did you mean default/training?"), ("pod", "-n names another namespace")],
)
def test_an_unknown_name_is_told_the_nearest(tmp_path, capsys, name, hint):
    path = written(tmp_path / "a.json", claim("training"))
    assert main(["explain", name, "trainin", "-f", path, "--against", "dgx-h100"]) == 2
    assert hint in capsys.readouterr().err
