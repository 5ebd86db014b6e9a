"""Topology spread: the constraints of a pod, the defaults of the cluster, and preferences on one scale."""

import msgspec
import pytest
from scheduler_builders import SmallCluster, container, node, pod

from dray.api.core import NodeAffinity
from dray.api.meta import LabelSelector
from dray.scheduler import ClusterSnapshot, SchedulerProfile, Unplaceable, decide
from dray.scheduler.topology_spread import Selecting

ZONE = "topology.kubernetes.io/zone"


def zoned(name, zone, **labels):
    return node(name, labels={ZONE: zone, **labels})


def spread(key=ZONE, skew=1, action="DoNotSchedule", **more):
    selector = {"matchLabels": {"app": "web"}}
    return {
        "topologyKey": key,
        "maxSkew": skew,
        "whenUnsatisfiable": action,
        "labelSelector": selector,
        **more,
    }


def web(name, **spec):
    return pod(name, labels={"app": "web"}, **spec)


def owned(name, kind, owner):
    body = msgspec.to_builtins(web(name))
    body["metadata"]["ownerReferences"] = [
        {"apiVersion": "apps/v1", "kind": kind, "name": owner, "controller": True}
    ]
    return msgspec.convert(body, type(web(name)))


def test_pods_on_nodes_that_the_pod_cannot_use_do_not_count():
    small = SmallCluster(zoned("a1", "a", disk="ssd"), zoned("a2", "a"), zoned("b1", "b", disk="ssd"))
    small.state.assume(web("old"), "a2")  # not on a node with ssd
    answer = small.place(web("new", nodeSelector={"disk": "ssd"}, topologySpreadConstraints=[spread()]))
    assert answer.node in ("a1", "b1")
    everywhere = [spread(nodeAffinityPolicy="Ignore")]
    answer = small.place(web("new", nodeSelector={"disk": "ssd"}, topologySpreadConstraints=everywhere))
    assert answer.node == "b1"


def test_a_node_without_one_of_the_labels_takes_no_part():
    small = SmallCluster(zoned("a", "a"), zoned("b", "b"), node("c", labels={"rack": "1"}))
    small.state.assume(web("1"), "a")
    small.state.assume(web("2"), "b")
    # Node c has no zone: the least full domain is not empty because of it.
    rules = [spread(), spread("kubernetes.io/hostname")]
    assert small.place(web("new", topologySpreadConstraints=rules)).node in ("a", "b")


def test_a_pod_that_ends_stops_to_count_and_never_counts_below_zero():
    small = SmallCluster(zoned("a", "a"), zoned("b", "b"))
    rule = [spread()]
    old = web("old")
    use = small.state.assume(old, "a")
    assert small.place(web("new", topologySpreadConstraints=rule)).node == "b"
    small.state.set_terminating(use, is_terminating=True)
    small.state.assume(web("other"), "b")
    assert small.place(web("new", topologySpreadConstraints=rule)).node == "a"
    small.state.forget(old.metadata.uid)
    small.state.forget("uid-other")
    small.state.assume(web("third"), "a")
    assert small.place(web("new", topologySpreadConstraints=rule)).node == "b"


@pytest.mark.parametrize("by", ["service", "ReplicaSet", "StatefulSet"])
def test_pods_of_a_service_or_workload_are_spread_by_default(by):
    snapshot = ClusterSnapshot(SchedulerProfile(), new_share_id=lambda: "x")
    # Node a has much more room, which would attract all pods.
    for each in (
        node("a", cpu="64", memory="256Gi", pods="100"),
        node("b", cpu="32", memory="128Gi", pods="100"),
    ):
        snapshot.set_node(each)
    if by == "service":
        snapshot.selecting.services["ns"] = {"web": {"app": "web"}}
    else:
        snapshot.selecting.owners[(by, "ns/web")] = LabelSelector(match_labels={"app": "web"})
    nodes = []
    for number in range(8):
        new = owned(str(number), by, "web") if by != "service" else web(str(number))
        placed = decide(new, snapshot)[0]
        snapshot.reserve(new, placed.shape, placed.placement)
        nodes.append(placed.placement.node)
    assert sorted(nodes) == ["a"] * 4 + ["b"] * 4


def test_a_pod_that_nothing_selects_has_no_default():
    selecting = Selecting(services={"ns": {"web": {"app": "web"}, "other": {}}, "elsewhere": {"x": {}}})
    assert selecting.selector_of(pod("p", labels={"app": "db"})) is None
    assert selecting.selector_of(pod("p", namespace="elsewhere", labels={"app": "web"})) is None
    assert selecting.selector_of(owned("p", "Job", "web")) == LabelSelector(match_labels={"app": "web"})


def test_a_small_preference_wins_over_room():
    small = SmallCluster(node("a", cpu="8"), node("b", cpu="8", labels={"kind": "best"}))
    for number in range(4):
        small.state.assume(pod(f"old-{number}", containers=[container(cpu="1")]), "b")
    term = {"matchExpressions": [{"key": "kind", "operator": "In", "values": ["best"]}]}
    wanted = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": term}]}
    assert small.place(pod("p")).node == "a"
    assert small.place(pod("p", affinity={"nodeAffinity": wanted})).node == "b"


def test_a_preference_is_found_among_many_nodes():
    many = [node(f"n{number:02}") for number in range(60)]
    small = SmallCluster(*many, node("best", labels={"kind": "best"}))
    term = {"matchExpressions": [{"key": "kind", "operator": "Exists"}]}
    wanted = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 50, "preference": term}]}
    assert small.place(pod("p", affinity={"nodeAffinity": wanted})).node == "best"


def test_a_pod_that_is_there_attracts_those_that_it_prefers():
    small = SmallCluster(node("a"), node("b"))
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "web"}}}
    host = pod(
        "host",
        containers=[container(cpu="2")],
        affinity={
            "podAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 10, "podAffinityTerm": term}]
            }
        },
    )
    small.state.assume(host, "b")
    assert small.place(pod("p")).node == "a"
    assert small.place(web("p")).node == "b"


def test_the_affinity_of_a_profile_counts_beside_that_of_the_pod():
    added = msgspec.convert(
        {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "team", "operator": "In", "values": ["ml"]}]}
                ]
            },
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "preference": {"matchExpressions": [{"key": "new", "operator": "Exists"}]}}
            ],
        },
        NodeAffinity,
    )
    snapshot = ClusterSnapshot(SchedulerProfile(added_affinity=added), new_share_id=lambda: "x")
    snapshot.set_node(node("other"))
    refusal = decide(pod("p"), snapshot)
    assert isinstance(refusal, Unplaceable)
    assert refusal.explain() == "0/1 nodes: 1 does not match the node affinity of the scheduler's profile"
    snapshot.set_node(node("old", labels={"team": "ml"}, cpu="64", memory="256Gi"))
    snapshot.set_node(node("new", labels={"team": "ml", "new": ""}))
    assert decide(pod("p"), snapshot)[0].placement.node == "new"
