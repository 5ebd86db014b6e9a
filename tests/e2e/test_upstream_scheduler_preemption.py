"""Who is evicted for whom, and what is nominated: Kubernetes' preemption tests, in our own words.

Ported from test/integration/scheduler v1.37: preemption/preemption_test.go, preemption/misc, preemption/podgroup, nominated_node_name. See
docs/scheduler-upstream.md for what is left out and why.
"""

from dataclasses import dataclass, field

import pytest
from upstream_scheduler import (
    EXISTS_FOO,
    FOO,
    HOST,
    ONE,
    SCHEDULER,
    WIDE,
    Node,
    Rig,
    away,
    in_rack,
    ports,
    rules,
    running,
    spread,
    term,
    wanting,
)

from dray.client import resources as kinds


@dataclass(frozen=True)
class Eviction:
    upstream: str
    nodes: dict
    placed: dict
    pods: dict  # that want a place
    evicted: tuple  # none means: they stay where they are, and the pods wait
    groups: dict = field(default_factory=dict)
    budgets: dict = field(default_factory=dict)  # label of app -> disruptions allowed
    n_bound: int | None = None  # of the pods; None means: all, or none when nobody is evicted

    def __str__(self):
        return self.upstream


def gang(count, cpu="1", priority=100, spec=None, **labels):
    return {f"g{number}": wanting(cpu, priority, "gang", spec, **labels) for number in range(count)}


def group(min_count=None, priority=0, **more):
    return {"min_count": min_count, "priority": priority, **more}


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

ALONE = {name: Node(cpu="1") for name in "abcd"}
EARLIER = {"v0": running(group="v", priority=50), "v1": running(node="b", group="v", priority=50)}
ON_A, ON_B = ({"nodeSelector": {HOST: f"@{name}"}} for name in "ab")
UNEQUAL = {**in_rack("a", "b", cpu="2"), **in_rack("c", "d", "e", cpu="2", rack="r1")}
EVEN = {**rules(spread(2, HOST, minDomains=10)), **ON_A}


def both_policies(name, *args, minimum, **more):
    """A case with a gang and one with the basic policy; the outcome is the same."""
    nodes, placed, pods, evicted = args
    others = more.pop("groups", {})
    return [
        Eviction(
            f"podgroup/TestPodGroupPreemption: {name}, {policy}",
            nodes,
            placed,
            pods,
            evicted,
            {"gang": group(count, 100), **others},
            **more,
        )
        for policy, count in (("gang", minimum), ("basic", None))
    ]


