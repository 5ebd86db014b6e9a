"""Who is evicted for whom, and what is nominated: Kubernetes' preemption tests, in our own words.

Ported from test/integration/scheduler v1.37: preemption/preemption_test.go, preemption/misc, preemption/podgroup, nominated_node_name. See
docs/scheduler-upstream.md for what is left out and why.
"""

import asyncio
from dataclasses import dataclass, field

import pytest
from test_upstream_scheduler_filters import (
    EXISTS_FOO,
    FOO,
    HOST,
    TWO,
    api,
    away,
    near,
    ports,
    rules,
    spread,
    term,
)
from upstream_scheduler import SCHEDULER, Node, Pod, Rig

from dray.client import resources as kinds

__all__ = ["api"]  # the fixture: one API server for the module

pytestmark = pytest.mark.kubernetes


@dataclass(frozen=True)
class Eviction:
    upstream: str
    nodes: dict
    placed: dict
    pods: dict  # that want a place
    evicted: tuple  # none means: they stay where they are, and the pods wait
    groups: dict = field(default_factory=dict)
    budgets: dict = field(default_factory=dict)  # label of app -> disruptions allowed
    to: dict = field(default_factory=dict)  # pod -> node, where it matters

    def __str__(self):
        return self.upstream


ONE = {"a": Node(cpu="1")}
WIDE = {"a": Node(cpu="2"), "b": Node(cpu="2")}


def running(cpu="1", node="a", priority=0, group="", app="", spec=None, **labels):
    return Pod(spec or {}, {**labels, **({"app": app} if app else {})}, cpu, node, priority, group)


def wanting(cpu="1", priority=100, group="", spec=None, **labels):
    return Pod(spec or {}, labels, cpu, "", priority, group)


def gang(count, cpu="1", priority=100, spec=None, **labels):
    return {f"g{number}": wanting(cpu, priority, "gang", spec, **labels) for number in range(count)}


def group(min_count=None, priority=0, **more):
    return {"min_count": min_count, "priority": priority, **more}


def in_rack(*names, cpu="1", rack="r0"):
    return {name: Node({"rack": rack}, cpu=cpu) for name in names}


