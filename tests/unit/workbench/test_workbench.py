"""Snapshots, the offline cluster, who holds what, and the pictures of it."""

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from dray.drivers.hardware import device_classes, load_profile, pool_slices
from dray.local.demo_scenes import claim, pod, request, the_tour
from dray.local.system import short_path
from dray.sim.cluster import OfflineCluster
from dray.sim.hardware import hardware_node
from dray.sim.snapshot import Snapshot, SnapshotError, load_snapshot
from dray.workbench.inventory import Inventory
from dray.workbench.pictures import draw_png, draw_svg, draw_text, lay_out
from dray.workbench.workload_pods import pods_of

GPU = "device.attributes['gpu.nvidia.com']"


def hardware(*profiles):
    snapshot = Snapshot()
    for number, name in enumerate(profiles):
        profile, node = load_profile(name), f"{name}-{number}"
        snapshot.add(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": node, "labels": {"kubernetes.io/hostname": node}},
                "status": {
                    "allocatable": profile.allocatable,
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }
        )
        for found in pool_slices(profile.pools(node)):
            snapshot.add_view(found)
    for device_class in device_classes():
        snapshot.add_view(device_class)
    return snapshot


def add_claim(snapshot, name, *requests, constraints=()):
    snapshot.add(claim(name, requests, constraints, namespace="default"))
    snapshot.add(pod(name, [name], namespace="default"))


def after_placing(snapshot):
    cluster = OfflineCluster(snapshot)
    outcome = cluster.place(list(cluster.pods.values()))
    placed = Snapshot(
        nodes=snapshot.nodes, slices=snapshot.slices, classes=snapshot.classes,
        claims=list(cluster.claims.values()), pods=list(cluster.pods.values()),
    )  # fmt: skip
    return outcome, Inventory(placed)


def test_a_snapshot_survives_writing_and_reading(tmp_path):
    snapshot = hardware("workstation")
    add_claim(snapshot, "a", request("g", "gpu.nvidia.com"))
    snapshot.write(tmp_path / "s.json")
    again = load_snapshot([tmp_path / "s.json"])
    assert again.counts() == snapshot.counts()
    assert again.slices == snapshot.slices
    assert again.claims == snapshot.claims


def test_kubectls_lists_and_yaml_streams_read_as_well(tmp_path):
    item = claim("a", [request("g", "c")])
    listing = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimList",
        "items": [{k: v for k, v in item.items() if k != "kind"}],
    }
    (tmp_path / "list.json").write_text(json.dumps(listing))
    (tmp_path / "stream.yaml").write_text(
        yaml.safe_dump_all([item, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}])
    )
    assert len(load_snapshot([tmp_path / "list.json"]).claims) == 1
    stream = load_snapshot([tmp_path / "stream.yaml"])
    assert len(stream.claims) == 1
    assert stream.ignored == {"ConfigMap": 1}


def test_older_versions_are_converted(tmp_path):
    old = {
        "apiVersion": "resource.k8s.io/v1beta1",
        "kind": "ResourceClaim",
        "metadata": {"name": "a"},
        "spec": {"devices": {"requests": [{"name": "g", "deviceClassName": "c"}]}},
    }
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(old))
    (found,) = load_snapshot([tmp_path / "a.yaml"]).claims
    assert found.spec.devices.requests[0].exactly.device_class_name == "c"
    assert found.spec.devices.requests[0].exactly.count == 1


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{not json", "not JSON"),
        ("a: [", "a.yaml"),
        ("- 1\n- 2\n", "expected Kubernetes objects"),
        ("kind: ResourceClaim\nspec: {devices: {requests: 3}}\n", "ResourceClaim"),
    ],
)
def test_a_broken_file_is_named(tmp_path, content, complaint):
    (tmp_path / "a.yaml").write_text(content)
    with pytest.raises(SnapshotError, match=complaint):
        load_snapshot([tmp_path / "a.yaml"])


def test_a_missing_file_is_named():
    with pytest.raises(SnapshotError, match="nowhere.yaml: No such file"):
        load_snapshot([Path("nowhere.yaml")])


def test_pods_take_what_earlier_pods_left():
    snapshot = hardware("workstation")
    for name in ("a", "b", "c"):
        add_claim(snapshot, name, request("g", "gpu.nvidia.com"))
    outcome, inventory = after_placing(snapshot)
    assert [placed.devices[f"default/{placed.pod[8:]}"] for placed in outcome.placed] == [
        ["gpu.nvidia.com/workstation-0/gpu-0"],
        ["gpu.nvidia.com/workstation-0/gpu-1"],
    ]
    assert [refused.pod for refused in outcome.refused] == ["default/c"]
    assert "in use" in outcome.refused[0].reason
    assert {row.state for row in inventory.devices.values()} == {"used"}


