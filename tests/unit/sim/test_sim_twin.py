"""Copies of clusters: the same hardware, labels and taints; no secrets; other names everywhere or nowhere."""

import json

import msgspec
import pytest

from dray.drivers.hardware import ProfileError, load_profile, pool_slices, profile_names
from dray.drivers.hardware.profiles import parse_profile
from dray.drivers.simulated_node import simulated_drivers
from dray.sim.hardware import hardware_snapshot
from dray.sim.redacting import Anonymiser, redacted
from dray.sim.snapshot import Snapshot, SnapshotError
from dray.sim.twin import make_twin, node_profile, profile_document

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "train",
        "namespace": "team-a",
        "labels": {"app": "llm"},
        "annotations": {"note": "password=hunter2"},
        "managedFields": [{"manager": "kubectl"}],
    },
    "spec": {
        "nodeName": "dgx-h100-1",
        "priority": 10,
        "priorityClassName": "high",
        "serviceAccountName": "robot",
        "nodeSelector": {"team": "vision"},
        "volumes": [{"name": "key", "secret": {"secretName": "api-key"}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "gpus"}],
        "containers": [
            {
                "name": "main",
                "image": "registry.internal/llm:7",
                "command": ["train", "--token=hunter2"],
                "env": [{"name": "TOKEN", "value": "hunter2"}],
                "resources": {"claims": [{"name": "gpu"}]},
            }
        ],
    },
    "status": {"phase": "Running"},
}
CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "gpus", "namespace": "team-a", "uid": "0a0a0a0a-0000-4000-8000-000000000001"},
    "spec": {"devices": {"requests": [{"name": "g", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}},
}
QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "q", "namespace": "team-a"},
    "spec": {"hard": {"gpu.nvidia.com.deviceclass.resource.k8s.io/devices": "4"}},
}


def devices_of(slices):
    """Return every published device and counter set by its identity, and where it is reached from."""
    return {
        (found.spec.driver, found.spec.pool.name, found.spec.node_name, kind, item.name): msgspec.to_builtins(
            item
        )
        for found in slices
        for kind, items in (("device", found.spec.devices), ("counters", found.spec.shared_counters))
        for item in items
    }


def cluster(*profiles, objects=()):
    snapshot = hardware_snapshot([(load_profile(name), 1) for name in profiles])
    for obj in objects:
        snapshot.add(obj)
    return snapshot


def republished(twin):
    return [found for name, profile in twin.nodes for found in pool_slices(profile.pools(name))]


@pytest.mark.parametrize("name", profile_names())
def test_the_copy_of_a_node_publishes_the_same_devices(name):
    snapshot = cluster(name)
    assert devices_of(republished(make_twin(snapshot))) == devices_of(snapshot.slices)


def test_only_the_newest_generation_of_a_pool_is_copied():
    snapshot = cluster("workstation")
    (old,) = [obj for obj in snapshot.objects if obj["kind"] == "ResourceSlice"][:1]
    new = json.loads(json.dumps(old, default=str))
    new["metadata"]["name"] = "newer"
    new["spec"]["pool"]["generation"] = 7
    new["spec"]["devices"] = new["spec"]["devices"][:1]
    snapshot.add(new)
    copied = [key for key in devices_of(republished(make_twin(snapshot))) if key[0] == old["spec"]["driver"]]
    assert [key[-1] for key in copied if key[3] == "device"] == [new["spec"]["devices"][0]["name"]]


def test_the_node_keeps_labels_taints_and_capacity_but_not_passing_taints():
    snapshot = Snapshot()
    snapshot.add(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "n1", "labels": {"zone": "a"}},
            "spec": {
                "taints": [
                    {"key": "gpu", "value": "x", "effect": "NoSchedule"},
                    {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"},
                ]
            },
            "status": {"capacity": {"cpu": "8"}, "allocatable": {"cpu": "7", "example.com/fpga": "2"}},
        }
    )
    ((name, profile),) = make_twin(snapshot).nodes
    assert (name, profile.labels) == ("n1", {"zone": "a"})
    assert profile.taints == ({"key": "gpu", "value": "x", "effect": "NoSchedule"},)
    assert profile.allocatable == {"cpu": "7", "example.com/fpga": "2"}


def test_a_pool_of_several_nodes_is_created_once_and_prepared_on_every_node():
    snapshot = cluster("workstation", "cpu-numa")
    snapshot.add(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": "fabric"},
            "spec": {
                "driver": "fabric.example.com",
                "pool": {"name": "rack", "generation": 3, "resourceSliceCount": 1},
                "allNodes": True,
                "devices": [{"name": "link-0"}],
            },
        }
    )
    twin = make_twin(snapshot)
    (made,) = [body for resource, body in twin.objects if resource.kind == "ResourceSlice"]
    assert made["spec"]["devices"] == [{"name": "link-0"}]
    assert "fabric.example.com" in twin.drivers
    for name, profile in twin.nodes:
        drivers = simulated_drivers(profile, name, reachable=twin.reachable)
        (fabric,) = [driver for driver in drivers if driver.name == "fabric.example.com"]
        assert fabric.discover() == []  # it prepares them and publishes nothing
        assert ("rack", "link-0") in fabric._device_by_id


