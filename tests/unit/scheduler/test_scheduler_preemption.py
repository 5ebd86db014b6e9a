"""Preemption: the cheapest minimal set, budgets respected, the state untouched."""

from scheduler_builders import SmallCluster, budget, claim, container, device_class, node, pod, resource_slice

from dray.scheduler import Nomination, PodClaims, plan_preemption, shape_of


def plan(small, wanted, *pending, budgets=(), nominated=None):
    return plan_preemption(
        small.placer,
        wanted,
        shape_of(wanted),
        PodClaims((), tuple(pending)),
        lambda uid: small.claims_by_pod.get(uid, ()),
        budgets,
        nominated=nominated,
    )


def victims(found):
    return [use.key.removeprefix("ns/") for use in found.victims]


def gpus(**devices):
    small = SmallCluster()
    small.add(device_class())
    for name, count in devices.items():
        small.add(node(name), resource_slice(name, *(f"g{index}" for index in range(count))))
    return small


def at(name, **spec):
    return {"node_selector": {"kubernetes.io/hostname": name}, **spec}


def test_the_least_important_holder_of_a_device_goes():
    small = gpus(a=1, b=1)
    small.run(pod("middle", priority=5, **at("a")), claim("c1"))
    small.run(pod("low", priority=1, **at("b")), claim("c2"))
    found = plan(small, pod("high", priority=10), claim("c3"))
    assert (found.node, victims(found)) == ("b", ["low"])


def test_only_as_many_go_as_needed():
    small = gpus(a=4)
    for index in range(4):
        small.run(pod(f"p{index}", priority=index), claim(f"c{index}"))
    found = plan(small, pod("high", priority=10), claim("c", 2))
    assert sorted(victims(found)) == ["p0", "p1"]


def test_pods_without_devices_are_spared_when_only_devices_are_short():
    small = gpus(a=1)
    small.run(pod("bystander", priority=0))
    small.run(pod("holder", priority=3), claim("c1"))
    assert victims(plan(small, pod("high", priority=10), claim("c2"))) == ["holder"]


def test_equals_and_betters_are_never_evicted():
    small = gpus(a=1)
    small.run(pod("same", priority=10), claim("c1"))
    assert plan(small, pod("high", priority=10), claim("c2")) is None
    assert plan(small, pod("meek", priority=99, preemption_policy="Never"), claim("c2")) is None


def test_what_eviction_cannot_cure_evicts_nobody():
    small = gpus(a=1)
    small.run(pod("low", priority=0), claim("c1"))
    assert plan(small, pod("high", priority=10), claim("c2", 5)) is None


def test_budgets_protect_where_there_is_another_way():
    small = gpus(a=1, b=1)
    small.run(pod("guarded", labels={"app": "x"}, priority=1, **at("a")), claim("c1"))
    small.run(pod("free", priority=2, **at("b")), claim("c2"))
    tight = budget("tight", {"app": "x"}, allowed=0)
    found = plan(small, pod("high", priority=10), claim("c3"), budgets=[tight])
    assert (victims(found), found.broken_budgets) == (["free"], 0)
    found = plan(small, pod("high", priority=10, **at("a")), claim("c3"), budgets=[tight])
    assert (victims(found), found.broken_budgets) == (["guarded"], 1)


def test_cpu_is_freed_the_same_way():
    small = SmallCluster(node("a", cpu="4"))
    for index in range(4):
        small.run(pod(f"p{index}", priority=index, containers=[container(cpu="1")]))
    found = plan(small, pod("high", priority=10, containers=[container(cpu="2")]))
    assert sorted(victims(found)) == ["p0", "p1"]


def test_devices_of_the_network_can_be_freed_on_another_node():
    small = SmallCluster(node("a"), node("b"))
    small.add(device_class(), resource_slice(None, "nic", pool="fabric", allNodes=True))
    small.run(pod("low", priority=0, **at("a")), claim("c1"))
    found = plan(small, pod("high", priority=10, **at("b")), claim("c2"))
    assert (found.node, victims(found)) == ("b", ["low"])


def test_planning_leaves_everything_as_it_was():
    small = gpus(a=2, b=1)
    for index, name in enumerate(("a", "a", "b")):
        small.run(pod(f"p{index}", priority=index, **at(name)), claim(f"c{index}"))
    before = {name: (dict(each.used), set(each.pods)) for name, each in small.state.nodes.items()}
    plan(small, pod("high", priority=10), claim("c", 2))
    assert {name: (dict(each.used), set(each.pods)) for name, each in small.state.nodes.items()} == before
    assert not small.place(pod("x"), claim("x")), "the devices are still in use"
    small.end(pod("p2"))
    assert small.place(pod("x"), claim("x")).node == "b"


def test_the_work_of_a_plan_is_bounded(monkeypatch):
    small = SmallCluster(*(node(f"n{number}", cpu="60", pods="60") for number in range(40)))
    for number in range(40 * 60):
        small.run(pod(f"p{number}", containers=[container(cpu="1")]))
    n_tried, place = 0, small.placer.place

    def counted(*args, **kwargs):
        nonlocal n_tried
        n_tried += 1
        return place(*args, **kwargs)

    monkeypatch.setattr(small.placer, "place", counted)
    found = plan(small, pod("high", priority=10, containers=[container(cpu="3")]))
    assert len(found.victims) == 3
    assert n_tried < 1_500, "to put all pods of all nodes back would be 2,440"


def full_nodes(*names):
    """Nodes of one cpu, each with a pod of priority 0 that needs all of it."""
    small = SmallCluster()
    for name in names:
        small.add(node(name, cpu="1"))
        small.run(pod(f"low-{name}", containers=[container(cpu="1")], **at(name)))
    return small


def ending(small, name):
    use = small.placer.state.pods[f"uid-{name}"]
    small.placer.state.set_terminating(use, is_terminating=True)


def test_nobody_is_evicted_where_a_pod_is_ending():
    small = full_nodes("a", "b")
    ending(small, "low-b")
    wanted = pod("high", priority=10, containers=[container(cpu="1")])
    found = plan(small, wanted)
    assert (found.node, victims(found), found.nominations) == ("b", [], ((wanted, "b"),))
    assert plan(small, pod("low", priority=0, containers=[container(cpu="1")])) is None


def test_a_node_that_is_kept_for_another_pod_is_not_emptied_once_more():
    small = full_nodes("a", "b")
    ending(small, "low-b")
    first = pod("first", priority=10, containers=[container(cpu="1")])
    second = pod("second", priority=10, containers=[container(cpu="1")])
    found = plan(small, second, nominated={first.metadata.uid: Nomination(first, "b")})
    assert (found.node, victims(found)) == ("a", ["low-a"])