def test_draining_a_node_moves_its_pods():
    snapshot = hardware("workstation", "workstation")
    add_claim(snapshot, "a", request("g", "gpu.nvidia.com", count=2))
    cluster = OfflineCluster(snapshot)
    (placed,) = cluster.place(list(cluster.pods.values())).placed
    moved = cluster.remove_node(placed.node)
    assert [found.metadata.name for found in moved] == ["a"]
    (again,) = cluster.place(moved).placed
    assert again.node != placed.node


def test_new_hardware_brings_its_classes():
    cluster = OfflineCluster(Snapshot())
    cluster.add_hardware(load_profile("tpu-v5e"), "t")
    assert set(cluster.allocator.classes) == {"tpu.google.com"}


def test_new_hardware_has_the_taints_and_features_of_the_node_that_it_would_register():
    profile = replace(load_profile("workstation"), taints=({"key": "gpu", "effect": "NoSchedule"},))
    node = OfflineCluster(Snapshot()).add_hardware(profile, "new")
    assert node == hardware_node(profile, "new")
    assert [taint.key for taint in node.spec.taints] == ["gpu"] and node.status.declared_features


def test_a_cut_gpu_shows_its_slices_to_scale_and_blocks_the_whole():
    snapshot = hardware("dgx-a100-mig")
    for number, profile in enumerate(("3g.20gb", "1g.5gb")):
        add_claim(
            snapshot, f"m{number}", request("g", "mig.nvidia.com", where=f"{GPU}.profile == '{profile}'")
        )
    _, inventory = after_placing(snapshot)
    row = next(row for row in inventory.devices.values() if row.device.name == "gpu-0")
    assert row.state == "blocked"
    (node,) = lay_out(inventory)
    gpus = dict(node.groups)["gpu.nvidia.com"]
    parts = [(part.start, part.size, part.label) for part in gpus[0].parts]
    assert (0.0, 0.5, "3g.20gb") in parts
    assert sum(size for _, size, _ in parts) == 0.5 + 0.125
    assert len(gpus) == 8  # free placements are not hardware


def test_shares_are_bars_and_count_for_utilisation():
    snapshot = hardware("l40s-shared")
    add_claim(snapshot, "s", request("g", "gpu.nvidia.com", capacity={"requests": {"memory": "23034Mi"}}))
    _, inventory = after_placing(snapshot)
    row = next(row for row in inventory.devices.values() if row.uses)
    assert row.state == "shared"
    assert row.utilisation == pytest.approx(0.5)


def test_an_allocated_device_that_is_no_longer_published_is_reported():
    snapshot = hardware("workstation")
    add_claim(snapshot, "a", request("g", "gpu.nvidia.com"))
    _, inventory = after_placing(snapshot)
    without = Snapshot(nodes=snapshot.nodes, claims=inventory.snapshot.claims)
    assert [key[2] for key, _ in Inventory(without).lost] == ["gpu-0"]


def test_pictures_are_well_formed_and_escape_names():
    snapshot = hardware("workstation")
    add_claim(snapshot, "a", request("g", "gpu.nvidia.com"))
    _, inventory = after_placing(snapshot)
    row = next(iter(inventory.devices.values()))
    row.uses[0].claim = "<script>&"
    picture = draw_svg(inventory)
    ElementTree.fromstring(picture)
    assert "<script>" not in picture
    assert "[AA] [..]" in draw_text(inventory, width=80)
    assert "\x1b[" in draw_text(inventory, width=80, colour=True)
    assert draw_png(inventory, scale=1).startswith(b"\x89PNG")


def test_an_empty_cluster_has_a_picture_too():
    assert "no devices are published" in draw_text(Inventory(Snapshot()), width=80)
    ElementTree.fromstring(draw_svg(Inventory(Snapshot())))


def test_workloads_become_the_pods_they_would_have():
    deployment = {
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {"replicas": 3, "template": {"spec": {"containers": []}}},
    }
    job = {
        "kind": "Job",
        "metadata": {"name": "j"},
        "spec": {"parallelism": 4, "completions": 2, "template": {"spec": {"containers": []}}},
    }
    assert [found["metadata"]["name"] for found in pods_of(deployment)] == ["d-0", "d-1", "d-2"]
    assert len(pods_of(job)) == 2
    assert pods_of({"kind": "ConfigMap"}) == []


def test_every_scene_of_the_tour_is_understood_by_the_workbench():
    snapshot = hardware("dgx-h100", "dgx-a100-mig", "l40s-shared", "tpu-v5e", "fpga-u280", "sriov-nics")
    for scene in the_tour().scenes:
        for obj in scene.objects:
            snapshot.add(obj)
    assert not snapshot.complaints
    outcome, _ = after_placing(snapshot)
    assert {refused.pod for refused in outcome.refused} == {"demo/impossible"}


def test_a_long_folder_gets_a_short_name(tmp_path):
    folder = tmp_path / ("deep" * 10) / "nodes"
    link = short_path(folder)
    assert len(str(link)) < 40
    assert link.resolve() == folder.resolve()
    assert short_path(folder) == link
    link.unlink()
