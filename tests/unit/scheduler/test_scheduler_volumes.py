"""Volumes: bound ones pin the pod, those that wait for a node are matched or made there; refusals in kube-scheduler's words."""

import itertools

import msgspec
import pytest
from scheduler_builders import node, pod

from dray.api import storage
from dray.api.core import PodGroup
from dray.scheduler import ClusterSnapshot, SchedulerProfile, Unplaceable, decide, volumes
from dray.scheduler.volumes import BIND_COMPLETED, SELECTED_NODE, VolumeBindings

_numbers = itertools.count(1)
LATE = "WaitForFirstConsumer"


def storage_class(name="fast", mode=LATE, provisioner="disk.example.com", zones=()):
    topologies = [{"matchLabelExpressions": [{"key": "topology.kubernetes.io/zone", "values": list(zones)}]}]
    body = {
        "metadata": {"name": name},
        "provisioner": provisioner,
        "volumeBindingMode": mode,
        "allowedTopologies": topologies if zones else [],
    }
    return msgspec.convert(body, storage.StorageClass)


def claim(name, volume="", *, size="1Gi", modes=("ReadWriteOnce",), selected=None, phase="", **meta):
    annotations = ({BIND_COMPLETED: "yes"} if volume else {}) | (
        {SELECTED_NODE: selected} if selected else {}
    )
    body = {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"uid-{name}",
            "annotations": annotations,
            **meta,
        },
        "spec": {
            "accessModes": list(modes),
            "resources": {"requests": {"storage": size}},
            "volumeName": volume,
            "storageClassName": "fast",
        },
        "status": {"phase": phase or ("Bound" if volume else "Pending")},
    }
    return msgspec.convert(body, storage.PersistentVolumeClaim)


def volume(name, *nodes, size="1Gi", of=None, labels=None, csi=None, modes=("ReadWriteOnce",), **spec):
    body = {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels or {}},
        "spec": {
            "capacity": {"storage": size},
            "accessModes": list(modes),
            "storageClassName": "fast",
            **spec,
        },
        "status": {"phase": "Bound" if of else "Available"},
    }
    if nodes:
        needs = [{"key": "kubernetes.io/hostname", "operator": "In", "values": list(nodes)}]
        body["spec"]["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": needs}]}}
    if of:
        body["spec"]["claimRef"] = {"namespace": "ns", "name": of, "uid": f"uid-{of}"}
    if csi:
        body["spec"]["csi"] = {"driver": csi, "volumeHandle": name}
    return msgspec.convert(body, storage.PersistentVolume)


def csi_node(name, **limits):
    drivers = [
        {"name": f"{key}.example.com", "allocatable": {"count": count}} for key, count in limits.items()
    ]
    return msgspec.convert({"metadata": {"name": name}, "spec": {"drivers": drivers}}, storage.CSINode)


def user(*claims, name=None, **more):
    volumes = [
        {"name": f"v{i}", "persistentVolumeClaim": {"claimName": each}} for i, each in enumerate(claims)
    ]
    return pod(name or f"p{next(_numbers)}", volumes=volumes, **more)


def cluster(*objects):
    snapshot = ClusterSnapshot(SchedulerProfile(), new_share_id=lambda: "share")
    snapshot.volumes.is_followed = True
    for each in objects:
        add(snapshot, each)
    return snapshot


def add(snapshot, each):
    volumes, meta = snapshot.volumes, each.metadata
    match type(each).__name__:
        case "Node":
            snapshot.set_node(each)
        case "PersistentVolume":
            volumes.set_volume(each)
        case "PersistentVolumeClaim":
            volumes.claims[f"{meta.namespace}/{meta.name}"] = each
        case "StorageClass":
            volumes.classes[meta.name] = each
        case "CSINode":
            volumes.set_csi_node(each)
        case "CSIDriver":
            volumes.csi_drivers[meta.name] = each
        case "CSIStorageCapacity":
            volumes.capacities[meta.name] = each
        case "VolumeAttachment":
            volumes.set_attachment(each)