SINGLE = [
    Eviction("preemption/TestPreemption: basic", ONE, {"low": running()}, {"p": wanting()}, ("low",)),
    Eviction(
        "preemption/TestPreemption: unresolvable",
        ONE,
        {"low": running()},
        {"p": wanting(spec={"nodeSelector": {"none": ""}})},
        (),
    ),
    Eviction(
        "preemption/TestPreemption: to satisfy anti-affinity",
        {"a": Node({"zone": "x"})},
        {"low": running(foo="", spec=away(term(EXISTS_FOO)))},
        {"p": wanting(foo="")},
        ("low",),
    ),
    Eviction(
        "preemption/TestPreemption: not where anti-affinity stays",
        {"a": Node({"zone": "x"})},
        {"low": running(foo=""), "high": running(foo="", priority=200)},
        {"p": wanting(spec=away(term(EXISTS_FOO)))},
        (),
    ),
    Eviction(
        "misc/TestNonPreemption: policy Never",
        ONE,
        {"low": running()},
        {"p": wanting(spec={"preemptionPolicy": "Never"})},
        (),
    ),
    Eviction(
        "misc/TestDisablePreemption: equal priority",
        ONE,
        {"same": running(priority=100)},
        {"p": wanting()},
        (),
    ),
    Eviction(
        "misc/TestPDBInPreemption: a pod without budget goes, despite its priority",
        {"a": Node(cpu="2")},
        {"kept": running(app="kept"), "goes": running(priority=50)},
        {"p": wanting()},
        ("goes",),
        budgets={"kept": 0},
    ),
    Eviction(
        "misc/TestPDBInPreemption: a node without protected pods",
        {"a": Node(cpu="1"), "b": Node(cpu="1")},
        {"kept": running(app="kept"), "goes": running(node="b", priority=50)},
        {"p": wanting()},
        ("goes",),
        budgets={"kept": 0},
    ),
    Eviction(
        "misc/TestPDBInPreemption: a node with fewer protected pods",
        WIDE,
        {
            "k1": running(app="kept"),
            "k2": running(app="kept"),
            "f1": running(node="b", app="kept"),
            "f2": running(node="b"),
        },
        {"p": wanting("2")},
        ("f1", "f2"),
        budgets={"kept": 0},
    ),
    Eviction(
        "preemption/TestPreemption: a group over two nodes goes as a whole",
        {"a": Node(cpu="1"), "b": Node(cpu="1")},
        {"v0": running(group="v"), "v1": running(node="b", group="v")},
        {"p": wanting(spec={"nodeSelector": {HOST: "@a"}})},
        ("v0", "v1"),
        groups={"v": group(all_together=True)},
    ),
    Eviction(
        "preemption/TestPreemption: a group in mode single loses one pod",
        {"a": Node(cpu="1"), "b": Node(cpu="1")},
        {"v0": running(group="v"), "v1": running(node="b", group="v")},
        {"p": wanting(spec={"nodeSelector": {HOST: "@a"}})},
        ("v0",),
        groups={"v": group()},
    ),
    Eviction(
        "preemption/TestPreemption: only the less important of two groups",
        WIDE,
        {
            "v0": running("2", group="v"),
            "w0": running("2", node="b", group="w", priority=50),
        },
        {"p": wanting("2")},
        ("v0",),
        groups={"v": group(all_together=True), "w": group(priority=50, all_together=True)},
    ),
    Eviction(
        "preemption/TestPreemption: a group that is not enough",
        {"a": Node(cpu="2")},
        {"v0": running(group="v"), "high": running(priority=200)},
        {"p": wanting("2")},
        (),
        groups={"v": group(all_together=True)},
    ),
    Eviction(
        "scheduler/pickOneNode: the latest of equals is not more than one pod",
        {"a": Node(cpu="2"), "b": Node(cpu="2")},
        {"a1": running("1"), "a2": running("1"), "b1": running("2", node="b")},
        {"p": wanting("2")},
        ("b1",),
    ),
]

