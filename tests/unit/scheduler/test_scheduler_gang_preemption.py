"""Gangs preempt as a whole, groups are victims as a whole, and a gang stays in one topology domain."""

import msgspec
import pytest
from scheduler_builders import budget, container, device_class, node, pod, resource_slice

from dray.api.core import PodGroup
from dray.scheduler import ClusterSnapshot, SchedulerProfile, Unplaceable, decide

RACK = "rack"


def group(name, *, min_count=None, priority=0, topology=None, all_together=False, **spec):
    policy = {"gang": {"minCount": min_count}} if min_count else {"basic": {}}
    body = {
        "metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}"},
        "spec": {"schedulingPolicy": policy, "priority": priority, **spec},
    }
    if topology:
        body["spec"]["schedulingConstraints"] = {"topology": [{"key": topology}]}
    if all_together:
        body["spec"]["disruptionMode"] = {"all": {}}
    return msgspec.convert(body, PodGroup)


def member(name, of, *, cpu="4", priority=0, **spec):
    return pod(
        name,
        containers=[container(cpu=cpu)],
        priority=priority,
        schedulingGroup={"podGroupName": of},
        **spec,
    )


def cluster(*objects, n_nodes=2):
    snapshot = ClusterSnapshot(SchedulerProfile(), new_share_id=lambda: "x")
    for number in range(n_nodes):
        snapshot.set_node(node(f"n{number}", cpu="4", labels={RACK: f"r{number // 2}"}))
    for each in objects:
        snapshot.groups[f"ns/{each.metadata.name}"] = each
    return snapshot


def run(snapshot, each, on):
    snapshot.state.assume(each, on)


def single(name, on, snapshot, *, cpu="4", priority=0, **spec):
    run(snapshot, pod(name, containers=[container(cpu=cpu)], priority=priority, **spec), on)


def victims(decision):
    assert isinstance(decision, Unplaceable)
    plan = decision.preemption
    return None if plan is None else sorted(use.key.removeprefix("ns/") for use in plan.victims)


def gang_of(count, **more):
    return [member(f"g{number}", "gang", priority=10, **more) for number in range(count)]


def test_a_gang_has_victims_for_all_its_members():
    snapshot = cluster(group("gang", min_count=2, priority=10), n_nodes=3)
    for number in range(3):
        single(f"low{number}", f"n{number}", snapshot, priority=number)
    pods = gang_of(2)
    decision = decide(pods[0], snapshot, pods)
    assert victims(decision) == ["low0", "low1"], "the least important ones"
    nominated = {each.metadata.name: where for each, where in decision.preemption.nominations}
    assert sorted(nominated) == ["g0", "g1"]
    assert set(nominated.values()) == {"n0", "n1"}
    assert sorted(use.key for use in snapshot.state.pods.values()) == ["ns/low0", "ns/low1", "ns/low2"]


def test_nobody_is_evicted_where_not_all_members_would_fit():
    snapshot = cluster(group("gang", min_count=2, priority=10))
    single("low", "n0", snapshot)
    single("high", "n1", snapshot, priority=20)
    pods = gang_of(2)
    assert victims(decide(pods[0], snapshot, pods)) is None


def test_nobody_is_evicted_for_an_incomplete_gang_or_one_that_may_not():
    snapshot = cluster(group("gang", min_count=3, priority=10))
    single("low", "n0", snapshot)
    pods = gang_of(2)
    assert victims(decide(pods[0], snapshot, pods)) is None
    snapshot = cluster(group("gang", min_count=2, priority=10))
    single("low", "n0", snapshot)
    pods = [gang_of(1)[0], member("g1", "gang", priority=10, preemptionPolicy="Never")]
    assert victims(decide(pods[0], snapshot, pods)) is None


def test_a_group_that_is_disrupted_as_a_whole_loses_all_its_pods():
    for together, expected in ((True, ["v0", "v1"]), (False, ["v0"])):
        snapshot = cluster(group("victim", min_count=2, all_together=together), n_nodes=2)
        run(snapshot, member("v0", "victim"), "n0")
        run(snapshot, member("v1", "victim"), "n1")
        wanted = pod(
            "high", priority=5, containers=[container(cpu="4")], nodeSelector={"kubernetes.io/hostname": "n0"}
        )
        assert victims(decide(wanted, snapshot)) == expected


def test_the_priority_of_its_group_protects_a_pod():
    snapshot = cluster(group("victim", min_count=1, priority=100), n_nodes=1)
    run(snapshot, member("v0", "victim", priority=0), "n0")
    wanted = pod("high", priority=5, containers=[container(cpu="4")])
    assert victims(decide(wanted, snapshot)) is None


