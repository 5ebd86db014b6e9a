"""Pods that are scheduled as a group: Kubernetes' tests of pod groups, in our own words.

Ported from test/integration/scheduler v1.37: podgroup, podgroup/queueing, podgroup/topology_aware_scheduling. See docs/scheduler-upstream.md for what is left
out and why.
"""

import asyncio

import pytest
from test_scheduling_clocks import FailingBindings
from upstream_scheduler import (
    EXISTS_FOO,
    FOO,
    HOST,
    SCHEDULER,
    TWO,
    Node,
    Rig,
    away,
    in_rack,
    near,
    running,
    term,
    wanting,
)

from dray.client import resources as kinds


async def members(rig, *names, cpu="1", of="gang"):
    for name in names:
        await rig.run(name, wanting(cpu, 0, of))


async def condition_of(rig, name="gang"):
    found = (await rig.client.get(kinds.POD_GROUPS, name, rig.namespace)).get("status", {}).get(
        "conditions"
    ) or []
    return next((each for each in found if each["type"] == "PodGroupInitiallyScheduled"), None)


async def test_a_gang_waits_for_its_group_its_pods_and_room(api):
    """podgroup_test/TestPodGroupScheduling: the first four."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(cpu="2")})
        await rig.start_scheduler(**SCHEDULER)
        await members(rig, "g0", "g1")
        await rig.refused("g0", words="waiting for pod group")
        await rig.group("gang", 3)
        await rig.refused("g0", words="waiting for 1 more pod")
        await members(rig, "g2")
        await rig.refused("g2", words="only 2 of the 3 pods")
        await rig.none_bound("g0", "g1", "g2")

        async def is_refused():
            found = await condition_of(rig)
            return found is not None and found["status"] == "False" and found["reason"] == "Unschedulable"

        await rig.until(is_refused, "the condition of the group")
        await rig.furnish({"b": Node(cpu="2")})
        assert sorted(set(await rig.where("g0", "g1", "g2"))) == ["a", "b"]

        async def is_scheduled():
            return (await condition_of(rig))["status"] == "True"

        await rig.until(is_scheduled, "the condition of the group")


async def test_a_gang_starts_with_its_minimum_and_the_rest_follows(api):
    """podgroup_test: minCount is scheduled, one pod remains until resources are released."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(cpu="3")})
        await rig.run("other", running())
        await rig.group("gang", 2)
        await rig.start_scheduler(**SCHEDULER)
        await members(rig, "g0", "g1", "g2")
        await rig.where("g0", "g1")
        await rig.refused("g2", words="")
        await rig.delete_pod("other")
        assert await rig.bound("g2") == "a"


async def test_two_gangs_do_not_hold_each_other_up(api):
    """podgroup_test: two gangs compete for the same resources; one of them starts as a whole."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(cpu="3")})
        for name in ("one", "two"):
            await rig.group(name, 2)
        await rig.start_scheduler(**SCHEDULER)
        for number in range(2):
            for name in ("one", "two"):
                await members(rig, f"{name}{number}", of=name)

        async def one_runs():
            found = (await rig.client.list(kinds.PODS, rig.namespace)).items
            names = sorted(each["metadata"]["name"][:3] for each in found if each["spec"].get("nodeName"))
            return names if len(names) >= 2 else None

        assert len(set(await rig.until(one_runs, "a gang"))) == 1
        await asyncio.sleep(0.5)
        assert len(set(await one_runs())) == 1


async def test_a_basic_group_starts_pod_by_pod(api):
    """podgroup_test: basic group, part of it waits for resources."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(cpu="1")})
        await rig.group("gang")
        await rig.start_scheduler(**SCHEDULER)
        await members(rig, "g0", "g1")

        async def one_runs():
            found = (await rig.client.list(kinds.PODS, rig.namespace)).items
            return [each["metadata"]["name"] for each in found if each["spec"].get("nodeName")]

        assert len(await rig.until(one_runs, "a pod")) == 1
        await rig.furnish({"b": Node(cpu="1")})
        assert sorted(await rig.where("g0", "g1")) == ["a", "b"]