GROUPS = [
    Eviction(
        "podgroup/TestPodGroupPreemption: full",
        WIDE,
        {"l0": running("2"), "l1": running("2", "b")},
        gang(2, "2"),
        ("l0", "l1"),
        {"gang": group(2, 100)},
    ),
    Eviction(
        "podgroup/TestPodGroupPreemption: full, basic policy",
        WIDE,
        {"l0": running("2"), "l1": running("2", "b")},
        gang(2, "2"),
        ("l0", "l1"),
        {"gang": group(None, 100)},
    ),
    Eviction(
        "podgroup/TestPodGroupPreemption: partial",
        WIDE,
        {"l0": running("2")},
        gang(2, "2"),
        ("l0",),
        {"gang": group(2, 100)},
    ),
    Eviction(
        "podgroup/TestPodGroupPreemption: a budget",
        {"a": Node(cpu="2")},
        {"kept": running(app="kept"), "goes": running(priority=10)},
        gang(1),
        ("goes",),
        {"gang": group(1, 100)},
        {"kept": 0},
    ),
    Eviction(
        "podgroup/TestPodGroupPreemption: not enough",
        WIDE,
        {"l0": running("2"), "high": running("2", "b", 200)},
        gang(2, "2"),
        (),
        {"gang": group(2, 100)},
    ),
    Eviction(
        "podgroup/TestPodGroupPreemption: by priority",
        {"a": Node(cpu="3")},
        {"l0": running(), "l1": running(priority=10), "l2": running(priority=20)},
        gang(2),
        ("l0", "l1"),
        {"gang": group(2, 100)},
    ),
    Eviction(
        "podgroup/TestPodGroupPreemption: a whole group although one pod would do",
        WIDE,
        {"v0": running("2", group="v"), "v1": running("2", "b", group="v")},
        gang(1, "2"),
        ("v0", "v1"),
        {"gang": group(1, 100), "v": group(all_together=True)},
    ),
    Eviction(
        "podgroup/TestPodGroupPreemption: pods that may not preempt",
        WIDE,
        {"l0": running("2"), "l1": running("2", "b")},
        gang(2, "2", spec={"preemptionPolicy": "Never"}),
        (),
        {"gang": group(2, 100)},
    ),
    Eviction(
        "podgroup/TestPodGroupPreemption: pod-level resources",
        {"a": Node(cpu="2")},
        {"l0": running("2")},
        gang(1, "", spec={"pod_level": {"requests": {"cpu": "2"}}}),
        ("l0",),
        {"gang": group(1, 100)},
    ),
    Eviction(
        "podgroup/TestPodGroupPreemption: anti-affinity",
        {"a": Node({"zone": "x"}, cpu="4"), "b": Node({"zone": "y"}, cpu="4")},
        {"l0": running(foo=""), "l1": running(node="b", other="")},
        gang(2, foo="", spec=away(term(EXISTS_FOO))),
        ("l0",),
        {"gang": group(2, 100)},
    ),
    Eviction(
        "podgroup/TestPodGroupPreemption: host port",
        {"a": Node()},
        {"l0": running("", spec=ports(80)), "l1": running()},
        gang(1, "", spec=ports(80)),
        ("l0",),
        {"gang": group(1, 100)},
    ),
    Eviction(
        "podgroup/TestPodGroupPreemption: topology spread",
        {"a": Node({"zone": "x"}, cpu="4"), "b": Node({"zone": "y"}, cpu="4")},
        {"l0": running("4", foo=""), "l1": running("4", "b")},
        gang(2, "4", foo="", spec=rules(spread(1, "zone"))),
        ("l0", "l1"),
        {"gang": group(2, 100)},
    ),
    Eviction(
        "podgroup/TestPodGroupPreemption: one rack",
        in_rack("a", "b"),
        {"l0": running(), "l1": running(node="b")},
        gang(2),
        ("l0", "l1"),
        {"gang": group(2, 100, topology="rack")},
    ),
    Eviction(
        "podgroup/TestPodGroupPreemption: two racks, one will do",
        {**in_rack("a", "b"), **in_rack("c", "d", rack="r1")},
        {
            "l0": running(),
            "l1": running(node="b"),
            "h": running(node="c", priority=200),
            "l3": running(node="d"),
        },
        gang(2),
        ("l0", "l1"),
        {"gang": group(2, 100, topology="rack")},
    ),
    Eviction(
        "podgroup/TestPodGroupPreemption: no rack will do",
        {**in_rack("a"), **in_rack("c", rack="r1")},
        {"l0": running(), "l1": running(node="c")},
        gang(2),
        (),
        {"gang": group(2, 100, topology="rack")},
    ),
    Eviction(
        "podgroup_test/TestPodGroupScheduling: gang with partial preemption",
        {"a": Node(cpu="2"), "b": Node(cpu="1")},
        {"l1": running("1", "b")},
        gang(3),
        ("l1",),
        {"gang": group(3, 100)},
    ),
]


async def budget(rig, app, allowed):
    body = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": app},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}},
    }
    await rig.client.create(kinds.DISRUPTION_BUDGETS, body, rig.namespace)
    status = {
        "status": {
            "disruptionsAllowed": allowed,
            "currentHealthy": 1,
            "desiredHealthy": 1,
            "expectedPods": 1,
            "observedGeneration": 1,
        }
    }
    await rig.client.patch(kinds.DISRUPTION_BUDGETS, app, status, rig.namespace, subresource="status")


@pytest.mark.parametrize("case", [*SINGLE, *GROUPS], ids=str)
async def test_those_are_evicted_whom_upstream_evicts(api, case):
    async with Rig(api) as rig:
        await rig.furnish(case.nodes)
        for name, settings in case.groups.items():
            await rig.group(name, **settings)
        for name, each in case.placed.items():
            await rig.run(name, each)
        for app, allowed in case.budgets.items():
            await budget(rig, app, allowed)
        await rig.start_scheduler(**SCHEDULER)
        for name, each in case.pods.items():
            await rig.run(name, each)
        stay = sorted(set(case.placed) - set(case.evicted))
        if case.evicted:
            await rig.where(*case.pods)
        else:
            for name in case.pods:
                await rig.refused(name, words="")
            await rig.none_bound(*case.pods)
        assert await rig.left(*case.placed) == stay


