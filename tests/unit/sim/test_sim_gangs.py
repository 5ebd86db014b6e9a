"""What-if and explain with gangs: all pods of a group, or none, as the scheduler decides."""

import dataclasses
import json

import pytest

from dray.cli.explain import explain
from dray.cli.main import main
from dray.drivers.hardware import load_profile
from dray.sim.cluster import OfflineCluster
from dray.sim.hardware import hardware_snapshot


def group(min_count, **spec):
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "ring", "namespace": "default"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": min_count}}, **spec},
    }


def template(count=1, name="gpus"):
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": count}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def member(number, of="ring", template_name="gpus", **spec):
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"p{number}", "namespace": "default"},
        "spec": {
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": template_name}],
            "containers": [{"name": "main", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}],
            **({"schedulingGroup": {"podGroupName": of}} if of else {}),
            **spec,
        },
    }


def snapshot_of(*objects, nodes=1):
    snapshot = hardware_snapshot([(load_profile("dgx-h100"), nodes)])  # eight GPUs a node
    for each in objects:
        snapshot.add(each)
    return snapshot


def placed(*objects, nodes=1):
    cluster = OfflineCluster(snapshot_of(*objects, nodes=nodes))
    return cluster.place(list(cluster.pods.values()))


def test_a_gang_of_which_one_pod_too_many_is_there_is_refused_as_a_whole():
    outcome = placed(group(3), template(count=3), *map(member, range(3)))
    assert outcome.placed == []
    assert {each.pod for each in outcome.refused} == {f"default/p{number}" for number in range(3)}
    assert outcome.refused[0].reason.startswith("only 2 of the 3 pods of the group fit together; ")


def test_without_the_gang_two_of_the_three_fit():
    outcome = placed(template(count=3), *(member(number, of="") for number in range(3)))
    assert (len(outcome.placed), len(outcome.refused)) == (2, 1)


def test_a_gang_that_fits_is_placed_together_and_takes_what_it_takes():
    outcome = placed(group(4), template(count=4), *map(member, range(4)), nodes=2)
    assert outcome.refused == []
    devices = [device for each in outcome.placed for held in each.devices.values() for device in held]
    assert len(devices) == len(set(devices)) == 16


def test_a_gang_waits_for_pods_that_are_not_there():
    outcome = placed(group(4), template(), *map(member, range(3)))
    assert outcome.placed == []
    assert {each.reason for each in outcome.refused} == {
        "waiting for 1 more pod of group default/ring (it starts with 4)"
    }


def test_a_gang_starts_with_its_minimum_and_the_others_follow_if_they_fit():
    outcome = placed(group(2), template(count=3), *map(member, range(4)))
    assert len(outcome.placed) == 2
    assert len(outcome.refused) == 2


def test_pods_that_run_count():
    snapshot = snapshot_of(group(2), template(), member(1))
    snapshot.add(member(0, nodeName=snapshot.nodes[0].metadata.name))
    cluster = OfflineCluster(snapshot)
    outcome = cluster.place([cluster.pods["default/p1"]])
    assert [each.pod for each in outcome.placed] == ["default/p1"]


def test_pods_of_a_gang_share_the_claim_of_their_group():
    entry = {"name": "gpu", "resourceClaimTemplateName": "gpus"}
    snapshot = snapshot_of(group(3, resourceClaims=[entry]), template(count=8), *map(member, range(3)))
    gates = snapshot.features.switched(on=["DRAWorkloadResourceClaims"])
    cluster = OfflineCluster(dataclasses.replace(snapshot, features=gates))
    outcome = cluster.place(list(cluster.pods.values()))
    assert len(outcome.placed) == 3
    assert set(cluster.claims) == {"default/ring-gpu"}
    assert len(cluster.claims["default/ring-gpu"].status.reserved_for) == 3


@pytest.mark.parametrize(
    ("objects", "fits", "text"),
    [
        (
            [group(3), template(count=3), *map(member, range(3))],
            False,
            "only 2 of the 3 pods of the group fit",
        ),
        ([group(4), template(), member(0)], False, "waiting for 3 more pods of group default/ring"),
        ([group(2), template(), member(0), member(1)], True, "with the other pods of its group default/ring"),
        ([group(1), template(), member(0)], True, "it would fit now, for example on node"),
    ],
)
def test_explain_tells_of_the_gang(objects, fits, text):
    story = explain(snapshot_of(*objects), "pod", "default/p0")
    assert story["fits"] is fits
    assert text in "\n".join(story["lines"])


def test_whatif_does_not_place_part_of_a_gang(tmp_path, capsys):
    path = tmp_path / "gang.json"
    objects = [group(3), template(count=3), *map(member, range(3))]
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    code = main(["whatif", str(path), "--against", "dgx-h100:1"])
    assert code == 1
    assert "0 of 3 pods fit" in capsys.readouterr().out
    assert main(["whatif", str(path), "--against", "dgx-h100:2"]) == 0
    assert "3 of 3 pods fit" in capsys.readouterr().out
