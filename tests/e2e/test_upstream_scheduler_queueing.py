"""What makes a pod that waits worth another try: Kubernetes' requeueing tests, in our own words.

Ported from test/integration/scheduler v1.37: queueing/queue.go (TestCoreResourceEnqueue), queueing/queue_test.go. There it is checked which pods go back
to the active queue; here, what comes of it: pods that fit after the event are bound within seconds, the others still wait. An event that nobody has thought
of would leave a pod waiting for five minutes, and the case fails. Volumes are in test_upstream_scheduler_volumes.py.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from test_scheduling_clocks import FailingBindings
from upstream_scheduler import (
    HOST,
    SCHEDULER,
    Node,
    Pod,
    Rig,
    away,
    expression,
    near,
    ports,
    requiring,
    rules,
    spread,
    taint,
    term,
    tolerating,
    toleration,
)

from dray.client import resources as kinds

WITHIN = 20.0  # seconds until the event has had its effect; far less than the five minutes of the safety net


@dataclass(frozen=True)
class Wake:
    upstream: str
    nodes: dict
    pods: dict  # that wait
    event: Callable[[Rig], Awaitable]
    bound: dict = field(default_factory=dict)  # pod -> node, after the event; the others still wait
    placed: dict = field(default_factory=dict)

    def __str__(self):
        return self.upstream


def exists(key):
    return {"matchExpressions": [expression(key, "Exists")]}


def labelled(spec=None, cpu="", **labels):
    return Pod(spec or {}, labels, cpu)


def in_group(name, cpu=""):
    return Pod(requiring(expression("group", "In", name)), cpu=cpu)


def add(**nodes):
    return lambda rig: rig.furnish(nodes)


def drop(pod):
    return lambda rig: rig.delete_pod(pod)


def gpu(count=1, cpu="1"):
    requests = {"cpu": cpu, "example.com/gpu": str(count)}
    container = {"name": "c", "image": "pause", "resources": {"requests": requests, "limits": requests}}
    return Pod({"containers": [container]})


NODES = [
    Wake(
        "a pod without the toleration waits on when the node grows",
        {"a": Node(cpu="2", taints=(taint(),))},
        {"p1": Pod(cpu="4"), "p2": Pod(tolerating(toleration()), cpu="4")},
        lambda rig: rig.grow("a", cpu="4"),
        {"p2": "a"},
    ),
    Wake(
        "NodeAffinity: the label of a node changes",
        {"a": Node({"group": "a"})},
        {"p1": in_group("b"), "p2": in_group("c")},
        lambda rig: rig.label_node("a", group="b"),
        {"p1": "a"},
    ),
    Wake(
        "NodeAffinity: a label of no importance",
        {"a": Node({"group": "a"}, cpu="2"), "b": Node({"group": "b"})},
        {"p1": in_group("a", "4")},
        lambda rig: rig.label_node("a", other="x"),
    ),
    Wake(
        "NodeAffinity: a node comes",
        {"a": Node({"group": "a"})},
        {"p1": in_group("b"), "p2": in_group("c")},
        add(b=Node({"group": "b"})),
        {"p1": "b"},
    ),
    Wake(
        "TaintToleration: the pod gets the toleration",
        {"a": Node(taints=(taint(),))},
        {"p1": Pod(), "p2": Pod()},
        lambda rig: rig.change_pod("p1", {"spec": {"tolerations": [toleration()]}}),
        {"p1": "a"},
    ),
    Wake(
        "TaintToleration: the taint of the node changes",
        {"a": Node(taints=(taint(),))},
        {
            "p1": Pod(tolerating(toleration(key="k1"))),
            "p2": Pod(tolerating(toleration(key="k2"))),
            "p3": Pod(),
        },
        lambda rig: rig.taint_node("a", taint(key="k1")),
        {"p1": "a"},
    ),
    Wake(
        "TaintToleration: a node with a tolerated taint comes",
        {"a": Node(taints=(taint(),))},
        {"p1": Pod(tolerating(toleration(key="k1"))), "p2": Pod()},
        add(b=Node(taints=(taint(key="k1"),))),
        {"p1": "b"},
    ),
    Wake(
        "TaintToleration: a label of the pod does not help",
        {"a": Node(taints=(taint(),))},
        {"p1": Pod()},
        lambda rig: rig.label_pod("p1", key="value"),
    ),
    Wake(
        "NodeUnschedulable: the node may be used again",
        {"a": Node(unschedulable=True)},
        {"p1": Pod()},
        lambda rig: rig.change_node("a", {"spec": {"unschedulable": None, "taints": None}}),
        {"p1": "a"},
    ),
    Wake(
        "NodeUnschedulable: a node comes",
        {"a": Node(unschedulable=True)},
        {"p1": Pod()},
        add(b=Node()),
        {"p1": "b"},
    ),
    Wake(
        "NodeUnschedulable: another node that may not be used",
        {"a": Node(unschedulable=True)},
        {"p1": Pod()},
        add(b=Node(unschedulable=True)),
    ),
    Wake(
        "NodePorts: the pod with the port goes",
        {"a": Node()},
        {"p3": Pod(ports(8080)), "p4": Pod(ports(8081))},
        drop("p1"),
        {"p3": "a"},
        placed={"p1": Pod(ports(8080), node="a"), "p2": Pod(ports(8081), node="a")},
    ),
    Wake(
        "NodePorts: a node comes",
        {"a": Node()},
        {"p2": Pod(ports(8080))},
        add(b=Node()),
        {"p2": "b"},
        placed={"p1": Pod(ports(8080), node="a")},
    ),
]

RESOURCES = [
    Wake(
        "NodeResourcesFit: the pod is resized",
        {"a": Node(cpu="2")},
        {"p1": Pod(cpu="4")},
        lambda rig: rig.change_pod(
            "p1",
            {
                "spec": {
                    "containers": [
                        {
                            "name": "main",
                            "image": "registry.example/pause",
                            "resources": {"requests": {"cpu": "2"}},
                        }
                    ]
                }
            },
            "resize",
        ),
        {"p1": "a"},
    ),
    Wake(
        "NodeResourcesFit: a pod goes",
        {"a": Node(cpu="2")},
        {"p2": Pod(cpu="2")},
        drop("p1"),
        {"p2": "a"},
        placed={"p1": Pod(cpu="2", node="a")},
    ),
    Wake(
        "NodeResourcesFit: a node comes",
        {"a": Node(cpu="2")},
        {"p1": Pod(cpu="4"), "p2": Pod(cpu="5")},
        add(b=Node(cpu="4")),
        {"p1": "b"},
    ),
    Wake(
        "NodeResourcesFit: the node grows",
        {"a": Node(cpu="2")},
        {"p1": Pod(cpu="4"), "p2": Pod(cpu="5")},
        lambda rig: rig.grow("a", cpu="4"),
        {"p1": "a"},
    ),
    Wake(
        "NodeResourcesFit: another node grows, the right one does not",
        {"a": Node(cpu="4"), "b": Node({"group": "b"}, cpu="2")},
        {"p1": in_group("b", "4")},
        lambda rig: rig.grow("a", cpu="4", memory="64Gi"),
    ),
    Wake(
        "NodeResourcesFit: the right node grows",
        {"a": Node(cpu="4"), "b": Node({"group": "b"}, cpu="2")},
        {"p1": in_group("b", "4")},
        lambda rig: rig.grow("b", cpu="5"),
        {"p1": "b"},
    ),
    Wake(
        "NodeResourcesFit: the node takes more pods",
        {"a": Node(pods="2"), "b": Node({"group": "b"}, pods="1")},
        {"p2": in_group("b")},
        lambda rig: rig.grow("b", pods="3"),
        {"p2": "b"},
        placed={"p1": Pod(node="b")},
    ),
    Wake(
        "NodeAffinity by name, and NodeResourcesFit: the node grows",
        {"a": Node(cpu="2"), "b": Node({"zone": "z"}, cpu="2")},
        {"p1": Pod(requiring(fields=[expression("metadata.name", "In", "@a")]), cpu="4")},
        lambda rig: rig.grow("a", cpu="4"),
        {"p1": "a"},
    ),
    Wake(
        "NodeResourcesFit: a resource of devices, and another one grows",
        {"a": Node(cpu="4")},
        {"p1": gpu()},
        lambda rig: rig.grow("a", cpu="4", memory="64Gi"),
    ),
    Wake(
        "NodeResourcesFit: a resource of the node, too little cpu, and memory grows",
        {"a": Node(cpu="4")},
        {"p1": gpu(cpu="5")},
        lambda rig: rig.grow("a", cpu="4", memory="64Gi", **{"example.com/gpu": "1"}),
    ),
    Wake(
        "NodeResourcesFit: the node gets the resource",
        {"a": Node(cpu="4")},
        {"p1": gpu()},
        lambda rig: rig.grow("a", **{"example.com/gpu": "1"}),
        {"p1": "a"},
    ),
]

OTHER_PODS = [
    Wake(
        "InterPodAffinity: a node comes",
        {"a": Node()},
        {"p2": labelled(away(term(exists("anti"), HOST)), anti="")},
        add(b=Node()),
        {"p2": "b"},
        placed={"p1": Pod(away(term(exists("anti"), HOST)), {"anti": ""}, node="a")},
    ),
    Wake(
        "InterPodAffinity: a placed pod loses the label that keeps others away",
        {"a": Node({"zone": "x"})},
        {
            "p2": labelled(away(term(exists("anti1"))), anti1=""),
            "p3": labelled(away(term(exists("anti2"))), anti2=""),
        },
        lambda rig: rig.label_pod("p1", anti1=None),
        {"p2": "a"},
        placed={"p1": Pod(labels={"anti1": "", "anti2": ""}, node="a")},
    ),
    Wake(
        "InterPodAffinity: the pod that must not be near goes",
        {"a": Node({"zone": "x"})},
        {
            "p3": labelled(away(term(exists("anti1"))), anti1=""),
            "p4": labelled(away(term(exists("anti2"))), anti2=""),
        },
        drop("p1"),
        {"p3": "a"},
        placed={"p1": Pod(labels={"anti1": ""}, node="a"), "p2": Pod(labels={"anti2": ""}, node="a")},
    ),
    Wake(
        "InterPodAffinity: the pod that objects goes",
        {"a": Node({"zone": "x"})},
        {"p3": labelled(anti1=""), "p4": labelled(anti2="")},
        drop("p1"),
        {"p3": "a"},
        placed={
            "p1": Pod(away(term(exists("anti1"))), node="a"),
            "p2": Pod(away(term(exists("anti2"))), node="a"),
        },
    ),
    Wake(
        "InterPodAffinity: the pod loses the label to which a placed pod objects",
        {"a": Node({"zone": "x"})},
        {"p2": labelled(anti=""), "p3": labelled(anti="")},
        lambda rig: rig.label_pod("p2", anti=None),
        {"p2": "a"},
        placed={"p1": Pod(away(term(exists("anti"))), node="a")},
    ),
    Wake(
        "InterPodAffinity: a placed pod gets the label",
        {"a": Node({"zone": "x"})},
        {"p2": Pod(near(term(exists("aaa")))), "p3": Pod(near(term(exists("bbb"))))},
        lambda rig: rig.label_pod("p1", aaa="bbb"),
        {"p2": "a"},
        placed={"p1": Pod(node="a")},
    ),
    Wake(
        "InterPodAffinity: a node with the topology of affinity comes",
        {"a": Node()},
        {
            "p1": labelled(near(term(exists("bbb"))), bbb=""),
            "p2": labelled(near(term(exists("ccc"), "region")), ccc=""),
        },
        add(b=Node({"zone": "x"})),
        {"p1": "b"},
    ),
    Wake(
        "InterPodAffinity: a node gets the topology of affinity",
        {"a": Node({"region": "r1"}), "b": Node({"region": "r2", "group": "b"})},
        {
            "p2": labelled(near(term(exists("aff"), "rack")), aff=""),
            "p3": labelled(near(term(exists("aff"), "other")), aff=""),
            "p4": Pod({**near(term(exists("aff"), "region")), "nodeSelector": {"group": "b"}}),
        },
        lambda rig: rig.label_node("a", rack="k", region="r2"),
        {"p2": "a", "p4": "b"},
        placed={"p1": Pod(labels={"aff": ""}, node="a")},
    ),
    Wake(
        "InterPodAffinity: a node loses the topology of anti-affinity",
        {"a": Node({"rack": "k", "other": "o"})},
        {
            "p2": labelled(away(term(exists("anti"), "rack"))),
            "p4": labelled(away(term(exists("anti"), "other"))),
        },
        lambda rig: rig.label_node("a", rack=None),
        {"p2": "a"},
        placed={"p1": Pod(labels={"anti": ""}, node="a")},
    ),
    Wake(
        "InterPodAffinity: a node with another topology of anti-affinity comes",
        {"a": Node({"zone": "x", "rack": "k"})},
        {"p2": Pod(away(term(exists("anti")))), "p3": Pod(away(term(exists("anti"), "rack")))},
        add(b=Node({"zone": "x", "rack": "l"})),
        {"p3": "b"},
        placed={"p1": Pod(labels={"anti": ""}, node="a")},
    ),
]

FULL = {"a": Node({"zone": "x"}), "b": Node({"zone": "y"}, taints=(taint(),))}


def even(key, zone="zone", **more):
    return labelled(rules(spread(1, zone, exists(key), **more)), **{key: ""})


SPREAD = [
    Wake(
        "PodTopologySpread: a pod that counts comes",
        FULL,
        {"p3": even("key1"), "p4": even("key2")},
        lambda rig: rig.run("p5", Pod(labels={"key1": ""}, node="b")),
        {"p3": "a"},
        placed={"p1": Pod(labels={"key1": ""}, node="a"), "p2": Pod(labels={"key2": ""}, node="a")},
    ),
    Wake(
        "PodTopologySpread: a placed pod gets the label that counts",
        FULL,
        {"p3": even("key1"), "p4": even("key2")},
        lambda rig: rig.label_pod("p5", key1=""),
        {"p3": "a"},
        placed={
            "p1": Pod(labels={"key1": ""}, node="a"),
            "p2": Pod(labels={"key2": ""}, node="a"),
            "p5": Pod(node="b"),
        },
    ),
    Wake(
        "PodTopologySpread: a pod that counts goes",
        FULL,
        {"p3": even("key1"), "p4": even("key2")},
        drop("p1"),
        {"p3": "a"},
        placed={"p1": Pod(labels={"key1": ""}, node="a"), "p2": Pod(labels={"key2": ""}, node="a")},
    ),
    Wake(
        "PodTopologySpread: a node with the topology comes",
        {"a": Node({"rack": "k"}), "b": Node({"zone": "y"})},
        {"p3": even("key1", "rack", minDomains=2), "p4": even("key1", minDomains=2)},
        add(c=Node({"rack": "l"})),
        {"p3": "c"},
        placed={"p1": Pod(labels={"key1": ""}, node="a"), "p2": Pod(labels={"key1": ""}, node="b")},
    ),
    Wake(
        "PodTopologySpread: a node gets the topology",
        {"a": Node({"zone": "x", "other": "o"}), "b": Node()},
        {"p6": even("key1", minDomains=2), "p8": even("key1", "other", minDomains=2)},
        lambda rig: rig.label_node("b", zone="y"),
        {"p6": "b"},
        placed={"p1": Pod(labels={"key1": ""}, node="a")},
    ),
    Wake(
        "PodTopologySpread: the empty domain goes",
        {"a": Node({"zone": "x", "rack": "k"}), "b": FULL["b"], "c": Node({"rack": "l"}, taints=(taint(),))},
        {"p3": even("key1", "rack"), "p4": even("key1")},
        lambda rig: rig.drop_node("b"),
        {"p4": "a"},
        placed={"p1": Pod(labels={"key1": ""}, node="a")},
    ),
    Wake(
        "PodTopologySpread: the taint of the empty domain changes",
        FULL,
        {
            "p3": even("key1"),
            "p4": Pod(
                {**rules(spread(1, "zone", exists("key1"))), **tolerating(toleration(key="aaa"))},
                {"key1": ""},
            ),
        },
        lambda rig: rig.taint_node("b", taint(key="aaa")),
        {"p4": "b"},
        placed={"p1": Pod(labels={"key1": ""}, node="a"), "p2": Pod(labels={"key1": ""}, node="a")},
    ),
]


@pytest.mark.parametrize("case", [*NODES, *RESOURCES, *OTHER_PODS, *SPREAD], ids=str)
async def test_an_event_helps_those_pods_that_fit_then(api, case):
    async with Rig(api) as rig:
        await rig.furnish(case.nodes)
        for name, each in case.placed.items():
            await rig.run(name, each)
        await rig.start_scheduler(**SCHEDULER)
        await waited(rig, case.pods)
        await case.event(rig)
        await judged(rig, case)


async def waited(rig, pods):
    """Create the pods, which nobody can place yet."""
    for name, each in pods.items():
        await rig.run(name, each)
    for name in pods:
        await rig.refused(name, words="")


async def judged(rig, case):
    assert {name: await rig.bound(name, WITHIN) for name in case.bound} == case.bound
    await asyncio.sleep(0.3)
    await rig.none_bound(*(name for name in case.pods if name not in case.bound))


# --- extended resources that devices provide --------------------------------------------------------


@pytest.mark.parametrize("exists_before", [False, True], ids=["created", "updated"])
async def test_a_class_that_offers_the_resource_helps(api, exists_before):
    """TestCoreResourceEnqueue: a DeviceClass with the extended resource is created, or updated."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(cpu="4")})
        await rig.devices(f"a-{rig.number}", "gpu-0")
        resource, other = f"example.com/gpu-{rig.number}", f"example.com/other-{rig.number}"
        if exists_before:
            await rig.device_class()
        await rig.start_scheduler(**SCHEDULER)
        for name, wanted in (("p1", resource), ("p2", other)):
            await rig.pod(name, resources={"requests": {wanted: "1"}, "limits": {wanted: "1"}})
        for name in ("p1", "p2"):
            await rig.refused(name, words="")
        if exists_before:
            patch = {"spec": {"extendedResourceName": resource}}
            await rig.client.patch(kinds.DEVICE_CLASSES, f"gpu-{rig.number}", patch)
        else:
            await rig.device_class(extendedResourceName=resource)
        assert await rig.bound("p1", WITHIN) == "a"
        await rig.none_bound("p2")


# --- queue_test.go ---------------------------------------------------------------------------------


async def test_gates_of_one_pod_do_not_hold_up_the_others(api):
    """queue_test/TestSchedulingGates: regular pods; gates of one of two; a gated pod when a scheduled one is gone."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(pods="1")})
        await rig.start_scheduler(**SCHEDULER)
        for name in ("p1", "p2"):
            await rig.run(name, Pod({"schedulingGates": [{"name": f"example.com/{name}"}]}))
        await rig.run("p3", Pod())
        assert await rig.bound("p3") == "a"
        await rig.change_pod("p2", {"spec": {"schedulingGates": None}})
        await rig.refused("p2", words="0/1")
        await rig.delete_pod("p3")
        assert await rig.bound("p2") == "a"
        await rig.none_bound("p1")


async def test_a_pod_whose_binding_failed_is_tried_again_without_an_event(api):
    """queue_test/TestRequeueByBindFailure."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node()})
        loop = await rig.start_scheduler(wrap=lambda inner: FailingBindings(inner, 1), **SCHEDULER)
        await rig.run("p", Pod())
        assert await rig.bound("p", WITHIN) == "a"
        assert loop.statistics.failures == 1