def test_a_budget_protects_where_there_is_a_choice():
    snapshot = cluster(group("gang", min_count=2, priority=10), n_nodes=1)
    for name, priority in (("a", 0), ("b", 1), ("c", 2)):
        single(name, "n0", snapshot, cpu="1", priority=priority, labels={"app": name})
    pods = gang_of(2, cpu="1")
    assert victims(decide(pods[0], snapshot, pods)) == ["a"]
    snapshot.budgets["ns/a"] = budget("a", {"app": "a"}, 0)
    assert victims(decide(pods[0], snapshot, pods)) == ["b"]


def test_devices_of_victims_count_for_a_gang():
    from scheduler_builders import allocated, claim

    snapshot = cluster(group("gang", min_count=2, priority=10))
    snapshot.set_class(device_class())
    for name in ("n0", "n1"):
        snapshot.set_slice(resource_slice(name, "gpu"))
    for number in range(2):
        holder = pod(
            f"low{number}",
            containers=[container()],
            resourceClaims=[{"name": "g", "resourceClaimName": f"c{number}"}],
        )
        snapshot.set_claim(claim(f"c{number}"))
        placed = decide(holder, snapshot)[0]
        given = placed.placement.allocations[0]
        snapshot.set_claim(allocated(claim(f"c{number}"), given, holder.metadata.uid))
        run(snapshot, holder, placed.placement.node)
    pods = []
    for number in range(2):
        snapshot.set_claim(claim(f"w{number}"))
        pods.append(
            member(
                f"g{number}",
                "gang",
                cpu="1",
                priority=10,
                resourceClaims=[{"name": "g", "resourceClaimName": f"w{number}"}],
            )
        )
    assert victims(decide(pods[0], snapshot, pods)) == ["low0", "low1"]
    again = decide(pods[0], snapshot, pods)
    assert isinstance(again, Unplaceable), "the devices are in use as before"


# --- topology -------------------------------------------------------------------


def racks(decision):
    return {int(placed.placement.node[1:]) // 2 for placed in decision}


def test_a_gang_stays_in_one_rack():
    snapshot = cluster(group("gang", min_count=2, topology=RACK), n_nodes=4)
    single("other", "n0", snapshot)  # rack 0 has room for one only
    pods = [member(f"g{number}", "gang") for number in range(2)]
    assert racks(decide(pods[0], snapshot, pods)) == {1}


def test_a_gang_that_fits_in_no_rack_waits_and_says_so():
    snapshot = cluster(group("gang", min_count=3, topology=RACK), n_nodes=4)
    pods = [member(f"g{number}", "gang") for number in range(3)]
    decision = decide(pods[0], snapshot, pods)
    assert "none of the 2 domains of rack takes the group" in decision.explain()
    assert snapshot.state.pods == {}


def test_later_pods_go_to_the_rack_of_the_first():
    snapshot = cluster(group("gang", min_count=1, topology=RACK), n_nodes=4)
    run(snapshot, member("g0", "gang"), "n2")
    pods = [member("g1", "gang")]
    assert racks(decide(pods[0], snapshot, pods)) == {1}
    run(snapshot, pods[0], "n3")
    late = [member("g2", "gang")]
    assert isinstance(decide(late[0], snapshot, late), Unplaceable)


@pytest.mark.parametrize("min_count", [None, 2])
def test_the_rack_that_takes_the_most_pods_is_chosen(min_count):
    snapshot = cluster(group("gang", min_count=min_count, topology=RACK), n_nodes=5)
    snapshot.set_node(node("n5", cpu="8", labels={RACK: "r2"}))
    pods = [member(f"g{number}", "gang") for number in range(4)]
    decision = decide(pods[0], snapshot, pods)
    assert [len(decision), racks(decision)] == [3, {2}]


def test_a_fuller_rack_is_preferred_among_equals():
    snapshot = cluster(group("gang", min_count=1, topology=RACK), n_nodes=4)
    single("other", "n2", snapshot, cpu="2")
    pods = [member("g0", "gang", cpu="1")]
    assert racks(decide(pods[0], snapshot, pods)) == {1}


def test_without_the_label_no_node_will_do():
    snapshot = cluster(group("gang", min_count=1, topology="zone"))
    pods = [member("g0", "gang")]
    assert (
        decide(pods[0], snapshot, pods).explain()
        == "no node has the label zone of the group's topology constraint"
    )


def test_a_gang_preempts_within_one_rack():
    snapshot = cluster(group("gang", min_count=2, priority=10, topology=RACK), n_nodes=4)
    for number in range(4):
        single(f"low{number}", f"n{number}", snapshot, priority=number)
    pods = gang_of(2)
    assert victims(decide(pods[0], snapshot, pods)) in (["low0", "low1"], ["low2", "low3"])


def test_of_a_running_gang_as_many_pods_follow_as_fit():
    snapshot = cluster(group("gang", min_count=1), n_nodes=2)
    run(snapshot, member("g0", "gang"), "n0")
    pods = [member("g1", "gang"), member("g2", "gang")]
    decision = decide(pods[0], snapshot, pods)
    assert [placed.placement.node for placed in decision] == ["n1"]
