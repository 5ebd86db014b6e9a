"""Placing one pod: every rule refuses where it should, with the right counts and hints."""

import pytest
from scheduler_builders import (
    SmallCluster,
    allocated,
    claim,
    container,
    device_class,
    node,
    pod,
    resource_slice,
)

from dray.allocator import SHARED_WITH, Explanation, Reason, RequestReasons, policy_named
from dray.scheduler import QueueingHint
from dray.scheduler.explaining import Tally, add_device_reasons


def cluster(*nodes):
    return SmallCluster(*nodes)


def refused(answer):
    assert not answer
    return answer.explain()


def test_a_pod_goes_where_there_is_room():
    small = cluster(node("a", cpu="1"), node("b", cpu="4"))
    assert small.place(pod("p", containers=[container(cpu="2")])).node == "b"


def test_a_full_cluster_says_what_is_short_and_what_helps():
    small = cluster(node("a", cpu="1"), node("b", cpu="1", memory="1Gi"))
    answer = small.place(pod("p", containers=[container(cpu="2", memory="2Gi")]))
    assert refused(answer) == "0/2 nodes: 1 has insufficient cpu; 1 has insufficient cpu, memory"
    assert answer.hints == {QueueingHint.RESOURCES, QueueingHint.NODES}


def test_the_number_of_pods_counts():
    small = cluster(node("a", pods="1"))
    small.run(pod("first"))
    assert "too many pods" in refused(small.place(pod("second")))


@pytest.mark.parametrize(
    ("refusing", "wanted", "words"),
    [
        (node("a", unschedulable=True), pod("p"), "unschedulable"),
        (node("a"), pod("p", node_selector={"disk": "ssd"}), "nodeSelector disk=ssd"),
        (
            node("a", taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}]),
            pod("p"),
            "untolerated taint k=v:NoSchedule",
        ),
        (
            node("a", labels={"zone": "1"}),
            pod(
                "p",
                affinity={
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [
                                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["2"]}]}
                            ]
                        }
                    }
                },
            ),
            "node affinity",
        ),
    ],
)
def test_static_rules_refuse(refusing, wanted, words):
    answer = cluster(refusing).place(wanted)
    assert words in refused(answer)
    assert answer.hints == {QueueingHint.NODES}


def test_tolerations_open_the_door():
    small = cluster(node("a", taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}]))
    assert small.place(pod("p", tolerations=[{"key": "k", "operator": "Equal", "value": "v"}])).node == "a"
    assert small.place(pod("q", tolerations=[{"operator": "Exists"}])).node == "a"
    assert not small.place(pod("r", tolerations=[{"key": "k", "operator": "Equal", "value": "w"}]))


def test_a_host_port_is_given_once_per_node_and_address():
    small = cluster(node("a"))
    port = [{"containerPort": 80, "hostPort": 80}]
    small.run(pod("p", containers=[container(ports=port)]))
    assert "port" in refused(small.place(pod("q", containers=[container(ports=port)])))
    udp = [{"containerPort": 80, "hostPort": 80, "protocol": "UDP"}]
    assert small.place(pod("r", containers=[container(ports=udp)])).node == "a"
    small.end(pod("p"))
    assert small.place(pod("q", containers=[container(ports=port)])).node == "a"


def test_soft_taints_and_preferences_decide_between_equals():
    soft = [{"key": "k", "effect": "PreferNoSchedule"}]
    assert cluster(node("a", taints=soft), node("b")).place(pod("p")).node == "b"
    prefers = {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 100,
                    "preference": {"matchExpressions": [{"key": "fast", "operator": "Exists"}]},
                }
            ]
        }
    }
    assert cluster(node("a"), node("b", labels={"fast": "1"})).place(pod("p", affinity=prefers)).node == "b"


def _away(key="kubernetes.io/hostname", **labels):
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": key}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def _near(key, **labels):
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": key}
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def test_anti_affinity_works_in_both_directions():
    small = cluster(node("a"), node("b"))
    first = small.run(pod("p", labels={"app": "x"}, affinity=_away(app="x")))
    second = small.run(pod("q", labels={"app": "x"}))
    assert {first.node, second.node} == {"a", "b"}
    answer = small.place(pod("r", labels={"app": "x"}, affinity=_away(app="x")))
    assert "anti-affinity" in refused(answer)
    assert QueueingHint.AFFINITY in answer.hints
    small.end(pod("q"))
    assert small.place(pod("r", labels={"app": "x"}, affinity=_away(app="x"))).node == second.node


