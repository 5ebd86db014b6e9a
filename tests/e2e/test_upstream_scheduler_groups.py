"""Pods that are scheduled as a group: Kubernetes' tests of pod groups, in our own words.

Ported from test/integration/scheduler v1.37: podgroup, podgroup/queueing, podgroup/topology_aware_scheduling. See docs/scheduler-upstream.md for what is left
out and why.
"""

import asyncio

import pytest
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