MORE_GROUPS = [
    *both_policies(
        "a less important pod that does not help stays",
        WIDE,
        {"l0": running("1", priority=10), "v0": running("1", "b", priority=5)},
        gang(2, spec=ON_A),
        ("l0",),
        minimum=2,
    ),
    *both_policies(
        "over several nodes",
        WIDE,
        {f"l{number}": running("1", "ab"[number // 2]) for number in range(4)},
        gang(4),
        ("l0", "l1", "l2", "l3"),
        minimum=4,
    ),
    *both_policies(
        "as many as possible, not those of higher priority",
        ALONE,
        {
            "p1": running(),
            "p2": running(node="b"),
            "p3": running(node="c", priority=200),
            "p4": running(node="d", priority=200),
        },
        gang(3),
        ("p1", "p2"),
        minimum=1,
        n_bound=2,
    ),
    *both_policies(
        "a group of lower priority is not put back",
        {name: ALONE[name] for name in "abc"},
        {**EARLIER, "v2": running(node="c", priority=10)},
        gang(3),
        ("v0", "v1", "v2"),
        minimum=3,
        groups={"v": group(1, 50, all_together=True)},
    ),
    *both_policies(
        "a group goes although not all pods start",
        ALONE,
        {
            **EARLIER,
            "w0": running(node="c", group="w", priority=200),
            "w1": running(node="d", group="w", priority=200),
        },
        gang(3),
        ("v0", "v1"),
        minimum=1,
        groups={"v": group(2, 50, all_together=True), "w": group(2, 200, all_together=True)},
        n_bound=2,
    ),
    Eviction(
        "podgroup/TestPodGroupPreemption: the whole basic group with a disruption mode",
        {"a": Node(cpu="3")},
        {f"v{number}": running(group="v") for number in range(3)},
        gang(1),
        ("v0", "v1", "v2"),
        {"gang": group(1, 100), "v": group(all_together=True)},
    ),
    Eviction(
        "podgroup/TestPodGroupPreemption: the more important one is put back",
        WIDE,
        {"l0": running(priority=5), "l1": running(priority=10)},
        {"g0": wanting(group="gang", spec=ON_A), "g1": wanting(group="gang", spec=ON_B)},
        ("l0",),
        {"gang": group(2, 100)},
    ),
    Eviction(
        "podgroup/TestPodGroupPreemption: topology spread, a pod that does no harm stays",
        {"a": Node(), "b": Node()},
        {"l0": running(foo="", priority=10), "l1": running(node="b", foo="", priority=5)},
        gang(2, foo="", spec=EVEN),
        ("l0",),
        {"gang": group(2, 100)},
    ),
    Eviction(
        "topology_aware_scheduling: gang uses preemption, on the rack that it fills most",
        UNEQUAL,
        {f"l{name}": running("2", name) for name in "abcde"},
        gang(4),
        ("la", "lb"),
        {"gang": group(4, 100, topology="rack")},
    ),
    Eviction(
        "topology_aware_scheduling: gang uses preemption, on the rack that is fullest with what runs there",
        {**UNEQUAL, "a": Node({"rack": "r0"}, cpu="3")},
        {
            "la": running("3", "a"),
            "lb": running("2", "b"),
            "h": running("2", "c", 200),
            "ld": running("2", "d"),
            "le": running("2", "e"),
        },
        gang(4),
        ("ld", "le"),
        {"gang": group(4, 100, topology="rack")},
    ),
    *both_policies(
        "those that fit are bound first, then somebody is evicted for the others",
        {"a": Node(cpu="4")},
        {
            "g2": running(group="gang", priority=100),
            "g3": running(group="gang", priority=100),
            "l0": running(priority=10),
        },
        gang(2),
        ("l0",),
        minimum=2,
    ),
]

SEVERAL = [
    Eviction(
        f"preemption/TestInterPodAffinityPreemption: {name}",
        {"a": Node({"zone": "x"}, cpu="4")},
        {"low0": running(**FOO), "low1": running(priority=priority, **FOO)},
        {"p": wanting(spec=away(term(EXISTS_FOO, key)))},
        evicted,
    )
    for name, priority, key, evicted in (
        ("both go", 0, "zone", ("low0", "low1")),
        ("none goes, since one may not", 200, "zone", ()),
        ("both go, by host name", 0, HOST, ("low0", "low1")),
    )
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


@pytest.mark.parametrize("case", [*SINGLE, *SEVERAL, *GROUPS, *MORE_GROUPS], ids=str)
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
        if case.n_bound is not None:
            await rig.number_bound(case.n_bound, *case.pods)
        elif case.evicted:
            await rig.where(*case.pods)
        else:
            for name in case.pods:
                await rig.refused(name, words="")
            await rig.none_bound(*case.pods)
        assert await rig.left(*case.placed) == stay


async def test_an_important_pod_starts_although_many_others_wait(api):
    """misc/TestPreemptionStarvation and TestPreemptionRaces: those that are made meanwhile do not take the place."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(cpu="5")})
        for number in range(5):
            await rig.run(f"low{number}", running())
        await rig.start_scheduler(**SCHEDULER)
        for number in range(5):
            await rig.run(f"waits{number}", wanting(priority=0))
        for number in range(5):
            await rig.refused(f"waits{number}", words="")
        await rig.run("p", wanting("3"))
        for number in range(5):
            await rig.run(f"late{number}", wanting(priority=0))
        assert await rig.bound("p") == "a"
        assert len(await rig.left(*(f"low{number}" for number in range(5)))) == 2
        await rig.none_bound(*(f"{name}{number}" for number in range(5) for name in ("waits", "late")))