async def test_a_smaller_minimum_lets_a_gang_start(api):
    """podgroup_test: minCount is decreased, for lack of pods and for lack of room."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(cpu="2")})
        await rig.group("gang", 4)
        await rig.start_scheduler(**SCHEDULER)
        await members(rig, "g0", "g1", "g2")
        await rig.refused("g0", words="waiting for 1 more pod")
        for count, words in ((3, "only 2 of the 3"), (2, None)):
            patch = {"spec": {"schedulingPolicy": {"gang": {"minCount": count}}}}
            await rig.client.patch(kinds.POD_GROUPS, "gang", patch, rig.namespace)
            if words:
                await rig.refused("g0", words=words)

        async def two_run():
            found = (await rig.client.list(kinds.PODS, rig.namespace)).items
            return len([each for each in found if each["spec"].get("nodeName")]) == 2

        await rig.until(two_run, "two pods")


RACKS = {**in_rack("a", "b", cpu="2"), **in_rack("c", "d", cpu="2", rack="r1")}


@pytest.mark.parametrize(
    ("name", "nodes", "placed", "min_count", "count", "racks"),
    [
        ("one feasible rack", RACKS, {"q": running("2")}, 4, 4, {"r1"}),
        ("no feasible rack", RACKS, {}, 5, 5, None),
        ("taken by others", RACKS, {"q": running("2"), "r": running("2", "c")}, 4, 4, None),
        ("the fuller rack", RACKS, {"q": running("1", "c")}, 2, 2, {"r1"}),
        ("fewer than there are pods", RACKS, {"q": running("2")}, 2, 6, {"r1"}),
        ("basic: the only rack", in_rack("a", "b", cpu="2"), {}, None, 3, {"r0"}),
        ("basic: one of several", RACKS, {}, None, 3, {"r0", "r1"}),
        ("basic: the fuller rack", RACKS, {"q": running("2", "c")}, None, 2, {"r1"}),
        ("basic: some pods only", in_rack("a"), {}, None, 2, {"r0"}),
        (
            "basic: the rack that takes the most",
            {**in_rack("a", cpu="2"), **in_rack("c", "d", cpu="2", rack="r1")},
            {},
            None,
            4,
            {"r1"},
        ),
    ],
)
async def test_a_group_stays_in_one_rack(api, name, nodes, placed, min_count, count, racks):
    """topology_aware_scheduling/TestTopologyAwareSchedulingWithGangPolicy and …WithBasicPolicy."""
    async with Rig(api) as rig:
        await rig.furnish(nodes)
        for each, pod in placed.items():
            await rig.run(each, pod)
        await rig.group("gang", min_count, topology="rack")
        names = [f"g{number}" for number in range(count)]
        await members(rig, *names)
        await rig.start_scheduler(**SCHEDULER)
        if racks is None:
            for each in names:
                await rig.refused(each, words="")
            await rig.none_bound(*names)
            return
        room = sum(int(each.cpu) for each in nodes.values() if each.labels["rack"] in racks) // len(racks)
        expected = min(count, room)

        async def are_bound():
            found = (await rig.client.list(kinds.PODS, rig.namespace)).items
            where = [
                each["spec"]["nodeName"]
                for each in found
                if each["metadata"]["name"] in names and each["spec"].get("nodeName")
            ]
            return where if len(where) >= expected else None

        where = {
            nodes[each.removesuffix(f"-{rig.number}")].labels["rack"]
            for each in await rig.until(are_bound, f"{expected} pods of {name}")
        }
        assert len(where) == 1
        assert where <= racks


async def test_later_pods_of_a_group_go_to_its_rack(api):
    """tas_test: additional pods, and a basic group that continues when resources become available."""
    async with Rig(api) as rig:
        await rig.furnish(RACKS)
        await rig.group("gang", 1, topology="rack")
        await rig.start_scheduler(**SCHEDULER)
        await rig.run("g0", wanting("2", 0, "gang", {"nodeSelector": {HOST: "@d"}}))
        assert await rig.bound("g0") == "d"
        await members(rig, "g1", cpu="2")
        assert await rig.bound("g1") == "c"
        await members(rig, "g2", cpu="2")
        await rig.refused("g2", words="")
        await rig.furnish(in_rack("e", cpu="2", rack="r1"))
        assert await rig.bound("g2") == "e"


async def test_pods_of_a_gang_keep_apart(api):
    """podgroup_affinity_test/TestPodGroupSchedulingWithPodAntiAffinity, and near each other."""
    async with Rig(api) as rig:
        await rig.furnish(TWO)
        await rig.group("gang", 2)
        await rig.start_scheduler(**SCHEDULER)
        for name in ("g0", "g1"):
            await rig.run(name, wanting("1", 0, "gang", away(term(EXISTS_FOO)), **FOO))
        assert sorted(await rig.where("g0", "g1")) == ["a", "b"]
        await rig.group("close", 2)
        for name in ("c0", "c1"):
            await rig.run(name, wanting("1", 0, "close", near(term({"matchLabels": {"bar": ""}})), bar=""))
        assert len(set(await rig.where("c0", "c1"))) == 1


async def test_a_gated_pod_keeps_its_gang_waiting(api):
    """podgroup/queueing: a single gated pod blocks a gang until it is ungated; a deleted group keeps its pods."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node()})
        await rig.group("gang", 2)
        await rig.start_scheduler(**SCHEDULER)
        await members(rig, "g0")
        await rig.run("g1", wanting("1", 0, "gang", {"schedulingGates": [{"name": "example.com/gate"}]}))
        await rig.refused("g0", words="waiting for 1 more pod")
        await rig.client.patch(kinds.PODS, "g1", {"spec": {"schedulingGates": None}}, rig.namespace)
        assert await rig.where("g0", "g1") == ["a", "a"]