def test_affinity_follows_the_group_and_its_first_pod_may_go_anywhere():
    small = cluster(
        node("a", labels={"zone": "1"}), node("b", labels={"zone": "2"}), node("c", labels={"zone": "2"})
    )
    hint = _near("zone", app="x")
    small.run(pod("p", labels={"app": "x"}, affinity=hint, node_selector={"kubernetes.io/hostname": "b"}))
    for name in ("q", "r", "s"):
        assert small.run(pod(name, labels={"app": "x"}, affinity=hint)).node in ("b", "c")
    assert not small.place(pod("t", labels={"app": "y"}, affinity=_near("zone", app="y2")))


def test_spreading_keeps_the_skew():
    small = cluster(
        node("a", labels={"zone": "1"}), node("b", labels={"zone": "2"}), node("c", labels={"zone": "2"})
    )
    rule = [
        {
            "maxSkew": 1,
            "topologyKey": "zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "x"}},
        }
    ]
    zones = {"a": 0, "b": 1, "c": 1}
    counts = [0, 0]
    for index in range(6):
        answer = small.run(pod(f"p{index}", labels={"app": "x"}, topology_spread_constraints=rule))
        counts[zones[answer.node]] += 1
        assert abs(counts[0] - counts[1]) <= 1


def gpus(*names, **options):
    small = SmallCluster(**options)
    small.add(device_class())
    for name in names:
        small.add(node(name), resource_slice(name, "g0", "g1"))
    return small


def test_claims_go_where_devices_are_free():
    small = gpus("a")
    small.add(node("empty"))
    small.run(pod("p"), claim("c1"))
    assert small.run(pod("q"), claim("c2")).node == "a"
    answer = small.place(pod("r"), claim("c3"))
    assert refused(answer).startswith("0/2 nodes: ")
    assert QueueingHint.DEVICES in answer.hints
    small.end(pod("p"))
    assert small.place(pod("r"), claim("c3")).node == "a"


def test_an_allocated_claim_pins_the_pod():
    small = gpus("a", "b")
    plan = small.place(pod("p", node_selector={"kubernetes.io/hostname": "b"}), claim("c"))
    shared = allocated(claim("c"), plan.allocations[0], "p")
    assert small.place(pod("q"), allocated=[shared]).node == "b"
    answer = small.place(pod("r", node_selector={"kubernetes.io/hostname": "a"}), allocated=[shared])
    assert "where claim ns/c is allocated" in refused(answer)
    assert "claim:ns/c" in answer.hints


def test_an_allocated_claim_that_skips_node_operations_needs_nodes_that_declare_it():
    small = SmallCluster(node("a"), node("b", declares=["DRAOptionalNodeOperations"]), node("c"))
    anywhere = {
        "devices": {
            "results": [
                {"request": "req", "driver": "d", "pool": "p", "device": "x", "skipNodeOperations": ["*"]}
            ]
        }
    }
    shared = allocated(claim("c"), anywhere, "p")
    assert small.place(pod("q"), allocated=[shared]).node == "b"
    answer = small.place(pod("r", node_selector={"kubernetes.io/hostname": "a"}), allocated=[shared])
    assert refused(answer) == (
        "0/3 nodes: 2 do not match nodeSelector kubernetes.io/hostname=a; "
        "1 does not declare DRAOptionalNodeOperations, which the allocation of claim ns/c requires"
    )
    assert "claim:ns/c" in answer.hints


def test_a_node_with_an_error_is_counted_once():
    small = SmallCluster(*(node(f"n{number}") for number in range(8)))
    small.add(device_class())
    for number in range(8):
        small.add(resource_slice(f"n{number}", *("gg" if number == 0 else "g")))  # one name twice is invalid
    answer = small.place(pod("p"), claim("c", count=2))
    assert refused(answer) == (
        "0/8 nodes: 7 have only 1 matching device of the 2 wanted; "
        "1 has a problem (invalid resource pools were encountered)"
    )


def test_a_missing_class_is_fatal_and_says_so():
    small = SmallCluster()
    small.add(node("a"), resource_slice("a", "g0"))
    answer = small.place(pod("p"), claim("c"))
    assert answer.is_fatal and "device class gpu" in refused(answer)


def test_refusals_are_remembered_until_something_is_freed():
    small = gpus(*(f"n{index}" for index in range(50)))
    pods = [
        pod(f"p{index}", node_selector={"kubernetes.io/hostname": f"n{index // 2}"}) for index in range(100)
    ]
    for index, each in enumerate(pods):
        small.run(each, claim(f"c{index}"))
    small.place(pod("x"), claim("x"))
    before = small.devices.asked
    assert not small.place(pod("x"), claim("x"))
    assert small.devices.asked == before, "nothing changed, so nobody is asked again"
    small.end(pods[77])
    assert small.place(pod("x"), claim("x")).node == "n38"
    assert small.devices.asked == before + 1, "only the node where something was freed is asked"