def placed(snapshot, wanted):
    decision = decide(wanted, snapshot)
    assert isinstance(decision, list), decision.explain()
    return decision[0].placement


def refused(snapshot, wanted):
    decision = decide(wanted, snapshot)
    assert isinstance(decision, Unplaceable), decision
    return decision.explain()


def run(snapshot, wanted):
    """Place and bind: what was reserved for the commit is released."""
    found = decide(wanted, snapshot)[0]
    snapshot.reserve(found.pod, found.shape, found.placement)
    snapshot.volumes.release(wanted.metadata.uid)
    return found.placement


# --- bound volumes ------------------------------------------------------------------


def test_a_bound_volume_pins_the_pod_to_its_nodes():
    snapshot = cluster(node("a"), node("b"), volume("pv", "b", of="data"), claim("data", "pv"))
    placement = placed(snapshot, user("data"))
    assert (placement.node, bool(placement.volumes)) == ("b", False)


def test_a_volume_that_no_node_reaches_is_told():
    snapshot = cluster(node("a"), node("b"), volume("pv", "gone", of="data"), claim("data", "pv"))
    text = refused(snapshot, user("data"))
    assert text == "0/2 nodes: 2 node(s) didn't match PersistentVolume's node affinity"


def test_a_node_that_gets_the_label_is_seen():
    snapshot = cluster(node("a"), volume("pv", "special", of="data"), claim("data", "pv"))
    refused(snapshot, user("data"))
    snapshot.set_node(node("a", labels={"kubernetes.io/hostname": "special"}))
    assert placed(snapshot, user("data")).node == "a"


@pytest.mark.parametrize("label", ["topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"])
def test_a_volume_stays_in_its_zones(label):
    nodes = [node(zone, labels={"topology.kubernetes.io/zone": zone}) for zone in ("west", "east", "north")]
    snapshot = cluster(*nodes, volume("pv", of="data", labels={label: "east__south"}), claim("data", "pv"))
    assert placed(snapshot, user("data")).node == "east"
    snapshot.delete_node("east")
    assert refused(snapshot, user("data")) == "0/2 nodes: 2 node(s) had no available volume zone"
    snapshot.set_node(node("untold"))
    assert placed(snapshot, user("data")).node == "untold", "a node without zones is in all of them"


def test_pods_without_claims_do_not_care():
    snapshot = cluster(node("a"))
    plain = pod("plain", volumes=[{"name": "token", "projected": {}}])
    assert placed(snapshot, plain).node == "a"


def test_files_without_storage_objects_do_not_judge_volumes():
    snapshot = cluster(node("a"))
    snapshot.volumes.is_followed = False
    assert placed(snapshot, user("data")).node == "a"


# --- problems of the pod as a whole ---------------------------------------------------


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        ([], 'persistentvolumeclaim "data" not found'),
        (
            [claim("data", "pv", phase="Lost")],
            'persistentvolumeclaim "data" bound to non-existent persistentvolume "pv"',
        ),
        (
            [claim("data", deletionTimestamp="2026-01-01T00:00:00Z")],
            'persistentvolumeclaim "data" is being deleted',
        ),
        ([claim("data")], "pod has unbound immediate PersistentVolumeClaims"),
        (
            [claim("data"), storage_class(mode="Immediate")],
            "pod has unbound immediate PersistentVolumeClaims",
        ),
        ([claim("data"), storage_class(mode=None)], 'VolumeBindingMode not set for StorageClass "fast"'),
        ([claim("data", "pv")], 'persistentvolume "pv" not found'),
    ],
)
def test_what_no_node_can_cure_is_told_in_upstreams_words(objects, message):
    snapshot = cluster(node("a"), *objects)
    decision = decide(user("data"), snapshot)
    assert decision.explain() == f"0/1 nodes: {message}"
    assert {"volumes", "volume-claim:ns/data"} <= decision.hints
    assert message in decision.cause, "news when it changes"
    assert decision.preemption is None