# --- podgroup/queueing --------------------------------------------------------------------------------


@pytest.mark.parametrize("min_count", [2, None], ids=["gang", "basic"])
async def test_pods_that_join_a_group_later_are_scheduled_with_it(api, min_count):
    """queueing: new member pods are added, to a group that waits and to one that is scheduled."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(cpu="2")})
        await rig.group("gang", min_count)
        await rig.start_scheduler(**SCHEDULER)
        await members(rig, "g0", "g1", cpu="2")
        if min_count is None:
            await rig.number_bound(1, "g0", "g1")
        else:
            for name in ("g0", "g1"):
                await rig.refused(name, words="")
        await members(rig, "g2", cpu="2")
        await rig.refused("g2", words="")
        await rig.furnish({"b": Node(cpu="6")})
        await rig.where("g0", "g1", "g2")
        await members(rig, "g3", cpu="2")
        await rig.where("g3")


@pytest.mark.parametrize("min_count", [2, None], ids=["gang", "basic"])
async def test_a_gated_pod_joins_its_group_when_it_is_ungated(api, min_count):
    """queueing: a pod group becomes gated when a new gated member is added; here only that member waits."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(cpu="2")})
        await rig.group("gang", min_count)
        await rig.start_scheduler(**SCHEDULER)
        await members(rig, "g0", "g1", cpu="2")
        await rig.run("g2", wanting("2", 0, "gang", {"schedulingGates": [{"name": "example.com/gate"}]}))
        await rig.furnish({"b": Node(cpu="6")})
        await rig.where("g0", "g1")
        await rig.none_bound("g2")
        await rig.change_pod("g2", {"spec": {"schedulingGates": None}})
        await rig.where("g2")


@pytest.mark.parametrize("min_count", [2, None], ids=["gang", "basic"])
async def test_pods_of_a_group_wait_for_it_again_when_it_is_deleted(api, min_count):
    """queueing: the group is scheduled, partially scheduled or unschedulable, then it is deleted."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(cpu="2")})
        await rig.group("gang", min_count)
        await rig.start_scheduler(**SCHEDULER)
        await members(rig, "g0", "g1")
        assert await rig.where("g0", "g1") == ["a", "a"]
        await members(rig, "g2")
        await rig.refused("g2", words="insufficient cpu")
        await rig.delete_group("gang")
        await rig.refused("g2", words="to be created")
        await rig.furnish({"b": Node(cpu="2")})
        await members(rig, "g3")
        await rig.refused("g3", words="to be created")
        await rig.none_bound("g2", "g3")
        await rig.group("gang", min_count)
        assert await rig.where("g2", "g3") == ["b", "b"]


async def test_a_gang_without_room_waits_for_its_group_when_it_is_deleted(api):
    """queueing: gang is unschedulable, then pod group is deleted."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(cpu="2")})
        await rig.group("gang", 3)
        await rig.start_scheduler(**SCHEDULER)
        await members(rig, "g0", "g1", "g2")
        await rig.refused("g0", words="only 2 of the 3")
        await rig.delete_group("gang")
        for name in ("g0", "g1", "g2"):
            await rig.refused(name, words="to be created")
        await rig.furnish({"b": Node(cpu="2")})
        await rig.group("gang", 3)
        await rig.where("g0", "g1", "g2")


