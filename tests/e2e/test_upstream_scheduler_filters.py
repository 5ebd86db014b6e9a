"""Which nodes a pod may go to: Kubernetes' tests of filters, in our own words.

Ported from test/integration/scheduler v1.37: filters/filters_test.go, scheduler_test.go. docs/scheduler-upstream.md has
the list of all tests there, with those that are left out and why.
"""

import pytest
from upstream_scheduler import (
    EXISTS_FOO,
    FOO,
    HOST,
    SCHEDULER,
    TWO,
    Case,
    Node,
    Pod,
    Rig,
    away,
    both,
    expression,
    judge,
    matching,
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

S1, S2 = {"security": "S1"}, {"security": "S2"}


def affinity_case(name, pod, to, **placed):
    return Case(f"filters/TestInterPodAffinity: {name}", TWO, placed, pod, to)


AFFINITY = [
    affinity_case("no pod matches", Pod(near(term(matching(security="S1")))), None),
    affinity_case(
        "In matches",
        Pod(near(term({"matchExpressions": [expression("security", "In", "S1", "v")]}))),
        ("a",),
        q=Pod(labels=S1, node="a"),
    ),
    affinity_case(
        "NotIn matches",
        Pod(near(term({"matchExpressions": [expression("security", "NotIn", "v")]}))),
        ("b",),
        q=Pod(labels=S1, node="b"),
    ),
    affinity_case(
        "another namespace",
        Pod(near(term(matching(security="S1"), namespaces=["elsewhere"]))),
        None,
        q=Pod(labels=S1, node="a"),
    ),
    affinity_case("other labels", Pod(near(term(matching(security="S3")))), None, q=Pod(labels=S1, node="a")),
    affinity_case(
        "several terms",
        Pod(near(term(EXISTS_FOO), term(matching(security="S1")))),
        ("a",),
        q=Pod(labels={**FOO, **S1}, node="a"),
    ),
    affinity_case(
        "terms are joined by AND",
        Pod(near(term(EXISTS_FOO), term(matching(security="S2")))),
        None,
        q=Pod(labels={**FOO, **S1}, node="a"),
    ),
    affinity_case(
        "near and away",
        Pod(both([term(matching(security="S1"))], [term(matching(security="S2"))])),
        ("a",),
        q=Pod(labels=S1, node="a"),
    ),
    affinity_case(
        "near holds, away does not",
        Pod(both([term(matching(security="S1"))], [term(matching(security="S2"))])),
        None,
        q=Pod(labels=S1, node="a"),
        r=Pod(labels=S2, node="a"),
    ),
    affinity_case(
        "near itself: the first pod", Pod(near(term(matching(security="S1"))), labels=S1), ("a", "b")
    ),
    affinity_case(
        "near itself: a later pod",
        Pod(near(term(matching(security="S1"))), labels=S1),
        ("b",),
        q=Pod(labels=S1, node="b"),
    ),
    affinity_case(
        "a placed pod objects", Pod(labels=S1), ("b",), q=Pod(away(term(matching(security="S1"))), node="a")
    ),
    affinity_case(
        "a placed pod objects to others",
        Pod(labels=S2),
        ("a", "b"),
        q=Pod(away(term(matching(security="S1"))), node="a"),
    ),
    affinity_case(
        "away by host name",
        Pod(away(term(matching(security="S1"), HOST))),
        ("b",),
        q=Pod(labels=S1, node="a"),
    ),
    affinity_case(
        "matchLabelKeys of away",
        Pod(away(term(EXISTS_FOO, matchLabelKeys=["v"])), labels={"v": "1"}),
        ("a",),
        q=Pod(labels={**FOO, "v": "2"}, node="a"),
        r=Pod(labels={**FOO, "v": "1"}, node="b"),
    ),
    affinity_case(
        "mismatchLabelKeys of away",
        Pod(away(term(EXISTS_FOO, mismatchLabelKeys=["v"])), labels={"v": "1"}),
        ("b",),
        q=Pod(labels={**FOO, "v": "2"}, node="a"),
        r=Pod(labels={**FOO, "v": "1"}, node="b"),
    ),
    affinity_case(
        "matchLabelKeys of near",
        Pod(near(term(EXISTS_FOO, matchLabelKeys=["v"])), labels={"v": "1"}),
        ("b",),
        q=Pod(labels={**FOO, "v": "2"}, node="a"),
        r=Pod(labels={**FOO, "v": "1"}, node="b"),
    ),
    affinity_case(
        "mismatchLabelKeys of near",
        Pod(near(term(EXISTS_FOO, mismatchLabelKeys=["v"])), labels={"v": "1"}),
        ("a",),
        q=Pod(labels={**FOO, "v": "2"}, node="a"),
        r=Pod(labels={**FOO, "v": "1"}, node="b"),
    ),
    affinity_case(
        "near and away, and the placed pod agrees",
        Pod(both([term(matching(security="S1"))], [term(matching(security="S2"))]), {"app": "new"}),
        ("a",),
        q=Pod(away(term(matching(app="other"))), S1, node="a"),
    ),
    affinity_case(
        "near and away, and the placed pod objects",
        Pod(both([term(matching(security="S1"))], [term(matching(security="S2"))]), {"app": "new"}),
        None,
        q=Pod(away(term(matching(app="new"))), S1, node="a"),
    ),
    affinity_case(
        "near by host name",
        Pod(near(term(matching(security="S1"), HOST))),
        ("a",),
        q=Pod(labels=S1, node="a"),
    ),
    Case(
        "filters/TestInterPodAffinity: a topology that both nodes have, near and away",
        {"a": Node({"region": "r", "zone": "x"}), "b": Node({"region": "r", "zone": "y"})},
        {"q": Pod(labels=S1, node="a")},
        Pod(both([term(matching(security="S1"), "region")], [term(matching(security="S1"), "region")])),
        None,
    ),
    Case(
        "filters/TestInterPodAffinityWithNamespaceSelector: all namespaces",
        TWO,
        {"q": Pod(labels=S1, node="a")},
        Pod(near(term(matching(security="S1"), namespaceSelector={}))),
        ("a",),
    ),
    Case(
        "filters/TestInterPodAffinityWithNamespaceSelector: no namespace matches",
        TWO,
        {"q": Pod(labels=S1, node="a")},
        Pod(near(term(matching(security="S1"), namespaceSelector=matching(team="none")))),
        None,
    ),
]


def taint_case(name, taints, tolerations, to):
    return Case(
        f"filters/TestTaintTolerationFilter: {name}",
        {"a": Node(taints=tuple(taints))},
        {},
        Pod(tolerating(*tolerations)),
        to,
    )


TAINTS = [
    taint_case("tolerated", [taint()], [toleration()], ("a",)),
    taint_case("not tolerated", [taint()], [], None),
    taint_case("some of them", [taint(), taint(key="other")], [toleration()], None),
    taint_case("all of them", [taint(), taint(key="other")], [toleration(), toleration(key="other")], ("a",)),
    taint_case("more tolerations than taints", [taint()], [toleration(), toleration(key="other")], ("a",)),
    taint_case("no taint", [], [toleration()], ("a",)),
    taint_case("greater", [taint("100")], [toleration("Gt", "50")], ("a",)),
    taint_case("not greater", [taint("10")], [toleration("Gt", "50")], None),
    taint_case("less", [taint("10")], [toleration("Lt", "50")], ("a",)),
    taint_case("not less", [taint("100")], [toleration("Lt", "50")], None),
    taint_case("negative", [taint("0")], [toleration("Gt", "-10")], ("a",)),
    taint_case(
        "large numbers", [taint("9223372036854775806")], [toleration("Lt", "9223372036854775807")], ("a",)
    ),
    taint_case("zero", [taint("0")], [toleration("Lt", "1")], ("a",)),
    taint_case("any effect", [taint("100")], [toleration("Gt", "50", effect="")], ("a",)),
    taint_case(
        "mixed",
        [taint("100"), taint(key="x")],
        [toleration("Gt", "50"), toleration("Exists", None, "x")],
        ("a",),
    ),
]

FOUR = {f"n{i}": Node({"node": f"n{i}", "zone": f"z{i // 2}"}) for i in range(4)}
_FOO_NODES = {
    "n1": ("z1", True, False),
    "n2": ("z1", True, False),
    "n3": ("z2", False, False),
    "n4": ("z2", True, False),
}


def zones(tainted=()):
    return {
        name: Node(
            {"node": name, "zone": zone, **(FOO if has else {})}, (taint(),) if name in tainted else ()
        )
        for name, (zone, has, _) in _FOO_NODES.items()
    }


def at(*nodes, labels=FOO):
    return {f"q{number}": Pod(labels=labels, node=node) for number, node in enumerate(nodes)}


def spread_case(name, nodes, placed, pod, to):
    return Case(f"filters/TestPodTopologySpreadFilter: {name}", nodes, placed, pod, to)


NOT_FIRST = requiring(expression("node", "NotIn", "n0"))
ONE_EACH = at("n1", "n2", "n3", "n4")
SPREAD = [
    spread_case("1/1/0/1, skew 1", FOUR, at("n0", "n1", "n3"), Pod(rules(spread(1, "node")), FOO), ("n2",)),
    spread_case(
        "2/0/0/1, skew 2", FOUR, at("n0", "n0", "n3"), Pod(rules(spread(2, "node")), FOO), ("n1", "n2", "n3")
    ),
    spread_case(
        "in one zone",
        FOUR,
        at("n0", "n3"),
        Pod(rules(spread(1, "node"), **requiring(expression("zone", "In", "z0"))), FOO),
        ("n1",),
    ),
    spread_case(
        "zone and node",
        FOUR,
        at("n0", "n1", "n3", "n3"),
        Pod(rules(spread(1, "zone"), spread(1, "node")), FOO),
        ("n2",),
    ),
    spread_case(
        "nowhere",
        FOUR,
        at("n1", "n1", "n2", "n2", "n3"),
        Pod(rules(spread(1, "zone"), spread(1, "node"), **NOT_FIRST), FOO),
        None,
    ),
    spread_case(
        "by preemption",
        FOUR,
        at("n1", "n1", "n2", "n2", "n3"),
        Pod(rules(spread(1, "zone"), spread(1, "node"), **NOT_FIRST), FOO, priority=100),
        ("n1", "n2", "n3"),
    ),
    spread_case(
        "fewer domains than minDomains",
        FOUR,
        at("n1", "n1", "n2", "n2", "n3"),
        Pod(rules(spread(2, "node", minDomains=4), **NOT_FIRST), FOO),
        ("n3",),
    ),
    spread_case(
        "more domains than minDomains",
        FOUR,
        at("n1", "n1", "n2", "n2", "n3"),
        Pod(rules(spread(2, "node", minDomains=2), **NOT_FIRST), FOO),
        ("n1", "n2", "n3"),
    ),
    spread_case(
        "fewer zones than minDomains",
        FOUR,
        at("n0", "n1", "n2"),
        Pod(rules(spread(2, "zone", minDomains=3)), FOO),
        ("n2", "n3"),
    ),
    spread_case(
        "more zones than minDomains",
        FOUR,
        at("n1", "n2", "n3"),
        Pod(rules(spread(2, "zone", minDomains=1)), FOO),
        tuple(FOUR),
    ),
    spread_case(
        "nodeAffinityPolicy honored",
        zones(),
        ONE_EACH,
        Pod(rules(spread(1, "zone"), nodeSelector=FOO), FOO),
        ("n4",),
    ),
    spread_case(
        "nodeAffinityPolicy ignored",
        zones(),
        at("n1", "n3", "n4"),
        Pod(
            rules(spread(1, "zone", nodeAffinityPolicy="Ignore"), **requiring(expression("foo", "In", ""))),
            FOO,
        ),
        ("n1", "n2"),
    ),
    spread_case(
        "nodeTaintsPolicy honored",
        zones(["n3"]),
        ONE_EACH,
        Pod(rules(spread(1, "zone", nodeTaintsPolicy="Honor")), FOO),
        ("n4",),
    ),
    spread_case(
        "nodeTaintsPolicy ignored",
        zones(["n3"]),
        ONE_EACH,
        Pod(rules(spread(1, "zone")), FOO),
        ("n1", "n2", "n4"),
    ),
    spread_case(
        "two constraints, honor and ignore",
        zones(["n2"]),
        ONE_EACH,
        Pod(rules(spread(1, "zone"), spread(1, "node"), nodeSelector=FOO), FOO),
        ("n4",),
    ),
    spread_case(
        "two constraints, ignore and honor",
        zones(["n2"]),
        ONE_EACH,
        Pod(
            rules(
                spread(1, "zone", nodeAffinityPolicy="Ignore"),
                spread(1, "node", nodeTaintsPolicy="Honor"),
                nodeSelector=FOO,
            ),
            FOO,
        ),
        ("n1", "n4"),
    ),
    spread_case(
        "matchLabelKeys beside a selector",
        FOUR,
        {**at("n0", "n1"), "r": Pod(labels={**FOO, "bar": ""}, node="n2")},
        Pod(rules(spread(1, "zone", matchLabelKeys=["bar"])), {**FOO, "bar": ""}),
        ("n0", "n1"),
    ),
    spread_case(
        "matchLabelKeys with an empty selector",
        FOUR,
        at("n0", "n1", "n2"),
        Pod(rules(spread(1, "zone", {}, matchLabelKeys=["foo"])), FOO),
        ("n2", "n3"),
    ),
]


PLAIN = {"containers": [{"name": "c", "image": "pause"}]}
NODE_RULES = [
    Case(
        "filters/TestNodePortsFilter: conflict",
        {"a": Node()},
        {"q": Pod(ports(80), node="a")},
        Pod(ports(80)),
        None,
    ),
    Case(
        "filters/TestNodePortsFilter: no conflict",
        {"a": Node()},
        {"q": Pod(ports(80), node="a")},
        Pod(ports(81)),
        ("a",),
    ),
    Case(
        "scheduler_test/TestHostPorts: a sidecar's port",
        {"a": Node()},
        {"q": Pod(ports(80), node="a")},
        Pod(ports(81, init=[80], sidecar=True)),
        None,
    ),
    Case("filters/TestNodeResourcesFilter: too little", {"a": Node(cpu="1")}, {}, Pod(cpu="2"), None),
    Case("filters/TestNodeResourcesFilter: enough", {"a": Node(cpu="2")}, {}, Pod(cpu="2"), ("a",)),
    Case(
        "filters/TestNodeAffinityFilter: In", TWO, {}, Pod(requiring(expression("zone", "In", "y"))), ("b",)
    ),
    Case(
        "filters/TestNodeAffinityFilter: In, not met",
        TWO,
        {},
        Pod(requiring(expression("zone", "In", "w"))),
        None,
    ),
    Case(
        "filters/TestNodeAffinityFilter: NotIn",
        TWO,
        {},
        Pod(requiring(expression("zone", "NotIn", "x", "y"))),
        None,
    ),
    Case(
        "filters/TestNodeAffinityFilter: Exists",
        TWO,
        {},
        Pod(requiring(expression("zone", "Exists"))),
        ("a", "b"),
    ),
    Case(
        "filters/TestNodeAffinityFilter: DoesNotExist",
        TWO,
        {},
        Pod(requiring(expression("zone", "DoesNotExist"))),
        None,
    ),
    Case(
        "filters/TestNodeAffinityFilter: label and name",
        TWO,
        {},
        Pod(requiring(expression("zone", "Exists"), fields=[expression("metadata.name", "In", "@b")])),
        ("b",),
    ),
    Case(
        "scheduler_test/TestSchedulerInformers: pods of others count",
        {"a": Node(cpu="1")},
        {"q": Pod({"schedulerName": "other"}, cpu="1", node="a")},
        Pod(cpu="1"),
        None,
    ),
    Case(
        "scheduler_test/TestSchedulerInformers: a node that is not there",
        TWO,
        {},
        Pod(requiring(expression("zone", "Exists"), fields=[expression("metadata.name", "In", "none")])),
        None,
    ),
]


@pytest.mark.parametrize("case", [*AFFINITY, *TAINTS, *SPREAD, *NODE_RULES], ids=str)
async def test_a_pod_goes_where_upstream_sends_it(api, case):
    await judge(api, case)


# --- filters/TestUnschedulablePodBecomesSchedulable -----------------------------------------------


async def waiting(rig, pod):
    await rig.start_scheduler(**SCHEDULER)
    await rig.run("p", pod)
    await rig.refused("p", words="")


async def test_a_node_that_comes_helps(api):
    async with Rig(api) as rig:
        await waiting(rig, Pod())
        await rig.furnish({"late": Node()})
        assert await rig.bound("p") == "late"


async def test_a_taint_that_goes_helps(api):
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(taints=(taint(),))})
        await waiting(rig, Pod())
        await rig.client.patch(kinds.NODES, f"a-{rig.number}", {"spec": {"taints": None}})
        assert await rig.bound("p") == "a"