def test_an_ephemeral_volume_waits_for_its_claim_and_takes_no_other_pods():
    snapshot = cluster(node("a"), volume("pv", of="job-scratch"))
    job = pod("job", volumes=[{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}}])
    waiting = 'waiting for ephemeral volume controller to create the persistentvolumeclaim "job-scratch"'
    assert refused(snapshot, job) == f"0/1 nodes: {waiting}"
    add(snapshot, claim("job-scratch", "pv"))
    assert "PVC ns/job-scratch was not created for pod ns/job (pod is not owner)" in refused(snapshot, job)
    owner = [{"kind": "Pod", "name": "job", "uid": "uid-job", "controller": True}]
    add(snapshot, claim("job-scratch", "pv", ownerReferences=owner))
    assert placed(snapshot, job).node == "a"


# --- volumes that wait for a node ------------------------------------------------------


def test_the_smallest_free_volume_that_is_large_enough_is_bound():
    volumes = [
        volume("big", "a", size="9Gi"),
        volume("fits", "a", size="2Gi"),
        volume("small", "a", size="1Mi"),
    ]
    snapshot = cluster(node("a"), node("b"), storage_class(), *volumes, claim("data", size="2Gi"))
    snapshot.volumes.classes["fast"] = storage_class(provisioner="kubernetes.io/no-provisioner")
    placement = placed(snapshot, user("data"))
    assert placement.node == "a"
    assert placement.volumes == VolumeBindings((("ns/data", "fits"),))


@pytest.mark.parametrize(
    "unfit",
    [
        volume("pv", "a", size="1Mi"),
        volume("pv", "a", modes=("ReadOnlyMany",)),
        volume("pv", "a", volumeMode="Block"),
        volume("pv", "a", of="other"),
        volume("pv", "a", storageClassName="slow"),
        volume("pv", "elsewhere"),
    ],
)
def test_volumes_that_do_not_fit_are_left_alone(unfit):
    manual = storage_class(provisioner="kubernetes.io/no-provisioner")
    snapshot = cluster(node("a"), manual, unfit, claim("data"))
    text = refused(snapshot, user("data"))
    assert text == "0/1 nodes: 1 node(s) didn't find available persistent volumes to bind"


def test_a_volume_set_aside_for_the_claim_is_taken_and_no_other():
    own = volume("own", "a", size="5Gi", claimRef={"namespace": "ns", "name": "data"})
    manual = storage_class(provisioner="kubernetes.io/no-provisioner")
    snapshot = cluster(node("a"), node("b"), manual, own, volume("other", "b"), claim("data"))
    placement = placed(snapshot, user("data"))
    assert (placement.node, placement.volumes.matches) == ("a", (("ns/data", "own"),))


def test_two_claims_of_a_pod_get_two_volumes_of_one_node():
    manual = storage_class(provisioner="kubernetes.io/no-provisioner")
    volumes = [volume("a1", "a"), volume("b1", "b"), volume("b2", "b", size="3Gi")]
    claims = [claim("small"), claim("large", size="2Gi")]
    snapshot = cluster(node("a"), node("b"), manual, *volumes, *claims)
    placement = placed(snapshot, user("large", "small"))
    assert placement.node == "b"
    assert dict(placement.volumes.matches) == {"ns/small": "b1", "ns/large": "b2"}


def test_a_volume_is_promised_once_while_it_is_being_bound():
    manual = storage_class(provisioner="kubernetes.io/no-provisioner")
    snapshot = cluster(node("a"), manual, volume("pv", "a"), claim("one"), claim("two"))
    first = user("one")
    found = decide(first, snapshot)[0]
    snapshot.reserve(found.pod, found.shape, found.placement)
    assert "didn't find available persistent volumes" in refused(snapshot, user("two"))
    assert placed(snapshot, user("one")).volumes.matches == (("ns/one", "pv"),), "a pod that shares the claim"
    snapshot.volumes.release(first.metadata.uid)
    assert placed(snapshot, user("two")).volumes.matches == (("ns/two", "pv"),)


