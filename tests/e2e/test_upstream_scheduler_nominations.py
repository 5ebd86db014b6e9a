"""For whom a node is kept: Kubernetes' tests of nominated node names, in our own words.

Ported from test/integration/scheduler v1.37: nominated_node_name, preemption/nominatednodename, eventhandler (TestUpdateNominatedNodeName), and what
preemption_test.go has on nominations (TestAsyncPreemption). See docs/scheduler-upstream.md for what is left out and why.
"""

import pytest
from upstream_scheduler import (
    HOST,
    ONE,
    SCHEDULER,
    WIDE,
    Node,
    Pod,
    Rig,
    running,
    taint,
    wanting,
)

from dray.client import resources as kinds


async def held(rig, name):
    """Keep a pod that is deleted, so that there is time to look."""
    await rig.change_pod(name, {"metadata": {"finalizers": ["example.com/keep"]}})


async def released(rig, name):
    await rig.change_pod(name, {"metadata": {"finalizers": None}})


async def nominated(rig, name):
    return (await rig.get_pod(name))["status"].get("nominatedNodeName") or ""


async def is_nominated(rig, name, node=None):
    """Wait until a pod is nominated for a node; empty means for none, None for any."""

    async def condition():
        found = await nominated(rig, name)
        return bool(found) if node is None else found == (f"{node}-{rig.number}" if node else "")

    await rig.until(condition, f"{name} nominated for {node}")


async def nominate(rig, name, node):
    """Do as a tool that prepares a node for a pod."""
    status = {"nominatedNodeName": f"{node}-{rig.number}"}
    await rig.change_pod(name, {"status": status}, "status")


async def test_preemption_nominates_a_node_and_less_important_pods_do_not_take_it(api):
    """nominated_node_name: basic preemption; misc/TestPreemptionRaces; TestAsyncPreemption: a lower pod does not take the place."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(cpu="1")})
        await rig.run("low", running())
        await held(rig, "low")
        await rig.start_scheduler(**SCHEDULER)
        await rig.run("p", wanting())
        await is_nominated(rig, "p", "a")
        await rig.run("middle", wanting(priority=50))
        await rig.refused("middle", words="")
        await released(rig, "low")
        assert await rig.bound("p") == "a"
        assert not await nominated(rig, "p"), "the server clears it when the pod is bound"
        await rig.none_bound("middle")


async def test_every_member_of_a_gang_is_nominated(api):
    """podgroup/TestPodGroupPreemption_NominatedNodeNameRespected, and TestPodGroupPreemptionStatus."""
    async with Rig(api) as rig:
        await rig.furnish(WIDE)
        await rig.group("gang", 2, priority=100)
        for name, node in (("l0", "a"), ("l1", "b")):
            await rig.run(name, running("2", node))
            await held(rig, name)
        await rig.start_scheduler(**SCHEDULER)
        for name in ("g0", "g1"):
            await rig.run(name, wanting("2", group="gang"))

        async def are_nominated():
            found = [await nominated(rig, name) for name in ("g0", "g1")]
            return sorted(found) if all(found) else None

        assert await rig.until(are_nominated, "nominations") == [f"a-{rig.number}", f"b-{rig.number}"]
        victim = await rig.get_pod("l0")
        [condition] = [each for each in victim["status"]["conditions"] if each["type"] == "DisruptionTarget"]
        assert condition["reason"] == "PreemptionByScheduler"
        assert "pod group" in condition["message"]
        for name in ("l0", "l1"):
            await released(rig, name)
        assert sorted(await rig.where("g0", "g1")) == ["a", "b"]


async def test_a_more_important_pod_takes_the_place(api):
    """preemption/TestAsyncPreemption: a higher priority takes over; misc/TestPreemptionStarvation."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(cpu="1")})
        await rig.run("low", running())
        await held(rig, "low")
        await rig.start_scheduler(**SCHEDULER)
        await rig.run("p", wanting(priority=50))
        await is_nominated(rig, "p")
        await rig.run("top", wanting(priority=100))
        await rig.refused("top", words="")
        await released(rig, "low")
        assert await rig.bound("top") == "a"
        await rig.none_bound("p")