@pytest.mark.parametrize("count", [1, 2], ids=["single", "several"])
@pytest.mark.parametrize("is_gang", [True, False], ids=["gang", "basic"])
async def test_a_group_is_tried_again_when_a_binding_fails(api, is_gang, count):
    """queueing: a member pod fails PreBind, with others and alone; the others are bound."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node()})
        await rig.group("gang", count if is_gang else None)
        loop = await rig.start_scheduler(wrap=lambda inner: FailingBindings(inner, 1), **SCHEDULER)
        names = [f"g{number}" for number in range(count)]
        await members(rig, *names)
        assert await rig.where(*names) == ["a"] * count
        assert loop.statistics.failures >= 1


@pytest.mark.parametrize("min_count", [1, None], ids=["gang", "basic"])
async def test_a_failed_binding_does_not_hold_up_a_member_that_waits_for_room(api, min_count):
    """queueing: a member fails PreBind while another is unschedulable."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(cpu="2")})
        await members(rig, "g0", cpu="2")
        await members(rig, "large", cpu="4")
        await rig.start_scheduler(wrap=lambda inner: FailingBindings(inner, 1), **SCHEDULER)
        await rig.refused("g0", words="to be created")
        await rig.group("gang", min_count)
        assert await rig.bound("g0") == "a"
        await rig.refused("large", words="insufficient cpu")
        await rig.furnish({"b": Node(cpu="6")})
        assert await rig.bound("large") == "b"


async def test_a_pod_of_a_basic_group_is_tried_though_an_older_one_does_not_fit(api):
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(cpu="2")})
        await members(rig, "large", cpu="4")
        await members(rig, "g0", cpu="2")
        await rig.start_scheduler(**SCHEDULER)
        for name in ("large", "g0"):
            await rig.refused(name, words="to be created")
        await rig.group("gang")
        assert await rig.bound("g0") == "a"
        await rig.refused("large", words="insufficient cpu")


async def test_a_member_that_does_not_fit_and_is_the_oldest_is_not_forgotten(api):
    """The gang starts without it; it is bound when there is room."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(cpu="2")})
        await rig.group("gang", 2)
        await members(rig, "first", cpu="4")
        await members(rig, "g0", "g1")
        await rig.start_scheduler(**SCHEDULER)
        assert await rig.where("g0", "g1") == ["a", "a"]
        await rig.refused("first", words="insufficient cpu")
        await rig.furnish({"b": Node(cpu="4")})
        assert await rig.bound("first") == "b"


async def test_a_larger_minimum_keeps_a_gang_waiting(api):
    """podgroup_test: minCount is increased, and a pod on its own beside a gang is scheduled."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(cpu="5")})
        await rig.group("gang", 5)
        await rig.start_scheduler(**SCHEDULER)
        await members(rig, "g0", "g1", "g2", "g3")
        await rig.refused("g3", words="waiting for 1 more pod")
        patch = {"spec": {"schedulingPolicy": {"gang": {"minCount": 6}}}}
        await rig.client.patch(kinds.POD_GROUPS, "gang", patch, rig.namespace)
        await rig.refused("g3", words="waiting for 2 more pods")
        await rig.run("alone", wanting("2", 0))
        assert await rig.bound("alone") == "a"
        await members(rig, "g4", "g5")
        await rig.refused("g5", words="only 3 of the 6")
        await rig.none_bound("g0", "g1", "g2", "g3", "g4", "g5")


# --- podgroup/topology_aware_scheduling: one group after the other ------------------------------------


def racks_of(nodes, where, key="rack"):
    return {nodes[each].labels[key] for each in where}


@pytest.mark.parametrize("is_gang", [True, False], ids=["gang", "basic"])
@pytest.mark.parametrize(
    ("name", "nodes", "counts", "same"),
    [
        ("each on a rack of its own", RACKS, (4, 4), False),
        ("both on the only rack", in_rack("a", "b", cpu="3"), (3, 3), True),
        (
            "both on one rack that has room",
            {**in_rack("a", cpu="5"), **in_rack("c", cpu="2", rack="r1")},
            (3, 2),
            None,
        ),
    ],
    ids=["apart", "only one", "room for both"],
)
async def test_groups_one_after_the_other_each_stay_in_a_rack(api, is_gang, name, nodes, counts, same):
    """tas_test: two groups schedule consecutively, on separate racks and on the same."""
    async with Rig(api) as rig:
        await rig.furnish(nodes)
        await rig.start_scheduler(**SCHEDULER)
        used = []
        for number, count in enumerate(counts):
            names = [f"p{number}-{each}" for each in range(count)]
            await members(rig, *names, of=f"of{number}")
            for each in names:  # a rack is chosen for those that are known
                await rig.refused(each, words="to be created")
            await rig.group(f"of{number}", count if is_gang else None, topology="rack")
            found = racks_of(nodes, await rig.where(*names))
            assert len(found) == 1
            used.append(found)
        assert same is None or (used[0] == used[1]) is same