async def test_a_pod_that_goes_helps(api):
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(pods="1")})
        await rig.run("q", Pod(node="a"))
        await waiting(rig, Pod())
        await rig.delete_pod("q")
        assert await rig.bound("p") == "a"


async def test_a_pod_that_affinity_waits_for_helps_when_it_comes_or_gets_its_label(api):
    async with Rig(api) as rig:
        await rig.furnish({"a": Node({"zone": "x"})})
        await waiting(rig, Pod(near(term(EXISTS_FOO))))
        await rig.run("q", Pod(labels=FOO))
        assert await rig.where("q", "p") == ["a", "a"]
        await rig.run("p2", Pod(near(term(matching(late="yes")))))
        await rig.refused("p2", words="")
        await rig.client.patch(kinds.PODS, "q", {"metadata": {"labels": {"late": "yes"}}}, rig.namespace)
        assert await rig.bound("p2") == "a"


async def test_an_unschedulable_node_is_used_when_it_is_made_schedulable(api):
    """scheduler_test/TestUnschedulableNodes, and TestNodeEvents in part."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node()})
        await rig.client.patch(kinds.NODES, f"a-{rig.number}", {"spec": {"unschedulable": True}})
        await waiting(rig, Pod())
        await rig.client.patch(
            kinds.NODES, f"a-{rig.number}", {"spec": {"unschedulable": None, "taints": None}}
        )
        assert await rig.bound("p") == "a"


async def test_allocatable_counts_not_capacity(api):
    """scheduler_test/TestAllocatable."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node(cpu="4")})
        body = {"status": {"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "20"}}}
        await rig.client.patch(kinds.NODES, f"a-{rig.number}", body, subresource="status")
        await waiting(rig, Pod(cpu="2"))
        await rig.run("small", Pod(cpu="1"))
        assert await rig.bound("small") == "a"


async def test_only_pods_of_the_scheduler_are_scheduled(api):
    """scheduler_test/TestMultipleSchedulers."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node()})
        await rig.start_scheduler(**SCHEDULER)
        await rig.run("foreign", Pod({"schedulerName": "nobody"}))
        await rig.run("p", Pod())
        assert await rig.bound("p") == "a"
        await rig.none_bound("foreign")


async def test_gated_pods_wait_for_their_gates(api):
    """queueing/TestSchedulingGates."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node()})
        await rig.start_scheduler(**SCHEDULER)
        await rig.run("p", Pod({"schedulingGates": [{"name": "example.com/gate"}]}))
        await rig.run("free", Pod())
        assert await rig.bound("free") == "a"
        await rig.none_bound("p")
        await rig.client.patch(kinds.PODS, "p", {"spec": {"schedulingGates": None}}, rig.namespace)
        assert await rig.bound("p") == "a"


async def test_a_relabelled_node_helps(api):
    """filters: pods that wait for a label of a node (TestUnschedulablePodBecomesSchedulable, eventhandler/TestUpdateNodeEvent)."""
    async with Rig(api) as rig:
        await rig.furnish({"a": Node()})
        await waiting(rig, Pod(requiring(expression("new", "Exists"))))
        await rig.client.patch(kinds.NODES, f"a-{rig.number}", {"metadata": {"labels": {"new": ""}}})
        assert await rig.bound("p") == "a"