async def test_a_pod_nominated_to_a_node_that_goes_finds_another(api):
    """nominatednodename: followed by a node deletion."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(cpu="1")})
        await rig.run("low", running())
        await held(rig, "low")
        await rig.start_scheduler(**SCHEDULER)
        await rig.run("p", wanting())
        await is_nominated(rig, "p")
        await rig.client.delete(kinds.NODES, f"a-{rig.number}")
        await rig.furnish({"b": Node(cpu="1")})
        assert await rig.bound("p") == "b"
        await released(rig, "low")


async def test_the_nomination_of_others_is_replaced_by_a_better_one(api):
    """nominated_node_name: overwrite NominatedNodeName with preemption."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(cpu="4"), "b": Node(cpu="4")})
        for name, cpu, node in (("v1", "2", "a"), ("v2", "2", "a"), ("v3", "3", "b")):
            await rig.run(name, running(cpu, node))
        await held(rig, "v3")
        await rig.run("p", wanting("4"))
        await nominate(rig, "p", "a")
        await rig.start_scheduler(**SCHEDULER)
        await is_nominated(rig, "p", "b")
        await released(rig, "v3")
        assert await rig.bound("p") == "b"
        assert await rig.left("v1", "v2", "v3") == ["v1", "v2"]


async def test_a_nomination_for_a_node_that_is_too_small_is_cleared(api):
    """nominated_node_name: it is ignored on a pod that cannot fit, and cleared when it is refused."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(cpu="4")})
        await rig.run("large", wanting("5", priority=1))
        await nominate(rig, "large", "a")
        await rig.run("fits", wanting("3", priority=1))
        await rig.start_scheduler(**SCHEDULER)
        await is_nominated(rig, "large", "")
        assert await rig.bound("fits") == "a"
        await rig.none_bound("large")


async def test_a_more_important_pod_takes_a_node_that_others_are_nominated_for(api):
    """nominated_node_name: a lower one is ignored when a higher pod without nomination is scheduled, and cleared."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(cpu="4")})
        await rig.run("low", wanting("4", priority=1))
        await nominate(rig, "low", "a")
        await rig.run("high", wanting("4"))
        await rig.start_scheduler(**SCHEDULER)
        assert await rig.bound("high") == "a"
        await is_nominated(rig, "low", "")
        await rig.none_bound("low")


async def test_a_nomination_ends_with_the_binding(api):
    """nominated_node_name: no preemption, it is cleared after binding."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(cpu="4")})
        await rig.run("p", wanting("4"))
        await nominate(rig, "p", "a")
        await rig.start_scheduler(**SCHEDULER)
        assert await rig.bound("p") == "a"
        assert await nominated(rig, "p") == ""


@pytest.mark.parametrize(("cpu", "to"), [("1", "a"), ("2", "b")], ids=["it fits", "it does not fit"])
async def test_a_pod_goes_where_it_is_nominated_if_it_fits(api, cpu, to):
    """nominatednodename/TestPreferNominatedNode: the emptier node would be the better one."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(cpu="2"), "b": Node(cpu="8")})
        await rig.run("there", running("1"))
        await rig.run("p", wanting(cpu, priority=0))
        await nominate(rig, "p", "a")
        await rig.start_scheduler(**SCHEDULER)
        assert await rig.bound("p") == to


async def test_a_preemption_of_more_importance_ends_a_nomination(api):
    """nominatednodename: low, medium, then high with another preemption; one node, five cpus."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(cpu="5")})
        lows = [f"low-{number}" for number in range(4)]
        for name in lows:
            await rig.run(name, running("1"))
            await held(rig, name)
        await rig.start_scheduler(**SCHEDULER)
        await rig.run("medium", wanting("3", priority=50))
        await is_nominated(rig, "medium", "a")
        await rig.run("high", wanting("4"))
        await is_nominated(rig, "high", "a")
        await is_nominated(rig, "medium", "")
        for name in lows:
            await released(rig, name)
        assert await rig.bound("high") == "a"
        await rig.none_bound("medium")


async def test_a_nomination_ends_when_the_place_goes_to_somebody_more_important(api):
    """nominatednodename: low, medium, then high without another preemption."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(cpu="2")})
        await rig.run("low", running("1"))
        await held(rig, "low")
        await rig.start_scheduler(**SCHEDULER)
        await rig.run("medium", wanting("2", priority=50))
        await is_nominated(rig, "medium", "a")
        await rig.run("high", wanting("1"))
        assert await rig.bound("high") == "a"
        await released(rig, "low")
        await is_nominated(rig, "medium", "")
        await rig.none_bound("medium")