# --- nominated nodes ------------------------------------------------------------------------------


async def nominated(rig, name):
    return (await rig.get_pod(name))["status"].get("nominatedNodeName")


async def test_preemption_nominates_a_node_and_less_important_pods_do_not_take_it(api):
    """nominated_node_name: basic preemption; misc/TestPreemptionRaces; TestAsyncPreemption: a lower pod does not take the place."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(cpu="1")})
        # A finalizer keeps the victim, so that there is time to look.
        await rig.run("low", running())
        await rig.client.patch(
            kinds.PODS, "low", {"metadata": {"finalizers": ["example.com/keep"]}}, rig.namespace
        )
        await rig.start_scheduler(**SCHEDULER)
        await rig.run("p", wanting())

        async def is_nominated():
            return await nominated(rig, "p")

        assert await rig.until(is_nominated, "nomination") == f"a-{rig.number}"
        await rig.run("middle", wanting(priority=50))
        await rig.refused("middle", words="")
        await rig.client.patch(kinds.PODS, "low", {"metadata": {"finalizers": None}}, rig.namespace)
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
            await rig.client.patch(
                kinds.PODS, name, {"metadata": {"finalizers": ["example.com/keep"]}}, rig.namespace
            )
        await rig.start_scheduler(**SCHEDULER)
        for name, each in gang(2, "2").items():
            await rig.run(name, each)

        async def are_nominated():
            found = [await nominated(rig, name) for name in ("g0", "g1")]
            return sorted(found) if all(found) else None

        assert await rig.until(are_nominated, "nominations") == [f"a-{rig.number}", f"b-{rig.number}"]
        victim = await rig.get_pod("l0")
        [condition] = [each for each in victim["status"]["conditions"] if each["type"] == "DisruptionTarget"]
        assert condition["reason"] == "PreemptionByScheduler"
        assert "pod group" in condition["message"]
        for name in ("l0", "l1"):
            await rig.client.patch(kinds.PODS, name, {"metadata": {"finalizers": None}}, rig.namespace)
        assert sorted(await rig.where("g0", "g1")) == ["a", "b"]


async def test_a_more_important_pod_takes_the_place(api):
    """preemption/TestAsyncPreemption: a higher priority takes over; misc/TestPreemptionStarvation."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(cpu="1")})
        await rig.run("low", running())
        await rig.client.patch(
            kinds.PODS, "low", {"metadata": {"finalizers": ["example.com/keep"]}}, rig.namespace
        )
        await rig.start_scheduler(**SCHEDULER)
        await rig.run("p", wanting(priority=50))

        async def is_nominated():
            return await nominated(rig, "p")

        await rig.until(is_nominated, "nomination")
        await rig.run("top", wanting(priority=100))
        await rig.refused("top", words="")
        await rig.client.patch(kinds.PODS, "low", {"metadata": {"finalizers": None}}, rig.namespace)
        assert await rig.bound("top") == "a"
        await rig.none_bound("p")


async def test_a_pod_nominated_to_a_node_that_goes_finds_another(api):
    """nominatednodename: followed by a node deletion."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(cpu="1")})
        await rig.run("low", running())
        await rig.client.patch(
            kinds.PODS, "low", {"metadata": {"finalizers": ["example.com/keep"]}}, rig.namespace
        )
        await rig.start_scheduler(**SCHEDULER)
        await rig.run("p", wanting())

        async def is_nominated():
            return await nominated(rig, "p")

        await rig.until(is_nominated, "nomination")
        await rig.client.delete(kinds.NODES, f"a-{rig.number}")
        await rig.furnish({"b": Node(cpu="1")})
        assert await rig.bound("p") == "b"
        await rig.client.patch(kinds.PODS, "low", {"metadata": {"finalizers": None}}, rig.namespace)


# --- groups that are scheduled ----------------------------------------------------------------------


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