def test_a_volume_is_made_where_the_class_allows_it():
    nodes = [node(zone, labels={"topology.kubernetes.io/zone": zone}) for zone in ("west", "east")]
    snapshot = cluster(*nodes, storage_class(zones=("east",)), claim("data"))
    placement = placed(snapshot, user("data"))
    assert (placement.node, placement.volumes.provisions) == ("east", ("ns/data",))


def test_a_volume_that_is_being_made_for_a_node_leads_the_pod_there():
    snapshot = cluster(node("a"), node("b"), storage_class(), claim("data", selected="b"))
    assert placed(snapshot, user("data")).node == "b"
    add(snapshot, claim("data", selected="gone"))
    assert "2 node(s) didn't find available persistent volumes to bind" in refused(snapshot, user("data"))


def test_pods_that_share_a_claim_go_where_the_first_lets_its_volume_be_made():
    snapshot = cluster(node("a"), node("b"), storage_class(), claim("data"))
    first = decide(user("data"), snapshot)[0]
    snapshot.reserve(first.pod, first.shape, first.placement)
    assert placed(snapshot, user("data")).node == first.placement.node


def test_capacity_counts_where_the_driver_tells_it():
    driver = msgspec.convert(
        {"metadata": {"name": "disk.example.com"}, "spec": {"storageCapacity": True}}, storage.CSIDriver
    )
    snapshot = cluster(node("a"), node("b"), storage_class(), claim("data", size="5Gi"), driver)
    assert refused(snapshot, user("data")) == "0/2 nodes: 2 node(s) did not have enough free storage"
    body = {
        "metadata": {"name": "c", "namespace": "ns"},
        "storageClassName": "fast",
        "capacity": "6Gi",
        "nodeTopology": {"matchLabels": {"kubernetes.io/hostname": "b"}},
    }
    add(snapshot, msgspec.convert(body, storage.CSIStorageCapacity))
    assert placed(snapshot, user("data")).node == "b"
    add(snapshot, msgspec.convert(body | {"maximumVolumeSize": "4Gi"}, storage.CSIStorageCapacity))
    assert "did not have enough free storage" in refused(snapshot, user("data"))


def test_a_gang_never_gets_one_volume_twice():
    manual = storage_class(provisioner="kubernetes.io/no-provisioner")
    snapshot = cluster(node("a"), manual, volume("pv1", "a"), claim("c0"), claim("c1"))
    body = {"metadata": {"name": "gang", "namespace": "ns", "uid": "g"}}
    body["spec"] = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    snapshot.groups["ns/gang"] = msgspec.convert(body, PodGroup)
    pods = [
        user(f"c{index}", name=f"m{index}", scheduling_group={"podGroupName": "gang"}) for index in range(2)
    ]
    refusal = decide(pods[0], snapshot, pods)
    assert "only 1 of the 2 pods" in refusal.explain()
    assert "didn't find available persistent volumes" in refusal.explain()
    add(snapshot, volume("pv2", "a"))
    decision = decide(pods[0], snapshot, pods)
    assert sorted(each.placement.volumes.matches[0][1] for each in decision) == ["pv1", "pv2"]
    assert placed(snapshot, user("c0")).volumes.matches == (("ns/c0", "pv1"),), "deciding took nothing"


# --- one pod only, limits ---------------------------------------------------------------


def once(snapshot_nodes=("a", "b")):
    modes = ("ReadWriteOncePod",)
    return cluster(
        *map(node, snapshot_nodes), volume("pv", of="data", modes=modes), claim("data", "pv", modes=modes)
    )


def test_read_write_once_pod_is_for_one_pod_in_the_whole_cluster():
    snapshot = once()
    first = user("data")
    run(snapshot, first)
    text = refused(snapshot, user("data"))
    assert text == (
        "0/2 nodes: 2 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode"
        " already in-use by another pod"
    )
    snapshot.forget_pod(first.metadata.uid)
    assert placed(snapshot, user("data"))