@pytest.mark.parametrize("others", [{}, {"b": Node(cpu="1", taints=(taint(),))}], ids=["none", "tainted"])
async def test_a_nomination_ends_with_its_node(api, others):
    """nominatednodename: followed by a node deletion; no candidates after the nominated node is deleted."""
    async with Rig(api) as rig:
        await rig.furnish({**ONE, **others})
        await rig.run("low", running())
        await held(rig, "low")
        await rig.start_scheduler(**SCHEDULER)
        await rig.run("p", wanting())
        await is_nominated(rig, "p", "a")
        await rig.drop_node("a")
        await released(rig, "low")
        await is_nominated(rig, "p", "")
        await rig.none_bound("p")


@pytest.mark.parametrize("ends_by", ["preemption", "deletion"])
async def test_pods_that_kept_off_a_node_get_it_when_the_nomination_ends(api, ends_by):
    """eventhandler/TestUpdateNominatedNodeName: the nominated pod loses its place, or is deleted."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(cpu="32")})
        await rig.run("first", running("20"))
        await held(rig, "first")
        await rig.start_scheduler(**SCHEDULER)
        await rig.run("nominated", wanting("25", priority=50))
        await is_nominated(rig, "nominated", "a")
        await rig.run("low", wanting("10", priority=0))
        await rig.refused("low", words="")
        if ends_by == "preemption":
            await rig.run("high", wanting("12"))
            assert await rig.bound("high") == "a"
            await released(rig, "first")
        else:
            await rig.delete_pod("nominated")
        assert await rig.bound("low", 20.0) == "a"


async def test_a_place_is_kept_when_the_scheduler_is_started_again(api):
    """nominated_node_name/TestSchedulerRestartWithNominatedNode: the other pod, as important, goes elsewhere."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(pods="1"), "b": Node(taints=(taint(effect="PreferNoSchedule"),))})
        await rig.run("pod-b", Pod())
        await rig.run("pod-a", Pod())
        await nominate(rig, "pod-a", "a")
        await rig.start_scheduler(**SCHEDULER)
        assert await rig.where("pod-a", "pod-b") == ["a", "b"]


async def test_a_preemption_goes_on_when_the_scheduler_is_started_again(api):
    """Nobody else gets the node, and nobody else is evicted, although the first scheduler is gone."""
    async with Rig(api) as rig:
        await rig.furnish(WIDE)
        await rig.run("low", running("2"))
        await rig.run("other", running("2", "b"))
        await held(rig, "low")
        await rig.start_scheduler(**SCHEDULER)
        await rig.run("p", wanting("2", spec={"nodeSelector": {HOST: "@a"}}))
        await is_nominated(rig, "p", "a")
        rig.stop_scheduler()
        await rig.start_scheduler(**SCHEDULER)
        await rig.run("middle", wanting("2", priority=50, spec={"preemptionPolicy": "Never"}))
        await rig.refused("middle", words="")
        await released(rig, "low")
        assert await rig.bound("p") == "a"
        assert await rig.left("other") == ["other"]
        await rig.none_bound("middle")


async def test_a_less_important_pod_shares_a_node_that_is_large_enough(api):
    """preemption/TestAsyncPreemption: it can select the same place if the node is big enough."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(cpu="4")})
        await rig.run("low", running("3"))
        await held(rig, "low")
        await rig.start_scheduler(**SCHEDULER)
        await rig.run("p", wanting("2"))
        await is_nominated(rig, "p", "a")
        await rig.run("small", wanting("1", priority=50))
        await is_nominated(rig, "small", "a")
        await rig.run("tiny", wanting("100m", priority=40, spec={"preemptionPolicy": "Never"}))
        await rig.run("large", wanting("2", priority=30))
        await rig.refused("large", words="")
        await released(rig, "low")
        assert await rig.where("p", "small", "tiny") == ["a"] * 3
        await rig.none_bound("large")