def test_classes_and_quotas_come_along_and_workloads_only_when_asked_for():
    snapshot = cluster("dgx-h100", objects=[POD, CLAIM, QUOTA])
    without = [resource.kind for resource, _ in make_twin(snapshot).objects]
    assert "DeviceClass" in without
    assert without[-1] == "ResourceQuota"
    assert "Pod" not in without
    assert make_twin(snapshot).workloads == ()
    workloads = make_twin(snapshot, with_workloads=True).workloads
    (pod,) = [body for resource, body in workloads if resource.kind == "Pod"]
    assert "nodeName" not in pod["spec"]
    assert "status" not in pod
    assert pod["spec"]["containers"][0]["command"] == ["sleep", "infinity"]


def test_a_snapshot_without_nodes_cannot_be_copied():
    with pytest.raises(SnapshotError, match="no nodes"):
        make_twin(Snapshot())


# --- what leaves a cluster ---------------------------------------------------------------------------


def test_nothing_of_a_container_that_may_be_secret_leaves():
    text = json.dumps(redacted(POD))
    for secret in ("hunter2", "api-key", "robot", "managedFields"):
        assert secret not in text
    assert POD["spec"]["containers"][0]["env"]  # the original is untouched
    assert "registry.internal/llm:7" in text


def test_names_are_replaced_everywhere_and_references_still_hold():
    allocated = {
        **CLAIM,
        "status": {
            "allocation": {
                "devices": {
                    "results": [
                        {"request": "g", "driver": "gpu.nvidia.com", "pool": "dgx-h100-1", "device": "gpu-0"}
                    ]
                }
            },
            "reservedFor": [{"resource": "pods", "name": "train", "uid": "u"}],
        },
    }
    snapshot = cluster("dgx-h100", objects=[POD, allocated, QUOTA])
    objects = [redacted(obj) for obj in snapshot.objects]
    anonymiser = Anonymiser(objects, b"salt")
    made = Snapshot()
    for obj in objects:
        made.add(anonymiser.anonymised(obj))
    text = json.dumps([anonymiser.anonymised(obj) for obj in objects], default=str)
    for name in ("dgx-h100-1", "team-a", "train", "vision", "registry.internal", "0a0a0a0a-0000-4000"):
        assert name not in text
    (node,) = made.nodes
    assert node.metadata.name == "node-1"
    assert node.metadata.labels["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"
    assert {found.spec.node_name for found in made.slices} == {"node-1"}
    (pod,) = made.pods
    (claim,) = made.claims
    assert (pod.spec.node_name, pod.metadata.namespace) == ("node-1", claim.metadata.namespace)
    assert pod.spec.resource_claims[0].resource_claim_name == claim.metadata.name
    assert claim.status.allocation.devices.results[0].pool == "node-1"
    assert claim.status.reserved_for[0].name == pod.metadata.name
    real = [device for found in snapshot.slices for device in found.spec.devices]
    copied = [device for found in made.slices for device in found.spec.devices]
    assert [device.name for device in copied] == [device.name for device in real]
    uuids = {device.attributes["uuid"].string for device in copied if "uuid" in device.attributes}
    before = {device.attributes["uuid"].string for device in real if "uuid" in device.attributes}
    assert len(uuids) == len(before)
    assert uuids.isdisjoint(before)


def test_addresses_are_replaced_and_pci_addresses_kept():
    anonymiser = Anonymiser([], b"salt")
    obj = {
        "kind": "X",
        "a": "192.168.7.9",
        "b": "fe80::1:2ff:3",
        "c": "0000:1b:00.0",
        "d": "02:42:ac:11:00:02",
    }
    changed = anonymiser.anonymised(obj)
    assert changed["c"] == obj["c"]
    assert all(changed[key] != obj[key] for key in "abd")
    assert changed["a"].startswith("10.")
    assert changed == anonymiser.anonymised(obj)


# --- profiles --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dgx-a100-mig", "example-shared-partitions", "sriov-nics"])
def test_a_profile_made_from_a_node_models_any_number_of_such_nodes(name):
    snapshot = cluster(name)
    made = node_profile(snapshot.nodes[0], snapshot.slices, "mine", is_general=True)
    document = json.loads(json.dumps(profile_document(made)))
    profile = parse_profile(document, "mine.yaml")
    first, second = (devices_of(pool_slices(profile.pools(node))) for node in ("a", "b"))
    assert len(first) == len(second) == len(devices_of(snapshot.slices))
    assert {key[1] for key in first} == {"a"}
    uuids = [
        {
            device["attributes"]["uuid"]["string"]
            for device in each.values()
            if "uuid" in device.get("attributes", {})
        }
        for each in (first, second)
    ]
    assert uuids[0].isdisjoint(uuids[1])


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"kind": "published"}, "driver"),
        ({"kind": "published", "driver": "d.example.com", "device": []}, "unknown fields: device"),
        ({"kind": "published", "driver": "d.example.com", "devices": [{"nam": "x"}]}, "nam"),
        ({"kind": "published", "driver": "d.example.com", "devices": "x"}, "devices"),
    ],
)
def test_a_bad_entry_is_named(entry, words):
    profile = parse_profile({"name": "p", "devices": [entry]}, "p.yaml")
    with pytest.raises(ProfileError, match=words):
        profile.pools("n")


@pytest.mark.parametrize(
    "document", [{"taints": "x"}, {"taints": [{"effect": "NoSchedule"}]}, {"labels": []}]
)
def test_bad_taints_and_labels_are_named(document):
    devices = [{"kind": "published", "driver": "d.example.com", "devices": [{"name": "x"}]}]
    if document == {"labels": []}:
        document = {"labels": ["x"]}
    with pytest.raises(ProfileError, match=next(iter(document))):
        parse_profile({"devices": devices, **document}, "p.yaml")