def test_a_more_important_pod_preempts_the_user_of_a_claim_for_one_pod():
    snapshot = once(("a",))
    run(snapshot, user("data", name="low", priority=1))
    decision = decide(user("data", name="high", priority=10), snapshot)
    assert [each.key for each in decision.preemption.victims] == ["ns/low"]
    assert "already in-use" in decision.explain(), "nothing was removed for good"


def test_csi_limits_count_volumes_and_not_pods():
    objects = [csi_node("a", disk=2)]
    for index in range(4):
        objects += [
            volume(f"pv{index}", of=f"c{index}", csi="disk.example.com"),
            claim(f"c{index}", f"pv{index}"),
        ]
    snapshot = cluster(node("a"), *objects)
    for used in ("c0", "c0", "c1"):
        run(snapshot, user(used))
    assert refused(snapshot, user("c2")) == "0/1 nodes: 1 node(s) exceed max volume count"
    assert placed(snapshot, user("c1")), "a volume that is there already counts once"
    add(snapshot, csi_node("a", disk=3))
    assert placed(snapshot, user("c2"))
    attached = {"attacher": "disk.example.com", "nodeName": "a", "source": {"persistentVolumeName": "pv3"}}
    attachment = msgspec.convert({"metadata": {"name": "va"}, "spec": attached}, storage.VolumeAttachment)
    add(snapshot, attachment)
    assert "exceed max volume count" in refused(snapshot, user("c2")), (
        "attached without a pod: not detached yet"
    )
    snapshot.volumes.delete_attachment("va")
    assert placed(snapshot, user("c2"))


def test_volumes_that_are_not_made_yet_count_for_the_limit():
    snapshot = cluster(node("a"), storage_class(), csi_node("a"), claim("c0"), claim("c1"))
    limits = [{"name": "disk.example.com", "allocatable": {"count": 1}}]
    add(
        snapshot,
        msgspec.convert({"metadata": {"name": "a"}, "spec": {"drivers": limits}}, storage.CSINode),
    )
    run(snapshot, user("c0"))
    assert "exceed max volume count" in refused(snapshot, user("c1"))


def test_a_driver_that_must_be_installed_keeps_pods_from_other_nodes():
    spec = {"preventPodSchedulingIfMissing": True}
    driver = msgspec.convert({"metadata": {"name": "disk.example.com"}, "spec": spec}, storage.CSIDriver)
    bound = [volume("pv", of="data", csi="disk.example.com"), claim("data", "pv")]
    snapshot = cluster(node("a"), node("b"), driver, *bound)
    assert "2 disk.example.com CSI driver is not installed on the node" in refused(snapshot, user("data"))
    add(snapshot, csi_node("b", disk=5))
    assert placed(snapshot, user("data")).node == "b"


# --- large clusters -----------------------------------------------------------------------


def test_a_local_volume_is_compared_with_its_own_node_only(monkeypatch):
    judged = []
    matches = volumes.matches_node
    monkeypatch.setattr(volumes, "matches_node", lambda *args: judged.append(1) or matches(*args))
    manual = storage_class(provisioner="kubernetes.io/no-provisioner")
    names = [f"n{index}" for index in range(50)]
    local = [volume(f"pv-{name}", name) for name in names]
    snapshot = cluster(*map(node, names), manual, *local, claim("data"), claim("more"))
    placed(snapshot, user("data"))
    placed(snapshot, user("more"))
    assert len(judged) == len(names), "once for each volume, not for each volume and node"
    snapshot.set_node(node("n7", labels={"kubernetes.io/hostname": "renamed"}))
    for name in names[:7] + names[8:]:
        snapshot.volumes.delete_volume(f"pv-{name}")
    assert "didn't find available persistent volumes" in refused(snapshot, user("data"))