@pytest.mark.parametrize(("policy", "expected"), [("pack", "half"), ("spread", "free")])
def test_a_policy_prefers_nodes_by_what_is_left(policy, expected):
    small = SmallCluster(policy=policy_named(policy))
    small.add(device_class())
    for name in ("half", "free"):
        small.add(node(name), resource_slice(name, "g0", "g1"))
    small.run(pod("p", node_selector={"kubernetes.io/hostname": "half"}), claim("c1"))
    assert small.place(pod("q"), claim("c2")).node == expected


def test_the_line_counts_nodes_per_reason_and_names_what_would_match():
    def gpu(name, product):
        return {"name": name, "attributes": {"productName": {"string": product}}}

    small = SmallCluster()
    small.add(device_class(), node("bare"), node("full", unschedulable=True))
    for index in range(3):
        small.add(node(f"n{index}"), resource_slice(f"n{index}", gpu("g0", "H100"), gpu("g1", "H100")))
    small.add(node("x"), resource_slice("x", gpu("g0", "H200")))
    expression = "device.attributes['gpu.example.com'].productName == 'H200'"
    small.run(pod("holder"), claim("held", selector=expression))
    line = refused(small.place(pod("p"), claim("c", selector=expression)))
    assert line.startswith("0/6 nodes: ")
    assert f'3 have no device that matches "{expression}" (e.g. found: ' in line
    assert "H100" in line
    assert "1 has the only matching device in use (by ns/held)" in line
    assert "1 has no devices" in line
    assert "1 is unschedulable" in line
    line = refused(small.place(pod("p"), claim("c", 3)))
    assert "3 have only 2 matching devices of the 3 wanted" in line


def test_of_many_nodes_only_some_are_explained_and_the_counts_are_estimates():
    small = SmallCluster()
    small.add(device_class())
    for index in range(200):
        small.add(node(f"n{index}"), resource_slice(f"n{index}", "g0"))
    line = refused(small.place(pod("p"), claim("c", 2)))
    assert line == "0/200 nodes: ~200 have only 1 matching device of the 2 wanted"


def _gpu(name, root, numa):
    return {
        "name": name,
        "attributes": {
            "resource.kubernetes.io/pcieRoot": {"string": root},
            "resource.kubernetes.io/numaNode": {"int": numa},
        },
    }


def test_the_topology_policy_keeps_devices_together_where_it_can():
    small = SmallCluster()
    small.add(device_class(), node("apart"), node("close"), node("near"))
    small.add(resource_slice("apart", _gpu("g0", "r0", 0), _gpu("g1", "r1", 1)))
    small.add(resource_slice("near", _gpu("g0", "r0", 0), _gpu("g1", "r1", 0)))
    small.add(resource_slice("close", _gpu("g0", "r0", 0), _gpu("g1", "r1", 1), _gpu("g2", "r1", 1)))
    small.placer.prefers_closeness = True
    placed = [small.run(pod(f"p{index}"), claim(f"c{index}", 2)) for index in range(3)]
    assert [each.node for each in placed] == ["close", "near", "apart"]
    assert [each.device for each in placed[0].allocations[0].devices.results] == ["g1", "g2"]
    assert placed[0].claims[0] == claim("c0", 2), "the claim itself is left as it is"


@pytest.mark.parametrize(
    ("cause", "detail", "told"),
    [
        ("in-use", "ann/train-7", "in use (by ann)"),
        ("in-use", "ann/train-7, ann/train-8, bob/mine", "in use (by ann, bob/mine)"),
        ("in-use", "ann/train-7 (being allocated)", "in use (by ann)"),
        ("capacity", f"{SHARED_WITH}ann/train-7", f"short of capacity ({SHARED_WITH}ann)"),
        ("taint", "ann/key=x:NoSchedule", "tainted (ann/key=x:NoSchedule)"),
    ],
)
def test_the_line_names_other_namespaces_but_not_their_jobs(cause, detail, told):
    reasons = RequestReasons("bob/c", "r", 1, 1, 0, (Reason(cause, detail, 1),), "")
    tally = Tally()
    add_device_reasons(tally, Explanation((), {}, ((("n1",), (reasons,)),)), 1, 1, "bob")
    assert tally.line(1) == f"0/1 nodes: 1 has the only matching device {told}"