@pytest.mark.parametrize("is_gang", [True, False], ids=["gang", "basic"])
async def test_groups_with_different_topologies(api, is_gang):
    """tas_test: two groups schedule consecutively, one on a rack, one in a zone whose nodes it fills."""
    nodes = {
        **{name: Node({"rack": "r0", "zone": "z0"}, cpu="2") for name in "ab"},
        **{name: Node({"rack": f"r-{name}", "zone": "z1"}, cpu="2") for name in "cde"},
    }
    async with Rig(api) as rig:
        await rig.furnish(nodes)
        await rig.start_scheduler(**SCHEDULER)
        await members(rig, *(f"p{number}" for number in range(4)), of="one")
        await rig.group("one", 4 if is_gang else None, topology="rack")
        assert racks_of(nodes, await rig.where("p0", "p1", "p2", "p3")) == {"r0"}
        await rig.group("two", 3 if is_gang else None, topology="zone")
        await members(rig, "q0", "q1", "q2", cpu="2", of="two")
        assert racks_of(nodes, await rig.where("q0", "q1", "q2"), "zone") == {"z1"}


async def test_a_second_gang_waits_until_the_rack_has_room(api):
    """tas_test: only one of two gangs fits in the cluster; resources are taken by others, and they go."""
    async with Rig(api) as rig:
        nodes = in_rack("a", "b", cpu="2")
        await rig.furnish(nodes)
        await rig.start_scheduler(**SCHEDULER)
        for name in ("one", "two"):
            await rig.group(name, 3, topology="rack")
        await members(rig, "p0", "p1", "p2", of="one")
        await rig.where("p0", "p1", "p2")
        await members(rig, "q0", "q1", "q2", of="two")
        for name in ("q0", "q1", "q2"):
            await rig.refused(name, words="")
        await rig.none_bound("q0", "q1", "q2")
        for name in ("p0", "p1"):
            await rig.delete_pod(name)
        await rig.where("q0", "q1", "q2")


async def test_a_gang_takes_the_smaller_rack_and_its_later_pods_evict_there(api):
    """tas_test: minCount < pod count, choosing the smaller rack; an additional pod triggers preemption on it."""
    nodes = {**in_rack("a", "b", cpu="4"), **in_rack("c", "d", cpu="2", rack="r1")}
    async with Rig(api) as rig:
        await rig.furnish(nodes)
        await rig.run("low", running("1", "c"))
        await rig.group("gang", 3, priority=100, topology="rack")
        await rig.start_scheduler(**SCHEDULER)
        for number in range(3):
            await rig.run(f"g{number}", wanting(group="gang"))
        assert racks_of(nodes, await rig.where("g0", "g1", "g2")) == {"r1"}
        assert await rig.left("low") == ["low"]
        await rig.run("g3", wanting(group="gang"))
        assert racks_of(nodes, [await rig.bound("g3")]) == {"r1"}
        assert await rig.left("low") == []
        await rig.run("g4", wanting(group="gang"))
        await rig.refused("g4", words="")
        await rig.none_bound("g4")


async def test_pods_of_a_basic_group_that_fit_nowhere_wait(api):
    """tas_test: a basic group does not schedule when no pods fit, and only those that fit when some do."""
    async with Rig(api) as rig:
        await rig.furnish(RACKS)
        await rig.group("gang", topology="rack")
        await rig.start_scheduler(**SCHEDULER)
        await members(rig, "large", cpu="5")
        await rig.refused("large", words="")
        await members(rig, "small")
        await rig.where("small")
        await rig.none_bound("large")


async def test_a_basic_group_goes_on_when_its_rack_gets_room(api):
    """tas_test: the best placement does not fit all; later, resources become available there."""
    nodes = {**in_rack("a", cpu="3"), **in_rack("c", cpu="2", rack="r1")}
    async with Rig(api) as rig:
        await rig.furnish(nodes)
        await rig.run("blocker", running("1", "a"))
        await rig.run("other", running("2", "c"))
        await rig.group("gang", topology="rack")
        await rig.start_scheduler(**SCHEDULER)
        await members(rig, "g0", cpu="2")
        assert await rig.bound("g0") == "a"
        await rig.delete_pod("other")
        await members(rig, "g1")
        await rig.refused("g1", words="")
        await rig.delete_pod("blocker")
        assert await rig.bound("g1") == "a"
